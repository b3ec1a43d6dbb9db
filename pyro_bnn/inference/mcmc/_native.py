"""Compiles and loads samplers in C for small networks, which takes about a second.

Several threads draw chains at the same time. Each chain has its own random numbers, so its draws do not depend on other
chains or threads.
"""

import ctypes
import functools
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._core.records import check_tensor
from ..._core.scope import ProcessLock
from ._decompositions import DECOMPOSITIONS
from ._emit import Emitted, emitted
from ._kernel import DIVERGENCE, Compile, Draws, Kernel, NotInCError, ValueAndGrad
from ._traced import CompilerError, UnsupportedError, traced

MOST_PRODUCTS = 2**20  # heuristic: with more multiplications, torch's matrix products are faster than loops in C
MOST_PRODUCTS_OF_BLOCKS = 2**24  # heuristic: the same with blocks of rows, whose results stay in the processor's cache
MOST_LINES, MOST_CHARACTERS = 5000, 200_000  # heuristic: longer C texts take more than ten seconds to compile
NUM_KEPT = 64  # only this many compiled texts are kept: those that were used last; each takes a few kilobytes

FLAGS = ("-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-std=gnu11")
"""Options that keep the meaning of infinities and NaN, and reorder only the sums that a pragma marks."""

FORMATS = {torch.float64: "_double.c", torch.float32: "_single.c"}  # files with exp and log by dtype
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # heuristic: relative difference between C and torch

_LOCK = ProcessLock()
_kept: OrderedDict[str, ctypes.CDLL] = OrderedDict()


# --- the compiled samplers ---


class _Data(ctypes.Structure):
    """The struct `Data` in `_functions.c`."""

    _fields_ = (("num_rows", ctypes.c_long), ("constants", ctypes.c_void_p))


class Native:
    """The compiled samplers of one potential (`_trajectory.c`, `_microcanonical.c`); several threads may call them."""

    compile_seconds = 0.0  # the time that the C compiler took, about 0 for a text that was compiled before

    def __init__(
        self, library: ctypes.CDLL, constants: Sequence[Tensor], num_rows: int, num_scratch: int, num_weights: int
    ) -> None:
        pointer, number, real = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
        self._library, self._constants = library, list(constants)
        self.num_scratch, self.num_weights = num_scratch, num_weights
        self._pointers = (pointer * max(len(constants), 1))(*(constant.data_ptr() for constant in constants))
        self._data = _Data(num_rows, ctypes.addressof(self._pointers))
        self.data = ctypes.addressof(self._data)
        self._evaluate, self.advance, self.langevin_steps = library.evaluate, library.advance, library.langevin_steps
        self._evaluate.argtypes = (number, *[pointer] * 5)
        before = (pointer, ctypes.c_int, pointer, real, pointer, pointer, pointer)
        self.advance.argtypes = (*before, number, pointer, pointer, pointer)
        self.langevin_steps.argtypes = (pointer, pointer, number, real, real, *[pointer] * 4)
        self._evaluate.restype = self.langevin_steps.restype = None
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
        return ThreadPoolExecutor(torch.get_num_threads())

    def _evaluate_part(self, z: Tensor, value: Tensor, gradient: Tensor) -> None:
        scratch = z.new_empty(self.num_scratch)
        self._evaluate(len(z), *(t.data_ptr() for t in (z, value, gradient, scratch)), self.data)


class NativeChain(ABC):
    """A chain whose draws are computed in C; `point` has its position, and all else that the next draw needs."""

    def __init__(self, sampler: Native, point: Tensor) -> None:
        self.sampler, self.point = sampler, point
        self.generator = torch.Generator()
        self.scratch = point.new_empty(sampler.num_scratch)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=self.point.dtype, generator=self.generator)

    @abstractmethod
    def draw(self, setting: Any) -> Tensor:
        """Make a draw in any thread, and return the new `point`."""

    def state(self) -> dict[str, Any]:
        """Return what determines the next draw, except the settings from warm-up."""
        return {"point": self.point, "generator": self.generator.get_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        check_tensor("`point` of a chain", state["point"], self.point.shape, self.point.dtype)  # C does not check it
        self.point = state["point"].clone()
        self.generator.set_state(state["generator"])


class NativeKernel(Kernel):
    """A sampler in C. At most `num_threads` chains draw at the same time."""

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
        """Return a chain's settings from warm-up, which `NativeChain.draw` needs."""

    @abstractmethod
    def report(self, finished: Tensor, points: Tensor) -> Draws:
        """Return the last draws of all chains. `finished` marks the chains whose last draw is new."""

    def draw(self) -> Draws:
        """Run until at least one chain finishes a draw. The other chains continue in their threads."""
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
        """Return the state of the chains after their last finished draws. A resumed run repeats unfinished draws."""
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
        if not self._is_seeded:
            for chain, seed in zip(self._chains, torch.randint(2**62, (len(self._chains),)).tolist(), strict=True):
                chain.generator.manual_seed(seed)
            self._is_seeded = True


# --- compilation ---


def native(
    value_and_grad: ValueAndGrad, z: Tensor, max_tree_depth: int = 10, *, timeout: float | None = None
) -> Native:
    """Compile the samplers of a potential, recorded at z, shape (1, P); raise an UnsupportedError if C cannot."""
    _require_machine(z)
    function = traced(value_and_grad, [z], DECOMPOSITIONS)
    try:
        potential = emitted(function.graph, [z, *function.constants])
    except Exception as error:  # an operation that has other arguments than expected must not end the fit
        raise UnsupportedError(f"the density has an operation that is not written in C ({error})") from error
    _require_small(potential)
    sizes = {"NUM_WEIGHTS": z.shape[1], "NUM_LEVELS": max(max_tree_depth - 1, 1), "MAX_SIZE": 2**max_tree_depth}
    folder = Path(__file__).parent
    parts = ["#include <string.h>", "#include <tgmath.h>"]
    parts += [f"#define {name} {size}L" for name, size in sizes.items()]
    parts.append(f"#define DIVERGENCE {DIVERGENCE!r}")
    parts += [(folder / name).read_text() for name in (FORMATS[z.dtype], "_functions.c")]
    parts.append(potential.text)
    parts += [(folder / name).read_text() for name in ("_trajectory.c", "_microcanonical.c")]
    data = potential.laid_out([constant.detach().to(z.dtype) for constant in function.constants])
    begin = time.perf_counter()
    library = _loaded("\n".join(parts), timeout)
    seconds = time.perf_counter() - begin
    sampler = Native(library, data, potential.num_rows, potential.num_scratch, z.shape[1])
    sampler.compile_seconds = seconds
    for point in (z, z + 0.1) if z.dtype == torch.float64 else (z + 0.1, z - 0.1):
        # in single precision, a gradient at a mode has few digits, since its terms cancel
        _require_same(sampler.value_and_grad(point), value_and_grad(point))
    return sampler


def native_or_reason(
    value_and_grad: ValueAndGrad, z: Tensor, compile: Compile, max_tree_depth: int = 10
) -> tuple[Native | None, str]:
    """Return the compiled samplers, or None and why C is impossible; for ``compile=True`` raise a `NotInCError`."""
    if not compile:
        return None, "`compile` is False"
    try:
        return native(value_and_grad, z[:1], max_tree_depth), ""
    except UnsupportedError as error:
        if compile is True:
            raise NotInCError(str(error), is_of_compiler=isinstance(error, CompilerError)) from error
        return None, str(error)


def _require_machine(z: Tensor) -> None:
    if z.device.type != "cpu":
        raise UnsupportedError(f"C computes on a CPU, and the device is {z.device}")
    if os.name != "posix":
        raise UnsupportedError(f"C is compiled on Linux and macOS only, and this system is {os.name!r}")
    if _compiler() is None:
        named = os.environ.get("CC")
        raise CompilerError(
            f"the C compiler that `CC` names, {named!r}, is not found; correct or unset it"
            if named
            else "there is no C compiler (`CC`, cc, gcc or clang)"
        )


def _require_small(potential: Emitted) -> None:
    most = MOST_PRODUCTS if potential.blocks is None else MOST_PRODUCTS_OF_BLOCKS
    if potential.num_products > most:
        raise UnsupportedError(
            f"the density takes {potential.num_products:,} multiplications, over {most:,}, which torch does faster"
        )
    for name, count, most in (
        ("lines", potential.text.count("\n"), MOST_LINES),
        ("characters", len(potential.text), MOST_CHARACTERS),
    ):
        if count > most:
            raise UnsupportedError(f"the density takes {count:,} {name} of C, over {most:,}, which compile slowly")


def _require_same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Raise if C and torch differ in the potential or the gradient by more than rounding."""
    for name, own, theirs in zip(("potential", "gradient"), found, expected, strict=True):
        tolerance = TOLERANCES[own.dtype]
        size = theirs.abs().nan_to_num(0.0, posinf=0.0).amax().clamp_min(1.0)
        atol = tolerance * (1.0 if own.dtype == torch.float64 else float(size))
        if not torch.allclose(own, theirs, rtol=tolerance, atol=atol, equal_nan=True):
            raise UnsupportedError(
                f"the {name} in C begins with {own.flatten()[:3].tolist()} where torch's begins with "
                f"{theirs.flatten()[:3].tolist()}: an error of this package or of the C compiler, or a model that "
                "computes outside of torch"
            )


def _compiler() -> list[str] | None:
    """Return the C compiler's command, with options from `CC`."""
    named = os.environ.get("CC")
    commands = [shlex.split(named)] if named else [["cc"], ["gcc"], ["clang"]]
    return next(([path, *rest] for name, *rest in commands if (path := shutil.which(name))), None)


def _loaded(text: str, timeout: float | None) -> ctypes.CDLL:
    with _LOCK:
        try:
            library = _kept.pop(text, None) or _compile(text, timeout)
        except OSError as error:  # the folder of temporary files may be full, or allow no programs
            raise UnsupportedError(f"compiled code cannot be written or loaded ({error})") from error
        _kept[text] = library
        while len(_kept) > NUM_KEPT:
            _kept.popitem(last=False)
    return library


def _compile(text: str, timeout: float | None) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "sampler.c"), Path(folder, "sampler.so")
        source.write_text(text)
        for machine in (["-march=native"], []):  # some compilers do not know this option
            command = [*(_compiler() or []), *FLAGS, *machine, str(source), "-o", str(target), "-lm"]
            code, said = _called(command, timeout)
            if not code:
                return ctypes.CDLL(str(target))
        said = said[-2000:].strip() or "it said nothing"
        raise CompilerError(f"the C compiler failed with exit status {code} ({' '.join(command)}): {said}")


def _called(command: Sequence[str], timeout: float | None) -> tuple[int, str]:
    """Return a command's exit status and error output. After the timeout, stop the command and its children."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nothing, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            _, said = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise CompilerError(f"the C compiler did not finish in the {timeout:.1f} s that it had") from error
            raise
    return process.returncode, said
