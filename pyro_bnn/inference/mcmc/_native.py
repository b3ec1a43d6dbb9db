"""Samplers in C for small networks, compiled and loaded.

Compiling takes about a second. The sampler runs in torch instead if the density has an operation that cannot be written
in C (`_operations.py`), needs large matrix products, or is not on the CPU.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..._core.scope import ProcessLock
from ._decompositions import DECOMPOSITIONS
from ._emit import Emitted, emitted
from ._kernel import DIVERGENCE, NOT_ASKED, Compile, NotInCError, ValueAndGrad
from ._native_kernel import Native
from ._operations import OPERATIONS
from ._traced import UnsupportedError, traced

MOST_PRODUCTS = 2**20
"""Heuristic: with more multiplications in a potential, torch's matrix products are faster than loops in C."""

MOST_PRODUCTS_OF_BLOCKS = 2**24
"""The same limit for one block of rows. It is higher since blocks stay in the processor's cache."""

MOST_LINES, MOST_CHARACTERS = 5000, 200_000
"""Heuristic: longer C texts take longer than ten seconds to compile."""

NUM_KEPT = 64
"""Number of compiled texts to keep; the least recently used are dropped. Each takes a few kilobytes."""

FLAGS = ("-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-std=gnu11")
"""Options of the C compiler. Infinities and NaN keep their meaning, and only sums with a pragma are reordered."""

FORMATS = {torch.float64: "_double.c", torch.float32: "_single.c"}
"""The file of C text for each dtype."""

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Heuristic: largest relative difference of a potential and its gradient between C and torch."""

_LOCK = ProcessLock()
_kept: OrderedDict[str, ctypes.CDLL] = OrderedDict()


def native(value_and_grad: ValueAndGrad, z: Tensor, max_tree_depth: int) -> Native:
    """The compiled samplers of a potential; z is one point, shape (1, P).

    Raises:
        UnsupportedError: If C cannot compute it, the C compiler fails, or C and torch give different numbers.
    """
    _require_machine(z)
    function = traced(value_and_grad, [z], DECOMPOSITIONS)
    try:
        potential = emitted(function.graph, [z, *function.constants], OPERATIONS)
    except UnsupportedError as error:
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
    sampler = Native(_loaded("\n".join(parts)), data, potential.num_rows, potential.num_scratch, z.shape[1])
    for point in (z, z + 0.1) if z.dtype == torch.float64 else (z + 0.1, z - 0.1):
        # in single precision, a gradient at a mode has few digits, since its terms cancel
        _require_same(sampler.value_and_grad(point), value_and_grad(point))
    return sampler


def native_or_reason(
    value_and_grad: ValueAndGrad, z: Tensor, compile: Compile, max_tree_depth: int = 10
) -> tuple[Native | None, str]:
    """The compiled samplers and an empty text, or None and the reason, which `compile=True` raises."""
    if not compile:
        return None, NOT_ASKED
    try:
        return native(value_and_grad, z[:1], max_tree_depth), ""
    except UnsupportedError as error:
        if compile is True:
            raise NotInCError(str(error)) from error
        return None, str(error)


def _require_machine(z: Tensor) -> None:
    if z.device.type != "cpu":
        raise UnsupportedError(f"C computes on a CPU, and the device is {z.device}")
    if os.name != "posix":
        raise UnsupportedError(f"C is compiled on Linux and macOS only, and this system is {os.name!r}")
    if _compiler() is None:
        named = os.environ.get("CC")
        raise UnsupportedError(
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
    """Raise an `UnsupportedError` unless C and torch give the same potential and gradient, up to rounding."""
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
    """The command of the C compiler: `CC`, which may have options, or the first one that is found; else None."""
    named = os.environ.get("CC")
    commands = [shlex.split(named)] if named else [["cc"], ["gcc"], ["clang"]]
    return next(([path, *rest] for name, *rest in commands if (path := shutil.which(name))), None)


def _loaded(text: str) -> ctypes.CDLL:
    """The library compiled from a text, once in a process."""
    with _LOCK:
        library = _kept.pop(text, None) or _compile(text)
        _kept[text] = library
        while len(_kept) > NUM_KEPT:
            _kept.popitem(last=False)
    return library


def _compile(text: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "sampler.c"), Path(folder, "sampler.so")
        source.write_text(text)
        for machine in (["-march=native"], []):  # some compilers do not know this option
            command = [*(_compiler() or []), *FLAGS, *machine, str(source), "-o", str(target), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not done.returncode:
                return ctypes.CDLL(str(target))
        said = done.stderr[-2000:].strip() or "it said nothing"
        raise UnsupportedError(
            f"the C compiler failed with exit status {done.returncode} ({' '.join(command)}): {said}"
        )
