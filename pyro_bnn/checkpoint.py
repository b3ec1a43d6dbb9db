"""Files with the results of a fit: the state of a model and its guide."""

import math
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from .guides import MeanFieldGuide
from .model import BayesianModel

__all__ = ["load_state", "save_state"]


def save_state(path: str | Path | BinaryIO, model: BayesianModel, guide: nn.Module) -> None:
    """Write the parameters and buffers of a model and its guide to one file.

    A removed weight (see :mod:`pyro_bnn.pruning`) takes one bit in the file.

    Args:
        path: Path of the file, or an open binary file.
        model: The model.
        guide: Its guide.
    """
    masked = sorted(guide.masks) if isinstance(guide, MeanFieldGuide) else []
    states: dict[str, Any] = {"model": model.state_dict(), "guide": guide.state_dict()}
    states["guide"], states["removed"] = _packed(states["guide"], masked)
    for site in masked:  # the first values of a pruned network are not needed any more
        states["model"].pop(site, None)
    torch.save(states, path)


def load_state(path: str | Path, model: BayesianModel, guide: nn.Module) -> None:
    """Read parameters and buffers into a model and a guide of the same architecture as those that were saved.

    Only tensors and numbers are read; the file cannot run code.

    Args:
        path: A file written by :func:`save_state`.
        model: Model that receives the saved state; it stays on its device.
        guide: Guide that receives the saved state, including the masks of removed weights.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not fit the model or the guide.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}; pass one that `save_state` wrote.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no file that `save_state` wrote; pass one that it wrote.")
    try:
        states = torch.load(path, map_location="cpu", weights_only=True)
        removed = states.get("removed", {})
        new = {"model": dict(states["model"]), "guide": _unpacked(dict(states["guide"]), removed)}
    except (RuntimeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file that `save_state` wrote, or it is damaged: {error}") from error
    own = {name: value.clone() for name, value in model.state_dict().items()}
    new["model"] = {**{site: value for site, value in own.items() if site in removed}, **new["model"]}
    for name, module in (("model", model), ("guide", guide)):
        try:
            module.load_state_dict(new[name])
        except RuntimeError as error:
            model.load_state_dict(own)
            raise ValueError(f"{path} does not fit the {name} it is loaded into: {error}") from error


def _packed(state: dict[str, Tensor], masked: list[str]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """A guide's state with masks packed into bits and only the kept elements of masked parameters; and their shapes."""
    packed, shapes = dict(state), {}
    for site in masked:
        keep = packed.pop(f"keep.{site}")
        shapes[site] = list(keep.shape)
        for kind in _kinds(state):
            if f"{kind}.{site}" in state:
                packed[f"{kind}.{site}"] = state[f"{kind}.{site}"][keep]
        packed[f"keep.{site}"] = torch.from_numpy(np.packbits(keep.cpu().numpy()))
    return packed, shapes


def _kinds(state: dict[str, Tensor]) -> set[str]:
    """The trees of a guide's parameters, such as ``loc`` and ``rho``."""
    return {name.partition(".")[0] for name in state} - {"keep"}


def _unpacked(state: dict[str, Tensor], shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    """The inverse of :func:`_packed`; parameters of removed weights become 0."""
    unpacked = dict(state)
    for site, shape in shapes.items():
        packed = state[f"keep.{site}"].numpy()
        if len(packed) != -(-math.prod(shape) // 8):
            raise ValueError(f"the mask of `{site}` has {len(packed)} bytes for {math.prod(shape)} weights.")
        bits = np.unpackbits(packed, count=math.prod(shape))
        keep = torch.from_numpy(bits).bool().view(shape)
        unpacked[f"keep.{site}"] = keep
        for kind in _kinds(state):
            kept = state.get(f"{kind}.{site}")
            if kept is not None:
                unpacked[f"{kind}.{site}"] = kept.new_zeros(shape).masked_scatter_(keep, kept)
    return unpacked
