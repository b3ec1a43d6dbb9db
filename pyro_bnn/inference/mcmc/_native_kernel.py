"""Compiled samplers and their chains, which several threads draw at the same time.

Each chain has its own random numbers, so its draws depend neither on other chains nor on the thread.
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


class _Data(ctypes.Structure):
    """The `Data` of `_functions.c`."""

    _fields_ = (("num_rows", ctypes.c_long), ("constants", ctypes.c_void_p))


class Native:
    """The compiled samplers of one potential. Several threads may call them at the same time."""

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
        self._langevin_steps = library.langevin_steps
        self._langevin_steps.argtypes = (pointer, number, real, real, *[pointer] * 4)
        self._langevin_steps.restype = None
        library.size_of_state.restype = number
        self.size_of_state = int(library.size_of_state())

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
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

    def langevin_steps(self, point: Tensor, step: float, noise: float, normal: Tensor, scratch: Tensor) -> None:
        """Take steps of MCLMC as in `_microcanonical.c`; their energy errors become the point's last numbers."""
        errors = point[3 * self.num_weights + 1 :]
        setting = len(normal), step, noise, normal.data_ptr()
        self._langevin_steps(point.data_ptr(), *setting, errors.data_ptr(), scratch.data_ptr(), self._data_pointer)


class NativeChain(ABC):
    """One chain between two draws; `point` has all numbers with which a draw starts, of which P are the position."""

    def __init__(self, sampler: Native, point: Tensor) -> None:
        self.sampler, self.point = sampler, point
        self.generator = torch.Generator()
        self.scratch = point.new_empty(sampler.num_scratch)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=self.point.dtype, generator=self.generator)

    @abstractmethod
    def draw(self, setting: Any) -> Tensor:
        """The point of the next draw; this may run in any thread."""

    def state(self) -> dict[str, Any]:
        """Everything on which the next draw depends, except the numbers that warm-up sets."""
        return {"point": self.point, "generator": self.generator.get_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        self.point = state["point"].clone()
        self.generator.set_state(state["generator"])


class NativeKernel(Kernel):
    """A sampler in C on one potential, with chains that begin at z, of which `num_threads` draw at the same time."""

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
        """Numbers that warm-up has set for a chain, as an argument of `NativeChain.draw`."""

    @abstractmethod
    def report(self, finished: Tensor, points: Tensor) -> Draws:
        """Draws from the points of all chains."""

    def draw(self) -> Draws:
        """Run until at least one chain finishes a draw; the others continue in their threads."""
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
        self._seed()
        return self._chains[chain].normal(self.inverse_mass.shape[1])

    def state(self) -> dict[str, Any]:
        """The chains after their last draws; see :meth:`Kernel.state`. Unfinished draws start again after a resume."""
        return {
            "is_seeded": self._is_seeded,
            "chains": [self._before.get(k) or chain.state() for k, chain in enumerate(self._chains)],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.require_own(state, "chains")
        for chain, its_state in zip(self._chains, state["chains"], strict=True):
            chain.restore(its_state)
        self._is_seeded = state["is_seeded"]

    def _seed(self) -> None:
        """At the first draw, seed the chains from torch's generator, unless :meth:`restore` has set them."""
        if not self._is_seeded:
            for chain, seed in zip(self._chains, torch.randint(2**62, (len(self._chains),)).tolist(), strict=True):
                chain.generator.manual_seed(seed)
            self._is_seeded = True
