"""The draws of a prediction: block after block, each of which goes through all batches of rows."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution

from ..._core.functional import BatchedNetwork, swapped
from ..._core.inputs import Inputs, num_rows
from ..._core.reflection import overridden_names
from ..._core.reuse import Diverged, Memory, Plan, State, generators_of_others
from ..._core.scope import eval_mode, reseed, restored, undone
from ...inference.posterior import Draw
from ...modelling.model import BayesianModel
from ...scores.uncertainty import Prediction
from ._at_once import faster
from ._linearised import linearised_output

P = TypeVar("P", bound=Prediction)
T = TypeVar("T")

MOST_BYTES = 2**28
"""Heuristic: memory for what a network computes from several batches without its random parameters, 0.27 GB. If it is
more, batches are predicted one after the other. What is kept of one batch is less than a run of the network takes."""

NUM_FIRST = 2
"""Draws of the first block: those with which other ways to run the network are compared."""

MOST_DRAWS = 64
"""Heuristic: draws in a block. With more, nothing more is saved."""

MOST_NUMBERS = 2**20
"""Heuristic: numbers in the outputs of a block, and in the weights of draws that are run at once; 4 MB."""

MOST_WORK = 2**24
"""Heuristic: weights times rows in a block, so that other threads have their turns every few milliseconds."""

LARGEST = 2**24
"""Heuristic: memory of a tensor inside of a network that runs for several draws at once, 17 MB."""

LITTLE_WORK, FEW_WEIGHTS = 2**20, 2**15
"""Heuristic: weights times rows, and weights, below which a run of the network takes less time than its overhead, so
that several draws are run at once. Weights of larger networks are read from memory anyway, and joining them costs more
than it saves."""


def add_draws(model: BayesianModel[P], source: Iterator[Draw], seeds: list[int], batches: list["Batch[P]"]) -> int:
    """Add all draws to some batches of rows; a seed is for a draw, and for what the network draws with it.

    Returns how many of the batches got all draws, at least 1. If more would take too much memory, the others got none.
    """
    done = 0
    while done < len(seeds):
        block = seeds[done : done + (NUM_FIRST if done == 0 else min(batch.block_size for batch in batches))]
        # other threads have their turns between two blocks
        with torch.no_grad(), restored(model.device), eval_mode(model):
            for batch in batches:
                batch.begin_block()
            for seed in block:
                reseed(seed, model.device)
                draw = next(source)
                if seed == seeds[0]:
                    model.check_latents(draw)
                for index, batch in enumerate(batches):
                    batch.take(draw)
                    if not batch.num_bytes or sum(b.num_bytes for b in batches[: index + 1]) <= MOST_BYTES:
                        continue
                    if seed == seeds[0] and not batch.has_noise:
                        batches = batches[: index + 1]  # the others get the same draws later
                        break
                    if index:
                        batch.forget()
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
        self._model, self._x, self._y, self._keep, self._memory = model, x, y, way.keep, Memory(plan)
        self._sum = model.likelihood.accumulator()
        self._log_density: Tensor | None = None
        self._names, self._way = set(model.latent_names), way
        self._is_plain = not overridden_names(type(model), BayesianModel)
        self._of_likelihood = [name for name in model.latent_names if name.startswith("likelihood.")]
        self._draws: list[Draw] = []
        self._outputs: list[Tensor] = []
        self._at_once: BatchedNetwork | None = None
        self._plan, self._work, self._is_little = plan, 1, False
        self.block_size = 1
        """Number of draws that are to be taken before :meth:`add_taken`."""

    @property
    def num_bytes(self) -> int:
        """Memory of what is remembered."""
        return self._memory.num_bytes

    @property
    def has_noise(self) -> bool:
        """Whether the network draws random numbers of its own, which depend on how much was computed before."""
        return self._memory.has_noise

    def forget(self) -> None:
        """Remember nothing any more."""
        self._memory.forget()

    def begin_block(self) -> None:
        """Begin a block of draws, in which nothing changes the network between two of them."""
        self._memory.begin_block()

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
            return
        if centers or not self._is_plain or not draw.keys() <= self._names:
            self._add_one(self._remembered(lambda: self._observation(draw)))
            return
        if self._is_first and not self._draws:
            self._measure(draw)
        if self._at_once is None:
            before = (State(self._model.network.modules()), generators_of_others()) if self._is_little else None
            self._outputs.append(self._remembered(partial(self._model.output_given, draw, self._x)))
            if before is not None:
                self._is_little = before[0].is_same(deep=True) and before[1] == generators_of_others()
        is_whole = self._at_once is not None or self._is_little
        self._draws.append(draw if is_whole else {name: draw[name] for name in self._of_likelihood})

    def _linearised(self, draw: Draw, center: Draw) -> Distribution:
        """The distribution of the targets, by the network that is linear in its weights."""
        if not self._is_plain or not draw.keys() <= self._names:
            raise ValueError(
                "a linearised prediction needs a plain BayesianModel and a network without variables of its own, got "
                f"{type(self._model).__name__} and draws of {list(draw)}; pass `linearised=False`."
            )
        output = linearised_output(self._model, center, draw, self._x, self._way.constant)
        return self._model.observe(output, draw)

    def _measure(self, draw: Draw) -> None:
        num_weights = sum(draw[name].numel() for name in self._model.site_names)
        self._work = max(num_weights * num_rows(self._x), 1)
        is_free = self._plan.is_free and not self._way.carried and not self._model.interception.is_active
        self._is_little = is_free and self._work <= LITTLE_WORK and num_weights <= FEW_WEIGHTS

    @property
    def _is_first(self) -> bool:
        return self._sum.num_samples == 0

    def _remembered(self, run: Callable[[], T]) -> T:
        """The result of a run of the network with its memory; as a whole, if something is needed that was not kept."""
        if not self._memory.is_used:
            with self._model.interception.remembering(self._memory):
                return run()
        with undone(self._model.device) as undo:
            try:
                with self._model.interception.remembering(self._memory):
                    return run()
            except Exception:  # a value that was not kept may be missed by more than operations of torch
                self._memory.forget()
                undo()
                return run()

    def add_taken(self) -> None:
        """Add the predictions of the draws that were taken, which ends the block."""
        self._memory.end_block()
        draws, self._draws = self._draws, []
        if not draws:
            return
        if self._at_once is not None:
            outputs = self._run_at_once(self._at_once, draws)
        else:
            outputs = torch.stack(self._outputs)
            self._outputs = []
        is_first = self._is_first
        values = {name: torch.stack([draw[name] for draw in draws]) for name in self._of_likelihood}
        self._add(self._model.observe(outputs, values))
        if is_first and len(draws) > 1:
            self._choose(draws, outputs)

    def _run_at_once(self, at_once: BatchedNetwork, draws: list[Draw]) -> Tensor:
        """The outputs for several draws, shape (K, N, ...)."""
        if self._memory.will_watch():  # the network was changed since the last block
            return torch.stack([self._remembered(partial(self._model.output_given, draw, self._x)) for draw in draws])
        weights = self._by_path({name: torch.stack([draw[name] for draw in draws]) for name in self._model.site_names})

        def run() -> Tensor:
            with self._memory.during({}):
                return at_once(weights, self._x)

        return self._remembered(run)

    def _by_path(self, weights: Draw) -> Draw:
        paths = self._model.parameter_paths
        return {path: weights[name] for name in self._model.site_names for path in paths[name]}

    def _choose(self, draws: list[Draw], outputs: Tensor) -> None:
        """Choose how further draws are run, and how many of them together."""
        numbers, most = max(outputs[0].numel(), 1), MOST_DRAWS
        if self._is_little and not self._memory.will_watch():
            weights = {name: torch.stack([draw[name] for draw in draws]) for name in self._model.site_names}
            replayed = partial(self._memory.during, {})
            with suppress(Diverged):
                found = faster(self._model.network, self._by_path(weights), self._x, outputs, replayed)
                if found is not None:
                    most = LARGEST // max(found[1], 1)
                    self._at_once = found[0] if most > 1 else None
            numbers = max(numbers, *(value[0].numel() for value in weights.values()))
        self._is_little = self._at_once is not None
        most = most if self._is_little else MOST_DRAWS
        self.block_size = max(1, min(most, MOST_DRAWS, MOST_NUMBERS // numbers, MOST_WORK // self._work))

    def _observation(self, draw: Draw) -> Distribution:
        """The distribution of the targets; by Pyro if the draw has variables of the network's own, else without it."""
        if draw.keys() <= self._names:
            return self._model.observation_given(draw, self._x)
        with poutine.block(), poutine.condition(data=draw):
            return self._model.observation(self._x)

    def _add_one(self, observation: Distribution) -> None:
        self._add(observation.expand(torch.Size([1, *observation.batch_shape])))

    def _add(self, observations: Distribution) -> None:
        """Add the distributions of the targets under some draws, batch shape ``(S, N, *O)``."""
        self._sum.add_draws(observations, keep=self._keep)
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
