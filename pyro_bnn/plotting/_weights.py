"""Pictures of the posterior of weights, and of what removing weights costs."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.distributions import Distribution, Normal

from .. import _checks
from ..pruning import PruningReport, decibel
from ._figures import check_ax, new_axes

POSTERIOR, PRIOR = "tab:blue", "tab:gray"

MOST_DRAWN = 100_000
"""Largest number of points on a curve; of more weights, this many quantiles are drawn."""

FEW = 500
"""Largest number of weights in a histogram with a linear scale; that of more weights is logarithmic."""


def signal_to_noise(ratios: Mapping[str, Tensor], axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Signal-to-noise ratios in decibel: density over all weights, and cumulative distribution also by layer.

    Args:
        ratios: Ratios from :func:`pyro_bnn.pruning.signal_to_noise`, ``{site: shape (*event)}``. A ratio of zero has no
            decibel: the density leaves it out, and the distribution has it at its left end.
        axes: Two axes: density, distribution.

    References:
        Blundell et al. (2015), https://arxiv.org/abs/1505.05424, figure 3.
    """
    _checks.kind("ratios", ratios, Mapping, "a dict of ratios by site, the result of `pruning.signal_to_noise`")
    for site, ratio in ratios.items():
        _checks.finite(f"ratios[{site!r}]", ratio)
    if not sum(ratio.numel() for ratio in ratios.values()):
        raise ValueError("`ratios` must hold at least one ratio, got none; call `pruning.signal_to_noise`.")
    if axes is None:
        axes = new_axes(1, 2, size=(9.6, 3.6))[0]
    layers: dict[str, list[Tensor]] = {}
    for site, ratio in ratios.items():
        layers.setdefault(site.rpartition(".")[0], []).append(ratio.detach().flatten().cpu())
    every = torch.cat([part for parts in layers.values() for part in parts])
    positive = decibel(every[every > 0]).numpy()
    if len(positive):
        axes[0].hist(positive, bins=100, density=True, color=POSTERIOR, alpha=0.6)
        left, right = np.quantile(positive, 0.001) - 1, positive.max() + 1  # a few means are next to zero by chance
        for ax in axes:
            ax.set_xlim(left, right)
    groups = {"all": every, **{name or "weights": torch.cat(parts) for name, parts in layers.items()}}
    for name, ratio in groups.items():
        levels = decibel(ratio).sort().values
        shares = torch.linspace(0, 1, len(levels) + 1)[1:]
        chosen = torch.linspace(0, len(levels) - 1, min(len(levels), MOST_DRAWN)).long()
        style = {"color": "black", "linewidth": 2} if name == "all" else {"linewidth": 1}
        axes[1].plot(levels[chosen].numpy(), shares[chosen].numpy(), label=name, **style)
    axes[0].set(xlabel="signal-to-noise ratio, 10 log10(|mean| / sd) (dB)", ylabel="density")
    axes[1].set(xlabel="signal-to-noise ratio (dB)", ylabel="share of weights below", ylim=(0, 1.02))
    axes[1].legend(fontsize=8)
    axes[1].grid(alpha=0.3)
    return axes


def pruning_curve(report: PruningReport, axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Error and NLL by the share of weights removed, of the network at mean weights and of the ensemble.

    The shares are drawn at equal distances from each other, since errors grow only close to a share of one.

    Args:
        report: Result of :func:`pyro_bnn.pruning.snr_report`.
        axes: Two axes: error (one minus accuracy in per cent, or RMSE), NLL.
    """
    _checks.kind("report", report, PruningReport, "a PruningReport, the result of `pruning.snr_report`")
    if axes is None:
        axes = new_axes(1, 2, size=(9.6, 3.6))[0]
    rows = sorted(report.rows, key=lambda row: row.fraction)
    is_classes = rows[0].accuracy is not None
    for label, prefix, style in (("mean weights", "mean_", "o--"), ("ensemble", "", "s-")):
        scores = np.array([getattr(row, prefix + ("accuracy" if is_classes else "rmse")) for row in rows])
        axes[0].plot(100 * (1 - scores) if is_classes else scores, style, label=label, markersize=4)
        axes[1].plot([getattr(row, f"{prefix}nll") for row in rows], style, label=label, markersize=4)
    for ax, name in zip(axes, ("error (%)" if is_classes else "RMSE", "NLL (nats)"), strict=True):
        ax.set_xticks(range(len(rows)), [f"{100 * row.fraction:.4g}" for row in rows])
        ax.set(xlabel="weights removed (%)", ylabel=name)
        values = np.concatenate([line.get_ydata() for line in ax.lines])
        if values.min() > 0 and values.max() > 10 * values.min():
            ax.set_yscale("log")
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8)
    return axes


def weight_density(
    loc: float, scale: float, *, name: str = "weight", prior: Distribution | None = None, ax: Axes | None = None
) -> Axes:
    """The posterior density of a single weight, with lines at its mean and at zero, and the density of its prior.

    Args:
        loc: Posterior mean of the weight.
        scale: Posterior standard deviation of the weight, above 0.
        name: Name of the weight, for the axis.
        prior: Prior of this single weight.
        ax: Axes to draw on.

    Raises:
        ValueError: If the scale is not above 0, as for a removed weight.
    """
    _checks.number("loc", loc)
    if not (_checks.is_number(scale) and 0 < scale < float("inf")):
        raise ValueError(
            f"`scale` must be a finite number above 0, got {scale!r}; if the weight was removed, it has no density."
        )
    if prior is not None:
        _checks.kind("prior", prior, Distribution, "a distribution of one number")
    check_ax(ax)
    ax = ax or new_axes(1, 1, size=(5, 3.4))[0, 0]
    low, high = min(loc - 4 * scale, -scale), max(loc + 4 * scale, scale)
    grid = torch.linspace(low, high, 801, dtype=torch.float64)
    density = Normal(torch.tensor(loc, dtype=grid.dtype), torch.tensor(scale, dtype=grid.dtype)).log_prob(grid).exp()
    ax.fill_between(grid.numpy(), density.numpy(), alpha=0.4, color=POSTERIOR, label="posterior")
    ax.axvline(loc, color=POSTERIOR, linewidth=1)
    ax.axvline(0, color="black", linewidth=1, linestyle=":")
    if prior is not None:
        ax.plot(grid.numpy(), prior.log_prob(grid).exp().detach().cpu().numpy(), "--", color=PRIOR, label="prior")
        ax.set_ylim(0, 1.5 * float(density.max()))  # a spike at zero would hide the rest
    ratio = float(decibel(torch.tensor(abs(loc) / scale, dtype=torch.float64)))
    ax.set_title(f"mean {loc:.3g}, sd {scale:.3g}, signal-to-noise {ratio:.3g} dB", fontsize=9)
    ax.set(xlabel=name, ylabel="density")
    ax.legend(fontsize=8)
    return ax


def weight_histograms(
    locations: Mapping[str, Tensor], scales: Mapping[str, Tensor], axes: np.ndarray | None = None
) -> np.ndarray:
    """Histograms of posterior means and standard deviations, site by site; removed weights are left out.

    Args:
        locations: Means, ``{site: shape (*event)}``, as from ``guide.locations()``.
        scales: Standard deviations, of the same shapes, 0 for a weight that was removed.
        axes: Array of axes of shape (number of sites, 2).
    """
    for name, found in (("locations", locations), ("scales", scales)):
        _checks.kind(name, found, Mapping, f"a dict of tensors by site, such as `guide.{name}()`")
        if not found:
            raise ValueError(f"`{name}` must have at least one site, got none; pass `guide.{name}()`.")
        for site in locations:
            if site not in found or _checks.tensor(name, found[site]).shape != locations[site].shape:
                raise ValueError(f"`{name}` must have a tensor like the mean of `{site}`, got {list(found)}.")
    if axes is None:
        axes = new_axes(len(locations), 2, size=(8, 1.7 * len(locations) + 0.6))
    for row, (site, loc) in enumerate(locations.items()):
        kept = scales[site] > 0
        for ax, values, name in ((axes[row, 0], loc, "mean"), (axes[row, 1], scales[site], "standard deviation")):
            shown = values[kept].detach().cpu().numpy()
            is_many = len(shown) > FEW
            ax.hist(shown, bins=60 if is_many else 20, color=POSTERIOR, alpha=0.7, log=is_many)
            ax.tick_params(labelsize=7)
            if row == 0:
                ax.set_title(f"posterior {name}", fontsize=9)
        axes[row, 0].set_ylabel(f"{site}\nnumber of weights", fontsize=7)
    return axes
