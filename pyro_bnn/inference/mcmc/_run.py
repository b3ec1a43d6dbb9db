"""A run of chains that can be written to a file and gone on from, to the bit."""

import functools
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.checkpointing import Keeper
from ..._core.files import read_state, understood
from ..._core.scope import Stream
from ..joint import Potential
from ._chains import RECORDED, Chain, run_chains
from ._kernel import Compile, Kernel, Sampler
from ._start import Descent

KIND = "checkpoint of chains"
"""Kind of the files, see :func:`write_state`."""

SAME_DENSITY = 1e-4
"""Relative difference of densities that rounding on another machine may make; heuristic."""


@dataclass(frozen=True)
class Plan:
    """What a run does.

    Args:
        sampler: The algorithm.
        num_chains: Number of chains of this process.
        num_warmup: Number of draws of each chain that only serve adaptation.
        num_samples: Number of draws kept of each chain.
        target_accept: Acceptance rate that warm-up adapts the step size to.
        compile: Whether to draw in C.
    """

    sampler: Sampler
    num_chains: int
    num_warmup: int
    num_samples: int
    target_accept: float
    compile: Compile


class Run:
    """Chains at work on one potential.

    Args:
        plan: What the run does.
        potential: The potential.
        stream: Random numbers.
        settings: What must be the same, by argument of :func:`~pyro_bnn.fit_mcmc`, to go on from a file.
    """

    def __init__(self, plan: Plan, potential: Potential, stream: Stream, settings: Mapping[str, Any]) -> None:
        self._plan, self._potential, self._stream, self._settings = plan, potential, stream, settings
        self._kernel: Kernel | None = None
        self._chains: list[Chain] = []
        self._begin, self._seconds_before = time.perf_counter(), 0.0
        self.path = ""
        """How draws are computed; see :attr:`Kernel.path`."""

    def start(self, starts: Tensor, descent: Descent | None) -> None:
        """Begin chains at points of shape (K, P), or where these descend to."""
        with self._stream:
            if descent is not None:
                starts = descent(self._new_kernel(starts).value_and_grad, starts)
            self._starts, self._chains = starts, self._new_chains(starts)
            self._densities = self._potential.value(starts)
            self._kernel = self._new_kernel(starts)
            for chain, start in zip(self._chains, starts, strict=True):
                chain.adaptation.restart(start, functools.partial(self._kernel.find_step, chain.index))
                chain.adapt(self._kernel)

    def resume(self, path: Path) -> None:
        """Go on from a file; a finished run whose `num_samples` is now larger is gone on with from its last draws.

        Raises:
            OSError: If there is no such file.
            ValueError: If the file is damaged or of another run.
        """
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
            self._kernel = self._resumed_kernel(state["kernel"])
        self._stream.restore(state["stream"])

    def finish(self, keeper: Keeper, *, progress: bool) -> None:
        """Make the draws that are missing; the keeper gets the state at the beginning, now and then, and at the end."""
        if self._kernel is None:
            return
        keeper.write(self.state)  # what is wrong with writing shows before hours of drawing
        run_chains(self._kernel, self._chains, self._stream, lambda: keeper.step(self.state), progress=progress)
        self._kernel = None
        keeper.write(self.state)

    @property
    def seconds(self) -> float:
        """Wall time so far, that of processes that were interrupted included."""
        return self._seconds_before + time.perf_counter() - self._begin

    def recorded(self) -> dict[str, Tensor]:
        """The recorded fields of `Draws`, shape (K, S, ...), and the chains' step sizes and inverse masses."""
        steps = [chain.adaptation.step_size for chain in self._chains]
        fields = {name: [chain.recorded(name) for chain in self._chains] for name in RECORDED}
        known = {name: [value for value in values if value is not None] for name, values in fields.items()}
        return {
            **{name: torch.stack(values) for name, values in known.items() if values},
            "step_size": torch.tensor(steps, dtype=self._starts.dtype, device=self._starts.device),
            "inverse_mass": torch.stack([chain.adaptation.inverse_mass for chain in self._chains]),
        }

    def state(self) -> dict[str, Any]:
        """All that the rest of the run depends on, as plain data. A finished run has no kernel."""
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

    def _resumed_kernel(self, state: Mapping[str, Any] | None) -> Kernel:
        """The kernel in its state; that of a finished run begins anew at the last draws."""
        with self._stream:
            if state is None:
                kernel = self._new_kernel(torch.stack([chain.records["z"][-1] for chain in self._chains]))
            else:
                kernel = self._new_kernel(self._starts)
                kernel.restore(state)
        for chain in self._chains:
            chain.adapt(kernel)
        return kernel


def settings_of(plan: Plan, potential: Potential, data: object, **more: Any) -> dict[str, Any]:
    """What must be the same to resume a run, as plain data, by the name of the argument it comes from."""
    return {
        "model": {site.name: tuple(site.start.shape) for site in potential.sites},
        "data": digest(data),
        "sampler": repr(plan.sampler) if is_dataclass(plan.sampler) else plan.sampler.name,
        "num_samples": plan.num_samples,
        "num_warmup": plan.num_warmup,
        "target_accept": plan.target_accept,
        "dtype": str(potential.like.dtype),
        "compile": plan.compile,
        **more,
    }


def digest(value: object) -> str:
    """Dtype, shape and SHA-256 of a tensor's content, as text; or those of all that a list or dictionary holds."""
    if isinstance(value, Mapping):
        return str({name: digest(part) for name, part in value.items()})
    if isinstance(value, list | tuple):
        return str([digest(part) for part in value])
    if not isinstance(value, Tensor):
        return repr(value)
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return f"{value.dtype} {_checks.shape(value)} {hashlib.sha256(content).hexdigest()}"


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
    """A model is known by its values at the first points."""
    if not torch.allclose(before, now, rtol=SAME_DENSITY, atol=SAME_DENSITY):
        raise ValueError(
            f"`resume` must be a file of the same model, but the posterior density differs from that in {path}: a "
            "prior, the likelihood, the network or a learnable parameter was changed; pass the model of that run, or "
            "begin anew without `resume`."
        )
