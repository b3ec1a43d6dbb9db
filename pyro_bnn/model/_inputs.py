"""Checks of the arguments of a model."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from .. import _checks


def check_input(x: Tensor, like: Tensor) -> None:
    """Raise unless x has rows, is on the device of the weights `like` and, if floating point, has their dtype."""
    _checks.kind("x", x, Tensor, "a tensor")
    if x.layout != torch.strided:
        _checks.tensor("x", x)
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


def require_site(name: str, sites: Mapping[str, object]) -> None:
    """Raise unless a name is that of a site of the network."""
    if not isinstance(name, str) or name not in sites:
        raise ValueError(f"`name` must be a site of the network, one of {list(sites)}, got {name!r}.")


def require_latents(values: Mapping[str, Tensor], names: Iterable[str]) -> None:
    """Raise unless a draw from a posterior has a value for every latent variable."""
    _checks.kind("values", values, Mapping, "a dict of values by site")
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"the posterior lacks the latent variables {missing} of the model; it has {list(values)}.")


def require_values(values: Mapping[str, Tensor], names: Iterable[str]) -> None:
    """Raise unless there is a value for every name."""
    _checks.kind("values", values, Mapping, "a dict of values by site")
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"`values` must have all sites of the network, got none for {missing}; add them.")


def check_latent(name: str, value: Tensor, shape: torch.Size) -> None:
    """Raise unless a value of a latent variable is a finite tensor of the model's shape."""
    value = _checks.tensor(f"values[{name!r}]", value)
    if value.shape != shape:
        raise ValueError(
            f"the posterior's `{name}` has shape {_checks.shape(value)} but the model's {tuple(shape)}: it belongs to "
            "another model; pass its own model."
        )
    if not bool(torch.isfinite(value).all()):
        raise ValueError(
            f"the posterior's `{name}` must be finite, got NaN or infinity; fit again with a lower learning rate."
        )


def check_shapes(expected: torch.Size, x: Tensor, y: Tensor, likelihood: str) -> None:
    """Raise unless y has the expected shape and is on the device of x; `likelihood` is a name for the message."""
    _checks.kind("y", y, Tensor, "a tensor")
    if y.device != x.device:
        raise ValueError(f"`y` is on {y.device} but `x` is on {x.device}; call `y.to(x.device)`.")
    _checks.tensor("y", y)
    _checks.same_rows(x, y)
    if y.shape != expected:
        remedy = ""
        if y.numel() == expected.numel():
            remedy = "; call `y.squeeze(-1)`" if y.dim() > len(expected) else "; call `y.unsqueeze(-1)`"
        raise ValueError(f"{likelihood} expects `y` of shape {tuple(expected)}, got {_checks.shape(y)}{remedy}.")
