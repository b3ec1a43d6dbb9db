"""The posterior that draws from a guide."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.records import plain, record
from ..._core.scope import is_auxiliary, own_parameters, short_errors
from ...modelling.model import BayesianModel, require_bayesian
from ..history import History
from ..posterior import Destination, Draw, Posterior, Status
from ._batch_ensemble import BatchEnsembleGuide
from ._delta import DeltaGuide
from ._diagnosis import Diagnosis, diagnosis_of
from ._flat import FlatGuide, GaussianGuide
from ._mean_field import MeanFieldGuide
from ._saved import FittedGuide, checked_state, made_from, record_of

OWN_FIT = Status(
    None,
    "no fit of this guide is known.",
    remedy="After a loop of your own, plot its losses, and call `predict(..., y=y).score()` with held-out rows.",
)


class GuidePosterior(Posterior):
    """The posterior that a guide approximates. The guide may come from this package or from Pyro, or be a function.

    A guide that is a module draws with its own parameters, even if Pyro's global store has other parameters of the same
    names. If you load the store (``pyro.get_param_store().load(...)``), call the guide once, so that it copies its
    parameters from the store.

    Args:
        guide: Function of the model's arguments that samples every latent variable. Fits change it in place.
        status: How the fit of the guide ended; by default unknown.
        history: History of the fit.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> posterior = pb.GuidePosterior(pb.MeanFieldGuide(model))
        >>> posterior.sample(100, seed=0)["net.weight"].shape
        torch.Size([100, 1, 1])
    """

    history: History

    def __init__(
        self, guide: Callable[..., object], status: Status | None = None, history: History | None = None
    ) -> None:
        if isinstance(guide, (type, BayesianModel, Posterior)) or not callable(guide):
            got = (
                "a model, which draws from its prior" if isinstance(guide, BayesianModel) else _checks.described(guide)
            )
            raise ValueError(
                f"the guide of a posterior must be a module or function that samples, got {got}; make a posterior by "
                "`fit_svi`."
            )
        if status is not None:
            _checks.kind("status", status, Status, "a Status")
        if history is not None:
            _checks.kind("history", history, History, "a History")
        self.guide = guide
        self.status = status if status is not None else OWN_FIT
        self.history = history if history is not None else History()

    @property
    def method(self) -> str:
        """The kind of guide, preceded by "SVI with" if a fit of the guide is known."""
        guide = type(self.guide).__name__ if isinstance(self.guide, nn.Module) else _checks.described(self.guide)
        return f"SVI with {guide}" if self.history.epochs else guide

    @property
    def shapes(self) -> dict[str, torch.Size] | None:
        if isinstance(self.guide, FlatGuide):
            return {site.name: site.start.shape for site in self.guide.sites}
        trace = self.guide.prototype_trace if isinstance(self.guide, AutoGuide) else None
        nodes: dict[str, Any] = {} if trace is None else dict(trace.iter_stochastic_nodes())
        return {name: node["value"].shape for name, node in nodes.items()} or None

    @property
    def seconds(self) -> float | None:  # type: ignore[override]  # the base class has an attribute
        """Wall time of all epochs; None if no fit is known."""
        return sum(record.seconds for record in self.history.epochs) if self.history.epochs else None

    @property
    def _plain(self) -> FlatGuide | None:
        """The guide if it can draw without effect handlers, else None."""
        return self.guide if isinstance(self.guide, FlatGuide) and self.guide.changes is None else None

    @property
    def num_points(self) -> int | None:
        """Number of points: 1 for a :class:`DeltaGuide`, K for a :class:`BatchEnsembleGuide`, None for other guides."""
        if isinstance(self._plain, BatchEnsembleGuide):
            return self._plain.num_members
        return 1 if isinstance(self._plain, DeltaGuide) else None

    @torch.no_grad()
    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        guide = self._plain
        if guide is not None and not any(site.plates for site in guide.sites):
            yield from guide.draws(num_samples)
            return
        for _ in range(num_samples):
            with short_errors(), own_parameters(self.guide), poutine.block():
                trace = prune_subsample_sites(poutine.trace(self.guide).get_trace(*args))  # without plates' indices
            nodes: dict[str, Any] = dict(trace.iter_stochastic_nodes())
            yield {name: node["value"] for name, node in nodes.items() if not is_auxiliary(node)}

    def median(self) -> Draw:
        if not isinstance(self.guide, (FlatGuide, AutoGuide)):
            raise ValueError(f"a guide of type {type(self.guide).__name__} has no `median()`; use `sample` instead.")
        apart = nullcontext() if self._plain is not None else own_parameters(self.guide)
        with apart, nullcontext() if self._plain is not None else poutine.block():  # AutoDelta's median calls the guide
            return {name: value.detach() for name, value in self.guide.median().items()}

    def marginals(self) -> dict[str, tuple[Tensor, Tensor]]:
        if not isinstance(self.guide, GaussianGuide):
            return {}
        names = [site.name for site in self.guide.sites if site.transform is None]
        locations, scales = self.guide.locations(), self.guide.scales()
        return {name: (locations[name].detach().clone(), scales[name].detach().clone()) for name in names}

    def diagnose(self, model: BayesianModel | None = None, *, num_samples: int = 30) -> Diagnosis:
        """Compare the posterior of each site with the prior, and report problems; see :class:`Diagnosis`.

        The diagnosis uses the marginals of a Gaussian guide, and needs no data. For the noise of gradients, use
        :func:`~pyro_bnn.gradient_noise`; for Laplace's method, read the `status`; for an ensemble, diagnose the
        members.

        Args:
            model: The model. It may be omitted after a fit with fixed priors and a guide of this package.
            num_samples: Number of draws per weight, for sites whose divergence from the prior has no closed form. The
                estimated sum over a site is much more precise than the estimate for a single weight.

        Returns:
            A diagnosis, which prints as a table. It has `sites`, and `warnings` that name remedies.

        Raises:
            ValueError: If the guide has no Gaussian marginals or was made for another model, if there are no weights to
                diagnose, or if the model is needed but missing.

        Example:
            >>> import torch
            >>> import pyro_bnn as pb
            >>> net, noise = torch.nn.Linear(4, 3), pb.GaussianLikelihood(0.1)
            >>> model = pb.BayesianModel(
            ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=150
            ... )
            >>> guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1e-9))
            >>> diagnosis = pb.GuidePosterior(guide).diagnose(model)
            >>> diagnosis.share_collapsed, diagnosis.warnings[0][:30]
            (1.0, 'collapsed: the standard deviat')
        """
        if model is not None:
            require_bayesian(model)
        num_samples = _checks.at_least("num_samples", num_samples, 2)
        num_data = self.history.num_data if model is None else model.num_data
        if num_data is None:
            raise ValueError("`model` must be given for a posterior without a fit; call `posterior.diagnose(model)`.")
        return diagnosis_of(self.guide, model, num_data, num_samples)

    @property
    def guides(self) -> tuple[nn.Module, ...]:
        return (self.guide,) if isinstance(self.guide, nn.Module) else ()

    @property
    def pruned_sites(self) -> frozenset[str]:
        return frozenset(self.guide.masks) if isinstance(self.guide, MeanFieldGuide) else frozenset()

    def to_record(self) -> dict[str, Any]:
        return plain(FittedGuide(record_of(self.guide), self.status, self.history))

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> "GuidePosterior":
        saved, guide = record(FittedGuide, values, "posterior"), destination.next_guide()
        if guide is None:
            guide = made_from(saved.guide, destination.model)
            guide.load_state_dict(checked_state(saved.guide, guide, destination.sites))
        else:
            destination.pending.append((guide, checked_state(saved.guide, guide, destination.sites)))
        return cls(guide, saved.status, saved.history)


def as_posterior(posterior: Posterior | Callable[..., object]) -> Posterior:
    """Return a posterior as it is, and a guide as a :class:`GuidePosterior`."""
    return posterior if isinstance(posterior, Posterior) else GuidePosterior(posterior)
