"""Checks of the tensors in a file."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from . import checks as _checks


def check_tensors(owner: str, got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise unless a state has these names, shapes and dtypes and finite numbers; see :func:`check_state`."""
    check_state(owner, got, expected)
    for name, value in got.items():
        check_finite(f"{name}` of {owner}", value)


def check_state(owner: str, got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise unless a state has the names, shapes and dtypes that are expected."""
    for name, value in expected.items():
        if name not in got:
            raise ValueError(f"the file lacks `{name}` of {owner}; {owner} is of another kind than the one saved.")
        check_tensor(f"{name}` of {owner} in the file", got[name], value.shape, value.dtype)
    require_no_more(owner, got, expected)


def require_no_more(owner: str, got: Mapping[str, object], expected: Collection[str]) -> None:
    """Raise if a state has a name that is not expected."""
    unknown = [name for name in got if name not in expected]
    if unknown:
        raise ValueError(
            f"the file has `{unknown[0]}`, which {owner} lacks; {owner} is of another kind than the one saved."
        )


def check_tensor(name: str, value: Tensor, shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise unless a tensor has this dtype and shape. In the message, a backtick comes before `name`."""
    if value.dtype != dtype:
        raise ValueError(f"`{name} must be {dtype}, got {value.dtype}.")
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"`{name} must have shape {tuple(shape)}, got {_checks.shape(value)}.")


def check_finite(name: str, value: Tensor) -> None:
    """Raise if a tensor has NaN or infinity. In the message, a backtick comes before `name`."""
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        count = int((~torch.isfinite(value)).sum())
        raise ValueError(
            f"`{name} must be finite, got {count} NaN or infinite number(s) of {value.numel()}; fit again."
        )


def require_tensors(owner: str, state: Mapping[str, object]) -> dict[str, Tensor]:
    """The state dict of a module; raises unless all its values are tensors."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"the state of {owner} must hold tensors only to be saved, but `{name}` is of type "
                f"{type(value).__name__}; make it a buffer."
            )
    return {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}


def check_numbers(owner: str, got: Mapping[str, Tensor], own: Mapping[str, Tensor], constants: Collection[str]) -> None:
    """Raise if a number is not finite, or a running variance of batch normalisation is negative.

    Buffers named in `constants`, such as an attention mask, may have the infinities that they have in `own`.
    """
    for name, value in got.items():
        same = own[name].to(value.device) == value
        is_constant = name in constants and value.is_floating_point() and bool((same | value.isfinite()).all())
        if not is_constant:
            check_finite(f"{name}` of {owner}", value)
        if name.rpartition(".")[2] == "running_var" and bool((value < 0).any()):
            raise ValueError(f"`{name}` of {owner} must not be negative, got {float(value.min()):.4g}.")
