"""Reports on the sizes and uncertainties of a network's weights, and on how pruning changes the network."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..._core.reflection import element_of, elementwise, move_distribution
from ...inference.checkpoint import save_posterior
from ...inference.guides import GuidePosterior
from ...modelling.model import BayesianModel
from ...results import plotting, pruning
from ...results.prediction import predict
from ...results.pruning import Per, mean_field
from ..datasets import Dataset
from ..folders import Folder
from ..manifest import Manifest, verified
from ..own.targets import Target
from ..runs import ASKED, CONFIG, DATA, HISTORY, write_posterior
from .pictures import save_picture

WEIGHT_FILES = ("weight.png", "weights.png")  # all that are written
LEGEND = (
    "weights: their number; removed: how many of them were pruned. The other columns are about the weights that are "
    "left. SNR: signal-to-noise ratio |mean| / sd of a weight, in decibels (dB). 5 %, 50 % and 95 % of the weights "
    "have a lower ratio than the number shown. At 0 dB, mean and sd are equal in size."
)


@dataclass(frozen=True)
class SiteSummary:
    """Summary of the posterior of one tensor of weights. The statistics are computed without the removed weights."""

    site: str
    num_weights: int
    num_removed: int
    mean_size: float  # mean over the weights of |posterior mean|
    median_scale: float  # median over the weights of the posterior standard deviation
    decibel: tuple[float, float, float]  # 5 %, 50 % and 95 % quantiles of the signal-to-noise ratio

    def __str__(self) -> str:
        low, middle, high = self.decibel
        return (
            f"{self.site:20s} {self.num_weights:10,d} {self.num_removed:10,d} {self.mean_size:12.4g} "
            f"{self.median_scale:10.4g} {low:8.1f} {middle:8.1f} {high:8.1f}"
        )

    @staticmethod
    def header() -> str:
        """Return the heading of a table of summaries."""
        return (
            f"{'site':20s} {'weights':>10s} {'removed':>10s} {'mean |mean|':>12s} {'median sd':>10s} "
            f"{'SNR 5 %':>8s} {'50 %':>8s} {'95 % (dB)':>8s}"
        )


def least_certain(rows: Sequence[SiteSummary], run: Path) -> str:
    """Return a sentence on the tensor whose median weight has the lowest signal-to-noise ratio."""
    left = [row for row in rows if row.num_removed < row.num_weights]
    if not left:
        return "All weights were removed."
    least = min(left, key=lambda row: row.decibel[1])
    middle = least.decibel[1]
    said = f"Least certain is {least.site}: its median weight has {middle:.1f} dB, so the sd of that weight is"
    if middle >= 0:
        return f"{said} at most as large as its mean."
    return f"{said} larger than its mean. Try how many weights can be removed: pyro-bnn prune {run}"


def report_weights(
    model: BayesianModel,
    posterior: GuidePosterior,
    folder: Folder,
    *,
    site: str | None = None,
    index: Sequence[int] = (),
) -> list[SiteSummary]:
    """Summarise the weights of a trained network, and write a picture of one weight and a picture of all tensors."""
    guide = pruning.mean_field(posterior)
    ratios = pruning.signal_to_noise(guide)
    if site is None:
        site = next((name for name in ratios if bool(guide.kept(name).any())), None)
    if site is None:
        raise ValueError("all weights were removed, so none has a posterior to show.")
    if site not in ratios:
        raise ValueError(f"there is no site {site!r}; choose from {', '.join(ratios)}.")
    shape = tuple(ratios[site].shape)
    if not index:
        index = [int(i) for i in torch.unravel_index(ratios[site].argmax(), shape)]
    if len(index) != len(shape) or not all(0 <= i < size for i, size in zip(index, shape, strict=True)):
        raise ValueError(f"`index` must name one element of `{site}`, of shape {shape}, got {tuple(index)}.")
    locations = {name: value.cpu() for name, value in guide.locations().items() if name in ratios}
    scales = {name: value.cpu() for name, value in guide.scales().items() if name in ratios}
    loc, scale = (float(values[site][tuple(index)]) for values in (locations, scales))
    name = f"{site}[{', '.join(map(str, index))}]"
    ax = plotting.weight_density(loc, scale, name=name, prior=_prior(model, site, index))
    save_picture(folder, "weight.png", ax)
    save_picture(folder, "weights.png", plotting.weight_histograms(locations, scales)[0, 0])
    return [_summary(name, locations[name], scales[name], ratios[name].cpu()) for name in ratios]


def _prior(model: BayesianModel, site: str, index: Sequence[int]) -> Distribution:
    """Return the prior of a single weight, on the CPU and in double precision."""
    prior = model.prior_of(site)
    single = elementwise(site, prior, model.initial_value(site).shape)
    return element_of(move_distribution(single, torch.zeros((), dtype=torch.float64)), tuple(index))


def _summary(site: str, loc: Tensor, scale: Tensor, ratio: Tensor) -> SiteSummary:
    kept = scale > 0
    if not bool(kept.any()):
        nan = float("nan")
        return SiteSummary(site, loc.numel(), loc.numel(), nan, nan, (nan, nan, nan))
    levels = pruning.decibel(ratio[kept]).sort().values
    low, middle, high = (float(levels[int(q * (len(levels) - 1))]) for q in (0.05, 0.5, 0.95))
    return SiteSummary(
        site,
        num_weights=loc.numel(),
        num_removed=int((~kept).sum()),
        mean_size=float(loc[kept].abs().mean()),
        median_scale=float(scale[kept].median()),
        decibel=(low, middle, high),
    )


PRUNING_FILES = ("pruning.csv", "pruning.json", "pruning.png", "snr.png")  # all that are written
TIMED_IMAGES = 1000  # rows that a timed call predicts
SMALL_LOSS = 0.01  # heuristic: a rise of the NLL by this number, in nats per row, counts as no loss


@dataclass(frozen=True)
class Gain:
    """Savings for one share of removed weights. The times are median times of a prediction with the mean weights."""

    fraction: float
    file_bytes: int
    sparse_seconds: float  # nearly empty layers are stored as sparse
    dense_seconds: float


@dataclass(frozen=True)
class Change:
    """Mean change of the NLL after a share of the weights is removed, in nats per row, and its standard error."""

    fraction: float
    mean: float
    standard_error: float  # NaN for a single row

    @classmethod
    def of(cls, fraction: float, rises: Tensor) -> "Change":
        """Return the mean rise of the NLL and its standard error, given the rise for each row."""
        error = float(rises.std()) / math.sqrt(len(rises)) if len(rises) > 1 else math.nan
        return cls(fraction, float(rises.mean()), error)


@dataclass(frozen=True)
class PruningGains:
    """What pruning saves for several shares of removed weights, and the size of the file without pruning."""

    rows: tuple[Gain, ...]
    num_images: int  # rows predicted in a timed call
    file_bytes: int
    change: Change | None = None  # for the largest share with a small loss, else for the smallest share


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

    def densities(share: float) -> Tensor:
        pruned = pruning.prune(posterior, fraction=share, per=per)
        found = predict(model, pruned, x, y=y, num_samples=num_samples, seed=seed).log_density
        assert found is not None
        return found.double()

    share = judged_share(report)
    change = None if share is None else Change.of(share, densities(0.0) - densities(share))
    report = _in_units(report, data.facts.target)
    rows = tuple(_gain(model, posterior, x[:TIMED_IMAGES], fraction, per) for fraction in fractions)
    file_bytes = _file_bytes(model, GuidePosterior(mean_field(posterior)))
    gains = PruningGains(rows, len(x[:TIMED_IMAGES]), file_bytes, change)
    with folder.new("pruning.csv") as path:
        report.to_csv(path)
    folder.write_json("pruning.json", {"report": asdict(report), "gains": asdict(gains)})
    save_picture(folder, "pruning.png", plotting.pruning_curve(report)[0])
    ratios = plotting.signal_to_noise(pruning.signal_to_noise(posterior))
    save_picture(folder, "snr.png", ratios[0])
    return report, gains


def judged_share(report: pruning.PruningReport) -> float | None:
    """Return the largest share of the weights that can be removed without loss.

    A rise of the NLL by at most `SMALL_LOSS` is no loss. If even the smallest share cannot be removed without loss,
    return the smallest share. Return None if the report has only scores of pruned networks, or none of them.
    """
    whole, *others = sorted(report.rows, key=lambda row: row.fraction)
    kept = [*takewhile(lambda row: row.nll <= whole.nll + SMALL_LOSS, others)] or others[:1]
    return kept[-1].fraction if kept and not whole.fraction else None


def _in_units(report: pruning.PruningReport, target: Target) -> pruning.PruningReport:
    """Convert a report to units of the target. With several targets, the RMSE stays in standardised units."""
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
    for name in Manifest.read(run).files.keys() & {CONFIG, HISTORY, DATA, ASKED}:
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
    """Return the median time of each call. The calls take turns, and the first round is not timed."""
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
