"""The report on the weights of a training run, their sizes and uncertainties."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..._core.reflection import element_of, elementwise, move_distribution
from ...inference.guides import GuidePosterior
from ...modelling.model import BayesianModel
from ...results import plotting, pruning
from ..folders import Folder
from .pictures import save_picture

FILES = ("weight.png", "weights.png")  # all that are written
LEGEND = (
    "weights: their number; removed: how many of them were pruned. The other columns are about the weights that are "
    "left. SNR: signal-to-noise ratio |mean| / sd of a weight, in decibels (dB), of which 5 %, 50 % and 95 % of the "
    "weights have less. At 0 dB, mean and sd are equal in size."
)
"""Explanation of the columns of a table of summaries."""


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


def least_certain(rows: Sequence[SiteSummary]) -> str:
    """Return a sentence on the tensor whose median weight has the lowest signal-to-noise ratio."""
    left = [row for row in rows if row.num_removed < row.num_weights]
    if not left:
        return "All weights were removed."
    least = min(left, key=lambda row: row.decibel[1])
    middle = least.decibel[1]
    size = "larger than its mean, so much of it can perhaps be removed (see `pyro-bnn prune`)"
    if middle >= 0:
        size = "at most as large as its mean"
    return f"Least certain is {least.site}: its median weight has {middle:.1f} dB, so the sd of that weight is {size}."


def report_weights(
    model: BayesianModel,
    posterior: GuidePosterior,
    folder: Folder,
    *,
    site: str | None = None,
    index: Sequence[int] = (),
) -> list[SiteSummary]:
    """Summarise the weights of a trained network, and write two pictures: of one weight, and of all tensors."""
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
