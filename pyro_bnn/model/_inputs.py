"""Checks of the arguments of a model."""

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from .. import _checks
from ..likelihoods import Likelihood


def check_input(x: Tensor, like: Tensor) -> None:
    """Raise unless x has rows, is on the device of the weights `like` and, if floating point, has their dtype."""
    _checks.kind("x", x, Tensor, "a tensor")
    if x.device != like.device:
        raise ValueError(
            f"`x` is on {x.device} but the model is on {like.device}; call `x.to(model.device)` or "
            f"`model.to({str(x.device)!r})`."
        )
    if x.is_floating_point() and x.dtype != like.dtype:
        raise ValueError(
            f"`x` is {x.dtype} but the network is {like.dtype}; call `x.to({like.dtype})` or `model.to({x.dtype})`."
        )
    if x.dim() == 0 or len(x) == 0:
        raise ValueError(f"`x` must have at least one row, got shape {_checks.shape(x)}.")


def check_shapes(likelihood: Likelihood, observed: Sequence[int], x: Tensor, y: Tensor) -> None:
    """Raise unless y is on the device of x and has the shape of the likelihood's targets, given that of the values."""
    expected = likelihood.target_shape(observed)
    if y.device != x.device:
        raise ValueError(f"`y` is on {y.device} but `x` is on {x.device}; call `y.to(x.device)`.")
    _checks.same_rows(x, y)
    if tuple(y.shape) != tuple(expected):
        remedy = ""
        if y.numel() == math.prod(expected):
            remedy = "; call `y.squeeze(-1)`" if y.dim() > len(expected) else "; call `y.unsqueeze(-1)`"
        if likelihood.has_row_weights and tuple(y.shape) == tuple(observed):
            remedy = ", values and weights; call `likelihood.join_weights(y, weights)`"
        raise ValueError(
            f"{type(likelihood).__name__} expects `y` of shape {tuple(expected)}, got {_checks.shape(y)}{remedy}."
        )


def check_size(num_rows: int, num_data: int) -> None:
    """Raise if a batch has more rows than the whole data set."""
    if num_rows > num_data:
        raise ValueError(
            f"`num_data` is {num_data} but the batch has {num_rows} rows; build the model with the size of the whole "
            "data set."
        )


def check_latents(names: Iterable[str], shapes: Mapping[str, Sequence[int]], values: Mapping[str, Tensor]) -> None:
    """Raise unless every latent variable has a value and, where `shapes` has one, its shape."""
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"the posterior lacks the latent variables {missing} of the model; it has {list(values)}.")
    for name, shape in shapes.items():
        if values[name].shape != shape:
            raise ValueError(
                f"the posterior's `{name}` has shape {_checks.shape(values[name])} but the model's {tuple(shape)}: it "
                "belongs to another model; pass its own model."
            )
