"""Chains that start at trained networks. With a time limit, training, warm-up and sampling can end early."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core.checkpointing import Keeper
from ..._core.scope import EXCLUSIVE, Stream
from ...modelling.model import BayesianModel
from ..joint import network_potential
from ..posterior import Status, with_learned
from ._adaptation import TARGET_ACCEPT, AnyAdaptation
from ._diagnostics import Judgement, judge
from ._fit import constrained, pair_of, starting_points
from ._kernel import ChainStatistics, Compile, Kernel, NotInCError, Sampler, ValueAndGrad
from ._mclmc import MCLMC, NativeMCLMCKernel
from ._native import Native, native
from ._posterior import MCMCPosterior
from ._run import KIND, Ends, Run, RunPlan
from ._start import Descent
from ._traced import CompilerError, UnsupportedError

NUM_TIMED, TIMED_SECONDS, TIMED_STEP = 8, 0.05, 1e-3  # heuristic: chains, least time and step size of a measurement


@dataclass(frozen=True)
class ChainLengths:
    num_chains: int
    num_descent: int  # steps of Adam that find each chain's mode
    num_warmup: int  # warm-up draws of each chain
    num_samples: int  # further draws of each chain
    steps_per_draw: int
    energy_error: float = MCLMC.energy_error


@dataclass(frozen=True)
class Compiled(Sampler):
    """MCLMC whose C code is already compiled."""

    sampler: MCLMC
    native: Native

    @property
    def name(self) -> str:
        return self.sampler.name

    def adaptation(self, num_warmup: int, target_accept: float, start: Tensor) -> AnyAdaptation:
        return self.sampler.adaptation(num_warmup, target_accept, start)

    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: Compile = True) -> Kernel:
        return NativeMCLMCKernel(self.native, z, self.sampler.steps_per_draw, num_threads=torch.get_num_threads())


class TimedChains:
    """Chains of MCLMC that start at trained networks, draw in C and in single precision, and may end early.

    The constructor compiles the C code in at most `timeout` seconds. It then measures two wall times:
    `seconds_of_descent` for a step of Adam, and `seconds_of_step` for a step of a chain. Both are divided by the number
    of chains, which run at the same time. `compile_seconds` is the time of the C compiler, about 0 for code that was
    compiled before. `seconds` is the rest of the constructor's wall time. `num_warmup` is the number of warm-up draws
    of each chain in the last run.

    Raises:
        NotInCError: If C cannot compute the density, or the C compiler takes too long.
    """

    def __init__(self, model: BayesianModel, data: tuple[Tensor, Tensor], *, timeout: float, seed: int) -> None:
        begin, self.num_warmup = time.perf_counter(), 0
        self._model, self._data = model, pair_of(data, model)
        self._stream = Stream(seed, model.device)
        with torch.no_grad(), self._stream:
            self._potential = network_potential(model, *self._data, torch.float32)
            z = starting_points(self._potential, Descent(), NUM_TIMED)
            try:
                self._native = native(self._potential.value_and_grad, z[:1], timeout=timeout)
            except UnsupportedError as error:
                raise NotInCError(str(error), is_of_compiler=isinstance(error, CompilerError)) from error
            self.compile_seconds = self._native.compile_seconds
            self._measure(z)
        self.seconds = time.perf_counter() - begin - self.compile_seconds

    def _measure(self, z: Tensor) -> None:
        def descend() -> int:
            Descent(4)(self._native.value_and_grad, z)
            return 4 * len(z)

        self.seconds_of_descent = _seconds_of_step(descend)
        kernel = NativeMCLMCKernel(self._native, z, 1, num_threads=torch.get_num_threads())
        kernel.step_size[:], kernel.length[:] = TIMED_STEP, 1.0
        self.seconds_of_step = _seconds_of_step(lambda: int(kernel.draw().finished.sum()))

    def explore(
        self, lengths: ChainLengths, ends: Ends, *, is_judged: bool = True, progress: bool | None = False
    ) -> MCMCPosterior:
        """Train the networks, and run the chains. Without `is_judged`, the status is empty."""
        plan = RunPlan(
            sampler=Compiled(MCLMC(lengths.steps_per_draw, lengths.energy_error), self._native),
            num_chains=lengths.num_chains,
            num_warmup=lengths.num_warmup,
            num_samples=lengths.num_samples,
            target_accept=TARGET_ACCEPT,
            compile=True,
        )
        descent = Descent(lengths.num_descent)
        run = Run(plan, self._potential, self._stream, {})
        with torch.no_grad():
            with self._stream:
                starts = starting_points(self._potential, descent, lengths.num_chains)
            run.start(starts, descent, until=ends.descent)
            run.finish(Keeper(None, KIND, lambda: False), progress=progress, ends=ends)
            recorded, seconds = run.recorded(), run.seconds
            self.num_warmup = run.num_warmup
            samples = constrained(self._potential, recorded.pop("z"), self._model.dtype)
        statistics, judgement = ChainStatistics(**recorded, seconds=seconds), Judgement(Status(True, ""))
        if is_judged:
            with EXCLUSIVE:
                judgement = judge(samples, statistics, plan.sampler.name, self._model, self._data[0], at_modes=True)
        posterior = MCMCPosterior(
            samples, statistics, judgement.status, sampler=plan.sampler.name, path=run.path, modes=judgement.modes
        )
        return with_learned(posterior, self._model)


def seconds_of_step(model: BayesianModel, data: tuple[Tensor, Tensor], sampler: Sampler, *, num_chains: int) -> float:
    """Return the wall time of a step of `fit_mcmc` with ``compile="auto"``, divided by the number of chains."""
    with torch.no_grad(), Stream(0, model.device):
        potential = network_potential(model, *pair_of(data, model), torch.float64)
        z = starting_points(potential, "prior", num_chains)
        kernel = sampler.kernel(potential.value_and_grad, z, compile="auto")
        kernel.step_size[:] = TIMED_STEP

        def take_steps() -> int:
            draws = kernel.draw()
            return int(draws.num_steps[draws.finished].sum())

        return _seconds_of_step(take_steps)


def _seconds_of_step(take_steps: Callable[[], int]) -> float:
    """Return the wall time of a step. The function `take_steps` takes some steps, and returns their number."""
    begin = time.perf_counter()
    num_steps = take_steps()  # at least once, since a busy machine may take longer for one call than TIMED_SECONDS
    while time.perf_counter() < begin + TIMED_SECONDS:
        num_steps += take_steps()
    return (time.perf_counter() - begin) / num_steps
