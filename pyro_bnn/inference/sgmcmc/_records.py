"""The draws that a chain keeps."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..._core.records import record
from ..guides import DeltaGuide
from ..history import History
from ..joint import Layout
from ._plans import StepSizes
from ._store import Store


@dataclass(frozen=True)
class ChainState:
    """What a checkpoint says of a chain that keeps S draws: those so far, ``{site: shape (number so far, *event)}``."""

    run: str
    num_samples: int
    draws: dict[str, Tensor]


def kept_steps(steps: StepSizes, num_steps: int, num_samples: int) -> list[int]:
    """Numbers of the steps after which a draw is kept, evenly spaced over those at which a chain samples."""
    sampling = [step for step in range(num_steps) if steps.stage(step, num_steps).is_sampling]
    if len(sampling) < num_samples:
        raise ValueError(
            f"`num_samples` must be at most the number of steps at which a chain samples, {len(sampling)} of "
            f"{num_steps}, got {num_samples}; raise `num_epochs`."
        )
    return [sampling[(row + 1) * len(sampling) // num_samples - 1] for row in range(num_samples)]


class Record:
    """The draws of one chain; it is a callback of a fit with a state, so that checkpoints hold the draws."""

    def __init__(self, point: DeltaGuide, store: Store, chain: int, layout: Layout, kept_steps: list[int]) -> None:
        self._point, self._store, self._chain, self._layout = point, store, chain, layout
        self._kept, self._num_kept = kept_steps, 0

    def _draws(self) -> dict[str, Tensor]:
        """The room for the chain's draws, ``{site: shape (S, *event)}``."""
        return self._layout.views(self._store.draws()[self._chain])

    def keep(self, step: int) -> None:
        """Keep the point if this step, which was just made, is one of those."""
        if self._num_kept < len(self._kept) and step == self._kept[self._num_kept]:
            draws = self._draws()
            for name, value in self._point.locations().items():
                draws[name][self._num_kept].copy_(value)
            self._num_kept += 1

    def __call__(self, history: History) -> None:
        """Do nothing at the end of an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """The draws so far, and what run they are of."""
        draws = self._draws() if self._num_kept else {}
        kept = {name: values[: self._num_kept].clone() for name, values in draws.items()}
        return {"run": self._store.run, "num_samples": len(self._kept), "draws": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        state = record(ChainState, state_dict, "draws of a chain")
        if state.num_samples != len(self._kept):
            raise ValueError(
                f"`num_samples` must be that of the run that is resumed, {state.num_samples}, got {len(self._kept)}."
            )
        self._store.join(state.run)
        if not state.draws:
            return
        own, counts = self._draws(), {len(draws) for draws in state.draws.values()}
        if {*own} != {*state.draws} or len(counts) > 1:
            raise ValueError(f"`resume` must hold draws of {list(own)}, got {list(state.draws)}; pass another file.")
        for name, draws in state.draws.items():
            own[name][: len(draws)].copy_(draws)
        (self._num_kept,) = counts
