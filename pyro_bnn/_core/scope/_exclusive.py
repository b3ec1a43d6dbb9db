"""A lock for state that all threads share, and context managers that change torch's generators or a module's mode."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .. import checks as _checks


class ProcessLock:
    """A reentrant lock for the whole process.

    A forked process gets a new lock. The inherited lock would never be released if another thread held it during the
    fork.
    """

    def __init__(self) -> None:
        self._renew()
        if os.name == "posix":
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


EXCLUSIVE = ProcessLock()
"""The lock for changes of the state that all threads share, such as torch's generators and Pyro's parameter store."""


class Stream:
    """A stream of random numbers for one computation, which other computations do not disturb.

    All threads share torch's generators. While a ``with`` block of the stream runs, other threads wait. Each block
    continues the random numbers at the place where the stream's previous block stopped. After a block, the generators
    get back the state that they had before the block. So the random numbers of a stream do not depend on what other
    threads draw between two ``with`` blocks of this stream. If `seed` is None, torch's generator draws a seed.
    """

    def __init__(self, seed: int | None, device: torch.device | None = None) -> None:
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        self._cuda = _draws_on_cuda(device)
        with seeded(seed, device):
            self._state = _generator_states(self._cuda)
        self._outer: list[list[Tensor]] = []

    def __enter__(self) -> "Stream":
        EXCLUSIVE.__enter__()
        self._outer.append(_generator_states(self._cuda))
        if len(self._outer) == 1:
            _set_generators(self._state)
        return self

    def __exit__(self, *_: object) -> None:
        outer = self._outer.pop()
        if not self._outer:
            self._state = _generator_states(self._cuda)
            _set_generators(outer)
        EXCLUSIVE.__exit__()

    def state(self) -> list[Tensor]:
        """Return the state of the generators at the end of the stream's last block."""
        return list(self._state)

    def restore(self, state: list[Tensor]) -> None:
        if len(state) != len(self._state):
            raise ValueError(
                f"the random numbers must continue with {len(self._state) - 1} GPU generators, got {len(state) - 1}; "
                "resume on the kind of machine that made the file."
            )
        self._state = list(state)


def _generator_states(cuda: bool) -> list[Tensor]:
    return [torch.default_generator.get_state(), *(torch.cuda.get_rng_state_all() if cuda else [])]


def _set_generators(states: list[Tensor]) -> None:
    torch.default_generator.set_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])


@contextmanager
def seeded(seed: int | None, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generators in a `with` block, restore them at its end, and hold `EXCLUSIVE` meanwhile.

    If `seed` is None, do nothing.
    """
    if seed is None:
        yield
        return
    with restored(device):
        reseed(seed, device)
        yield


def reseed(seed: int, device: torch.device | None) -> None:
    """Seed the generators from which computations on a device draw, and no others."""
    torch.default_generator.manual_seed(_checks.seed(seed))
    if _draws_on_cuda(device):
        torch.cuda.manual_seed_all(seed)


def _draws_on_cuda(device: torch.device | None) -> bool:
    """Return whether computations on a device draw from a GPU's generator.

    If `device` is None, return whether the process has used a GPU.
    """
    return torch.cuda.is_initialized() if device is None else device.type == "cuda"


@contextmanager
def restored(device: torch.device | None) -> Iterator[None]:
    """Restore torch's generators at the end of a `with` block, and hold `EXCLUSIVE` meanwhile."""
    with EXCLUSIVE:
        outer = _generator_states(_draws_on_cuda(device))
        try:
            yield
        finally:
            _set_generators(outer)


@contextmanager
def undone(device: torch.device) -> Iterator[Callable[[], None]]:
    """Yield a function that resets the generators of a device to their state at the start of the `with` block."""
    states = _generator_states(_draws_on_cuda(device))
    yield lambda: _set_generators(states)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put all submodules into eval mode in a `with` block, and restore their modes at its end.

    Threads that share the module must wait: otherwise one thread could run the module in the wrong mode, or end the
    eval mode of another thread too early.
    """
    with EXCLUSIVE:
        training = [vars(submodule) for submodule in module.modules() if submodule.training]
        try:
            for attributes in training:  # a plain assignment to a module's attribute takes ten times as long
                attributes["training"] = False
            yield
        finally:
            for attributes in training:
                attributes["training"] = True
