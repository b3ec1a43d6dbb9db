"""The reports on the weights of a training run: what they are, and which of them it needs."""

import io
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from .. import plotting, pruning
from .._reflection import element_of, elementwise, move_distribution
from ..checkpoint import save_state
from ..data import Images
from ..guides import GuidePosterior
from ..model import BayesianModel
from ..pruning._prune import mean_field
from .runs import check_target, write_json

__all__ = ["Gain", "PruningGains", "SiteSummary", "prune_run", "save_pruned_run", "weights_of_run"]

TIMED_IMAGES = 1000


@dataclass(frozen=True)
class Gain:
    """What removing weights saves.

    Args:
        fraction: Share of the weights removed.
        file_bytes: Size of the stored posterior.
        sparse_seconds: Time of the network at mean weights, nearly empty layers sparse; median.
        dense_seconds: The same with all layers dense.
    """

    fraction: float
    file_bytes: int
    sparse_seconds: float
    dense_seconds: float


@dataclass(frozen=True)
class PruningGains:
    """The gains by share of weights removed.

    Args:
        rows: One per share.
        num_images: How many images were classified at once to take the time.
        file_bytes: Size of the stored posterior with all its weights.
    """

    rows: tuple[Gain, ...]
    num_images: int
    file_bytes: int

    def __str__(self) -> str:
        lines = [
            f"{'removed':>8s} {'file, MB':>10s} {'smaller':>9s} {'dense, ms':>10s} {'sparse, ms':>11s} {'faster':>8s}",
        ]
        for row in self.rows:
            smaller = f"{self.file_bytes / row.file_bytes:.1f} x"
            faster = f"{row.dense_seconds / row.sparse_seconds:.1f} x"
            lines.append(
                f"{row.fraction:8.4g} {row.file_bytes / 1e6:10.3f} {smaller:>9s} {1e3 * row.dense_seconds:10.2f} "
                f"{1e3 * row.sparse_seconds:11.2f} {faster:>8s}"
            )
        lines.append(
            f"times: mean weights, {self.num_images} images, {torch.get_num_threads()} thread(s); a layer with more "
            f"than {pruning.MAX_DENSITY:.0%} of its weights left stays dense."
        )
        return "\n".join(lines)


def prune_run(
    model: BayesianModel,
    posterior: GuidePosterior,
    images: Images,
    out: Path,
    *,
    fractions: Sequence[float],
    num_samples: int = 100,
    per_layer: bool = False,
    seed: int = 0,
) -> tuple[pruning.PruningReport, PruningGains]:
    """Measure a trained classifier with more and more of its weights removed; write table and pictures.

    Args:
        model: The model.
        posterior: Its fitted mean-field guide.
        images: Data, of which the test part is used.
        out: Folder for the results.
        fractions: Shares of the weights to remove.
        num_samples: Draws of each ensemble.
        per_layer: Remove the share of each layer.
        seed: Of the draws.

    Returns:
        What it costs, and what it saves.
    """
    x, y = images.x_test.to(model.device), images.y_test.to(model.device)
    report = pruning.snr_report(
        model, posterior, x, y, fractions=fractions, num_samples=num_samples, per_layer=per_layer, seed=seed
    )
    rows = tuple(_gain(model, posterior, x[:TIMED_IMAGES], fraction, per_layer) for fraction in fractions)
    gains = PruningGains(rows, len(x[:TIMED_IMAGES]), _file_bytes(model, mean_field(posterior)))
    report.to_csv(out / "pruning.csv")
    write_json(out / "pruning.json", {"report": asdict(report), "gains": asdict(gains)})
    plotting.save(plotting.pruning_curve(report)[0], out / "pruning.png")
    plotting.save(plotting.signal_to_noise(pruning.signal_to_noise(posterior))[0], out / "snr.png")
    return report, gains


def save_pruned_run(
    run: Path,
    out: Path,
    model: BayesianModel,
    posterior: GuidePosterior,
    *,
    fraction: float,
    per_layer: bool,
    force: bool,
) -> str:
    """Write a copy of a run without some of its weights, for `evaluate` and all the rest; returns what was removed.

    Raises:
        FileExistsError: If the folder exists and `force` is not given.
    """
    check_target(out, force)
    if out.resolve() in (run.resolve(), *run.resolve().parents):
        raise FileExistsError(f"{out} is the run itself, or holds it; choose another --out for the pruned one.")
    pruned = pruning.prune(posterior, fraction=fraction, per_layer=per_layer)
    if out.exists():
        shutil.rmtree(out)
    out.mkdir()
    for name in ("config.json", "history.json"):
        shutil.copy(run / name, out / name)
    save_state(out / "posterior.pt", model, mean_field(pruned))
    return str(pruned.status)


def _gain(model: BayesianModel, posterior: GuidePosterior, x: Tensor, fraction: float, per_layer: bool) -> Gain:
    pruned = pruning.prune(posterior, fraction=fraction, per_layer=per_layer)
    values = pruned.median()
    dense = pruning.sparse_network(model, values, max_density=-1.0)
    sparse = pruning.sparse_network(model, values)
    seconds = _seconds([lambda: dense(x), lambda: sparse(x)])
    return Gain(fraction, _file_bytes(model, mean_field(pruned)), sparse_seconds=seconds[1], dense_seconds=seconds[0])


@torch.no_grad()
def _seconds(calls: Sequence[Callable[[], Tensor]], *, repeats: int = 7) -> list[float]:
    """Medians of interleaved calls, after one of each."""
    times: list[list[float]] = [[] for _ in calls]
    for repeat in range(repeats + 1):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call().sum().item()  # waits for a GPU
            if repeat:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def _file_bytes(model: BayesianModel, guide: torch.nn.Module) -> int:
    file = io.BytesIO()
    save_state(file, model, guide)
    return file.getbuffer().nbytes


@dataclass(frozen=True)
class SiteSummary:
    """The posterior of one site's weights in a few numbers.

    Args:
        site: Its name.
        num_weights: How many there are.
        num_removed: How many of them were removed, which the rest leaves out.
        mean_size: Mean distance of the means from zero.
        median_scale: Median standard deviation.
        decibel: 5 %, 50 % and 95 % quantiles of the signal-to-noise ratio, in dB.
    """

    site: str
    num_weights: int
    num_removed: int
    mean_size: float
    median_scale: float
    decibel: tuple[float, float, float]

    def __str__(self) -> str:
        low, middle, high = self.decibel
        return (
            f"{self.site:20s} {self.num_weights:10,d} {self.num_removed:10,d} {self.mean_size:12.4g} "
            f"{self.median_scale:10.4g} {low:8.1f} {middle:8.1f} {high:8.1f}"
        )

    @staticmethod
    def header() -> str:
        """The line above these."""
        return (
            f"{'site':20s} {'weights':>10s} {'removed':>10s} {'mean |mean|':>12s} {'median sd':>10s} "
            f"{'SNR 5 %':>8s} {'50 %':>8s} {'95 % (dB)':>8s}"
        )


def weights_of_run(
    model: BayesianModel, posterior: GuidePosterior, out: Path, *, site: str | None = None, index: Sequence[int] = ()
) -> list[SiteSummary]:
    """Summarise the weights of a trained network, and write two pictures.

    ``weight.png``: the posterior density of one weight. ``weights.png``: histograms of means and scales by site.

    Args:
        model: The model.
        posterior: Its fitted mean-field guide.
        out: Folder for the pictures.
        site: Of the weight shown; by default the first that has one left.
        index: Which of the site's weights; by default the one with the highest signal-to-noise ratio.

    Raises:
        ValueError: If there is no such weight, or it was removed.
    """
    guide = mean_field(posterior)
    ratios = pruning.signal_to_noise(guide)
    if site is None:
        site = next((name for name in ratios if bool(guide.kept(name).any())), None)
    if site is None:
        raise ValueError("all weights were removed: none has a posterior to show.")
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
    plotting.save(ax, out / "weight.png")
    plotting.save(plotting.weight_histograms(locations, scales)[0, 0], out / "weights.png")
    return [_summary(name, locations[name], scales[name], ratios[name].cpu()) for name in ratios]


def _prior(model: BayesianModel, site: str, index: Sequence[int]) -> torch.distributions.Distribution:
    """What a single weight is drawn from in the model, on the CPU and in double precision."""
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
