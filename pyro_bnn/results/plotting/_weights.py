"""Pictures of the posterior of weights, and of removing weights."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from torch import Tensor
from torch.distributions import Distribution, Normal

from ..._core import checks as _checks
from ..._core.signatures import explained
from ..._core.summary import counted
from ...inference.posterior import Moments, Posterior
from ...modelling.model import SITE_PREFIX
from ..pruning import PruningReport, decibel
from ._figures import BLACK, BLUE, DASHES, GREY, SKY, VERMILION, Width, inches, new_axes, one_axes, panels, styled

MOST_DRAWN = 2000  # largest number of points on a curve; with more weights, they are quantiles of the ratios
FEW = 500  # with more weights, a histogram has a logarithmic axis of counts
SAME = 1e-6  # values are treated as equal if their range is at most this share of the largest absolute value


@explained("signal_to_noise(posterior)")
@styled
def signal_to_noise(
    ratios: Mapping[str, Tensor] | Posterior, axes: Sequence[Axes] | None = None, *, width: Width = "page"
) -> Sequence[Axes]:
    """Draw the density and the cumulative distributions of signal-to-noise ratios in decibels.

    There is a cumulative distribution for all weights, and one for each layer. Ratios of zero are minus infinity in
    decibels: the density leaves them out, and the cumulative distributions have them at the left end.

    Args:
        ratios: A posterior, or ratios from :func:`pyro_bnn.pruning.signal_to_noise`, ``{site: shape (*event)}``.
        axes: Two axes: density, cumulative distributions.
        width: Width of a new figure. Panels are side by side on a "page", and stacked in a "column".

    References:
        Blundell et al. (2015), https://arxiv.org/abs/1505.05424, figure 3.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.GuidePosterior(pb.MeanFieldGuide(model))
        >>> axes = pb.plotting.signal_to_noise(posterior)
        >>> [ax.get_xlabel() for ax in axes]
        ['signal-to-noise ratio, 10 log10(|mean| / sd) (dB)', 'signal-to-noise ratio (dB)']
    """
    if isinstance(ratios, Posterior):
        mean, scale = _moments_of_weights(ratios)
        # A removed weight has the mean and the scale 0.
        ratios = {site: torch.where(loc == 0, loc, loc.abs() / scale[site]) for site, loc in mean.items()}
    expected = "a posterior, or a dict of ratios by site, the result of `pruning.signal_to_noise(guide)`"
    _checks.kind("ratios", ratios, Mapping, expected)
    for site, ratio in ratios.items():
        _checks.finite(f"ratios[{site!r}]", ratio)
    if not sum(ratio.numel() for ratio in ratios.values()):
        raise ValueError("`ratios` must have at least one ratio, got none; call `pruning.signal_to_noise`.")
    axes = panels(axes, 2, width, on_page=2.6, in_column=4.8)
    layers: dict[str, list[Tensor]] = {}
    for site, ratio in ratios.items():
        layers.setdefault(site.rpartition(".")[0], []).append(ratio.detach().flatten().cpu())
    every = torch.cat([part for parts in layers.values() for part in parts])
    positive = decibel(every[every > 0]).numpy()
    if len(positive):
        axes[0].hist(positive, bins=_edges(positive, 100), density=True, color=SKY)
        left, right = np.quantile(positive, 0.001) - 1, positive.max() + 1  # a few means are near zero by chance
        for ax in axes:
            ax.set_xlim(left, right)
    groups = {"all": every, **{name or "weights": torch.cat(parts) for name, parts in layers.items()}}
    for index, (name, ratio) in enumerate(groups.items()):
        levels = decibel(ratio).sort().values
        shares = torch.linspace(0, 1, len(levels) + 1)[1:]
        chosen = torch.linspace(0, len(levels) - 1, min(len(levels), MOST_DRAWN)).long()
        look: dict[str, Any] = {"color": BLACK, "linestyle": "-", "linewidth": 2} if index == 0 else {}
        axes[1].plot(levels[chosen].numpy(), shares[chosen].numpy(), label=f"{name} ({len(levels):,})", **look)
    axes[0].set(xlabel="signal-to-noise ratio, 10 log10(|mean| / sd) (dB)", ylabel="density (1 / dB)")
    axes[1].set(xlabel="signal-to-noise ratio (dB)", ylabel="share of weights below", ylim=(0, 1.02))
    axes[1].legend(loc="upper left", title="layer (weights)")
    return axes


def _edges(values: np.ndarray, most: int) -> list[float]:
    """Return the edges of 2 N^(1/3) bins for N values (Rice's rule), but of at most `most` bins."""
    if not len(values):
        return [0.0, 1.0]
    low, high = float(values.min()), float(values.max())
    if high - low <= SAME * max(abs(low), abs(high)):  # one bar in the middle, on one side of 0
        width = abs(low) or 1.0
        return [low + width * step for step in (-1 / 2, -1 / 6, 1 / 6, 1 / 2)]
    edges: list[float] = np.linspace(low, high, min(most, math.ceil(2 * np.cbrt(len(values)))) + 1).tolist()
    return edges


def _moments_of_weights(posterior: Posterior) -> Moments:
    """Return the moments of the network's weights or, if there is no network, those of all variables."""
    if posterior.num_points == 1:
        raise ValueError(
            f"pictures of weights need standard deviations, got a posterior of {posterior.method}, a single point, "
            'which has none; make another fit, such as `fit(model, data, method="svi")`.'
        )
    found = posterior.marginals()
    if not found:
        mean, scale = posterior.moments(num_samples=posterior.num_points, seed=0)
        found = {name: (loc, scale[name]) for name, loc in mean.items()}
    names = [name for name in found if name.startswith(f"{SITE_PREFIX}.")] or [*found]
    return Moments({name: found[name][0] for name in names}, {name: found[name][1] for name in names})


@explained("pruning_curve(report)")
@styled
def pruning_curve(
    report: PruningReport, axes: Sequence[Axes] | None = None, *, width: Width = "page"
) -> Sequence[Axes]:
    """Draw error and NLL against the share of the weights that are kept.

    One curve is for the network at mean weights, and one for the ensemble. The axis of shares is logarithmic, from
    large to small, with a separate mark for 0 at the right end. Bars are standard errors over the data. All shares are
    scored on the same data, so differences between shares are more certain than the bars suggest.

    Args:
        report: Result of :func:`pyro_bnn.pruning.snr_report`.
        axes: Two axes: error (one minus accuracy in per cent, or RMSE), NLL.
        width: Width of a new figure. Panels are side by side on a "page", and stacked in a "column".

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(2, 3), pb.NormalPrior()
        >>> labels = pb.CategoricalLikelihood()
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=labels, num_data=20)
        >>> x, y = torch.randn(100, 2), torch.arange(100) % 3
        >>> guide = pb.MeanFieldGuide(model)
        >>> report = pb.pruning.snr_report(model, guide, x, y, seed=0)
        >>> error, nll = pb.plotting.pruning_curve(report)
        >>> error.get_ylabel(), nll.get_ylabel()
        ('error (%)', 'NLL (nats per row)')
    """
    _checks.kind("report", report, PruningReport, "a PruningReport, the result of `pruning.snr_report`")
    axes = panels(axes, 2, width, on_page=2.6, in_column=4.8)
    rows = sorted(report.rows, key=lambda row: -row.num_weights)
    kept = np.array([100 * row.num_weights / report.num_weights for row in rows])  # percent
    smallest = min(kept[kept > 0], default=100.0)
    none_at = smallest / 3  # position of the marks for no weights
    places = np.where(kept > 0, kept, none_at)
    beside = 1.025  # marks and bars of the two curves stand beside each other
    is_classes = rows[0].accuracy is not None
    for label, prefix, color, dashes, mark, shift in (
        ("mean weights", "mean_", VERMILION, DASHES[1], "o", beside),
        (f"mean of {report.num_samples} draws", "", BLUE, "-", "s", 1 / beside),
    ):
        scores = np.array([getattr(row, prefix + ("accuracy" if is_classes else "rmse")) for row in rows])
        errors = np.sqrt(scores * (1 - scores) / report.num_data) if is_classes else None  # binomial
        nll, nll_errors = (
            np.array([getattr(row, f"{prefix}nll{end}") for row in rows]) for end in ("", "_standard_error")
        )
        first = (scores, None) if errors is None else (100 * (1 - scores), 100 * errors)
        curves = (first, (nll, nll_errors))
        for ax, (values, bars) in zip(axes, curves, strict=True):
            for part, line in ((kept > 0, dashes), (kept == 0, "none")):
                ax.errorbar(
                    shift * places[part],
                    values[part],
                    yerr=None if bars is None else bars[part],
                    color=color,
                    marker=mark,
                    markersize=4,
                    markerfacecolor="white" if mark == "o" else color,
                    linestyle=line,
                    elinewidth=0.8,
                    label=None if line == "none" else label,
                )
    for ax, name in zip(axes, ("error (%)" if is_classes else "RMSE", "NLL (nats per row)"), strict=True):
        ax.set_xscale("log")
        _label_shares(ax, smallest, none_at if (kept == 0).any() else None)
        ax.set(xlabel="weights kept (%)", ylabel=name)
        values = np.concatenate(
            [bars.lines[0].get_ydata() for bars in ax.containers if isinstance(bars, ErrorbarContainer)]
        )
        if values.min() > 0 and values.max() > 4 * values.min():  # a linear axis would hide all but the largest values
            ax.set_yscale("log")
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
            ax.yaxis.set_minor_locator(NullLocator())
    axes[0].legend(loc="upper left")
    return axes


SHARES = (100, 50, 25, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)  # ticks in per cent


def _label_shares(ax: Axes, smallest: float, none_at: float | None) -> None:
    """Set up a logarithmic axis of shares, from large to small. A tick at `none_at` stands for 0."""
    marks = {share: f"{share:g}" for share in SHARES if share >= 0.99 * smallest}
    if none_at is not None:
        marks[none_at] = "0"
        ax.axvline(none_at * 3**0.5, color=GREY, linestyle=DASHES[2], linewidth=0.8)
    ax.minorticks_off()
    ax.set_xticks(list(marks), list(marks.values()))
    ax.set_xlim(130, 0.75 * min(smallest, none_at or smallest))


@explained("weight_density(0.5, 0.1)")
@styled
def weight_density(
    loc: float,
    scale: float,
    *,
    name: str = "weight",
    prior: Distribution | None = None,
    width: Width = "column",
    ax: Axes | None = None,
) -> Axes:
    """Draw the posterior and prior density of a single weight, with lines at the mean and at zero.

    Args:
        loc: Posterior mean of the weight.
        scale: Posterior standard deviation of the weight, above 0.
        name: Name of the weight, for the axis.
        prior: Prior of the weight, with a single element.
        width: Width of a new figure.
        ax: Axes to draw on.

    Raises:
        ValueError: If the scale is not above 0, as for a removed weight.

    Example:
        >>> from torch.distributions import Normal
        >>> from pyro_bnn import plotting
        >>> ax = plotting.weight_density(0.5, 0.1, prior=Normal(0.0, 1.0))
        >>> ax.get_xlabel()
        'weight'
    """
    loc, given = _checks.number("loc", loc), scale
    scale = _checks.as_float(given)
    if not 0 < scale < float("inf"):
        raise ValueError(
            f"`scale` must be a finite number above 0, got {_checks.got(given)}; if the weight was removed, it has no "
            "density."
        )
    if prior is not None:
        _checks.kind("prior", prior, Distribution, "a distribution of one number")
    ax = one_axes(ax, width, 0.66)
    low, high = min(loc - 4 * scale, -scale), max(loc + 4 * scale, scale)
    grid = torch.linspace(low, high, 801, dtype=torch.float64)
    density = Normal(torch.tensor(loc, dtype=grid.dtype), torch.tensor(scale, dtype=grid.dtype)).log_prob(grid).exp()
    ax.fill_between(grid.numpy(), density.numpy(), facecolor=SKY, edgecolor=BLUE, linewidth=1, label="posterior")
    ax.vlines(loc, 0, float(density.max()), color=BLUE, linewidth=1, label="posterior mean")
    ax.axvline(0, color=BLACK, linewidth=1, linestyle=DASHES[2], label="zero")
    ax.set_ylim(0, 1.35 * float(density.max()))  # leaves space for the legend; cuts off a prior's spike at zero
    if prior is not None:
        at, support = torch.zeros_like(grid), cast(Any, prior.support)
        inside = support.check(grid)
        at[inside] = prior.log_prob(grid[inside]).exp().detach().to(at)
        ax.plot(grid.numpy(), at.numpy(), linestyle=DASHES[1], color=VERMILION, label="prior")
    ratio = float(decibel(torch.tensor(abs(loc) / scale, dtype=torch.float64)))
    ax.set_title(f"mean {loc:.3g}, sd {scale:.3g}, signal-to-noise {ratio:.3g} dB")
    ax.set(xlabel=name, ylabel="density", xlim=(low, high))
    ax.legend(ncols=2, loc="upper center")
    return ax


@explained("weight_histograms(posterior)")
@styled
def weight_histograms(
    locations: Mapping[str, Tensor] | Posterior,
    scales: Mapping[str, Tensor] | None = None,
    axes: np.ndarray | None = None,
    *,
    width: Width = "page",
) -> np.ndarray:
    """Draw histograms of the posterior means and standard deviations of each site, without removed weights.

    Args:
        locations: A posterior, or means, ``{site: shape (*event)}``, as from ``guide.locations()``.
        scales: Standard deviations with the shapes of the means; 0 for a removed weight. A posterior has its own
            standard deviations.
        axes: Array of axes of shape (number of sites, 2).
        width: Width of a new figure.

    Returns:
        Axes with a row for each site: means in column 0, standard deviations in column 1.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.GuidePosterior(pb.MeanFieldGuide(model))
        >>> axes = pb.plotting.weight_histograms(posterior)
        >>> axes.shape  # means and deviations of each site
        (2, 2)
    """
    if isinstance(locations, Posterior):
        if scales is not None:
            raise ValueError(
                f"`scales` must be left out with a posterior, got {_checks.described(scales)}; call "
                "`plotting.weight_histograms(posterior)`, and pass axes by name."
            )
        locations, scales = _moments_of_weights(locations)
    if not isinstance(locations, Mapping):
        raise ValueError(
            f"`locations` must be a posterior, or a dict of means by site, got {_checks.described(locations)}; call "
            "`plotting.weight_histograms(posterior)`, or pass `guide.locations()` and `guide.scales()`."
        )
    for name, found in (("locations", locations), ("scales", scales)):
        _checks.kind(name, found, Mapping, f"a dict of tensors by site, such as `guide.{name}()`")
        assert isinstance(found, Mapping)
        if not found:
            raise ValueError(f"`{name}` must have at least one site, got none; pass `guide.{name}()`.")
        for site in locations:
            if site not in found or _checks.tensor(name, found[site]).shape != locations[site].shape:
                raise ValueError(f"`{name}` must have a tensor like the mean of `{site}`, got {list(found)}.")
    assert scales is not None
    if axes is None:
        axes = new_axes(len(locations), 2, size=(inches(width), 1.25 * len(locations) + 0.5))
    for row, (site, loc) in enumerate(locations.items()):
        kept = scales[site] > 0
        columns = ((axes[row, 0], loc, BLUE), (axes[row, 1], scales[site], VERMILION))
        for ax, values, color in columns:
            shown = values[kept].detach().cpu().numpy()
            is_many = len(shown) > FEW
            ax.hist(shown, bins=_edges(shown, 60), color=color, alpha=0.8, log=is_many)
            ax.locator_params(axis="x", nbins=4 if width == "page" else 2)  # numbers such as 0.02955 do not touch
            if is_many:
                ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
                ax.minorticks_off()
            else:
                ax.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes[row, 0].set_title(f"{site}: {counted(int(kept.sum()), 'weight')}", loc="left")
        axes[row, 0].set_ylabel("weights (log)" if is_many else "weights")
    axes[-1, 0].set_xlabel("posterior mean")
    axes[-1, 1].set_xlabel("posterior sd")
    return axes
