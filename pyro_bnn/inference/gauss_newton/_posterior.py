"""The Gaussian that Laplace's method finds with a Gauss-Newton matrix."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.records import check_tensors, plain, record
from ..joint import Layout, find_sites
from ..posterior import Destination, Draw, Posterior, Status
from ._gaussian import KINDS, Covariance, shapes_of


@dataclass(frozen=True)
class GaussNewtonRecord:
    location: dict[str, Tensor]
    random: list[str]
    covariance: dict[str, Tensor]
    prior_precisions: dict[str, Tensor]
    structure: str
    is_linearised: bool
    log_evidence: float
    status: Status
    seconds: float


class GaussNewtonPosterior(Posterior):
    r"""The Gaussian :math:`N(w^*, (G + \mathrm{diag}\,\delta)^{-1})` of the random weights.

    Latent variables that are not random weights are fixed.

    Args:
        location: The point w* for all latent variables, ``{site: shape (*event)}``.
        random: Sites of the random weights, in the order of the covariance.
        covariance: Covariance of the random weights.
        prior_precisions: Prior precision of each random site: a number, or a tensor of the site's shape.
        structure: Structure of the matrix, such as "kronecker".
        is_linearised: Whether `predict` by default linearises the network in its weights.
        log_evidence: Laplace's estimate of the log evidence, in nats.
        status: How the fit ended.
        seconds: Wall time of the fit.
    """

    log_evidence: float
    seconds: float
    is_linearised: bool = True
    """Whether predictions linearise the network; False if it is already linear in its random weights."""

    def __init__(
        self,
        location: Mapping[str, Tensor],
        random: Sequence[str],
        covariance: Covariance,
        *,
        prior_precisions: Mapping[str, float | Tensor],
        structure: str,
        is_linearised: bool,
        log_evidence: float,
        status: Status,
        seconds: float,
    ) -> None:
        self.location, self.random, self.covariance = dict(location), tuple(random), covariance
        self.prior_precisions, self.structure = dict(prior_precisions), structure
        self.log_evidence, self.status, self.seconds = log_evidence, status, seconds
        self.is_linearised = is_linearised
        self._layout = Layout({name: self.location[name].shape for name in self.random})
        self._center = self._layout.pack(self.location)

    @property
    def method(self) -> str:
        """Name of the method, including the structure of the matrix."""
        return f"Laplace, {self.structure} Gauss-Newton matrix"

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: value.shape for name, value in self.location.items()}

    @property
    def constants(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.location.items() if name not in self.random}

    def marginals(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return means and standard deviations for each site; the standard deviations of fixed variables are 0."""
        scales = self._layout.views(self.covariance.variances().sqrt())
        return {name: (value, scales.get(name, torch.zeros_like(value))) for name, value in self.median().items()}

    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        for _ in range(num_samples):
            drawn = self._center + self.covariance.deviation(torch.randn_like(self._center))
            yield {**self.location, **self._layout.views(drawn)}

    def median(self) -> Draw:
        """Return the point w*, which is the median and the mean of the Gaussian, ``{site: shape (*event)}``."""
        return {name: value.clone() for name, value in self.location.items()}

    def to_record(self) -> dict[str, Any]:
        precisions = {name: torch.as_tensor(p, dtype=torch.float64) for name, p in self.prior_precisions.items()}
        told = self.structure, self.is_linearised, self.log_evidence, self.status, self.seconds
        return plain(GaussNewtonRecord(self.location, list(self.random), self.covariance.tensors, precisions, *told))

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> "GaussNewtonPosterior":
        saved = record(GaussNewtonRecord, values, "posterior")
        model = destination.model_for("a posterior of Laplace's method")
        like, sites = model.like, find_sites(model, (), {})
        shapes = {site.name: torch.empty(site.start.shape, dtype=like.dtype, device="meta") for site in sites}
        check_tensors("the point", saved.location, shapes)
        _check_prior(saved, shapes)
        _check_covariance(saved, [shapes[name].shape for name in saved.random], like.dtype)
        precisions = saved.prior_precisions
        return cls(
            {name: saved.location[name].to(like) for name in shapes},
            saved.random,
            KINDS[saved.structure](saved.covariance).to(like),
            prior_precisions={n: v.to(like.device) if v.dim() else float(v) for n, v in precisions.items()},
            structure=saved.structure,
            is_linearised=saved.is_linearised,
            log_evidence=saved.log_evidence,
            status=saved.status,
            seconds=saved.seconds,
        )


def _check_prior(saved: GaussNewtonRecord, shapes: Mapping[str, Tensor]) -> None:
    if not saved.random or len({*saved.random}) < len(saved.random) or not {*saved.random} <= {*shapes}:
        raise ValueError(f"its random sites {saved.random} must be some of {list(shapes)}; save the posterior again.")
    if {*saved.prior_precisions} != {*saved.random}:
        raise ValueError(f"it has prior precisions of {[*saved.prior_precisions]} but the random sites {saved.random}.")
    for name, value in saved.prior_precisions.items():
        if value.shape not in (torch.Size(), shapes[name].shape) or not bool((value > 0).all()):
            raise ValueError(
                f"the prior precisions of `{name}` must be one number or one for each weight, above 0; save it again."
            )


def _check_covariance(saved: GaussNewtonRecord, shapes: Sequence[torch.Size], dtype: torch.dtype) -> None:
    if saved.structure not in KINDS:
        raise ValueError(f"its structure must be one of {', '.join(KINDS)}, got {saved.structure!r}; save it again.")
    expected = shapes_of(saved.structure, shapes)
    empty = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in expected.items()}
    check_tensors("the covariance", saved.covariance, empty)
    positive = saved.covariance["factor"].diagonal() if saved.structure == "full" else saved.covariance["scales"]
    if not bool((positive > 0).all()):
        raise ValueError(f"the scales of the covariance must be above 0, got {float(positive.min()):.4g}; fit again.")
