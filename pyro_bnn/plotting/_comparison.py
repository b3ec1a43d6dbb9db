"""The picture of a comparison of posteriors."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .. import _checks
from .._inputs import leaves
from ..comparison import Comparison
from ._figures import check_points, new_axes

CURVES_IN_A_ROW = 4


def comparison(result: Comparison, *, data: tuple[Tensor, Tensor] | None = None) -> np.ndarray:
    """The result of :func:`~pyro_bnn.compare` in one picture.

    For one predicted number at one-dimensional inputs: the predictive mean of each method with its epistemic band, and
    below these the epistemic standard deviations of all methods together. Otherwise: one matrix of all pairs of methods
    per score and region.

    Args:
        result: The comparison.
        data: Training inputs and targets to show with curves, each of shape (M, 1).

    Returns:
        Array of axes.
    """
    _checks.kind("result", result, Comparison, "a Comparison, the result of `compare`")
    check_points(data)
    is_curve = (
        isinstance(result.x, Tensor)
        and result.x[0].numel() == 1
        and all(
            p.expectation[0].numel() == 1  # classes have two probabilities at least
            for p in result.predictions.values()
        )
    )
    return _curves(result, data) if is_curve else _matrices(result)


def _curves(result: Comparison, data: tuple[Tensor, Tensor] | None) -> np.ndarray:
    columns = min(len(result.predictions), CURVES_IN_A_ROW)
    rows = -(-len(result.predictions) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.4 * rows + 3), layout="constrained")
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[1] * rows, 1.2])
    below = figure.add_subplot(grid[rows, :])
    x = torch.cat(leaves(result.x)).flatten().cpu()
    order = x.argsort()
    axes: list[Axes] = []
    for index, (name, prediction) in enumerate(result.predictions.items()):
        prediction = prediction.as_regression()
        ax = figure.add_subplot(grid[index // columns, index % columns], sharey=axes[0] if axes else None)
        mean, sd = prediction.mean.flatten().cpu()[order], prediction.epistemic.sqrt().flatten().cpu()[order]
        ax.fill_between(x[order], mean - 2 * sd, mean + 2 * sd, alpha=0.3, color=f"C{index}")
        ax.plot(x[order], mean, color=f"C{index}")
        if data is not None:
            inputs, targets = (part.flatten().cpu() for part in data)
            ax.plot(inputs, targets, "x", color="0.3", markersize=3)
        ax.set_title(f"{name}: mean ± 2 epistemic sd", fontsize=8)
        ax.tick_params(labelsize=7)
        below.plot(x[order], sd, color=f"C{index}", label=name, linestyle="--" if index % 2 else "-")
        axes.append(ax)
    if data is not None:
        below.plot(data[0].flatten().cpu(), np.zeros(len(data[0])), "|", color="0.3", label="data")
    below.set(xlabel="x", ylabel="epistemic sd")
    below.grid(alpha=0.3)
    below.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return np.array([*axes, below])


def _matrices(result: Comparison) -> np.ndarray:
    names = list(result.predictions)
    regions = list(dict.fromkeys(pair.region for pair in result.pairs))
    scores = list(result.pairs[0].scores)
    side = 1.2 + 0.45 * len(names)
    axes = new_axes(len(regions), len(scores), size=((side + 0.6) * len(scores), side * len(regions)))
    for row, region in enumerate(regions):
        for column, score in enumerate(scores):
            ax, values = axes[row, column], np.full((len(names), len(names)), np.nan)
            for pair in (pair for pair in result.pairs if pair.region == region):
                i, j = names.index(pair.method), names.index(pair.reference)
                values[i, j] = pair.scores[score].value
                ax.text(j, i, f"{values[i, j]:.2g}", ha="center", va="center", fontsize=7)
            ax.imshow(values, cmap="Blues", alpha=0.5, vmin=0)
            ax.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
            ax.set_yticks(range(len(names)), names, fontsize=7)
            ax.set_title(score if len(regions) == 1 else f"{score}, {region}", fontsize=9)
    return axes
