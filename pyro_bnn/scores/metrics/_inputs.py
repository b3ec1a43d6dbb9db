"""Checks of the inputs of scores."""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..._core import checks as _checks

Numbers: TypeAlias = Tensor | ArrayLike

WIDE = {"u": np.int64, "O": np.float64}  # by `dtype.kind`; columns that may have gaps become arrays of objects


def as_tensor(name: str, value: Numbers) -> Tensor:
    """Return the numbers as a tensor without gradient; Python numbers get double precision."""
    if not isinstance(value, Tensor):
        try:
            array = np.array(value)
            wide = WIDE.get(array.dtype.kind if array.ndim else "", array.dtype.newbyteorder("="))
            value = torch.from_numpy(array.astype(wide))
        except (TypeError, ValueError, RuntimeError):
            found = type(value).__name__
            remedy = "; call `prediction.score(y)`" if found.endswith("Prediction") else ""
            raise ValueError(f"`{name}` must be a tensor or an array of numbers, got {found}{remedy}.") from None
    if value.is_complex() or value.is_meta or value.layout != torch.strided:
        kind = "complex" if value.is_complex() else "on the meta device" if value.is_meta else "sparse"
        raise ValueError(f"`{name}` must be an ordinary tensor of real numbers, got one that is {kind}.")
    return value.detach()


def probabilities(name: str, value: Tensor) -> None:
    """Raise unless the numbers are probabilities that sum to 1 over the last axis.

    The tolerance is the square root of the dtype's rounding error, as in scikit-learn's ``log_loss``. float64 gets the
    tolerance of float32, since probabilities in float64 often come from a float32 network.
    """
    if not value.is_floating_point():
        raise ValueError(f"`{name}` must be floating-point probabilities, got {value.dtype}.")
    _checks.finite(name, value)
    lowest, furthest = float(value.min()), float((value.double().sum(-1) - 1).abs().max())
    if lowest < 0 or furthest > max(torch.finfo(value.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5:
        raise ValueError(
            f"each row of `{name}` must contain probabilities: none below 0, and a sum of 1; got values down to "
            f"{lowest:.3g} and sums up to {furthest:.3g} away from 1; turn logits into probabilities with "
            "`.softmax(-1)`."
        )


def class_inputs(probs: Numbers, y: Numbers) -> tuple[Tensor, Tensor]:
    """Return probabilities in double precision, and labels as integers on the device of the probabilities."""
    probs, y = as_tensor("probs", probs), as_tensor("y", y)
    if probs.dim() != 2 or y.shape != probs.shape[:1] or probs.numel() == 0:
        raise ValueError(
            "`probs` must have shape (N, C) and `y` shape (N,) with at least one row, got "
            f"{_checks.shape(probs)} and {_checks.shape(y)}."
        )
    probabilities("probs", probs)
    num_classes = probs.shape[-1]
    _checks.finite("y", y)
    wrong = (y != y.long()) | (y < 0) | (y >= num_classes)
    if bool(wrong.any()):
        raise ValueError(
            f"labels `y` must be whole numbers in 0, ..., {num_classes - 1} for the {num_classes} columns of `probs`, "
            f"got values such as {y[wrong][:3].tolist()}."
        )
    return probs.double(), y.long().to(probs.device)


def number_inputs(y: Tensor, **predictions: Tensor) -> None:
    """Raise unless targets and predictions are finite, and have the same shape and device."""
    for name, value in predictions.items():
        if value.shape != y.shape or y.numel() == 0:
            raise ValueError(
                f"`{name}` must have the same shape as the targets or parameters given with it, and at least one "
                f"element, got {_checks.shape(value)} and {_checks.shape(y)}."
            )
        if value.device != y.device:
            raise ValueError(f"`{name}` is on {value.device} but `y` is on {y.device}; call `y.to({name}.device)`.")
    for name, value in {**predictions, "y": y}.items():
        _checks.finite(name, value)
