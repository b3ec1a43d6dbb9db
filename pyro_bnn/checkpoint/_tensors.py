"""Checks of the tensors that a file holds, by name."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from .. import _checks


def check_tensors(owner: str, got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise unless a state has the names, shapes and dtypes that are expected, and finite numbers.

    Args:
        owner: What the state is of, such as "the guide", for messages.
        got: The state from a file.
        expected: A state that fits; its numbers do not matter.

    Raises:
        ValueError: If a tensor is missing, unknown, or of another shape or dtype, or if a number is not finite.
    """
    for name, value in expected.items():
        if name not in got:
            raise ValueError(f"the file lacks `{name}` of {owner}; {owner} is of another kind than the one saved.")
        check_tensor(f"{name}` of {owner} in the file", got[name], value.shape, value.dtype)
    require_no_more(owner, got, expected)
    for name, value in got.items():
        check_finite(f"{name}` of {owner}", value)


def require_no_more(owner: str, got: Mapping[str, object], expected: Collection[str]) -> None:
    """Raise if a state has a name that is not expected."""
    unknown = [name for name in got if name not in expected]
    if unknown:
        raise ValueError(f"the file has `{unknown[0]}`, which {owner} lacks; it is of another kind than the one saved.")


def check_tensor(name: str, value: Tensor, shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise unless a tensor has this dtype and shape; `name` is the start of the message after a backtick."""
    if value.dtype != dtype:
        raise ValueError(f"`{name} must be {dtype}, got {value.dtype}.")
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"`{name} must have shape {tuple(shape)}, got {_checks.shape(value)}.")


def check_finite(name: str, value: Tensor) -> None:
    """Raise if a tensor holds NaN or infinity; `name` is the start of the message after a backtick."""
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        count = int((~torch.isfinite(value)).sum())
        raise ValueError(
            f"`{name} must be finite, got {count} NaN or infinite number(s) of {value.numel()}; fit again."
        )


def require_tensors(owner: str, state: Mapping[str, object]) -> dict[str, Tensor]:
    """The state dict of a module, which must hold tensors only."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"the state of {owner} must hold tensors only to be saved, but `{name}` is of type "
                f"{type(value).__name__}; make it a buffer."
            )
    return {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}


def variances_of(module: nn.Module) -> list[str]:
    """Names of the running variances of batch normalisation, which cannot be negative."""
    return [name for name in module.state_dict() if name.rpartition(".")[2] == "running_var"]
