"""The record of a user's Pyro model in a file: its latent variables, and the parameters of a module."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from torch import Tensor, nn
from torch.distributions import constraints

from ..._core import checks as _checks
from ..._core.inputs import unwrapped
from ..._core.records import check_tensors, require_no_more, require_tensors
from ..._core.scope import own_parameters, seeded, short_errors
from ..joint import Site, find_sites
from ..posterior import Posterior


@dataclass(frozen=True)
class OwnSite:
    """A latent variable: its shape, and its support as text."""

    shape: tuple[int, ...]
    support: str


@dataclass(frozen=True)
class OwnRecord:
    """A Pyro model: its latent variables, and the parameters and buffers of a module."""

    sites: dict[str, OwnSite]
    state: dict[str, Tensor]


def sites_of(model: Callable[..., object], data: object) -> list[Site]:
    """The latent variables of a Pyro model, found by a call with the arguments `data`.

    Raises:
        ValueError: If there are no arguments, or if a function has parameters, which are in Pyro's global store.
    """
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


def unset_arguments(model: Callable[..., object], data: Sequence[object]) -> list[str]:
    """Names of the arguments of a model that keep their default None in a call with the arguments `data`."""
    signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    given = signature.bind(*data).arguments
    return [name for name, item in signature.parameters.items() if name not in given and item.default is None]


def require_targets(names: Iterable[str], sites: Mapping[str, OwnSite], unset: Sequence[str]) -> None:
    """Raise if a model has more variables than a posterior, and `data` left out arguments: probably the targets.

    Without its targets, an observed site is drawn like a latent variable.
    """
    drawn = set(names)
    more = [name for name in sites if name not in drawn]
    if more and unset and drawn < sites.keys():
        raise ValueError(
            f"`data` must have all arguments of a call, got none for {unset}, so the model draws {more}, which the "
            "posterior lacks; if these are observed, pass the targets, too, as in `data=(x, y)`."
        )


def own_record(model: Callable[..., object], sites: list[Site]) -> OwnRecord:
    """The record of a model's present state; it shares the model's tensors."""
    state = require_tensors("the model", model.state_dict()) if isinstance(model, nn.Module) else {}
    return OwnRecord({site.name: OwnSite(tuple(site.start.shape), _support(site)) for site in sites}, state)


def _support(site: Site) -> str:
    support = site.prior.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return str(support)


def require_same_sites(
    file: Mapping[str, object], own: Mapping[str, object], facts: Sequence[str], *, remedy: str
) -> None:
    """Raise if a file and a model have other latent variables, or variables that differ in one of the facts."""
    for name, site in own.items():
        if name not in file:
            raise ValueError(f"it lacks the latent variable `{name}` of the model; pass the model of this posterior.")
        for fact in facts:
            got, expected = getattr(file[name], fact), getattr(site, fact)
            if got != expected:
                raise ValueError(f"the {fact} of `{name}` is {got} in the file and {expected} in the model; {remedy}.")
    require_no_more("the model", file, own)


def require_same_own(file: OwnRecord, own: OwnRecord) -> None:
    """Raise at the first difference between the model in the file and the model that loads it."""
    require_same_sites(file.sites, own.sites, ("shape", "support"), remedy="pass the model of this posterior")
    check_tensors("the model", file.state, own.state)


def require_its_sites(posterior: Posterior, sites: Mapping[str, OwnSite]) -> None:
    """Raise if a posterior draws other variables than a model has; a posterior that does not know them is not checked.

    Draws are also checked by :func:`~pyro_bnn.predict`.
    """
    if posterior.shapes is None:
        return
    drawn, expected = (
        {name: tuple(shape) for name, shape in posterior.shapes.items()},
        {name: site.shape for name, site in sites.items()},
    )
    if drawn != expected:
        raise ValueError(
            f"its draws have the variables {drawn}, but the model has {expected}; pass the model of this posterior, "
            "and the targets in `data`, so that the observed site is none of them."
        )
