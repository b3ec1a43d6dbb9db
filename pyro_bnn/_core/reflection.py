"""Inspection of distributions, modules, classes and nested values, and copies of distributions."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Transform, constraints


def unwrap(distribution: Distribution) -> Distribution:
    """Undo all applications of `to_event`."""
    while isinstance(distribution, Independent):
        distribution = distribution.base_dist
    return distribution


def unwrap_support(support: constraints.Constraint) -> constraints.Constraint:
    """Undo all applications of `independent`."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def elementwise(name: str, prior: Distribution, shape: torch.Size) -> Distribution:
    """Return the prior of a parameter's elements, which must be independent."""
    prior = unwrap(prior)
    if prior.event_shape or (prior.batch_shape and prior.batch_shape != shape):
        raise ValueError(
            f"the elements of `{name}` are not independent under their prior ({type(prior).__name__}), so single "
            "elements cannot be removed; choose other sites, or a prior with independent elements."
        )
    return prior


def move_distribution(distribution: Distribution, like: Tensor) -> Distribution:
    """Copy a distribution, with its floats on the device and in the dtype of `like`."""
    copies: dict[int, object] = {}  # a transform and its cached inverse refer to each other

    def move(value: object) -> object:
        if isinstance(value, Tensor):
            return value.to(like) if value.is_floating_point() else value.to(like.device)
        if id(value) in copies:
            return copies[id(value)]
        if isinstance(value, (Distribution, Transform)):
            moved = copies[id(value)] = copy.copy(value)
            moved.__dict__.update({name: move(item) for name, item in vars(value).items()})
            return moved
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(map(move, value))
        return value

    moved = move(distribution)
    assert isinstance(moved, Distribution)
    return moved


def unvalidated(distribution: Any) -> Any:
    """Return a copy that does not check values: a check makes a GPU wait, and `torch.compile` cannot compile it."""
    result = copy.copy(distribution)
    result._validate_args = False
    nested = {name: value for name, value in vars(result).items() if isinstance(value, Distribution)}
    vars(result).update({name: unvalidated(value) for name, value in nested.items()})
    return result


def require_positive(name: str, prior: object) -> TorchDistributionMixin:
    """Return a scale's prior. Raise unless it is a Pyro distribution of positive numbers without batch shape."""
    found = require_unbatched(name, prior)
    support = unwrap_support(found.support)
    if support not in (constraints.positive, constraints.nonnegative):
        raise ValueError(f"the prior of `{name}` must live on positive numbers, got {found} on {support}.")
    return found


def require_unbatched(name: str, prior: object) -> TorchDistributionMixin:
    """Return a prior. Raise unless it is a Pyro distribution without batch shape."""
    if not isinstance(prior, TorchDistributionMixin):
        raise ValueError(f"the prior of `{name}` must be one of `pyro.distributions`, got {type(prior)}.")
    if prior.batch_shape:
        raise ValueError(
            f"the prior of `{name}` must have no batch shape, got {tuple(prior.batch_shape)}; use `.to_event()`."
        )
    return prior


def is_learned(distribution: Distribution) -> bool:
    return any(tensor.requires_grad for tensor in tensors_of(distribution))


def tensors_of(value: object, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors in a distribution, at any depth, except in parts whose `id` is in `seen`."""
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Distribution, Transform)) and id(value) not in seen:
        seen.add(id(value))  # a transform and its cached inverse refer to each other
        for part in vars(value).values():
            yield from tensors_of(part, seen)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_of(part, seen)


def are_equal(a: Distribution, b: Distribution) -> bool:
    first, second = list(tensors_of(a)), list(tensors_of(b))
    return type(a) is type(b) and len(first) == len(second) and all(map(torch.equal, first, second))


def element_of(distribution: Distribution, index: tuple[int, ...]) -> Distribution:
    """Return the distribution of the element at `index` of a batch, whose elements must be independent."""
    shape = distribution.batch_shape
    if not shape:
        return distribution

    def pick(value: object) -> object:
        if isinstance(value, Tensor) and value.dim() <= len(shape):
            return value.expand(shape)[index]
        if isinstance(value, Distribution):
            return element_of(value, index)
        return type(value)(map(pick, value)) if isinstance(value, (list, tuple)) else value

    picked = copy.copy(distribution)
    own = {name: value for name, value in vars(distribution).items() if name not in ("_batch_shape", "_event_shape")}
    picked.__dict__.update({name: pick(value) for name, value in own.items()}, _batch_shape=torch.Size())
    return picked


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module has hooks, or its own `forward` in place of its class's."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def overridden_names(kind: type, base: type) -> list[str]:
    """Return which attributes of `base` its subclass `kind` overrides."""
    subclasses = kind.__mro__[: kind.__mro__.index(base)]
    names = {name for subclass in subclasses for name in vars(subclass) if name in dir(base)} - {"_abc_impl"}
    return sorted(name for name in names if not name.startswith("__") or name == "__call__")


def tensors_within(value: object) -> Iterator[Tensor]:
    """Yield the tensors in lists, tuples and mappings at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_within(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_within(part)
