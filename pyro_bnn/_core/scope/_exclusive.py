"""State of the whole process, which threads use in turn: torch's generators, modes of shared modules, and a lock."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .. import checks as _checks


class ProcessLock:
    """A reentrant lock for the whole process.

    A forked process starts with a new lock. With the old lock, the forked process would wait forever if another thread
    held the lock during the fork.
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
"""The lock for changes of process-wide state: torch's generators, Pyro's stack and store."""


class Stream:
    """A separate stream of random numbers for a long computation, drawn from torch's generators.

    torch's generators belong to the whole process. A ``with`` block of the stream sets them to the state at the end of
    the stream's last block, makes other threads wait, and restores the generators at its end. So the numbers of a
    stream do not depend on what other threads compute between its blocks. Without a seed, the stream draws one from
    torch's generator.
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
        """The state of the stream between two blocks."""
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
    """A context that holds `EXCLUSIVE`, seeds torch's generators and restores them; without a seed it does nothing."""
    if seed is None:
        yield
        return
    with restored(device):
        reseed(seed, device)
        yield


def reseed(seed: int, device: torch.device | None) -> None:
    """Seed only the generators from which computations on a device draw."""
    torch.default_generator.manual_seed(_checks.seed(seed))
    if _draws_on_cuda(device):
        torch.cuda.manual_seed_all(seed)


def _draws_on_cuda(device: torch.device | None) -> bool:
    """Whether draws may come from a GPU; if `device` is None, whether this process has used a GPU."""
    return torch.cuda.is_initialized() if device is None else device.type == "cuda"


@contextmanager
def restored(device: torch.device | None) -> Iterator[None]:
    """A context that restores torch's generators at its end. It holds `EXCLUSIVE`."""
    with EXCLUSIVE:
        outer = _generator_states(_draws_on_cuda(device))
        try:
            yield
        finally:
            _set_generators(outer)


@contextmanager
def undone(device: torch.device) -> Iterator[Callable[[], None]]:
    """A context that yields a function, which resets a device's generators to their state at the start."""
    states = _generator_states(_draws_on_cuda(device))
    yield lambda: _set_generators(states)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """A context in which every submodule is in eval mode; afterwards their modes are restored.

    Other threads that share the module wait, so that they neither run the module in the wrong mode nor end its eval
    mode too early.
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
