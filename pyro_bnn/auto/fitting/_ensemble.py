"""Ensembles: the same fit from several initial networks, in several processes or in steps that update all members."""

import functools
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.checkpointing import Checkpoint, Interrupted, renamed, stopping
from ..._core.copies import copied
from ..._core.devices import reads_wait
from ..._core.grouped import can_be_grouped
from ..._core.processes import GOLDEN, Processes
from ..._core.progress import progress_bar
from ..._core.scope import seeded, silent_fits
from ..._core.summary import in_time
from ..._core.workers import side_by_side
from ...inference.batch_norm import PinnedPosterior
from ...inference.guides import DeltaGuide, GuidePosterior
from ...inference.posterior import EnsemblePosterior, Posterior, warn_unless_ok, with_learned
from ...inference.svi import Data
from ...modelling.model import BayesianModel, network_values, random_paths, reset_network
from ._one_step import fit_in_one_step, obstacle
from ._variational import LARGEST_BATCH, fit_variational

NUM_MEMBERS = 5  # default number of members, as in Lakshminarayanan et al. (2017)

GROUP = 5  # heuristic: most members in one step on a CPU; a step of ten LeNet-5 took longer than two steps of five
LARGEST_GROUPED = 2000  # heuristic: largest batch of members in one step on a CPU, whose hidden values need memory

MakeGuide = Callable[[BayesianModel], nn.Module]

Fit = tuple[dict[str, Tensor], dict[str, Tensor], GuidePosterior]
"""A fitted member: parameters and buffers of its network, learned parameters of its likelihood, and its posterior."""


@dataclass(frozen=True)
class Member:
    """Fits the member with a given index, or several members at once (`in_one_step`)."""

    model: BayesianModel
    data: Data
    make_guide: MakeGuide
    reset: Callable[[nn.Module], object] | None
    seed: int
    num_members: int
    checkpoint: str | Path | Checkpoint | None
    resume: str | Path | None
    options: Mapping[str, Any]  # of a variational fit

    def __call__(self, index: int) -> Fit:
        model, guide = self.start(index)
        resume = None if self.resume is None else self._file(self.resume, index)
        with silent_fits():  # the status says how the members ended
            posterior = fit_variational(
                model,
                self.data,
                guide=guide,
                checkpoint=renamed(self.checkpoint, functools.partial(self._file, index=index)),
                resume=resume if resume is not None and resume.exists() else None,
                progress=False,
                seed=self.order_seed(index),
                **self.options,
            )
        return network_values(model), _learned(model), posterior

    def in_one_step(self, indices: range, progress: bool | None = False) -> list[GuidePosterior] | str:
        """Fit the members `indices` with steps that each update all of them, or return why this is impossible."""
        return fit_in_one_step(
            self.model,
            self.data,
            lambda position: self.start(indices[position]),
            len(indices),
            progress=progress,
            seed=self.order_seed(indices[0]),
            options=self.all_options,
        )

    def in_groups(self, num_workers: int, progress: bool | None) -> list[GuidePosterior] | str:
        """Fit groups of members in several processes, or return why this is impossible."""
        count, num_threads = self.num_groups, max(torch.get_num_threads() // self.num_groups, 1)
        with progress_bar("group of members", count, shown=progress) as bar:
            groups = side_by_side(self.group, count, num_workers=num_workers, num_threads=num_threads, done=bar.update)
        found: list[GuidePosterior] = []
        for group in groups:
            if isinstance(group, str):
                return group
            found += group
        return found

    def group(self, index: int) -> list[GuidePosterior] | str:
        """Fit the group with a given index; for the result see :meth:`in_one_step`."""
        return self.in_one_step(range(*(self.num_members * part // self.num_groups for part in (index, index + 1))))

    @property
    def num_groups(self) -> int:
        return math.ceil(self.num_members / GROUP)

    @property
    def all_options(self) -> dict[str, Any]:
        is_usual = self.make_guide is DeltaGuide
        more = {"guide": None if is_usual else self.make_guide, "checkpoint": self.checkpoint, "resume": self.resume}
        return {**self.options, **{name: value for name, value in more.items() if value is not None}}

    @property
    def gains_by_groups(self) -> bool:
        """Whether a fit on a CPU is faster if each step trains a group of members."""
        model, size = self.model, self.options.get("batch_size")
        size = LARGEST_BATCH if size is None else _checks.at_least("batch_size", size, 1)
        return (
            self.num_members > 1
            and model.like.dtype == torch.float32  # in double precision grouped convolutions are slow
            and min(size, model.num_data) <= LARGEST_GROUPED
            and can_be_grouped(model.network, random_paths(model))
            and not obstacle(model, self.all_options)
        )

    def start(self, index: int) -> tuple[BayesianModel, nn.Module]:
        """Return a copy of the model with new weights, and its guide."""
        model = copied(self.model)
        with seeded(self._seed(2 * index + 1), model.device):
            reset_network(model, self.reset)
            guide = self.make_guide(model)
        _checks.kind("guide", guide, nn.Module, "a function of the model that returns a guide")
        return model, guide

    def order_seed(self, index: int) -> int:
        return self._seed(2 * index + 2)

    def _seed(self, index: int) -> int:
        """Return a seed that differs from `seed`, since the user may have drawn the network's weights with `seed`."""
        return (self.seed + index * GOLDEN) % 2**63

    def _file(self, path: str | Path, index: int) -> Path:
        path = Path(path)
        return path.with_name(f"{path.name}.{index}-of-{self.num_members}")

    def require_file(self) -> None:
        files = [] if self.resume is None else [self._file(self.resume, index) for index in range(self.num_members)]
        if files and not any(file.exists() for file in files):
            raise FileNotFoundError(
                f"`resume` must be the path that an interrupted fit had as `checkpoint`, but {files[0]} and the files "
                "of the other members do not exist; give that path and the same number of members."
            )


def fit_ensemble(
    model: BayesianModel,
    data: Data,
    *,
    guide: MakeGuide | None = None,
    num_members: int | None = None,
    num_workers: int | None = None,
    reset: Callable[[nn.Module], object] | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: str | Path | None = None,
    progress: bool | None = None,
    seed: int | None = None,
    **options: Any,
) -> EnsemblePosterior:
    """Fit an ensemble; see :func:`~pyro_bnn.fit`. `options` are for variational fits."""
    num_members = _checks.at_least("num_members", NUM_MEMBERS if num_members is None else num_members, 1)
    if reset is not None:
        _checks.function("reset", reset, "a function that gives a network new weights in place")
    _check_guide(guide)
    if "callbacks" in options:
        raise ValueError(
            "`callbacks` are called with the history of one fit, but an ensemble has several, in several processes; "
            "leave it out, and read `posterior.members[0].history` after the fit."
        )
    alone = _reason_for_one_process(model, data)
    num_workers = _num_workers(num_workers, num_members, alone)
    seed = int(torch.randint(2**62, ()) if seed is None else seed)  # NumPy's numbers would overflow
    make_guide = DeltaGuide if guide is None else guide
    member = Member(model, data, make_guide, reset, seed, num_members, checkpoint, resume, options)
    member.require_file()
    begin, on_gpu = time.perf_counter(), reads_wait(model.device) and num_members > 1
    together: list[GuidePosterior] | str = ""  # why the members are fitted one by one
    if on_gpu:
        together, how = member.in_one_step(range(num_members), progress), _where(1)
    elif not alone and member.gains_by_groups:
        together, how = member.in_groups(num_workers, progress), _where(min(num_workers, member.num_groups))
    if not isinstance(together, str):
        return _told(EnsemblePosterior(together), begin, how, model)
    threads = torch.get_num_threads() if alone else max(torch.get_num_threads() // num_members, 1)
    given = None if checkpoint is None else checkpoint.path if isinstance(checkpoint, Checkpoint) else checkpoint
    with progress_bar("member", num_members, shown=progress) as bar:
        try:
            with nullcontext(lambda: False) if given is None else stopping() as is_asked:
                found = side_by_side(
                    member,
                    num_members,
                    num_workers=num_workers,
                    num_threads=threads,
                    is_asked=is_asked,
                    done=bar.update,
                )
        except KeyboardInterrupt:
            if given is None:
                raise
            raise Interrupted(
                f"stopped by a signal; the states of the members are in {given}.*-of-{num_members}. To continue, call "
                f"again with the same arguments and `resume={os.fspath(given)!r}`."
            ) from None
    ensemble = EnsemblePosterior(_members(model, found))
    with torch.no_grad():
        for name, value in _learned(model).items():
            value.copy_(torch.stack([learned[name] for _, learned, _ in found]).mean(0))
    return _told(
        ensemble, begin, _where(num_workers, f" one after the other, since {together}" if on_gpu else ""), model
    )


def _where(num_workers: int, reason: str = "") -> str:
    return f"in this process{reason}" if num_workers == 1 else f"in up to {num_workers} processes"


def _told(ensemble: EnsemblePosterior, begin: float, how: str, model: BayesianModel) -> EnsemblePosterior:
    """Give the ensemble a status that says how long the fit took since `begin`, and in how many processes it ran."""
    seconds = time.perf_counter() - begin
    message = f"{ensemble.status.message.rstrip('.')}. Fitted in {in_time(seconds)} {how}."
    ensemble.status, ensemble.seconds = replace(ensemble.status, message=message), seconds
    warn_unless_ok(ensemble.status)
    return with_learned(ensemble, model)


def _learned(model: BayesianModel) -> dict[str, Tensor]:
    """Return the learned parameters of the likelihood, in unconstrained space."""
    return {name: value.detach() for name, value in model.likelihood.named_parameters() if value.requires_grad}


def _members(model: BayesianModel, found: list[Fit]) -> list[Posterior]:
    """Return the posteriors, with the learned values of their networks if `model` has other values."""
    before = network_values(model)
    if all(torch.equal(before[name], value) for values, _, _ in found for name, value in values.items()):
        return [posterior for _, _, posterior in found]
    return [PinnedPosterior(model, posterior, values=values) for values, _, posterior in found]


def _check_guide(guide: object) -> None:
    if isinstance(guide, nn.Module):
        raise ValueError(
            "`guide` must be a function that makes a guide from a model, since each member has a model and a guide of "
            f"its own, got a {type(guide).__name__}; pass `guide=pb.{type(guide).__name__}`, or a function such as "
            "`lambda model: pb.MeanFieldGuide(model)`."
        )
    if guide is not None:
        _checks.function("guide", guide, "a function of the model that makes a guide, such as pb.MeanFieldGuide")


def _reason_for_one_process(model: BayesianModel, data: Data) -> str:
    """Return why all members must be fitted in this process; "" if there is no reason."""
    if model.device.type != "cpu":
        return f"the model is on {model.device}"
    if Processes.present().are_many:
        return "this process shares its fits with others by `torch.distributed`"
    return "" if isinstance(data, tuple) else "the data are a loader, whose order of rows belongs to this process"


def _num_workers(num_workers: int | None, num_members: int, alone: str) -> int:
    if num_workers is None:
        return 1 if alone else min(num_members, torch.get_num_threads())
    found = max(_checks.at_least("num_workers", num_workers, 0), 1)
    if found > 1 and alone:
        raise ValueError(f"`num_workers` must be 1, since {alone}, got {num_workers}; leave it out.")
    return min(found, num_members)
