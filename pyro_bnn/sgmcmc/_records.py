"""The draws that a chain keeps."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..guides import DeltaGuide
from ..history import History
from ._plans import StepSizes


def memory_for(shape: tuple[int, int, int], like: Tensor, store: Path | None) -> Tensor:
    """Room for the draws of all chains, shape (K, S, P), in memory on the device of `like`, or in a file.

    Args:
        shape: Numbers of chains, of draws of each, and of latent numbers.
        like: Tensor with the dtype of the draws.
        store: File, which is made and mapped into memory; None takes memory.
    """
    if store is None:
        return like.new_zeros(shape)
    size = shape[0] * shape[1] * shape[2]
    return torch.from_file(str(store), shared=True, size=size, dtype=like.dtype).view(shape)


def kept_steps(steps: StepSizes, num_steps: int, num_samples: int) -> list[int]:
    """Numbers of the steps after which a draw is kept, evenly spaced over those at which a chain samples.

    Args:
        steps: Plan of the step sizes.
        num_steps: Number of steps of the chain.
        num_samples: Number of draws to keep.

    Raises:
        ValueError: If the chain samples at fewer steps.
    """
    sampling = [step for step in range(num_steps) if steps.stage(step, num_steps).is_sampling]
    if len(sampling) < num_samples:
        raise ValueError(
            f"`num_samples` must be at most the number of steps at which a chain samples, {len(sampling)} of "
            f"{num_steps}, got {num_samples}; raise `num_epochs`."
        )
    return [sampling[(row + 1) * len(sampling) // num_samples - 1] for row in range(num_samples)]


class Record:
    """The draws of one chain.

    It is a callback of a fit with a state, so that checkpoints hold the draws.

    Args:
        point: The point of the chain.
        draws: Where its draws are written, ``{site: shape (S, *event)}``.
        kept_steps: Numbers of the steps after which a draw is kept, S of them; see :func:`kept_steps`.
    """

    def __init__(self, point: DeltaGuide, draws: dict[str, Tensor], kept_steps: list[int]) -> None:
        self._point, self._draws, self._kept = point, draws, kept_steps
        self._num_kept = 0

    def keep(self, step: int) -> None:
        """Keep the point if this step, which was just made, is one of those."""
        if self._num_kept < len(self._kept) and step == self._kept[self._num_kept]:
            for name, value in self._point.locations().items():
                self._draws[name][self._num_kept].copy_(value)
            self._num_kept += 1

    def __call__(self, history: History) -> None:
        """Do nothing at the end of an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """The draws so far."""
        return {name: draws[: self._num_kept].clone() for name, draws in self._draws.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        for name, draws in state_dict.items():
            self._num_kept = len(draws)
            self._draws[name][: len(draws)].copy_(draws)
