"""The report on pruning the network of a run: how the scores change, and how much memory and time it saves."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...inference.checkpoint import save_posterior
from ...inference.guides import GuidePosterior
from ...modelling.model import BayesianModel
from ...results import plotting, pruning
from ...results.pruning import Per, mean_field
from ..datasets import Dataset
from ..folders import Folder
from ..manifest import verified
from ..own.targets import Target
from ..runs import CONFIG, DATA, HISTORY, write_posterior
from .pictures import save_picture

FILES = ("pruning.csv", "pruning.json", "pruning.png", "snr.png")  # all that are written
TIMED_IMAGES = 1000  # rows that a timed call predicts


@dataclass(frozen=True)
class Gain:
    """Savings from removing a share of the weights. Each time is the median for a prediction with the mean weights."""

    fraction: float
    file_bytes: int
    sparse_seconds: float  # nearly empty layers are stored as sparse
    dense_seconds: float


@dataclass(frozen=True)
class PruningGains:
    """The savings from removing several shares of the weights, and the size of the file with all weights."""

    rows: tuple[Gain, ...]
    num_images: int  # rows predicted in a timed call
    file_bytes: int


def report_pruning(
    model: BayesianModel,
    posterior: GuidePosterior,
    data: Dataset,
    folder: Folder,
    *,
    fractions: Sequence[float],
    num_samples: int = 100,
    per: Per = "network",
    seed: int = 0,
) -> tuple[pruning.PruningReport, PruningGains]:
    """Measure the costs and savings of removing shares of the weights, and write tables and pictures."""
    x, y = data.x_test.to(model.device), data.y_test.to(model.device)
    report = pruning.snr_report(
        model, posterior, x, y, fractions=fractions, num_samples=num_samples, per=per, seed=seed
    )
    report = _in_units(report, data.facts.target)
    rows = tuple(_gain(model, posterior, x[:TIMED_IMAGES], fraction, per) for fraction in fractions)
    gains = PruningGains(rows, len(x[:TIMED_IMAGES]), _file_bytes(model, GuidePosterior(mean_field(posterior))))
    with folder.new("pruning.csv") as path:
        report.to_csv(path)
    folder.write_json("pruning.json", {"report": asdict(report), "gains": asdict(gains)})
    save_picture(folder, "pruning.png", plotting.pruning_curve(report)[0])
    ratios = plotting.signal_to_noise(pruning.signal_to_noise(posterior))
    save_picture(folder, "snr.png", ratios[0])
    return report, gains


def _in_units(report: pruning.PruningReport, target: Target) -> pruning.PruningReport:
    """Convert a report to units of the target. The RMSE of several targets stays that of standardised ones."""
    shift = sum(math.log(scale) for scale in target.scale)
    factor = target.scale[0] if len(target.scale) == 1 else 1.0

    def in_units(row: pruning.PruningRow) -> pruning.PruningRow:
        row = replace(row, nll=row.nll + shift, mean_nll=row.mean_nll + shift)
        if row.rmse is None or row.mean_rmse is None:
            return row
        return replace(row, rmse=factor * row.rmse, mean_rmse=factor * row.mean_rmse)

    return replace(report, rows=tuple(in_units(row) for row in report.rows))


def save_pruned_run(
    run: Path,
    folder: Folder,
    model: BayesianModel,
    posterior: GuidePosterior,
    data: Dataset,
    *,
    fraction: float,
    per: Per,
) -> str:
    """Write a copy of a run without a share of its weights; return a sentence on how many weights were removed."""
    pruned = pruning.prune(posterior, fraction=fraction, per=per)
    for name in (CONFIG, HISTORY, DATA):
        folder.write_text(name, verified(run, name).read_text(encoding="utf-8"))
    write_posterior(folder, model, pruned, data)
    return str(pruned.status)


def _gain(model: BayesianModel, posterior: GuidePosterior, x: Tensor, fraction: float, per: Per) -> Gain:
    pruned = pruning.prune(posterior, fraction=fraction, per=per)
    values = pruned.median()
    dense = pruning.sparse_network(model, values, max_density=None)
    sparse = pruning.sparse_network(model, values)
    seconds = _seconds([lambda: dense(x), lambda: sparse(x)])
    return Gain(fraction, _file_bytes(model, pruned), sparse_seconds=seconds[1], dense_seconds=seconds[0])


@torch.no_grad()
def _seconds(calls: Sequence[Callable[[], Tensor]], *, repeats: int = 7) -> list[float]:
    """Return the median time of each call. The calls alternate, and the first round is not timed."""
    times: list[list[float]] = [[] for _ in calls]
    for repeat in range(repeats + 1):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call().sum().item()  # wait for the GPU
            if repeat:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def _file_bytes(model: BayesianModel, posterior: GuidePosterior) -> int:
    with tempfile.TemporaryDirectory() as folder:
        save_posterior(posterior, Path(folder) / "posterior", model)
        return (Path(folder) / "posterior").stat().st_size
