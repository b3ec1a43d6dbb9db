"""Records of models in files: the parameters and buffers of a model, and a description that identifies the model."""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from types import NoneType
from typing import Any

import torch
from pyro import poutine
from torch import Tensor, nn
from torch.distributions import Distribution

from ..._core import checks as _checks
from ..._core.files import raw_bytes
from ..._core.inputs import unwrapped
from ..._core.records import check_numbers, check_tensor, check_tensors, require_no_more, require_tensors
from ..._core.reflection import tensors_of, unwrap, unwrap_support
from ..._core.scope import own_parameters, seeded, short_errors
from ...modelling.likelihoods import Likelihood
from ...modelling.model import SITE_PREFIX, BayesianModel
from ..joint import Site, find_sites
from ..posterior import Posterior

NO_SETTINGS = ("training", "has_row_weights")  # attributes of likelihoods that a loaded model may change


@dataclass(frozen=True)
class SiteRecord:
    shape: tuple[int, ...]
    prior: str


@dataclass(frozen=True)
class ModelRecord:
    """Description of a :class:`BayesianModel`, with its parameters and buffers."""

    dtype: str
    num_data: int
    likelihood: str  # the likelihood as text: its class, and its settings that are not tensors
    sites: dict[str, SiteRecord]
    layers: dict[str, str]
    """The class name of each layer of `torch.nn`, by the path of the layer. Other layers have no entry."""
    state: dict[str, Tensor]
    left_out: list[str]
    """Sites whose initial values are not saved, because neither the posterior nor the model uses them."""
    frozen: dict[str, str]  # SHA-256 of the bytes of each frozen parameter that is not saved


def record_of(model: BayesianModel) -> ModelRecord:
    """Describe a model by a record that shares the model's tensors."""
    modules = {path: type(module) for path, module in model.network.named_modules()}
    return ModelRecord(
        dtype=str(model.dtype),
        num_data=model.num_data,
        likelihood=_likelihood_in_words(model.likelihood),
        sites={site.name: _site_record(model, site) for site in find_sites(model, (), {})},
        layers={path: kind.__name__ for path, kind in modules.items() if kind.__module__.startswith("torch.nn.")},
        state=require_tensors("the model", model.state_dict()),
        left_out=[],
        frozen={},
    )


def _likelihood_in_words(likelihood: Likelihood) -> str:
    """Return the class and public settings of a likelihood, such as ``Survival(family='weibull')``."""
    settings = {
        name: float(value) if isinstance(value, float) else value  # NumPy's numbers have another text
        for name, value in sorted(vars(likelihood).items())
        if isinstance(value, int | float | str | NoneType) and not name.startswith("_") and name not in NO_SETTINGS
    }
    shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return type(likelihood).__name__ + (f"({shown})" if shown else "")


def _checksum(value: Tensor) -> str:
    return hashlib.sha256(raw_bytes(value.cpu())).hexdigest()


def _is_used(model: BayesianModel, site: str) -> bool:
    """Whether the model uses the initial value of a site, as a prior's mean or as an embedding's padding row."""
    (found,) = (found for found in find_sites(model, (), {}) if found.name == site)
    if any(_is_same(value, found.start) for value in tensors_of(found.prior)):
        return True
    values = {name: torch.full_like(model.initial_value(name), torch.nan) for name in model.site_names}
    weights = model.network_weights(values)
    return not all(bool(weights[path].isnan().all()) for path in model.parameter_paths[site])


def _site_record(model: BayesianModel, site: Site) -> SiteRecord:
    is_parent = site.name not in model.site_names and not site.name.startswith("likelihood.")
    is_known = model.has_fixed_priors or is_parent  # the numbers of other distributions are drawn or learned
    prior = unwrap(site.prior)
    return SiteRecord(tuple(site.start.shape), _described(prior, site.start) if is_known else type(prior).__name__)


def _is_same(value: Tensor, first: Tensor) -> bool:
    """Whether a tensor shares its memory with `first`, the initial value of a parameter."""
    return bool(first.numel()) and value.data_ptr() == first.data_ptr()


def _described(distribution: Distribution, first: Tensor) -> str:
    """Describe a distribution by a text, such as ``Normal(loc=0, scale=0.7)``, which is the same on all devices."""
    numbers = {}
    for name, value in sorted(vars(distribution).items()):
        if name in dir(type(distribution)):
            continue  # a cached property, computed from the other attributes
        if isinstance(value, Distribution):
            numbers[name] = _described(unwrap(value), first)
        elif isinstance(value, Tensor) and _is_same(value, first):
            numbers[name] = "the network's"
        elif isinstance(value, Tensor) and value.numel():
            low, high = f"{float(value.min()):.6g}", f"{float(value.max()):.6g}"
            numbers[name] = low if low == high else f"{low} to {high}"
    return f"{type(distribution).__name__}({', '.join(f'{name}={shown}' for name, shown in numbers.items())})"


def require_same_sites(
    file: Mapping[str, object], own: Mapping[str, object], facts: Sequence[str], *, remedy: str
) -> None:
    for name, site in own.items():
        if name not in file:
            raise ValueError(f"it lacks the latent variable `{name}` of the model; pass the model of this posterior.")
        for fact in facts:
            got, expected = getattr(file[name], fact), getattr(site, fact)
            if got != expected:
                raise ValueError(f"the {fact} of `{name}` is {got} in the file and {expected} in the model; {remedy}.")
    require_no_more("the model", file, own)


def require_same(file: ModelRecord, own: ModelRecord) -> None:
    if file.dtype != own.dtype:
        kind = file.dtype.removeprefix("torch.")
        raise ValueError(
            f"its model has the dtype {file.dtype} but this model has {own.dtype}; build this model from a network in "
            f"{file.dtype}, as with `net.to(torch.{kind})`."
        )
    require_same_sites(file.sites, own.sites, ("shape", "prior"), remedy="build the model like the saved one")
    paths = list(dict.fromkeys([*own.layers, *file.layers]))
    pairs: dict[str, tuple[object, object]] = {
        "likelihood": (file.likelihood, own.likelihood),
        "`num_data`": (file.num_data, own.num_data),
        **{f"layer `{path}`": (file.layers.get(path, "none"), own.layers.get(path, "none")) for path in paths},
    }
    for what, (one, other) in pairs.items():
        if one != other:
            raise ValueError(
                f"the {what} is {one} in the file and {other} in the model; build the model like the saved one."
            )


def checked_state(file: ModelRecord, model: BayesianModel, own: ModelRecord) -> dict[str, Tensor]:
    """Check and return the parameters and buffers in a file. Those that were not saved are taken from the model."""
    for site in file.left_out:
        if site not in model.site_names or site in file.state:
            raise ValueError(f"it lacks the values of `{site}`; pass a file that `save_posterior` wrote.")
    for name, checksum in file.frozen.items():
        if name in file.state or name not in own.state or _checksum(own.state[name]) != checksum:
            raise ValueError(
                f"it was saved without the frozen parameter `{name}`, and that of the model differs from the saved "
                "one; build the model from the same pretrained network."
            )
    absent = [*file.left_out, *file.frozen]
    state = {**{name: own.state[name] for name in absent if name in own.state}, **file.state}
    require_no_more("the model", state, own.state)
    for name, value in own.state.items():
        if name not in state:
            raise ValueError(f"it lacks `{name}` of the model; build the model like the saved one.")
        check_tensor(f"`{name}` of the model in the file", state[name], value.shape, value.dtype)
    check_numbers("the model", state, own.state, {name for name, _ in model.named_buffers()})
    for name in (name for name in own.state if name.startswith("likelihood.fixed_")):
        if bool((own.state[name] > 0).all()) and not bool((state[name] > 0).all()):
            raise ValueError(f"`{name}` of the model must be above 0, got {float(state[name].min()):.4g}.")
    return state


# --- other Pyro models ---


@dataclass(frozen=True)
class OwnSite:
    shape: tuple[int, ...]
    support: str


@dataclass(frozen=True)
class OwnRecord:
    sites: dict[str, OwnSite]
    state: dict[str, Tensor]


def sites_of(model: Callable[..., object], data: object) -> list[Site]:
    if not isinstance(data, (tuple, list)) or not data:
        raise ValueError(
            "a Pyro model of your own is recognised by its latent variables, which only a call can show; pass the "
            f"arguments of a call as `data`, such as `data=(x, y)`, got {_checks.described(data)}."
        )
    arguments = tuple(map(unwrapped, data))
    sites = find_sites(model, arguments, {})
    if not isinstance(model, nn.Module):
        with short_errors(), own_parameters(), seeded(0), torch.no_grad(), poutine.block():
            trace: Any = poutine.trace(model).get_trace(*arguments)
        if learned := [name for name, node in trace.nodes.items() if node["type"] == "param"]:
            raise ValueError(
                f"the model is a function with the parameters {learned} in Pyro's global store, which a file of a "
                "posterior does not hold; write it as a PyroModule, or save the store with "
                "`pyro.get_param_store().save(...)` and pass None as `model`."
            )
    return sites


# --- both kinds of models ---


class PresentModel:
    """A model and its record: in `network` for a :class:`BayesianModel`, in `own` for any other Pyro model."""

    def __init__(self, model: BayesianModel | Callable[..., object] | None, data: Sequence[object] | None) -> None:
        self.model: BayesianModel | None = None
        self.network: ModelRecord | None = None
        self.own: OwnRecord | None = None
        self.sites: list[Site] | None = None
        self._unset: list[str] = []  # arguments that keep their default None in the call with `data`
        self.module = model if isinstance(model, nn.Module) else None
        if model is None or isinstance(model, BayesianModel):
            if data is not None:
                raise ValueError("`data` is for a Pyro model of your own; leave it out.")
            if model is not None:
                self.model, self.network = model, record_of(model)
            return
        if isinstance(model, (type, Posterior)) or not callable(model):
            got = _checks.described(model)
            swapped = "; pass the path first" if isinstance(model, str | PathLike) else ""
            raise ValueError(f"`model` must be a BayesianModel, a Pyro model of your own, or None, got {got}{swapped}.")
        self.sites = sites_of(model, data)
        supports = {site.name: str(unwrap_support(site.prior.support)) for site in self.sites}
        sites = {site.name: OwnSite(tuple(site.start.shape), supports[site.name]) for site in self.sites}
        state = require_tensors("the model", model.state_dict()) if isinstance(model, nn.Module) else {}
        self.own = OwnRecord(sites, state)
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
        given = signature.bind(*(data or ())).arguments
        self._unset = [n for n, item in signature.parameters.items() if n not in given and item.default is None]

    def network_record(self, posterior: Posterior, *, with_frozen: bool) -> ModelRecord | None:
        if self.own is not None and not with_frozen:
            raise ValueError("`with_frozen=False` needs a BayesianModel, got a Pyro model of your own; leave it out.")
        if self.network is None or self.model is None:
            return None
        pruned = posterior.pruned_sites & set(self.model.site_names)
        unused = sorted(site for site in pruned if not _is_used(self.model, site))
        frozen = {}
        if not with_frozen:
            parameters = self.model.network.named_parameters(prefix=SITE_PREFIX, remove_duplicate=False)
            frozen = {name: _checksum(value) for name, value in parameters if not value.requires_grad}
        state = {name: value for name, value in self.network.state.items() if name not in {*unused, *frozen}}
        return replace(self.network, state=state, left_out=unused, frozen=frozen)

    def require_targets(self, names: Iterable[str]) -> None:
        """Raise if the posterior lacks variables that the model draws, probably because `data` has no targets."""
        drawn, sites = set(names), {} if self.own is None else self.own.sites
        more = [name for name in sites if name not in drawn]
        if more and self._unset and drawn < sites.keys():
            raise ValueError(
                f"`data` must have all arguments of a call, got none for {self._unset}, so the model draws {more}, "
                "which the posterior lacks; if these are observed, pass the targets, too, as in `data=(x, y)`."
            )

    def require_sites(self, posterior: Posterior) -> None:
        if posterior.shapes is None or self.own is None:
            return
        drawn = {name: tuple(shape) for name, shape in posterior.shapes.items()}
        expected = {name: site.shape for name, site in self.own.sites.items()}
        if drawn != expected:
            raise ValueError(
                f"its draws have the variables {drawn}, but the model has {expected}; pass the model of this "
                "posterior, and pass the targets in `data`, too; without them, the observed site counts as a variable."
            )

    def state(self, network: ModelRecord | None, own: OwnRecord | None) -> dict[str, Tensor]:
        """Check a file's records, and return its parameters and buffers. A file without a model has none."""
        if (network is None) != (self.network is None) or (own is None) != (self.own is None):
            kind = "a BayesianModel" if network else "a Pyro model of your own" if own else ""
            raise ValueError(
                f"it was saved with {kind}; pass a `model` built like the saved one." if kind
                else "it was saved without a model; pass None as `model`."
            )  # fmt: skip
        if own is not None and self.own is not None:
            self.require_targets(own.sites)
            require_same_sites(
                own.sites, self.own.sites, ("shape", "support"), remedy="pass the model of this posterior"
            )
            check_tensors("the model", own.state, self.own.state)
            return own.state
        if network is not None and self.model is not None and self.network is not None:
            require_same(network, self.network)
            return checked_state(network, self.model, self.network)
        return {}
