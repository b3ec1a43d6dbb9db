"""Compiled samplers and their independent chains: several cores draw several chains at a time.

Each chain has its own random numbers, so its draws depend neither on other chains nor on the core that draws them.
"""

import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

from ._kernel import Draws, Kernel

RANDOM_BLOCK = 256
"""Uniform numbers are drawn for this many steps at once; heuristic."""

ENERGY, ACCEPT, DIVERGING, NUM_STEPS = 1, 2, 3, 4
"""Indices of these numbers in a chain's point, counted from its potential."""


class _Data(ctypes.Structure):
    """The constants of a potential and the number of their rows, for C."""

    _fields_ = (("num_rows", ctypes.c_long), ("constants", ctypes.c_void_p))


class Native:
    """The samplers of one potential, compiled; they may run in several threads at a time, without Python's lock."""

    def __init__(
        self, library: ctypes.CDLL, constants: Sequence[Tensor], num_rows: int, num_scratch: int, num_weights: int
    ) -> None:
        pointer, number, real = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
        self._library, self._constants = library, list(constants)
        self.num_scratch, self.num_weights = num_scratch, num_weights
        self._pointers = (pointer * max(len(constants), 1))(*(constant.data_ptr() for constant in constants))
        self._data = _Data(num_rows, ctypes.addressof(self._pointers))
        self._data_pointer = ctypes.addressof(self._data)
        self._evaluate, self._advance = library.evaluate, library.advance
        self._evaluate.argtypes = (number, *[pointer] * 5)
        self._evaluate.restype = None
        before = (pointer, ctypes.c_int, pointer, real, pointer, pointer, pointer)
        self._advance.argtypes = (*before, number, pointer, pointer, pointer)
        self._advance.restype = ctypes.c_int
        self._walk = library.walk
        self._walk.argtypes = (pointer, number, real, real, *[pointer] * 4)
        self._walk.restype = None
        library.size_of_state.restype = number
        self.size_of_state = int(library.size_of_state())

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The potential; see `ValueAndGrad`."""
        z = z.contiguous()
        value, gradient = z.new_empty(len(z)), torch.empty_like(z)
        num_parts = min(len(z), torch.get_num_threads())
        parts = list(zip(*(tensor.tensor_split(num_parts) for tensor in (z, value, gradient)), strict=True))
        if num_parts == 1:
            self._evaluate_part(*parts[0])
        else:
            list(self._pool.map(lambda part: self._evaluate_part(*part), parts))
        return value, gradient

    @functools.cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """Threads that evaluate parts of the points; they are kept between evaluations."""
        return ThreadPoolExecutor(torch.get_num_threads())

    def _evaluate_part(self, z: Tensor, value: Tensor, gradient: Tensor) -> None:
        scratch = z.new_empty(self.num_scratch)
        self._evaluate(len(z), *(t.data_ptr() for t in (z, value, gradient, scratch)), self._data_pointer)

    def advance(
        self,
        state: Tensor,
        is_new: bool,
        point: Tensor,
        setting: tuple[float, Tensor],
        normal: Tensor,
        numbers: Tensor,
        position: ctypes.c_long,
        scratch: Tensor,
    ) -> bool:
        """Continue a trajectory; see `advance` in `_trajectory.c`. Returns whether it has ended."""
        step_size, inverse_mass = setting
        done = self._advance(
            *(state.data_ptr(), is_new, point.data_ptr(), step_size, inverse_mass.data_ptr(), normal.data_ptr()),
            *(numbers.data_ptr(), len(numbers), ctypes.addressof(position), scratch.data_ptr(), self._data_pointer),
        )
        return bool(done)

    def walk(self, point: Tensor, step: float, refreshment: float, normal: Tensor, scratch: Tensor) -> None:
        """Take microcanonical steps; see `walk` in `_microcanonical.c`. The errors become the point's last numbers."""
        errors = point[3 * self.num_weights + 1 :]
        setting = len(normal), step, refreshment, normal.data_ptr()
        self._walk(point.data_ptr(), *setting, errors.data_ptr(), scratch.data_ptr(), self._data_pointer)


class NativeChain(ABC):
    """One chain between two draws.

    Args:
        sampler: The compiled sampler.
        point: All numbers with which a draw starts and ends; the first P are the position.
    """

    def __init__(self, sampler: Native, point: Tensor) -> None:
        self.sampler, self.point = sampler, point
        self.generator = torch.Generator()
        self.scratch = point.new_empty(sampler.num_scratch)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers of this chain."""
        return torch.randn(*shape, dtype=self.point.dtype, generator=self.generator)

    @abstractmethod
    def draw(self, setting: Any) -> Tensor:
        """The point of the next draw; may run in a thread of its own."""

    def state(self) -> dict[str, Any]:
        """All that the next draw depends on, except what warm-up sets."""
        return {"point": self.point, "generator": self.generator.get_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self.point = state["point"].clone()
        self.generator.set_state(state["generator"])


class _Tree(NativeChain):
    """One chain of NUTS; see `advance` in `_trajectory.c` for the numbers in its point."""

    def __init__(self, sampler: Native, point: Tensor) -> None:
        super().__init__(sampler, point)
        self.numbers, self.position = point.new_empty(0, 3), ctypes.c_long(0)
        self._state = torch.empty(sampler.size_of_state, dtype=torch.uint8)

    def draw(self, setting: tuple[float, Tensor]) -> Tensor:
        """The point of the next draw; may run in a thread of its own."""
        point, normal = self.point.clone(), self.normal(len(setting[1]))
        is_new, is_done = True, False
        while not is_done:
            if self.position.value == len(self.numbers):
                uniform = point.new_empty(RANDOM_BLOCK, 3).uniform_(generator=self.generator)
                self.numbers, self.position.value = uniform.log(), 0
            arguments = point, setting, normal, self.numbers, self.position, self.scratch
            is_done, is_new = self.sampler.advance(self._state, is_new, *arguments), False
        return point

    def state(self) -> dict[str, Any]:
        """See :meth:`NativeChain.state`."""
        return {**super().state(), "numbers": self.numbers, "position": self.position.value}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See :meth:`NativeChain.restore`."""
        super().restore(state)
        self.numbers, self.position.value = state["numbers"].clone(), state["position"]


class NativeKernel(Kernel):
    """A sampler in C on one potential.

    Args:
        sampler: The compiled sampler.
        z: First points, shape (K, P).
        chains: The chains.
        num_threads: Number of chains that draw at the same time.
    """

    def __init__(self, sampler: Native, z: Tensor, chains: Sequence[NativeChain], *, num_threads: int) -> None:
        super().__init__(sampler.value_and_grad, z)
        self.path, self.sampler = "C", sampler
        self._chains = chains
        self._is_seeded = False
        self._drawing: dict[Future[Tensor], int] = {}
        self._before: dict[int, dict[str, Any]] = {}  # states of chains that are drawing, from before the draw
        self.num_threads = min(num_threads, len(z))
        self._pool = ThreadPoolExecutor(self.num_threads) if self.num_threads > 1 else None

    @abstractmethod
    def setting(self, chain: int) -> Any:
        """What warm-up has set for a chain, as `NativeChain.draw` takes it."""

    @abstractmethod
    def report(self, finished: Tensor, points: Tensor) -> Draws:
        """Draws from the points of all chains."""

    def draw(self) -> Draws:
        """Run until chains finish a draw; the other chains continue in their own threads."""
        self._seed()
        waiting = [k for k in range(len(self._chains)) if self.is_needed[k] and k not in self._before]
        new: dict[int, Tensor] = {}
        for k in waiting:
            setting = self.setting(k)
            if self._pool is None:
                new[k] = self._chains[k].draw(setting)
            else:
                self._before[k] = self._chains[k].state()
                self._drawing[self._pool.submit(self._chains[k].draw, setting)] = k
        if self._drawing:
            for future in wait(self._drawing, return_when=FIRST_COMPLETED).done:
                k = self._drawing.pop(future)
                new[k] = future.result()
                del self._before[k]
        for k, point in new.items():
            self._chains[k].point = point
        finished = torch.tensor([k in new for k in range(len(self._chains))])
        return self.report(finished, torch.stack([chain.point for chain in self._chains]))

    def momentum(self, chain: int) -> Tensor:
        """Standard normal numbers, shape (P,), from the chain's own."""
        self._seed()
        return self._chains[chain].normal(self.inverse_mass.shape[1])

    def state(self) -> dict[str, Any]:
        """The chains after their last draws; see :meth:`Kernel.state`. Unfinished draws will start again."""
        return {
            "is_seeded": self._is_seeded,
            "chains": [self._before.get(k) or chain.state() for k, chain in enumerate(self._chains)],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self.require_own(state, "chains")
        for chain, its_state in zip(self._chains, state["chains"], strict=True):
            chain.restore(its_state)
        self._is_seeded = state["is_seeded"]

    def _seed(self) -> None:
        """Seed the chains from torch's generator; at the first draw, since a run is resumed before it."""
        if not self._is_seeded:
            for chain, seed in zip(self._chains, torch.randint(2**62, (len(self._chains),)).tolist(), strict=True):
                chain.generator.manual_seed(seed)
            self._is_seeded = True


class NativeNUTSKernel(NativeKernel):
    """NUTS in C on one potential; see :class:`~pyro_bnn.NUTS`."""

    def __init__(self, sampler: Native, z: Tensor, *, num_threads: int = 1) -> None:
        potential, gradient = sampler.value_and_grad(z)
        points = torch.cat([z, gradient, potential[:, None], z.new_zeros(len(z), NUM_STEPS)], -1)
        super().__init__(sampler, z, [_Tree(sampler, point) for point in points], num_threads=num_threads)

    def at(self, z: Tensor) -> "NativeNUTSKernel":
        """See :meth:`Kernel.at`."""
        return NativeNUTSKernel(self.sampler, z, num_threads=self.num_threads)

    def setting(self, chain: int) -> tuple[float, Tensor]:
        """Step size and inverse mass."""
        return float(self.step_size[chain]), self.inverse_mass[chain].clone()

    def report(self, finished: Tensor, points: Tensor) -> Draws:
        """See :meth:`NativeKernel.report`."""
        num_weights = self.inverse_mass.shape[1]
        rest = points[:, 2 * num_weights :]
        return Draws(
            finished=finished,
            z=points[:, :num_weights],
            log_density=-rest[:, 0],
            energy=rest[:, ENERGY],
            accept=rest[:, ACCEPT],
            diverging=rest[:, DIVERGING] > 0,
            num_steps=rest[:, NUM_STEPS].long(),
        )
