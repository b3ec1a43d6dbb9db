"""The picture of a comparison of posteriors."""

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from ..._core import checks as _checks
from ..._core.inputs import leaves
from ..._core.signatures import explained
from ...scores.uncertainty import RegressionPrediction
from ..comparison import Comparison
from ._figures import BLACK, DASHES, PALETTE, Width, figure_of_width, inches, new_axes, points_of, styled

CURVES_IN_A_ROW: dict[Width, int] = {"column": 2, "page": 4}
LINES = (BLACK, *(color for color in PALETTE if color != BLACK))  # black for the first method


@explained("comparison(compare(model, posteriors, x))")
@styled
def comparison(result: Comparison, *, data: tuple[Tensor, Tensor] | None = None, width: Width = "page") -> np.ndarray:
    """Draw the result of :func:`~pyro_bnn.compare`.

    In regression with one input and one output, each method has a panel with its mean and its epistemic band. Dashed
    lines show the band of the first method. The last panel shows the epistemic standard deviations of all methods. In
    all other cases, each region has a matrix of all pairs of methods for each score.

    Args:
        result: The comparison.
        data: Training inputs and targets to show with the curves, each of shape (M, 1).
        width: Width of the figure, with four methods in a row on a "page", and two in a "column". Matrices may need a
            wider figure.

    Returns:
        Array of axes. If each method has a panel, its shape is (number of methods + 1,). If there are matrices, its
        shape is (number of regions, number of scores).

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> laplace, start = pb.fit_laplace(model, (x, 2 * x)), pb.MeanFieldGuide(model)
        >>> posteriors = {"laplace": laplace, "start": start}
        >>> result = pb.compare(model, posteriors, x, num_samples=100, seed=0)
        >>> axes = pb.plotting.comparison(result, data=(x, 2 * x))
        >>> [ax.get_title() for ax in axes]
        ['laplace', 'start', '']
    """
    _checks.kind("result", result, Comparison, "a Comparison, the result of `compare`")
    points = points_of(data)
    has_one_input = isinstance(result.x, Tensor) and result.x[0].numel() == 1
    # With classes there are at least two probabilities.
    is_curve = has_one_input and all(p.expectation[0].numel() == 1 for p in result.predictions.values())
    return _curves(result, points, width) if is_curve else _matrices(result, width)


def _curves(result: Comparison, points: tuple[np.ndarray, np.ndarray] | None, width: Width) -> np.ndarray:
    num_methods = len(result.predictions)
    columns = min(num_methods, CURVES_IN_A_ROW[width])
    rows = -(-num_methods // columns)
    legend_rows = 0 if width == "page" else -(-(num_methods + 1) // 2)
    figure = figure_of_width(width, 1.35 * rows + 2.1 + 0.16 * legend_rows)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[1.0] * rows, 1.4 + 0.1 * legend_rows])
    below = figure.add_subplot(grid[rows, :])
    x = torch.cat(leaves(result.x)).flatten().cpu()
    order = x.argsort()
    x = x[order]
    axes: list[Axes] = []
    edges: tuple[Tensor, ...] = ()
    for index, (name, prediction) in enumerate(result.predictions.items()):
        place, color, dashes = grid[index // columns, index % columns], LINES[index % 8], DASHES[index % 8]
        ax = figure.add_subplot(place, sharex=axes[0] if axes else None, sharey=axes[0] if axes else None)
        prediction = prediction.as_kind(RegressionPrediction)
        mean, sd = prediction.mean.flatten().cpu()[order], prediction.epistemic.sqrt().flatten().cpu()[order]
        ax.fill_between(x, mean - 2 * sd, mean + 2 * sd, alpha=0.35, color=color, linewidth=0)
        edges = edges or (mean - 2 * sd, mean + 2 * sd)
        for edge in edges:  # edges of the first method's band
            ax.plot(x, edge, color=BLACK, linestyle=DASHES[1], linewidth=0.6)
        ax.plot(x, mean, color=color, linestyle="-")
        if points is not None:
            ax.plot(*points, ".", color=BLACK, markersize=4, markeredgecolor="white", markeredgewidth=0.3, zorder=1.9)
        ax.set_title(name, pad=3)
        ax.set_xlim(float(x.min()), float(x.max()))
        ax.tick_params(labelbottom=index + columns >= num_methods, labelleft=index % columns == 0)
        below.plot(x, sd, color=color, label=name, linestyle=dashes, linewidth=2 if index == 0 else 1.2)
        axes.append(ax)
    if points is not None:
        at_zero = np.zeros_like(points[0])
        below.plot(points[0], at_zero, "|", color=BLACK, markersize=5, markeredgewidth=0.5, label="data")
    axes[0].set_ylabel("y", rotation=0)
    below.set(xlabel="x", ylabel="epistemic sd", xlim=(float(x.min()), float(x.max())))
    if width == "page":
        below.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    lines = ("mean ± 2 epistemic sd of each method", f"dashed lines: {next(iter(result.predictions))}, the reference")
    figure.suptitle(("; " if width == "page" else ";\n").join(lines), fontsize=8)
    return np.array([*axes, below])


def _matrices(result: Comparison, width: Width) -> np.ndarray:
    names = list(result.predictions)
    regions = list(dict.fromkeys(pair.region for pair in result.pairs))
    scores = list(result.pairs[0].scores)
    side = 0.9 + 0.38 * len(names)  # room for the names, and for a cell with two digits
    total = max(inches(width), (side + 0.2) * len(scores))
    axes = new_axes(len(regions), len(scores), size=(total, side * len(regions)))
    for row, region in enumerate(regions):
        for column, score in enumerate(scores):
            ax, values = axes[row, column], np.full((len(names), len(names)), np.nan)
            for pair in (pair for pair in result.pairs if pair.region == region):
                i, j = names.index(pair.method), names.index(pair.reference)
                values[i, j] = pair.scores[score].value
                ax.text(j, i, f"{values[i, j]:.2g}", ha="center", va="center", fontsize=7)
            ax.imshow(values, cmap="Blues", alpha=0.5, vmin=0)
            ax.grid(visible=False)
            ax.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
            ax.set_yticks(range(len(names)), names if column == 0 else [""] * len(names))
            ax.set_title(score if len(regions) == 1 else f"{score}, {region}")
            if row == len(regions) - 1:
                ax.set_xlabel("reference")
            if column == 0:
                ax.set_ylabel("method")
    return axes
