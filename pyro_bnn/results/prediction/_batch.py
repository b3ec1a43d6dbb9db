"""Prediction for batches of rows, with one block of weight draws after the other.

The network runs on all batches with the draws of one block before it runs with the draws of the next block.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution

from ..._core.functional import ordinary_attention, swapped
from ..._core.inputs import Inputs
from ..._core.reflection import overridden_names
from ..._core.reuse import Memory, Plan
from ..._core.scope import eval_mode, filtered_warnings, reseed, restored
from ...inference.posterior import Draw
from ...modelling.model import BayesianModel
from ...scores.uncertainty import Prediction, are_few
from ._at_once import Block, remembered

P = TypeVar("P", bound=Prediction)

MOST_BYTES = 2**28
"""Heuristic: largest memory, 0.27 GB, for kept results of several batches; if it is too small, one by one."""

NUM_FIRST = 2
"""Number of draws in the first block, which run one by one. A faster way must give the same outputs for them."""


def add_draws(model: BayesianModel[P], source: Iterator[Draw], seeds: list[int], batches: list["Batch[P]"]) -> int:
    """Add the draws of all seeds to the first batches of rows, and return the number of these batches, at least 1.

    The last batches get no draws if all batches together would take too much memory.
    """
    done = 0
    while done < len(seeds):
        block = seeds[done : done + (NUM_FIRST if done == 0 else min(batch.block.size for batch in batches))]
        # other threads can run between two blocks
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
                        batches = batches[: index + 1]  # the other batches get the same draws later
                        break
                    if index:
                        batch.memory.forget()
            for batch in batches:
                batch.add_taken()
        done += len(block)
    return len(batches)


@dataclass(frozen=True)
class Way:
    """Settings that say how a network runs with the draws of a posterior, and what the prediction keeps."""

    constant: Collection[str] = ()  # sites with the same value in all draws
    centers: Sequence[Draw | None] = ()  # points of linearisation, in turn; None runs the network without linearisation
    keep: bool | None = None  # whether to keep the prediction of each draw; None keeps them if they are few
    carried: Mapping[str, str] = field(default_factory=dict)  # paths of parameters and buffers in the draws, by name
    num_predictions: int = 1  # number of draws times number of rows


class Batch(Generic[P]):
    """A batch of rows, and the prediction from all draws so far; `plan` has the modules whose results may be reused."""

    def __init__(self, model: BayesianModel[P], x: Inputs, y: Tensor | None, plan: Plan, way: Way) -> None:
        self._model, self._x, self._y, self._way = model, x, y, way
        self.memory = Memory(plan)
        """Results that do not depend on the random parameters."""
        self.block = Block(model, x, self.memory, may_join=plan.is_free and not way.carried)
        """The draws since the last :meth:`add_taken`."""
        self._sum = model.likelihood.accumulator()
        self._log_density: Tensor | None = None
        self._is_plain = not overridden_names(type(model), BayesianModel)
        self._names = set(model.latent_names)

    def take(self, draw: Draw) -> None:
        """Add a draw; see :meth:`Block.take`."""
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
        """Return the distribution of the targets for the network linearised in its weights around `center`."""
        if not self._is_plain or not draw.keys() <= self._names:
            raise ValueError(
                "a linearised prediction needs a plain BayesianModel and a network without variables of its own, got "
                f"{type(self._model).__name__} and draws of {list(draw)}; pass `linearised=False`."
            )
        output = _linearised_output(self._model, center, draw, self._x, self._way.constant)
        return self._model.observe(output, draw)

    def _observation(self, draw: Draw) -> Distribution:
        """Return the distribution of the targets given a draw. If the draw has other sites, Pyro runs the model."""
        if draw.keys() <= self._names:
            return self._model.observation_given(draw, self._x)
        with poutine.block(), poutine.condition(data=draw):
            return self._model.observation(self._x)

    def add_taken(self) -> None:
        """End a block of draws, and add the predictions from the draws in the block to the running sum."""
        self.memory.end_block()
        if self.block.draws:
            self._add(self._model.observe(*self.block.run()))

    def _add_one(self, observation: Distribution) -> None:
        self._add(observation.expand(torch.Size([1, *observation.batch_shape])))

    def _add(self, observations: Distribution) -> None:
        """Add the distributions of the targets for S draws, batch shape ``(S, N, *O)``."""
        keep = self._way.keep
        if keep is None:
            keep = are_few(observations, self._way.num_predictions)
        self._sum.add_draws(observations, keep=keep)
        if self._y is None:
            return
        log_prob = observations.log_prob(self._y)
        log_prob = log_prob.reshape(*log_prob.shape[:2], -1).sum(-1).logsumexp(0)  # (N,)
        previous = self._log_density
        self._log_density = log_prob if previous is None else torch.logaddexp(previous, log_prob)

    def prediction(self, log_num_samples: float) -> P:
        """Return the prediction from all draws. `log_num_samples` is the logarithm of the number of draws."""
        density = self._log_density
        return self._sum.prediction(None if density is None else density - log_num_samples)


def _linearised_output(model: BayesianModel, center: Draw, draw: Draw, x: Inputs, constant: Collection[str]) -> Tensor:
    r"""Linearise the network in its weights around a point, and return the output of the linear network at a draw.

    .. math:: f(x, w^*) + J(x) (w - w^*), \qquad J(x) = \partial f(x, w) / \partial w \text{ at } w^*.

    Here :math:`w^*` is `center`, and w is `draw`; both have the same values at the sites in `constant`. One pass with
    forward derivatives gives the product with the Jacobian; the Jacobian itself is never computed.
    """
    names = [name for name in model.site_names if name not in constant]
    point = tuple(center[name] for name in names)
    moves = tuple(draw[name] - center[name] for name in names)

    def output(*weights: Tensor) -> Tensor:
        return model.output_given({**center, **dict(zip(names, weights, strict=True))}, x)

    try:
        with filtered_warnings("ignore", "`torch.jit.script` is deprecated"), ordinary_attention():  # torch's own use
            at_point, change, *_ = torch.func.jvp(output, point, moves)
    except ValueError as error:
        if not isinstance(error.__cause__, NotImplementedError):
            raise
        raise ValueError(
            "a linearised prediction needs forward derivatives, but an operation of the network has none "
            f"({str(error.__cause__).splitlines()[0]}); pass `linearised=False`."
        ) from error
    result: Tensor = at_point + change
    return result
