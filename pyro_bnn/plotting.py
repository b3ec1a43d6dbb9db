"""Pictures of fits, predictions and uncertainty.

Every function draws on the axes that it is given, or on new ones, and returns them; :func:`save` writes the picture.
New axes belong to a figure of their own that pyplot does not know, so nothing global changes and nothing
piles up; to see a window, pass axes made with pyplot.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from .history import History
from .metrics import calibration_bins
from .uncertainty import RegressionPrediction

__all__ = [
    "loss_curves",
    "new_axes",
    "regression_bands",
    "reliability_diagram",
    "save",
    "score_histograms",
    "vote_histograms",
]

IN_DOMAIN, OUT_OF_DOMAIN, EPISTEMIC, ALEATORIC = "tab:blue", "tab:orange", "tab:blue", "tab:green"


def new_axes(rows: int, columns: int, *, size: tuple[float, float]) -> np.ndarray:
    """A grid of axes on a figure of its own.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        size: Width and height of the whole figure, in inches.

    Returns:
        Array of axes, shape (rows, columns).
    """
    return Figure(figsize=size, layout="constrained").subplots(rows, columns, squeeze=False)


def save(ax: Axes, path: str | Path) -> None:
    """Write the figure that axes belong to.

    Args:
        ax: Any axes of the figure.
        path: The file; its ending chooses the format.
    """
    figure = ax.figure
    while isinstance(figure, SubFigure):
        figure = figure.figure
    figure.savefig(path, dpi=120)


def loss_curves(history: History, axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """The ELBO and its two terms by epoch, each on axes of its own.

    Args:
        history: What a fit recorded.
        axes: Three axes: ELBO, data cost, complexity cost.
    """
    if axes is None:
        axes = new_axes(1, 3, size=(12, 3.2))[0]
    epochs = [record.epoch + 1 for record in history.epochs]
    per_datum = history.num_data or 1
    weights = {record.kl_weight for record in history.epochs}
    weight = f"{weights.pop():.3g}" if len(weights) == 1 else f"{min(weights):.3g} to {max(weights):.3g}"
    unit = "nats per data point" if history.num_data else "nats"
    curves = (
        (f"ELBO (trained with KL weight {weight})", [r.elbo / per_datum for r in history.epochs]),
        ("data cost: expected NLL", [-r.expected_log_likelihood / per_datum for r in history.epochs]),
        ("complexity cost: KL", [r.kl / per_datum for r in history.epochs]),
    )
    for ax, (title, values) in zip(axes, curves, strict=True):
        ax.plot(epochs, values, marker="." if len(epochs) < 40 else None)
        ax.set(title=title, xlabel="epoch", ylabel=unit)
        ax.grid(alpha=0.3)
    return axes


def vote_histograms(
    images: Tensor, votes: Tensor, classes: Sequence[str], *, titles: Sequence[str] = (), axes: np.ndarray | None = None
) -> np.ndarray:
    """Each image above the number of weight draws that vote for each class.

    Args:
        images: Grey images, shape (M, H, W).
        votes: Votes, shape (M, C).
        classes: C class names.
        titles: A title for each image.
        axes: Array of axes of shape (2, M).
    """
    if axes is None:
        axes = new_axes(2, len(images), size=(1.7 * len(images), 3.8))
    total = int(votes.sum(-1).max())
    rotation = 90 if max(map(len, classes)) > 2 else 0
    for column, (image, vote) in enumerate(zip(images, votes, strict=True)):
        picture, bars = axes[0, column], axes[1, column]
        picture.imshow(image.cpu().numpy(), cmap="gray_r")
        picture.set_axis_off()
        if titles:
            picture.set_title(titles[column], fontsize=8)
        bars.bar(range(len(classes)), vote.cpu().numpy())
        bars.set_ylim(0, 1.05 * total)
        bars.set_xticks(range(len(classes)), classes, rotation=rotation, fontsize=6)
        bars.tick_params(axis="y", labelsize=6)
        if column:
            bars.set_yticklabels([])
        else:
            bars.set_ylabel(f"votes of {total} draws", fontsize=7)
    return axes


def score_histograms(in_domain: Tensor, out_of_domain: Tensor, *, score: str, ax: Axes | None = None) -> Axes:
    """Histograms of an uncertainty score for known and unknown inputs.

    Args:
        in_domain: Scores of known inputs, shape (N,).
        out_of_domain: Scores of unknown inputs, shape (M,).
        score: Name and unit of the score, for the axis.
        ax: Axes to draw on.
    """
    ax = ax or new_axes(1, 1, size=(4.5, 3.2))[0, 0]
    scores = torch.cat([in_domain, out_of_domain]).cpu().numpy()
    edges = np.linspace(scores.min(), np.quantile(scores, 0.995), 51)
    for values, label, color in (
        (in_domain, "in domain", IN_DOMAIN),
        (out_of_domain, "out of domain", OUT_OF_DOMAIN),
    ):
        ax.hist(values.cpu().numpy(), bins=edges.tolist(), density=True, alpha=0.6, label=label, color=color)
    ax.set(xlabel=score, ylabel="density")
    ax.set_title("largest 0.5 % not shown", fontsize=7, loc="right")
    ax.legend()
    return ax


def reliability_diagram(probs: Tensor, y: Tensor, *, num_bins: int = 15, ax: Axes | None = None) -> Axes:
    """Accuracy by confidence, with the diagonal of perfect calibration and the share of inputs in each bin.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
        num_bins: Bins of equal width.
        ax: Axes to draw on.
    """
    ax = ax or new_axes(1, 1, size=(4, 3.6))[0, 0]
    bins = calibration_bins(probs, y, num_bins=num_bins)
    left, width = bins.edges[:-1].numpy(), 1 / num_bins
    share = (bins.counts / bins.counts.sum()).cpu().numpy()
    accuracy = bins.accuracy.nan_to_num(0).cpu().numpy()
    ax.bar(left, accuracy, width, align="edge", alpha=0.6, edgecolor="white", label="accuracy of the bin")
    ax.plot([0, 1], [0, 1], "k--", linewidth=1, label="perfectly calibrated")
    ax.step([*left, 1], [*share, share[-1]], where="post", color="0.5", linewidth=1, label="share of inputs in the bin")
    ax.set(xlabel="confidence", ylabel="accuracy, share", xlim=(0, 1), ylim=(0, 1.02))
    ax.legend(fontsize=8, loc="upper left")
    return ax


def regression_bands(
    x: Tensor,
    prediction: RegressionPrediction,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    num_scales: float = 2.0,
    ax: Axes | None = None,
) -> Axes:
    """Predictive mean with two bands: the epistemic one, and around it the total.

    Args:
        x: Inputs, shape (N, 1), in increasing order.
        prediction: The prediction at x, with one output.
        data: Training inputs and targets to show.
        num_scales: Half-width of both bands in standard deviations.
        ax: Axes to draw on.
    """
    ax = ax or new_axes(1, 1, size=(6, 4))[0, 0]
    grid = x.flatten().cpu().numpy()
    mean = prediction.mean.flatten().cpu().numpy()
    inner = num_scales * prediction.epistemic.sqrt().flatten().cpu().numpy()
    outer = num_scales * prediction.total.sqrt().flatten().cpu().numpy()
    band = f"mean ± {num_scales:g} sd"
    ax.fill_between(grid, mean - outer, mean + outer, color=ALEATORIC, alpha=0.2, label=f"{band}, total")
    ax.fill_between(grid, mean - inner, mean + inner, color=EPISTEMIC, alpha=0.4, label=f"{band}, epistemic")
    ax.plot(grid, mean, color="black", linewidth=1.2, label="mean")
    if data is not None:
        points = (part.flatten().cpu().numpy() for part in data)
        ax.plot(*points, "x", color="tab:red", markersize=4, label="data")
    ax.set(xlabel="x", ylabel="y")
    ax.legend(fontsize=8)
    return ax
