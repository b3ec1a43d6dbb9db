"""A run of chains that can be written to a file and continued bit for bit."""

import functools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.checkpointing import Keeper
from ..._core.files import read_state, understood
from ..._core.progress import progress_bar
from ..._core.records import words
from ..._core.scope import Stream
from ..._core.summary import counted
from ..joint import Potential
from ._adaptation import AnyAdaptation
from ._convergence import FEWEST_DRAWS
from ._kernel import Compile, Draws, Kernel, Sampler
from ._start import Descent

KIND = "checkpoint of chains"

SAME_DENSITY = 1e-4  # heuristic: largest relative difference of densities that rounding on another machine may cause

RECORDED = ("z", "log_density", "energy", "accept", "diverging", "num_steps", "energy_error")
"""The fields of `Draws` that are kept."""


@dataclass
class Chain:
    index: int  # its row in the kernel's tensors
    num_warmup: int
    num_samples: int
    adaptation: AnyAdaptation
    num_drawn: int = 0
    records: dict[str, list[Tensor]] = field(default_factory=lambda: {name: [] for name in RECORDED})

    @property
    def is_done(self) -> bool:
        return self.num_drawn >= self.num_warmup + self.num_samples

    def take(self, draws: Draws, kernel: Kernel) -> None:
        """Adapt to a draw of the warm-up, or record a later draw."""
        if self.num_drawn < self.num_warmup:
            find_step = functools.partial(kernel.find_step, self.index)
            self.adaptation.update(self.num_drawn, draws, self.index, find_step)
            self.adaptation.apply(kernel, self.index)
        else:
            for name, values in self.records.items():
                if (value := getattr(draws, name)) is not None:
                    values.append(value[self.index].clone())
        self.num_drawn += 1

    def end(self, num_samples: int) -> None:
        self.num_samples, self.num_drawn = num_samples, self.num_warmup + num_samples
        self.records = {name: values[:num_samples] for name, values in self.records.items()}

    def recorded(self, name: str) -> Tensor | None:
        """Return the recorded values of a field of `Draws`, shape (S, ...), if there are any."""
        return torch.stack(self.records[name]) if self.records[name] else None

    def state(self) -> dict[str, Any]:
        records = {name: self.recorded(name) for name in self.records}
        return {"num_drawn": self.num_drawn, "adaptation": self.adaptation.state(), "records": records}

    def restore(self, state: Mapping[str, Any], device: torch.device) -> None:
        self.num_drawn = _checks.at_least("num_drawn", state["num_drawn"], 0)
        self.adaptation.restore(state["adaptation"])
        num_recorded = max(self.num_drawn - self.num_warmup, 0)
        for name in self.records:
            values = state["records"][name]
            self.records[name] = [] if values is None else list(values.to(device, copy=True))
            if len(self.records[name]) not in ({num_recorded} if name == "z" else {0, num_recorded}):
                raise ValueError(
                    f"a chain of {num_recorded} draws must have one value of `{name}` for each, got "
                    f"{len(self.records[name])}; pass another file."
                )


@dataclass(frozen=True)
class RunPlan:
    sampler: Sampler
    num_chains: int  # of this process
    num_warmup: int
    num_samples: int
    target_accept: float
    compile: Compile


@dataclass(frozen=True)
class Ends:
    """Times of `time.perf_counter` at which descent, warm-up and sampling end early."""

    descent: float = math.inf
    warmup: float = math.inf
    sampling: float = math.inf  # each chain records `FEWEST_DRAWS` draws or more, even if this time has passed


NO_ENDS = Ends()


class Run:
    """A run of chains on one potential, which continues only from files with the same `settings`."""

    def __init__(self, plan: RunPlan, potential: Potential, stream: Stream, settings: Mapping[str, Any]) -> None:
        self._plan, self._potential, self._stream, self._settings = plan, potential, stream, settings
        self._kernel: Kernel | None = None
        self._begin, self._seconds_before = time.perf_counter(), 0.0
        self.path = ""  # how draws are computed; see :attr:`Kernel.path`

    def start(self, starts: Tensor, descent: Descent | None, *, until: float = math.inf) -> None:
        """Begin chains at the rows of `starts`, or at modes that `descent` finds until the time `until`."""
        with self._stream:
            kernel = self._new_kernel(starts)
            if descent is not None:
                starts = descent(kernel.value_and_grad, starts, until=until)
                kernel = kernel.at(starts) or self._new_kernel(starts)
            self._starts, self._chains = starts, self._new_chains(starts)
            self._densities = self._potential.value(starts)
            self._kernel = kernel
            for chain, start in zip(self._chains, starts, strict=True):
                chain.adaptation.restart(start, functools.partial(self._kernel.find_step, chain.index))
                chain.adaptation.apply(self._kernel, chain.index)

    def resume(self, path: Path) -> None:
        """Resume from a file. A finished run with a larger `num_samples` continues from its last draws."""
        with understood(path, KIND):
            self._restore(path, read_state(path, KIND))

    def _restore(self, path: Path, state: Mapping[str, Any]) -> None:
        is_finished = state["kernel"] is None
        _require_same_settings(path, state["settings"], self._settings, is_finished)
        self._starts, self._seconds_before = state["starts"].to(self._potential.like, copy=True), state["seconds"]
        with self._stream:
            self._densities = self._potential.value(self._starts)
        _require_same_densities(path, state["densities"], self._densities.cpu())
        self._chains = self._new_chains(self._starts)
        for chain, its_state in zip(self._chains, state["chains"], strict=True):
            chain.restore(its_state, self._starts.device)
        self.path = state["path"]
        if not all(chain.is_done for chain in self._chains):
            # A finished run that needs more draws starts again from its last draws.
            z = torch.stack([chain.records["z"][-1] for chain in self._chains]) if is_finished else self._starts
            with self._stream:
                self._kernel = self._new_kernel(z)
            if not is_finished:
                self._kernel.restore(state["kernel"])
            for chain in self._chains:
                chain.adaptation.apply(self._kernel, chain.index)
        self._stream.restore(state["stream"])

    def finish(self, keeper: Keeper, *, progress: bool | None, ends: Ends = NO_ENDS) -> None:
        """Make the missing draws. The `keeper` writes the state at the beginning, at intervals and at the end."""
        if self._kernel is None:
            return
        keeper.write(self.state)  # so that an error in writing is raised before hours of drawing
        kernel, chains = self._kernel, self._chains
        total, done = sum(c.num_warmup + c.num_samples for c in chains), sum(c.num_drawn for c in chains)
        with progress_bar("draw", total, shown=progress, initial=done) as bar:
            bar.set_description_str(f" of {counted(len(chains), 'chain')}, with warm-up", refresh=False)
            while not all(chain.is_done for chain in chains):
                kernel.is_needed[:] = [not chain.is_done for chain in chains]
                with self._stream:
                    draws = kernel.draw()
                    for index in draws.finished.nonzero().flatten().tolist():
                        if not chains[index].is_done:
                            chains[index].take(draws, kernel)
                            bar.update()
                keeper.step(self.state)
                self._end_in_time(ends)
        self._kernel = None
        keeper.write(self.state)

    def _end_in_time(self, ends: Ends) -> None:
        now = time.perf_counter()
        if now > ends.warmup:
            for chain in self._chains:
                chain.num_warmup = min(chain.num_warmup, chain.num_drawn)
        fewest = min(len(chain.records["z"]) for chain in self._chains)
        if now > ends.sampling and fewest >= FEWEST_DRAWS:
            for chain in self._chains:
                chain.end(fewest)

    @property
    def num_warmup(self) -> int:
        return min(chain.num_warmup for chain in self._chains)

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._begin

    def recorded(self) -> dict[str, Tensor]:
        """Return the recorded fields of `Draws`, shape (K, S, ...), and each chain's step size and inverse mass."""
        steps = [chain.adaptation.step_size for chain in self._chains]
        fields = {name: [chain.recorded(name) for chain in self._chains] for name in RECORDED}
        known = {name: [value for value in values if value is not None] for name, values in fields.items()}
        return {
            **{name: torch.stack(values) for name, values in known.items() if values},
            "step_size": torch.tensor(steps, dtype=self._starts.dtype, device=self._starts.device),
            "inverse_mass": torch.stack([chain.adaptation.inverse_mass for chain in self._chains]),
        }

    def state(self) -> dict[str, Any]:
        """Return everything on which the remaining draws depend. In a finished run, the entry `kernel` is None."""
        return {
            "settings": dict(self._settings),
            "starts": self._starts,
            "densities": self._densities,
            "seconds": self.seconds,
            "stream": self._stream.state(),
            "path": self.path,
            "kernel": None if self._kernel is None else self._kernel.state(),
            "chains": [chain.state() for chain in self._chains],
        }

    def _new_chains(self, starts: Tensor) -> list[Chain]:
        plan = self._plan
        adaptations = [plan.sampler.adaptation(plan.num_warmup, plan.target_accept, start) for start in starts]
        return [Chain(i, plan.num_warmup, plan.num_samples, adaptation) for i, adaptation in enumerate(adaptations)]

    def _new_kernel(self, z: Tensor) -> Kernel:
        kernel = self._plan.sampler.kernel(self._potential.value_and_grad, z, compile=self._plan.compile)
        self.path = kernel.path
        return kernel


def settings_of(plan: RunPlan, potential: Potential, data: object, **more: Any) -> dict[str, Any]:
    """Return the settings in which a run must agree with the file that it resumes."""
    return {
        "model": {site.name: tuple(site.start.shape) for site in potential.sites},
        "data": words(data),
        "sampler": repr(plan.sampler) if is_dataclass(plan.sampler) else plan.sampler.name,
        "num_samples": plan.num_samples,
        "num_warmup": plan.num_warmup,
        "target_accept": plan.target_accept,
        "dtype": str(potential.like.dtype),
        "compile": plan.compile,
        **more,
    }


def _require_same_settings(path: Path, before: Mapping[str, Any], now: Mapping[str, Any], is_finished: bool) -> None:
    for name, value in now.items():
        if value == before.get(name) or (name == "num_samples" and is_finished and before[name] < value):
            continue
        got = f"has {name}={before.get(name)!r}, got {value!r}"
        if name in ("model", "data"):
            got = f"is of another `{name}`"
        remedy = "pass the arguments of that run, or begin anew without `resume`"
        if name == "num_samples" and before[name] < value:
            remedy = "finish that run first, and resume it then with more draws"
        raise ValueError(f"`resume` must be a file of the same run, but {path} {got}; {remedy}.")


def _require_same_densities(path: Path, before: Tensor, now: Tensor) -> None:
    """Raise if the density at the first positions, and thus the model, has changed."""
    if not torch.allclose(before, now, rtol=SAME_DENSITY, atol=SAME_DENSITY):
        raise ValueError(
            f"`resume` must be a file of the same model, but the posterior density differs from that in {path}: a "
            "prior, the likelihood, the network or a learnable parameter was changed; pass the model of that run, or "
            "begin anew without `resume`."
        )
