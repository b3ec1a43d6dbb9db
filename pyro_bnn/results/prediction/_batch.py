"""Predictions of batches of rows, for blocks of draws of the weights."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from pyro import poutine
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils._python_dispatch import TorchDispatchMode

from ..._core import checks as _checks
from ..._core.functional import BatchedNetwork, as_chain, ordinary_attention, swapped, vectorised
from ..._core.inputs import Inputs, num_rows
from ..._core.reflection import overridden_names, tensors_within
from ..._core.reuse import Diverged, Memory, Plan, State, generators_of_others
from ..._core.scope import EXCLUSIVE, Stream, eval_mode, filtered_warnings, reseed, restored, undone
from ...inference.guides import as_posterior
from ...inference.posterior import Draw, Posterior
from ...modelling.model import BayesianModel
from ...scores.uncertainty import Prediction, are_few


def new_seed(seed: int | None) -> int:
    """Return the given seed, or draw one."""
    if seed is not None:
        return _checks.seed(seed)
    with EXCLUSIVE:
        return int(torch.randint(2**62, ()))


def draw_seeds(stream: Stream, num_samples: int) -> list[int]:
    """Return a seed for each draw of the weights."""
    with stream:
        return torch.randint(2**62, (num_samples,)).tolist()


def predicted_draws(
    model: BayesianModel, posterior: Posterior | Callable[..., object], x: Inputs, *, num_samples: int, seed: int
) -> Draw:
    """Return the draws that :func:`~pyro_bnn.predict` uses, ``{site: shape (S, *event)}``."""
    source = as_posterior(posterior)
    turns, draws = source.draws(num_samples, x), []
    for own in draw_seeds(Stream(seed, model.device), num_samples):
        with torch.no_grad(), restored(model.device), eval_mode(model):
            reseed(own, model.device)
            draws.append(next(turns))
        if len(draws) == 1:
            model.check_latents(draws[0])
            _checks.in_memory("num_draws", num_samples, sum(value.nbytes for value in draws[0].values()))
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}


T = TypeVar("T")

MOST_DRAWS = 64  # heuristic: largest number of draws in a block; larger blocks would not be faster


@dataclass(frozen=True)
class Limits:
    """Heuristic: largest sizes of blocks of draws, and of networks that run for several draws at once."""

    numbers: int  # elements of a tensor that stacks the outputs, or the values of one parameter, of all draws
    work: int  # product of weights, rows and draws in a block, so that other threads can run every few milliseconds
    num_bytes: int  # memory of one tensor inside a network that runs for several draws at once
    work_of_draw: int  # product of weights and rows with which several draws run at once
    weights: int  # weights with which several draws run at once


# Several draws at once save overhead, but cost more than that in large runs. A GPU waits for Python more often.
ON_CPU = Limits(numbers=2**20, work=2**24, num_bytes=2**24, work_of_draw=2**20, weights=2**15)
ON_GPU = Limits(numbers=2**25, work=2**38, num_bytes=2**28, work_of_draw=2**34, weights=2**22)


class Block:
    """Collects draws of the weights, and runs the network once for each draw, or once for all of them."""

    def __init__(self, model: BayesianModel, x: Inputs, memory: Memory, *, may_join: bool) -> None:
        self._model, self._x, self._memory = model, x, memory
        self._may_join = may_join and not model.interception.is_active
        self._limits = ON_CPU if model.device.type == "cpu" else ON_GPU
        self._of_likelihood = [name for name in model.latent_names if name.startswith("likelihood.")]
        self._work = 0  # weights times rows; 0 before the first draw
        self._is_little = False
        self._at_once: BatchedNetwork | None = None
        self._outputs: list[Tensor] = []
        self.draws: list[Draw] = []
        self.size = 1  # number of draws in the next block

    def take(self, draw: Draw) -> None:
        """Add a draw. The network runs for this draw now, or later for several draws at once."""
        if not self._work:
            num_weights = sum(draw[name].numel() for name in self._model.site_names)
            self._work = max(num_weights * num_rows(self._x), 1)
            is_small = self._work <= self._limits.work_of_draw and num_weights <= self._limits.weights
            self._is_little = self._may_join and is_small
        if self._at_once is None:
            before = (State(self._model.network.modules()), generators_of_others()) if self._is_little else None
            self._outputs.append(self._output(draw))
            if before is not None:
                self._is_little = before[0].is_same(deep=True) and before[1] == generators_of_others()
        is_whole = self._at_once is not None or self._is_little
        self.draws.append(draw if is_whole else {name: draw[name] for name in self._of_likelihood})

    def _output(self, draw: Draw) -> Tensor:
        return remembered(self._model, self._memory, partial(self._model.output_given, draw, self._x))

    def run(self) -> tuple[Tensor, Draw]:
        """Return the outputs of K draws, shape (K, N, ...), and the draws of the likelihood's variables."""
        draws, self.draws = self.draws, []
        at_once, is_first = self._at_once, self.size == 1
        if at_once is None:
            outputs, self._outputs = torch.stack(self._outputs), []
        elif self._memory.will_watch():  # the network was changed since the last block
            outputs = torch.stack([self._output(draw) for draw in draws])
        else:
            weights = self._weights(draws)

            def run() -> Tensor:
                with self._memory.during({}):
                    return at_once(weights, self._x)

            outputs = remembered(self._model, self._memory, run)
        if is_first and len(draws) > 1:
            self._choose(draws, outputs)
        return outputs, {name: torch.stack([draw[name] for draw in draws]) for name in self._of_likelihood}

    def _weights(self, draws: list[Draw]) -> Draw:
        """Return the weights of K draws, ``{path: shape (K, *parameter)}``."""
        joined = {name: torch.stack([draw[name] for draw in draws]) for name in self._model.site_names}
        return {path: joined[name] for name in joined for path in self._model.parameter_paths[name]}

    def _choose(self, draws: list[Draw], outputs: Tensor) -> None:
        """Choose the size of the next block, and whether the network runs once for all its draws."""
        numbers, most = max(outputs[0].numel(), 1), MOST_DRAWS
        if self._is_little and not self._memory.will_watch():
            weights = self._weights(draws)
            with suppress(Diverged):
                found = faster(self._model.network, weights, self._x, outputs, partial(self._memory.during, {}))
                if found is not None:
                    most = self._limits.num_bytes // max(found[1], 1)
                    self._at_once = found[0] if most > 1 else None
            numbers = max(numbers, *(value[0].numel() for value in weights.values()))
        self._is_little = self._at_once is not None
        most = most if self._is_little else MOST_DRAWS
        limits = self._limits
        self.size = max(1, min(most, MOST_DRAWS, limits.numbers // numbers, limits.work // self._work))


def remembered(model: BayesianModel, memory: Memory, run: Callable[[], T]) -> T:
    """Call `run` with stored results of the network. If that fails, call `run` again without them."""
    if not memory.is_used:
        with model.interception.remembering(memory):
            return run()
    with undone(model.device) as undo:
        try:
            with model.interception.remembering(memory):
                return run()
        except Exception:  # code outside of torch may need a value that was not stored
            memory.forget()
            undo()
            return run()


def faster(
    net: nn.Module,
    example: Mapping[str, Tensor],
    x: Inputs,
    expected: Tensor,
    replayed: Callable[[], AbstractContextManager[None]],
) -> tuple[BatchedNetwork, int] | None:
    """Find a function that runs a network for many draws at once. Return it and its bytes of memory per draw, or None.

    The outputs of the function must equal `expected`, shape (K, N, ...), up to rounding. `example` has K draws of all
    random weights, by path. Each function is tried in a context that `replayed` returns.
    """
    if expected.is_meta:  # there are no numbers to compare
        return None
    tolerance = torch.finfo(expected.dtype).eps ** 0.75 * _magnitudes(expected)
    with filtered_warnings("error", "There is a performance drop"):  # with this warning `vmap` is as slow as a loop
        chain = as_chain(net, set(example), x)
        for run in (chain, partial(vectorised, net)):
            if run is None:
                continue
            try:
                with replayed(), nullcontext() if run is chain else _Largest() as largest:
                    found = run(example, x)
            except (RuntimeError, ValueError, NotImplementedError, UserWarning):
                continue
            if found.shape == expected.shape and bool(((found - expected).abs() <= tolerance).all()):
                num_bytes = _bytes_of_chain(net, example, expected) if largest is None else largest.num_bytes
                return run, num_bytes // len(expected)
    return None


def _bytes_of_chain(net: nn.Module, example: Mapping[str, Tensor], expected: Tensor) -> int:
    """Return the bytes of the largest tensor in a chain of layers, without `_Largest`, which loads torch's compiler."""
    width = max(layer.out_features for layer in net.modules() if isinstance(layer, nn.Linear))
    numbers = max(expected.shape[:2].numel() * width, *(value.numel() for value in example.values()))
    return numbers * expected.element_size()


class _Largest(TorchDispatchMode):
    """Records the size of the largest tensor that operations create."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = (tensor.untyped_storage().nbytes() for tensor in tensors_within(result))
        self.num_bytes = max(self.num_bytes, *sizes, 0)
        return result


def _magnitudes(outputs: Tensor) -> Tensor:
    """Return absolute values, but at least their lower quartile, since small values may have large rounding errors."""
    sizes = outputs.abs()
    quartile = sizes.flatten().kthvalue((sizes.numel() + 3) // 4).values  # a mask of -1e9 would dominate a mean
    return sizes.clamp(min=quartile)


P = TypeVar("P", bound=Prediction)

MOST_BYTES = 2**28  # heuristic: largest memory for stored results of layers; batches that need more are predicted later
NUM_FIRST = 2  # draws in the first block, for which the network runs one by one; faster ways must give the same


def add_draws(model: BayesianModel[P], source: Iterator[Draw], seeds: list[int], batches: list["Batch[P]"]) -> int:
    """Add the draws of all seeds to the first batches, as many as memory allows. Return how many these are."""
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
                    if not batch.memory.num_bytes:
                        continue
                    if sum(earlier.memory.num_bytes for earlier in batches[: index + 1]) <= MOST_BYTES:
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
    """How a network runs with the draws of a posterior, and what the prediction keeps."""

    constant: Collection[str] = ()  # sites with the same value in all draws
    centers: Sequence[Draw | None] = ()  # points of linearisation, in turn; with None, there is no linearisation
    keep: bool | None = None  # whether to keep the prediction of each draw; with None, only if they are few
    carried: Mapping[str, str] = field(default_factory=dict)  # paths of parameters and buffers in the draws, by name
    num_predictions: int = 1  # number of draws times number of rows


class Batch(Generic[P]):
    """A batch of rows, and its prediction so far. Results of modules in `plan` may be reused."""

    def __init__(self, model: BayesianModel[P], x: Inputs, y: Tensor | None, plan: Plan, way: Way) -> None:
        self._model, self._x, self._y, self._way = model, x, y, way
        self.memory = Memory(plan)
        self.block = Block(model, x, self.memory, may_join=plan.is_free and not way.carried)
        self._sum = model.likelihood.accumulator()
        self._log_density: Tensor | None = None
        self._is_plain = not overridden_names(type(model), BayesianModel)
        self._names = set(model.latent_names)

    def take(self, draw: Draw) -> None:
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
        r"""Return the distribution of the targets for the network linearised in its weights around `center`.

        .. math:: f(x, w^*) + J(x) (w - w^*), \qquad J(x) = \partial f(x, w) / \partial w \text{ at } w^*.

        Forward derivatives give the product with J(x) without computing J(x) itself.
        """
        if not self._is_plain or not draw.keys() <= self._names:
            raise ValueError(
                "a linearised prediction needs a plain BayesianModel and a network without variables of its own, got "
                f"{type(self._model).__name__} and draws of {list(draw)}; pass `linearised=False`."
            )
        names = [name for name in self._model.site_names if name not in self._way.constant]
        point = tuple(center[name] for name in names)
        moves = tuple(draw[name] - center[name] for name in names)

        def output(*weights: Tensor) -> Tensor:
            return self._model.output_given({**center, **dict(zip(names, weights, strict=True))}, self._x)

        try:
            with filtered_warnings("ignore", "`torch.jit.script` is deprecated"), ordinary_attention():  # of torch
                at_point, change, *_ = torch.func.jvp(output, point, moves)
        except ValueError as error:
            if not isinstance(error.__cause__, NotImplementedError):
                raise
            raise ValueError(
                "a linearised prediction needs forward derivatives, but an operation of the network has none "
                f"({str(error.__cause__).splitlines()[0]}); pass `linearised=False`."
            ) from error
        return self._model.observe(at_point + change, draw)

    def _observation(self, draw: Draw) -> Distribution:
        """Return the distribution of the targets given a draw. If the draw has unknown sites, Pyro runs the model."""
        if draw.keys() <= self._names:
            return self._model.observation_given(draw, self._x)
        with poutine.block(), poutine.condition(data=draw):
            return self._model.observation(self._x)

    def add_taken(self) -> None:
        """End a block of draws, and add its predictions."""
        self.memory.end_block()
        if self.block.draws:
            self._add(self._model.observe(*self.block.run()))

    def _add_one(self, observation: Distribution) -> None:
        self._add(observation.expand(torch.Size([1, *observation.batch_shape])))

    def _add(self, observations: Distribution) -> None:
        """Add the distributions of the targets for S draws, batch shape ``(S, N, *O)``."""
        keep, num_predictions = self._way.keep, self._way.num_predictions
        self._sum.add_draws(observations, keep=are_few(observations, num_predictions) if keep is None else keep)
        if self._y is None:
            return
        log_prob = observations.log_prob(self._y)
        log_prob = log_prob.reshape(*log_prob.shape[:2], -1).sum(-1).logsumexp(0)  # (N,)
        previous = self._log_density
        self._log_density = log_prob if previous is None else torch.logaddexp(previous, log_prob)

    def prediction(self, log_num_samples: float) -> P:
        """Return the prediction. `log_num_samples` is the logarithm of the number of draws."""
        density = self._log_density
        return self._sum.prediction(None if density is None else density - log_num_samples)
