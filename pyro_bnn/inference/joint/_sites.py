"""The latent variables of a model, and their values as flat vectors in unconstrained space."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.infer.autoguide.initialization import init_to_median
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn
from torch.distributions import Transform, biject_to, constraints

from ..._core import checks as _checks
from ..._core.reflection import are_equal, is_learned, overridden_names, unvalidated, unwrap_support
from ..._core.scope import own_parameters, seeded, short_errors
from ...modelling.model import BayesianModel

Draw = dict[str, Tensor]
"""One draw: the value of each latent variable, by the name of its site."""


@dataclass(frozen=True)
class Site:
    """One latent variable of a model.

    Args:
        name: Site name.
        prior: Distribution of the site in the model.
        start: Initial value: the network's weight if the support contains it, else a median of the prior.
        transform: Bijection from real numbers to the support; None if the support is the whole real line.
        plates: The plates around the site, each as (name, size, dim).
        is_fixed: Whether the prior depends on no other variable, and is not learned.
    """

    name: str
    prior: TorchDistributionMixin
    start: Tensor
    transform: Transform | None
    plates: list[tuple[str, int, int]] = field(default_factory=list)
    is_fixed: bool = True

    @property
    def unconstrained_start(self) -> Tensor:
        """The initial value in unconstrained space."""
        return self.start if self.transform is None else self.transform.inv(self.start)

    @property
    def unconstrained_event_dim(self) -> int:
        """Number of event axes of the unconstrained value: 1, not 2, for a Cholesky factor of correlations."""
        return int(self.prior.event_dim) + self.unconstrained_start.dim() - self.start.dim()

    def enter(self, plates: dict[str, Any]) -> ExitStack:
        """Return a context with the site's plates. New ones are added to `plates`, so that all sites share them."""
        stack = ExitStack()
        for name, size, dim in self.plates:
            if name not in plates:
                plates[name] = pyro.plate(name, size, dim=dim)
            stack.enter_context(plates[name])
        return stack


def constrained(sites: Iterable[Site], free: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of the sites as differentiable functions of their unconstrained values, `free`."""
    pairs = ((site, free[site.name]) for site in sites)
    return {site.name: value if site.transform is None else site.transform(value) for site, value in pairs}


def find_sites(model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> list[Site]:
    """Find the latent variables of a model, in the order of its draws.

    If a prior depends on earlier variables, it is conditioned on their initial values instead of draws, because an
    extreme draw would make later variables extreme, too.
    """
    if isinstance(model, BayesianModel):
        if unknown := [name for name in kwargs if name not in ("x", "y")]:
            raise TypeError(
                f"a guide got an unexpected argument `{unknown[0]}`; `init` sets what it starts from, as in "
                "`init=NetworkInit(0.02)`."
            )
        sites = _plain_sites(model) or _traced_sites(model, args, kwargs)
        if not model.has_fixed_priors:
            sites = [replace(site, is_fixed=False) for site in sites]
    else:
        _require_arguments(model, args, kwargs)
        sites = _traced_sites(model, args, kwargs)
    if not sites:
        raise ValueError("the model has no latent variable; it must have at least one `pyro.sample` without `obs`.")
    return sites


def _require_arguments(model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    try:
        inspect.signature(model.forward if isinstance(model, nn.Module) else model).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:  # a class or function without a signature
        name = getattr(model, "__name__", type(model).__name__)
        raise ValueError(
            f"a Pyro model must be passed with the arguments of a call, as in `MeanFieldGuide({name}, x, y)`, got "
            f"arguments with which it cannot be called: {error}. For a plain network make a BayesianModel."
        ) from None


def _plain_sites(model: BayesianModel) -> list[Site]:
    """Find the latent variables of a BayesianModel without tracing it. If this is impossible, return an empty list."""
    if overridden_names(type(model), BayesianModel):
        return []
    sites: list[Site] = []
    values: dict[str, Tensor] = {}
    with torch.no_grad(), seeded(0):  # the same initial values in every call
        for name in model.latent_names:
            prior = model.plain_prior(name, values)
            if prior is None:
                return []
            values[name] = _start(name, prior, model)
            sites.append(_site(name, {"fn": prior, "value": values[name], "cond_indep_stack": ()}))
    return sites


def _traced_sites(model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> list[Site]:
    latents = model.sample_latents if isinstance(model, BayesianModel) else model
    with short_errors(), own_parameters(model), torch.no_grad(), poutine.block():
        with seeded(0):  # the same initial values in every call
            started = _AtStart(model)(latents)
            trace = prune_subsample_sites(poutine.trace(started).get_trace(*args, **kwargs))
            sites = [_site(name, node) for name, node in trace.iter_stochastic_nodes()]
        if not isinstance(model, BayesianModel):
            with seeded(1):  # in another draw, a prior that depends on other variables differs
                nodes: Any = poutine.trace(latents).get_trace(*args, **kwargs).nodes
            same = {s.name for s in sites if s.name in nodes and are_equal(s.prior, nodes[s.name]["fn"])}
            return [replace(site, is_fixed=site.is_fixed and site.name in same) for site in sites]
    return sites


def _start(name: str, prior: TorchDistributionMixin, model: object) -> Tensor:
    if isinstance(model, BayesianModel) and name in model.site_names:
        value = model.initial_value(name)
        if bool(prior.support.check(value).all()):
            return value
    median: Tensor = init_to_median({"name": name, "fn": prior})  # the median of draws, which is too slow for weights
    return median


class _AtStart(Messenger):
    """Gives each latent variable its initial value, because priors of later variables may depend on it."""

    def __init__(self, model: object) -> None:
        super().__init__()
        self._model = model

    def _pyro_sample(self, msg: Any) -> None:
        is_subsample = type(msg["fn"]).__name__ == "_Subsample"  # Pyro recognises a plate's indices by the same test
        if msg["value"] is not None or is_subsample or msg["fn"].support.is_discrete:
            return
        msg["value"] = _start(msg["name"], msg["fn"], self._model)


def _site(name: str, node: Any) -> Site:
    prior = node["fn"]
    support = prior.support
    if support.is_discrete:
        raise ValueError(
            f"latent variables must be continuous, but `{name}` is {prior} on {support}; sum it out of the "
            "model; if it is the observed site, pass the targets, too."
        )
    frames = [frame for frame in node["cond_indep_stack"] if frame.vectorized]
    for frame in frames:
        if (frame.full_size or frame.size) != frame.size:
            raise ValueError(
                f"`{name}` has one value per row of the subsampled plate `{frame.name}`, but latent variables must be "
                "shared by all data; if it is the observed site, pass the targets as an example argument."
            )
    start: Tensor = node["value"]
    transform = None if unwrap_support(support) is constraints.real else biject_to(support)
    plates = [(frame.name, frame.size, frame.dim) for frame in frames]
    return Site(name, prior, start.detach(), transform, plates, is_fixed=not is_learned(prior))


class Layout:
    """Joins named tensors, in order, into a vector of P numbers."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.shapes = dict(shapes)
        self._sizes = [shape.numel() for shape in self.shapes.values()]
        ends = itertools.accumulate(self._sizes)
        parts = zip(self.shapes, self._sizes, ends, strict=True)
        self.slices = {name: slice(end - size, end) for name, size, end in parts}
        self.num_elements = sum(self._sizes)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the tensors in a vector of shape (..., P) as views, ``{name: shape (..., *shape)}``."""
        lead, pieces = vector.shape[:-1], vector.split(self._sizes, -1)
        return {n: piece.view(lead + shape) for (n, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def pack(self, values: Mapping[str, Tensor]) -> Tensor:
        """Join the tensors in a new vector of shape (..., P): the inverse of :meth:`views`."""
        parts = []
        for name, shape in self.shapes.items():
            value = values[name]
            parts.append(value.reshape(*value.shape[: value.dim() - len(shape)], -1))
        return torch.cat(parts, -1)


class Coordinates:
    """The map between values of all latent variables and unconstrained vectors z, shape (K, P)."""

    def __init__(self, sites: list[Site]) -> None:
        self.sites = [replace(site, prior=unvalidated(site.prior)) for site in sites]
        starts = {site.name: site.unconstrained_start for site in sites}
        self.layout = Layout({name: start.shape for name, start in starts.items()})
        self.start = self.layout.pack(starts)  # the initial values of all sites in unconstrained space, shape (P,)
        self.like = self.start[:0]  # an empty tensor with the right device and dtype

    def constrain(self, z: Tensor) -> Draw:
        """Return the values of the sites at z, ``{site: shape (K, *event)}``."""
        return constrained(self.sites, self.layout.views(z))

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return z, shape (K, P), for values of the sites: the inverse of :meth:`constrain`."""
        parts = []
        for site in self.sites:
            got = values.get(site.name)
            if got is None or got.shape[1:] != site.start.shape:
                raise ValueError(
                    f"the start is from another model: `{site.name}` must have a value of shape "
                    f"{_checks.shape(site.start)}, got {'none' if got is None else _checks.shape(got[0])}."
                )
            value = got.to(self.like)
            value = value if site.transform is None else site.transform.inv(value)
            parts.append(value.reshape(len(value), -1))
        return torch.cat(parts, 1)
