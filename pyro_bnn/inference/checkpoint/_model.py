"""The record of a model in a file: its parameters and buffers, and a description to recognise the model."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from types import NoneType

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..._core.records import check_numbers, check_tensor, require_no_more, require_tensors
from ..._core.reflection import tensors_of, unwrap
from ...modelling.likelihoods import Likelihood
from ...modelling.model import SITE_PREFIX, BayesianModel
from ..joint import Site, find_sites
from ._own import require_same_sites

NO_SETTINGS = ("training", "has_row_weights")
"""Attributes of likelihoods that do not change the meaning of a posterior."""


@dataclass(frozen=True)
class SiteRecord:
    """A latent variable: its shape, and its prior as text."""

    shape: tuple[int, ...]
    prior: str


@dataclass(frozen=True)
class ModelRecord:
    """A model's dtype, number of rows, likelihood, latent variables, layers and tensors."""

    dtype: str
    num_data: int
    likelihood: str
    """Class of the likelihood, and its settings that are no tensors."""
    sites: dict[str, SiteRecord]
    layers: dict[str, str]
    """Classes of the network's layers by path; only torch's own classes are recorded."""
    state: dict[str, Tensor]
    """Parameters and buffers."""
    left_out: list[str]
    """Sites whose initial values are not saved, because neither posterior nor model uses them."""
    frozen: dict[str, str]
    """Frozen parameters that are not saved, with the SHA-256 of their bytes."""


def record_of(model: BayesianModel) -> ModelRecord:
    """The record of a model's present state; it shares the model's tensors."""
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
    """Class and settings of a likelihood, such as ``Survival(family='weibull')``.

    Settings are the public attributes that are numbers, texts or None. Row weights are none: they matter in a fit.
    """
    settings = {
        name: float(value) if isinstance(value, float) else value  # NumPy's numbers have another text
        for name, value in sorted(vars(likelihood).items())
        if isinstance(value, int | float | str | NoneType) and not name.startswith("_") and name not in NO_SETTINGS
    }
    shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return type(likelihood).__name__ + (f"({shown})" if shown else "")


def without(record: ModelRecord, model: BayesianModel, sites: Collection[str]) -> ModelRecord:
    """A copy of a record without the initial values of pruned sites that the model does not use."""
    unused = sorted(site for site in sites if site in model.site_names and not _is_used(model, site))
    state = {name: value for name, value in record.state.items() if name not in unused}
    return replace(record, state=state, left_out=unused)


def without_frozen(record: ModelRecord, model: BayesianModel) -> ModelRecord:
    """A record that has checksums instead of the frozen parameters of the network."""
    parameters = model.network.named_parameters(prefix=SITE_PREFIX, remove_duplicate=False)
    frozen = {name: _checksum(value) for name, value in parameters if not value.requires_grad}
    state = {name: value for name, value in record.state.items() if name not in frozen}
    return replace(record, state=state, frozen=frozen)


def _checksum(value: Tensor) -> str:
    """SHA-256 of the bytes of a tensor."""
    content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(content.numpy().data).hexdigest()


def _is_used(model: BayesianModel, site: str) -> bool:
    """Whether the network (as for a padding row) or the prior (as its mean) uses a site's initial value."""
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
    """Whether a tensor is a parameter's initial value, which the state of the model already contains."""
    return bool(first.numel()) and value.data_ptr() == first.data_ptr()


def _described(distribution: Distribution, first: Tensor) -> str:
    """A distribution as text, such as ``Normal(loc=0, scale=0.7)``. Six digits are equal on all devices."""
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


def require_same(file: ModelRecord, own: ModelRecord) -> None:
    """Raise at the first difference between the model in the file and the model that loads it."""
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
    """The parameters and buffers in a file, complete and checked, for the model that loads them."""
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
