"""Checks of the arguments of a model."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.inputs import Inputs, Shared, leaves, named_leaves, num_rows, shapes
from ..likelihoods import CategoricalLikelihood, Likelihood


def check_input(x: Inputs, like: Tensor) -> None:
    """Raise unless x has rows, is on the device of the weights `like` and, if floating point, has their dtype."""
    _require_tensors("x", x)
    for name, leaf in [("x", x)] if isinstance(x, Tensor) else named_leaves("x", x):
        if leaf.layout != torch.strided:
            _checks.tensor(name, leaf)
        if leaf.device != like.device:
            raise ValueError(
                f"`{name}` is on {leaf.device} but the model is on {like.device}; call `{name}.to(model.device)` or "
                f"`model.to({str(leaf.device)!r})`."
            )
        if leaf.is_floating_point() and leaf.dtype != like.dtype:
            raise ValueError(
                f"`{name}` is {leaf.dtype} but the network is {like.dtype}; call `{name}.to({like.dtype})` or "
                f"`model.to({leaf.dtype})`."
            )
    if (len(x) if isinstance(x, Tensor) and x.dim() else num_rows(x)) == 0:
        raise ValueError(f"`x` must have at least one row, got shape {shapes(x)}.")


def _require_tensors(name: str, x: object) -> None:
    """Raise unless x is a tensor, or a tuple, list or dictionary of these, shared or not, at any depth."""
    if isinstance(x, Tensor):
        return
    if isinstance(x, Shared):
        _require_tensors(name, x.value)
        return
    if not isinstance(x, (tuple, list, Mapping)):
        raise ValueError(f"`{name}` must be a tensor, got {type(x).__name__}; pass several in a tuple or a dictionary.")
    for key, part in x.items() if isinstance(x, Mapping) else enumerate(x):
        _require_tensors(f"{name}[{key!r}]", part)


def require_values(values: Mapping[str, Tensor], names: Iterable[str]) -> None:
    """Raise unless there is a value for every name."""
    _checks.kind("values", values, Mapping, "a dict of values by site")
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"`values` must have all sites of the network, got none for {missing}; add them.")


def check_shapes(likelihood: Likelihood, observed: Sequence[int], x: Inputs, y: Tensor) -> None:
    """Raise unless y is on the device of x and its shape suits observed values of shape `observed`."""
    are_dense = _is_dense(x) and _is_dense(y)
    expected = likelihood.target_shape(observed)
    device = (x if isinstance(x, Tensor) else leaves(x)[0]).device
    if are_dense and (tuple(y.shape), y.device, len(y)) == (tuple(expected), device, len(x)):  # type: ignore[arg-type]
        return  # fast, since it runs at every step
    _checks.kind("y", y, Tensor, "a tensor")
    if y.device != device:
        raise ValueError(f"`y` is on {y.device} but `x` is on {device}; call `y.to({str(device)!r})`.")
    _checks.tensor("y", y)
    if y.dim() == 0 or len(y) != num_rows(x):
        raise ValueError(
            f"`x` and `y` must have the same number of rows, got shapes {shapes(x)} and {_checks.shape(y)}."
        )
    if tuple(y.shape) != tuple(expected):
        remedy = ""
        if y.numel() == math.prod(expected):
            remedy = "; call `y.squeeze(-1)`" if y.dim() > len(expected) else "; call `y.unsqueeze(-1)`"
        elif isinstance(likelihood, CategoricalLikelihood) and y.dim() == len(expected) + 1:
            remedy = ", one class number a row; call `y.argmax(-1)` if the rows are one-hot"
        if likelihood.has_row_weights and tuple(y.shape) == tuple(observed):
            remedy = ", values and weights; call `likelihood.join_weights(y, weights)`"
        raise ValueError(
            f"{type(likelihood).__name__} expects `y` of shape {tuple(expected)}, got {_checks.shape(y)}{remedy}."
        )


def _is_dense(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_nested)
