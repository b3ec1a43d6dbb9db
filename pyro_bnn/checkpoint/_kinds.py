"""The kinds of posteriors: what a file says of each, and how each is made again from it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._records import plain, record
from ..batch_norm import PinnedPosterior, RefreshedPosterior
from ..gauss_newton import GaussNewtonPosterior, covariance_from
from ..guides import GuidePosterior, MeanFieldGuide
from ..history import History
from ..joint import Site, coordinates_of, find_sites
from ..laplace import LaplacePosterior
from ..mcmc import ChainStatistics, MCMCPosterior
from ..model import SITE_PREFIX, BayesianModel, network_values
from ..posterior import EnsemblePosterior, Posterior, Status
from ..stored import StoredPosterior
from . import _guides
from ._chains import FLOATS, check_samples, check_statistics
from ._guides import GuideRecord
from ._model import ModelRecord
from ._tensors import check_finite, check_numbers, check_state, check_tensor, check_tensors


@dataclass(frozen=True)
class Tagged:
    """Any posterior: its kind, and what the record of this kind says."""

    kind: str
    content: dict[str, Any]


@dataclass(frozen=True)
class FittedGuide:
    """A :class:`GuidePosterior`."""

    guide: GuideRecord
    status: Status
    history: History


@dataclass(frozen=True)
class Ensemble:
    """An :class:`EnsemblePosterior`."""

    members: list[Tagged]


@dataclass(frozen=True)
class Pinned:
    """A :class:`PinnedPosterior`: that of its draws, and what they carry."""

    inner: Tagged
    values: dict[str, Tensor]


@dataclass(frozen=True)
class Stored:
    """A :class:`StoredPosterior`; it needs no data."""

    samples: dict[str, Tensor]
    values: dict[str, Tensor]
    method: str
    status: Status
    seconds: float | None


@dataclass(frozen=True)
class Gaussian:
    """A :class:`LaplacePosterior`; it needs no data."""

    mode: Tensor
    precision: Tensor
    peak: float
    status: Status
    seconds: float


@dataclass(frozen=True)
class GaussNewton:
    """A :class:`GaussNewtonPosterior`; it needs no data."""

    mode: dict[str, Tensor]
    random: list[str]
    covariance: dict[str, Tensor]
    prior_precisions: dict[str, Tensor]
    structure: str
    is_linearised: bool
    log_evidence: float
    status: Status
    seconds: float


@dataclass(frozen=True)
class Chains:
    """An :class:`MCMCPosterior`."""

    samples: dict[str, Tensor]
    statistics: ChainStatistics
    status: Status
    sampler: str
    path: str


@dataclass
class Target:
    """What a posterior is loaded into.

    Args:
        model: The model; None if it is no model of this package.
        own: Its record.
        guides: Guides to load into, one for each in the posterior; None makes them from the file.
        pending: Modules that change if all is well, with their new states.
    """

    model: BayesianModel | None
    own: ModelRecord | None
    guides: Sequence[nn.Module] | None
    pending: list[tuple[nn.Module, dict[str, Tensor]]] = field(default_factory=list)

    @property
    def sites(self) -> list[Site] | None:
        """Latent variables of the model."""
        return None if self.model is None else find_sites(self.model, (), {})

    def guide(self, saved: GuideRecord) -> nn.Module:
        """The guide for a record: the next of those that were passed, or a new one with the saved state."""
        if self.guides is None:
            guide = _guides.made_from(saved, self.model)
            guide.load_state_dict(_guides.checked_state(saved, guide, self.own))
            return guide
        if len(self.pending) == len(self.guides):
            raise ValueError(f"it holds more guides than the {len(self.guides)} of `guide`; pass one for each.")
        guide = self.guides[len(self.pending)]
        self.pending.append((guide, _guides.checked_state(saved, guide, self.own)))
        return guide


def tagged(posterior: Posterior) -> Tagged:
    """What a file says of a posterior.

    Raises:
        ValueError: If it is of no kind of this package, or holds a guide that cannot be saved.
    """
    content: object
    if isinstance(posterior, GuidePosterior):
        content = FittedGuide(_guides.record_of(posterior.guide), posterior.status, posterior.history)
    elif isinstance(posterior, EnsemblePosterior):
        content = Ensemble([tagged(member) for member in posterior.members])
    elif isinstance(posterior, PinnedPosterior):
        content = Pinned(tagged(posterior.inner), posterior.values)
    elif isinstance(posterior, RefreshedPosterior):
        raise ValueError(
            "a RefreshedPosterior cannot be saved, since it needs training inputs, which no file holds; save draws of "
            "it, `StoredPosterior.of(posterior, num_samples)`, or its `inner`, and make it again after loading."
        )
    elif isinstance(posterior, StoredPosterior):
        told = posterior.method, posterior.status, posterior.seconds
        content = Stored(posterior.samples, posterior.values, *told)
    elif isinstance(posterior, LaplacePosterior):
        parts = posterior.mode, posterior.precision, posterior.peak, posterior.status, posterior.seconds
        content = Gaussian(*parts)
    elif isinstance(posterior, GaussNewtonPosterior):
        content = GaussNewton(
            posterior.mode,
            list(posterior.random),
            posterior.covariance.tensors(),
            {name: torch.as_tensor(value, dtype=torch.float64) for name, value in posterior.prior_precisions.items()},
            posterior.structure,
            posterior.is_linearised,
            posterior.log_evidence,
            posterior.status,
            posterior.seconds,
        )
    elif isinstance(posterior, MCMCPosterior):
        content = Chains(posterior.samples, posterior.statistics, posterior.status, posterior.sampler, posterior.path)
    else:
        raise ValueError(
            f"a posterior of type {type(posterior).__name__} cannot be saved; save draws of it, or make it one of "
            f"{', '.join(KINDS)}."
        )
    found = plain(content)
    (kind,) = [name for name, (recorded, _) in KINDS.items() if recorded is type(content)]
    return Tagged(kind, found)


def restored(saved: Tagged, target: Target) -> Posterior:
    """The posterior that a file describes, after checks; nothing but `target.pending` changes.

    Raises:
        ValueError: If it is damaged or does not fit; the message names what is wrong.
    """
    if saved.kind not in KINDS:
        raise ValueError(f"its kind must be one of {', '.join(KINDS)}, got {saved.kind!r}.")
    kind, make = KINDS[saved.kind]
    posterior: Posterior = make(record(kind, saved.content, "posterior"), target)
    return posterior


def _fitted_guide(saved: FittedGuide, target: Target) -> GuidePosterior:
    return GuidePosterior(target.guide(saved.guide), saved.status, saved.history)


def _ensemble(saved: Ensemble, target: Target) -> EnsemblePosterior:
    return EnsemblePosterior([restored(member, target) for member in saved.members])


def _pinned(saved: Pinned, target: Target) -> PinnedPosterior:
    if target.model is None:
        raise ValueError("a PinnedPosterior needs its model; pass `model`.")
    own, owner = network_values(target.model), "the pinned network"
    check_state(owner, saved.values, own)
    constants = {f"{SITE_PREFIX}.{name}" for name, _ in target.model.network.named_buffers()}
    check_numbers(owner, saved.values, own, constants)
    values = {name: value.to(own[name].device) for name, value in saved.values.items()}
    return PinnedPosterior(target.model, restored(saved.inner, target), values=values)


def _stored(saved: Stored, target: Target) -> StoredPosterior:
    model, dtype = target.model, None if target.model is None else target.model.dtype
    check_samples({name: value[None] for name, value in saved.samples.items()}, target.sites, dtype)
    own = {} if model is None else network_values(model)
    if model is None and saved.values:
        raise ValueError("draws with values of a network's own parameters and buffers need its model; pass `model`.")
    unknown = [name for name in saved.values if name not in own]
    if unknown:
        raise ValueError(f"its draws carry {unknown}, which the network does not have; pass the model of the draws.")
    (count,) = {len(value) for value in saved.samples.values()}
    for name, value in saved.values.items():
        check_tensor(f"{name}` of the draws", value, (count, *own[name].shape), own[name].dtype)
        check_finite(f"{name}` of the draws", value)
    device = torch.device("cpu") if model is None else model.device
    samples, values = ({name: value.to(device) for name, value in d.items()} for d in (saved.samples, saved.values))
    return StoredPosterior(samples, values, method=saved.method, status=saved.status, seconds=saved.seconds)


def _laplace(saved: Gaussian, target: Target) -> LaplacePosterior:
    if target.model is None:
        raise ValueError("a posterior of Laplace's method needs its model; pass `model`.")
    dtype = saved.mode.dtype
    if dtype not in FLOATS:
        raise ValueError(f"`mode` must be torch.float32 or torch.float64, got {dtype}.")
    coordinates = coordinates_of(target.model, dtype)
    size = coordinates.num_dimensions
    for name, value, shape in (("mode", saved.mode, (size,)), ("precision", saved.precision, (size, size))):
        check_tensor(f"{name}` of the posterior", value, shape, dtype)
        check_finite(f"{name}` of the posterior", value)
    device = target.model.device
    return LaplacePosterior(
        coordinates,
        saved.mode.to(device),
        saved.precision.to(device),
        peak=saved.peak,
        dtype=target.model.dtype,
        status=saved.status,
        seconds=saved.seconds,
    )


def _gauss_newton(saved: GaussNewton, target: Target) -> GaussNewtonPosterior:
    sites = target.sites
    if target.model is None or sites is None:
        raise ValueError("a posterior of Laplace's method needs its model; pass `model`.")
    like = target.model.like
    shapes = {site.name: torch.empty(site.start.shape, dtype=like.dtype, device="meta") for site in sites}
    check_tensors("the point", saved.mode, shapes)
    if not saved.random or len({*saved.random}) < len(saved.random) or not {*saved.random} <= {*shapes}:
        raise ValueError(f"its random sites {saved.random} must be some of {list(shapes)}; save the posterior again.")
    if {*saved.prior_precisions} != {*saved.random}:
        raise ValueError(f"it has prior precisions of {[*saved.prior_precisions]} but the random sites {saved.random}.")
    for name, value in saved.prior_precisions.items():
        if value.shape not in (torch.Size(), shapes[name].shape) or not bool((value > 0).all()):
            raise ValueError(f"the prior precisions of `{name}` must be above 0, one or of its shape; save it again.")
    for name, value in saved.covariance.items():
        check_tensor(f"{name}` of the covariance", value, value.shape, like.dtype)
        check_finite(f"{name}` of the covariance", value)
    return GaussNewtonPosterior(
        {name: saved.mode[name].to(like) for name in shapes},
        saved.random,
        covariance_from(saved.covariance, [shapes[name].numel() for name in saved.random]).to(like),
        prior_precisions={
            name: float(value) if value.dim() == 0 else value.to(like.device)
            for name, value in saved.prior_precisions.items()
        },
        structure=saved.structure,
        is_linearised=saved.is_linearised,
        log_evidence=saved.log_evidence,
        status=saved.status,
        seconds=saved.seconds,
    )


def _chains(saved: Chains, target: Target) -> MCMCPosterior:
    sites = target.sites
    lead = check_samples(saved.samples, sites, None if target.model is None else target.model.dtype)
    size = None if sites is None else sum(site.unconstrained_start.numel() for site in sites)
    check_statistics(saved.statistics, lead, size)
    device = torch.device("cpu") if target.model is None else target.model.device
    samples = {name: value.to(device) for name, value in saved.samples.items()}
    return MCMCPosterior(samples, saved.statistics, saved.status, sampler=saved.sampler, path=saved.path)


KINDS: dict[str, tuple[type, Callable[[Any, Target], Posterior]]] = {
    "guide": (FittedGuide, _fitted_guide),
    "ensemble": (Ensemble, _ensemble),
    "pinned": (Pinned, _pinned),
    "stored": (Stored, _stored),
    "laplace": (Gaussian, _laplace),
    "gauss-newton": (GaussNewton, _gauss_newton),
    "chains": (Chains, _chains),
}
"""For each kind of posterior its record, and what makes it again."""


def guides_of(posterior: Posterior) -> Iterator[nn.Module]:
    """The guides in a posterior, in the order of its members."""
    if isinstance(posterior, EnsemblePosterior):
        for member in posterior.members:
            yield from guides_of(member)
    elif isinstance(posterior, PinnedPosterior):
        yield from guides_of(posterior.inner)
    elif isinstance(posterior, GuidePosterior) and isinstance(posterior.guide, nn.Module):
        yield posterior.guide


def pruned_sites(posterior: Posterior) -> set[str]:
    """Sites of which every member of a posterior has removed weights."""
    if isinstance(posterior, EnsemblePosterior):
        return set.intersection(*(pruned_sites(member) for member in posterior.members))
    if isinstance(posterior, PinnedPosterior):
        return pruned_sites(posterior.inner)
    is_pruned = isinstance(posterior, GuidePosterior) and isinstance(posterior.guide, MeanFieldGuide)
    return set(posterior.guide.masks) if is_pruned else set()  # type: ignore[attr-defined]
