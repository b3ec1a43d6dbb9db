"""Storage for the draws of chains, in memory or in a file with an identifier of the run."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.files import FORMAT
from ..._core.records import record
from ..guides import DeltaGuide
from ..history import History
from ..joint import Layout
from ._samplers import StepSizes

KIND, NAME = "draws", "draws"  # `kind` in the header, and the file's only tensor

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}

ALIGNMENT = 64  # the header's length is a multiple of this, as in safetensors, so that the draws are aligned


@dataclass(frozen=True)
class Header:
    run: str
    shape: tuple[int, ...]
    dtype: str


class Store:
    """The draws of all chains, shape (K, S, P), in memory or in a memory-mapped safetensors file, made when needed."""

    def __init__(self, path: str | Path | None, shape: tuple[int, int, int], like: Tensor, *, is_resumed: bool) -> None:
        self._path = None if path is None else _checks.path("store", path)
        self._shape, self._like, self._is_made = shape, like, False
        self._draws: Tensor | None = None
        self._run: str | None = None
        self._found: Header | None = None
        if self._path is not None and os.path.lexists(self._path):
            self._found = self._checked(self._path, is_resumed=is_resumed)
        elif self._path is not None:
            _checks.file_to_write("store", path)

    def _checked(self, path: Path, *, is_resumed: bool) -> Header:
        if not is_resumed:
            raise FileExistsError(f"`store` must be a new file, but {path} exists; choose another path or remove it.")
        found, expected = read_header(path), DTYPES[self._like.dtype]
        if (found.shape, found.dtype) != (self._shape, expected):
            raise ValueError(
                f"`store` holds draws of shape {found.shape} in {found.dtype}, but this run has {self._shape} in "
                f"{expected} (chains, draws, latent numbers); resume with the arguments of that run, or choose another "
                "path."
            )
        return found

    @property
    def run(self) -> str:
        self._run = self._run or uuid.uuid4().hex
        return self._run

    def join(self, run: str) -> None:
        """Take the run's identifier from a checkpoint; raise if the file or an earlier chain has a different one."""
        if self._found is not None and self._found.run != run:
            raise ValueError(
                f"`store` holds draws of another run than `resume`, got {self._path}; pass the file of that run, or "
                "choose another path."
            )
        if self._run not in (None, run):
            raise ValueError(
                "`resume` must name the checkpoints of one run, got those of several runs; pass files of one run."
            )
        self._run = run

    def draws(self) -> Tensor:
        """Return the draws, shape (K, S, P), after creating or opening the file."""
        if self._draws is None:
            self._draws = self._like.new_zeros(self._shape) if self._path is None else self._mapped(self._path)
        return self._draws

    def _mapped(self, path: Path) -> Tensor:
        if self._found is None:
            self._make(path)
        elif self._found != (now := read_header(path)) or now.run != self.run:
            raise ValueError(f"`store` was changed by another program, got {path}; choose another path.")
        with path.open("rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little")
        content = torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)
        return content[begin:].view(self._like.dtype).view(self._shape)

    def _make(self, path: Path) -> None:
        size = prod(self._shape) * self._like.element_size()
        tensor = {"dtype": DTYPES[self._like.dtype], "shape": self._shape, "data_offsets": [0, size]}
        about = {"format": FORMAT, "kind": KIND, "run": self.run}
        text = json.dumps({"__metadata__": about, NAME: tensor}).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        with path.open("xb") as file:  # fails if another program has created it meanwhile
            self._is_made = True
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + size)

    @contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """Remove a new file of draws after an error. Checkpoints still have the draws."""
        try:
            yield
        except BaseException:
            if self._is_made and self._path is not None:
                self._path.unlink(missing_ok=True)
            raise


def require_other_file(store: str | Path | None, name: str, path: Path | None) -> None:
    """Raise if `store` and `path` are the same file. `name` is the argument that gave `path`."""
    if store is not None and path is not None and path.resolve() == _checks.path("store", store).resolve():
        raise ValueError(f"`store` must be another file than `{name}`, got {path} for both; choose another.")


def read_header(path: Path) -> Header:
    """Return the header of a file of draws. Raise if the file is damaged, for example too short."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            about, draws = file.metadata() or {}, file.get_slice(NAME)
            if (about.get("format"), about.get("kind")) != (FORMAT, KIND) or "run" not in about:
                raise ValueError("it has no draws of a run.")
            return Header(about["run"], tuple(draws.get_shape()), draws.get_dtype())
    except (safetensors.SafetensorError, OSError, UnicodeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"`store` must be a file of draws of the run that is resumed, got {path}, which is damaged or is "
            "no such file; choose another path."
        ) from error


@dataclass(frozen=True)
class ChainState:
    run: str
    num_samples: int
    draws: dict[str, Tensor]


def kept_steps(steps: StepSizes, num_steps: int, num_samples: int) -> list[int]:
    """Return the steps after which a draw is kept, evenly spaced over the steps at which a chain samples."""
    sampling = [step for step in range(num_steps) if steps.stage(step, num_steps).is_sampling]
    if len(sampling) < num_samples:
        raise ValueError(
            f"`num_samples` must be at most the number of steps at which a chain samples, {len(sampling)} of "
            f"{num_steps}, got {num_samples}; raise `num_epochs`."
        )
    return [sampling[(row + 1) * len(sampling) // num_samples - 1] for row in range(num_samples)]


class Record:
    """A callback that keeps the draws of one chain. The draws are its state, so checkpoints contain them."""

    def __init__(self, point: DeltaGuide, store: Store, chain: int, layout: Layout, kept_steps: list[int]) -> None:
        self._point, self._store, self._chain, self._layout = point, store, chain, layout
        self._kept, self._num_kept = kept_steps, 0

    def _draws(self) -> dict[str, Tensor]:
        return self._layout.views(self._store.draws()[self._chain])

    def keep(self, step: int) -> None:
        if self._num_kept < len(self._kept) and step == self._kept[self._num_kept]:
            draws = self._draws()
            for name, value in self._point.locations().items():
                draws[name][self._num_kept].copy_(value)
            self._num_kept += 1

    def __call__(self, history: History) -> None:
        """Do nothing, because :meth:`keep` is called after every step and stores the draws."""

    def state_dict(self) -> dict[str, Any]:
        draws = self._draws() if self._num_kept else {}
        kept = {name: values[: self._num_kept].clone() for name, values in draws.items()}
        return {"run": self._store.run, "num_samples": len(self._kept), "draws": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = record(ChainState, state_dict, "draws of a chain")
        if state.num_samples != len(self._kept):
            raise ValueError(
                f"`num_samples` must be {state.num_samples}, as in the run that is resumed, got {len(self._kept)}."
            )
        self._store.join(state.run)
        if not state.draws:
            return
        own, counts = self._draws(), {len(draws) for draws in state.draws.values()}
        if {*own} != {*state.draws} or len(counts) > 1:
            raise ValueError(f"`resume` must hold draws of {list(own)}, got {list(state.draws)}; pass another file.")
        for name, draws in state.draws.items():
            own[name][: len(draws)].copy_(draws)
        (self._num_kept,) = counts
