"""The Gaussian that Laplace's method gives with a Gauss-Newton matrix."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .. import _checks
from ..joint import Layout
from ..posterior import Draw, Posterior, Status
from ._covariance import Covariance


class GaussNewtonPosterior(Posterior):
    r"""The Gaussian :math:`N(w^*, (G + \mathrm{diag}\,\delta)^{-1})` over weights, of which some may be held at w*.

    Args:
        mode: The point w*, ``{site: shape (*event)}``, of all latent variables.
        random: Sites of the weights that are random, in the order of the covariance.
        covariance: Their covariance.
        prior_precisions: Precision of the prior of each of these sites: a number, or a tensor of its shape.
        structure: Name of the structure of the matrix, such as "kronecker".
        is_linearised: Whether predictions take the network as linear in its weights unless told otherwise.
        log_evidence: Laplace's estimate of the log evidence, in nats.
        status: How the fit ended.
        seconds: Wall time of the fit.
    """

    def __init__(
        self,
        mode: Mapping[str, Tensor],
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
        self.mode, self.random, self.covariance = dict(mode), tuple(random), covariance
        self.prior_precisions, self.structure = dict(prior_precisions), structure
        self.log_evidence, self.status, self._seconds = log_evidence, status, seconds
        self._is_linearised = is_linearised
        self._layout = Layout({name: self.mode[name].shape for name in self.random})
        self._center = self._layout.pack(self.mode)

    @property
    def method(self) -> str:
        """Laplace's method, with the structure of the matrix."""
        return f"Laplace, {self.structure} Gauss-Newton matrix"

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shape of each latent variable."""
        return {name: value.shape for name, value in self.mode.items()}

    @property
    def seconds(self) -> float:
        """Wall time of the fit."""
        return self._seconds

    @property
    def constants(self) -> dict[str, Tensor]:
        """The weights that are the same in all draws; see :attr:`Posterior.constants`."""
        return {name: value for name, value in self.mode.items() if name not in self.random}

    @property
    def is_linearised(self) -> bool:
        """True, unless only the weights of a last layer are random, in which the network is linear anyway."""
        return self._is_linearised

    def scales(self) -> dict[str, Tensor]:
        """The standard deviation of each random weight, ``{site: shape (*event)}``."""
        return self._layout.views(self.covariance.variances().sqrt())

    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Independent draws; see :meth:`Posterior.draws`."""
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        for _ in range(num_samples):
            drawn = self._center + self.covariance.deviation(torch.randn_like(self._center))
            yield {**self.mode, **self._layout.views(drawn)}

    def median(self) -> Draw:
        """The point itself, ``{site: shape (*event)}``: the mean weights."""
        return {name: value.clone() for name, value in self.mode.items()}
