"""The draws of a prediction: block after block, each of which goes through all batches of rows."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution

from ..._core.functional import swapped
from ..._core.inputs import Inputs
from ..._core.reflection import overridden_names
from ..._core.reuse import Memory, Plan
from ..._core.scope import eval_mode, reseed, restored
from ...inference.posterior import Draw
from ...modelling.model import BayesianModel
from ...scores.uncertainty import Prediction
from ._at_once import Block, remembered
from ._linearised import linearised_output

P = TypeVar("P", bound=Prediction)

MOST_BYTES = 2**28
"""Heuristic: memory for what a network computes from several batches without its random parameters, 0.27 GB. If it is
more, batches are predicted one after the other. What is kept of one batch is less than a run of the network takes."""

NUM_FIRST = 2
"""Draws of the first block: those with which other ways to run the network are compared."""


def add_draws(model: BayesianModel[P], source: Iterator[Draw], seeds: list[int], batches: list["Batch[P]"]) -> int:
    """Add all draws to some batches of rows; a seed is for a draw, and for what the network draws with it.

    Returns how many of the batches got all draws, at least 1. If more would take too much memory, the others got none.
    """
    done = 0
    while done < len(seeds):
        block = seeds[done : done + (NUM_FIRST if done == 0 else min(batch.block.size for batch in batches))]
        # other threads have their turns between two blocks
        with torch.no_grad(), restored(model.device), eval_mode(model):
            for batch in batches:
                batch.memory.begin_block()
            for seed in block:
                reseed(seed, model.device)
                draw = next(source)
                if seed == seeds[0]:
                    model.check_latents(draw)
                for index, batch in enumerate(batches):
                    batch.take(draw)
                    if (
                        not batch.memory.num_bytes
                        or sum(b.memory.num_bytes for b in batches[: index + 1]) <= MOST_BYTES
                    ):
                        continue
                    if seed == seeds[0] and not batch.memory.has_noise:
                        batches = batches[: index + 1]  # the others get the same draws later
                        break
                    if index:
                        batch.memory.forget()
            for batch in batches:
                batch.add_taken()
        done += len(block)
    return len(batches)


@dataclass(frozen=True)
class Way:
    """How a network is run for the draws of a posterior.

    Args:
        constant: Sites that are the same in all draws.
        centers: Points around which the network is made linear in its weights, each for one draw, in turn; where it is
            None, or if there are none, the network is taken as it is.
        keep: Whether to keep the prediction of each draw.
        carried: Path of each of the network's own parameters and buffers of which draws hold values, by name.
    """

    constant: Collection[str] = ()
    centers: Sequence[Draw | None] = ()
    keep: bool = False
    carried: Mapping[str, str] = field(default_factory=dict)


class Batch(Generic[P]):
    """Some of the rows, and what was predicted for them so far; the plan says what of the network runs only once."""

    def __init__(self, model: BayesianModel[P], x: Inputs, y: Tensor | None, plan: Plan, way: Way) -> None:
        self._model, self._x, self._y, self._way = model, x, y, way
        self.memory = Memory(plan)
        """What the network computes without its random parameters."""
        self.block = Block(model, x, self.memory, may_join=plan.is_free and not way.carried)
        """The draws that were taken since the last :meth:`add_taken`."""
        self._sum = model.likelihood.accumulator()
        self._log_density: Tensor | None = None
        self._is_plain = not overridden_names(type(model), BayesianModel)
        self._names = set(model.latent_names)

    def take(self, draw: Draw) -> None:
        """Take a draw: run the network, unless several draws will be run at once."""
        carried = self._way.carried
        if not carried:
            self._take(draw)
            return
        with swapped(self._model.network, {path: draw[name] for name, path in carried.items()}):
            self._take({name: value for name, value in draw.items() if name not in carried})

    def _take(self, draw: Draw) -> None:
        centers = self._way.centers
        if centers and (center := centers[self._sum.num_samples % len(centers)]) is not None:
            self._add_one(self._linearised(draw, center))
        elif centers or not self._is_plain or not draw.keys() <= self._names:
            self._add_one(remembered(self._model, self.memory, lambda: self._observation(draw)))
        else:
            self.block.take(draw)

    def _linearised(self, draw: Draw, center: Draw) -> Distribution:
        """The distribution of the targets, by the network that is linear in its weights."""
        if not self._is_plain or not draw.keys() <= self._names:
            raise ValueError(
                "a linearised prediction needs a plain BayesianModel and a network without variables of its own, got "
                f"{type(self._model).__name__} and draws of {list(draw)}; pass `linearised=False`."
            )
        output = linearised_output(self._model, center, draw, self._x, self._way.constant)
        return self._model.observe(output, draw)

    def _observation(self, draw: Draw) -> Distribution:
        """The distribution of the targets; by Pyro if the draw has variables of the network's own, else without it."""
        if draw.keys() <= self._names:
            return self._model.observation_given(draw, self._x)
        with poutine.block(), poutine.condition(data=draw):
            return self._model.observation(self._x)

    def add_taken(self) -> None:
        """Add the predictions of the draws that were taken, which ends the block."""
        self.memory.end_block()
        if self.block.draws:
            self._add(self._model.observe(*self.block.run()))

    def _add_one(self, observation: Distribution) -> None:
        self._add(observation.expand(torch.Size([1, *observation.batch_shape])))

    def _add(self, observations: Distribution) -> None:
        """Add the distributions of the targets under some draws, batch shape ``(S, N, *O)``."""
        self._sum.add_draws(observations, keep=self._way.keep)
        if self._y is None:
            return
        log_prob = observations.log_prob(self._y)
        log_prob = log_prob.reshape(*log_prob.shape[:2], -1).sum(-1).logsumexp(0)  # (N,)
        previous = self._log_density
        self._log_density = log_prob if previous is None else torch.logaddexp(previous, log_prob)

    def prediction(self, log_num_samples: float) -> P:
        """The prediction of all draws, given the logarithm of their number."""
        density = self._log_density
        return self._sum.prediction(None if density is None else density - log_num_samples)
