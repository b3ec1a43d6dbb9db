"""Saving and loading what a fit learned."""

import zipfile
from pathlib import Path

import torch
from torch import nn

from .model import BayesianModel

__all__ = ["load_state", "save_state"]


def save_state(path: str | Path, model: BayesianModel, guide: nn.Module) -> None:
    """Write the parameters and buffers of a model and its guide to one file.

    Args:
        path: The file.
        model: The model.
        guide: Its guide.
    """
    torch.save({"model": model.state_dict(), "guide": guide.state_dict()}, path)


def load_state(path: str | Path, model: BayesianModel, guide: nn.Module) -> None:
    """Read parameters and buffers into a model and a guide built as those that were saved.

    Only tensors are read; the file cannot run code.

    Args:
        path: A file written by :func:`save_state`.
        model: Receives the model's state, on whatever device it is.
        guide: Receives the guide's state.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not fit the model or the guide.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no file that `save_state` wrote.")
    states = torch.load(path, map_location="cpu", weights_only=True)
    for name, module in (("model", model), ("guide", guide)):
        try:
            module.load_state_dict(states[name])
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"{path} does not fit the {name} it is loaded into: {error}") from error
