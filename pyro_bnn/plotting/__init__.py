"""Pictures of fits, predictions and uncertainty.

Every function draws on the axes that it is given, or on new ones, and returns them; :func:`save` writes the picture.
New axes belong to a figure of their own that pyplot does not know, so nothing global changes and nothing
piles up; to see a window, pass axes made with pyplot.
"""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ..comparison import Comparison
from ..history import History
from ..metrics import calibration_bins
from ..uncertainty import RegressionPrediction
from ._figures import new_axes as new_axes
from ._figures import save as save
from ._weights import pruning_curve as pruning_curve
from ._weights import signal_to_noise as signal_to_noise
from ._weights import weight_density as weight_density
from ._weights import weight_histograms as weight_histograms

__all__ = [
    "accuracy_curves",
    "comparison",
    "loss_curves",
    "new_axes",
    "predictive_density",
    "pruning_curve",
    "regression_bands",
    "reliability_diagram",
    "save",
    "score_histograms",
    "signal_to_noise",
    "vote_histograms",
    "weight_density",
    "weight_histograms",
]

CURVES_IN_A_ROW = 4

IN_DOMAIN, OUT_OF_DOMAIN, EPISTEMIC, ALEATORIC = "tab:blue", "tab:orange", "tab:blue", "tab:green"


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


def accuracy_curves(
    train: Sequence[float],
    test: Sequence[float],
    *,
    published: tuple[Sequence[float], Sequence[float]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Accuracy at mean weights by epoch, on training and test data, beside published values if there are any.

    Args:
        train: Accuracy on training data after each epoch, from 0 to 1.
        test: Accuracy on test data after each epoch.
        published: The same two from elsewhere, drawn with broken lines.
        ax: Axes to draw on.
    """
    ax = ax or new_axes(1, 1, size=(5, 3.6))[0, 0]
    for pair, style, prefix in (((train, test), ".-", ""), (published or (), "x--", "published, ")):
        for accuracies, name, color in zip(pair, ("train", "test"), ("tab:blue", "tab:orange"), strict=False):
            percent = [100 * value for value in accuracies]
            ax.plot(range(1, 1 + len(percent)), percent, style, color=color, label=prefix + name)
    ax.set(xlabel="epoch", ylabel="accuracy at mean weights (%)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    return ax


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


def predictive_density(
    x: Tensor,
    prediction: RegressionPrediction,
    y: Tensor,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The predictive density p(y | x) as an image, which shows several answers where a mean and a band cannot.

    Colours follow its square root, so that broad and narrow parts are seen side by side.

    Args:
        x: Inputs, shape (N, 1), in increasing order.
        prediction: The prediction at x, with one output, made with `keep_draws`.
        y: Where to evaluate the density, shape (G,), in increasing order.
        data: Inputs and targets to show.
        ax: Axes to draw on.
    """
    ax = ax or new_axes(1, 1, size=(6, 4))[0, 0]
    density = prediction.log_prob(y.reshape(-1, *[1] * prediction.mean.dim())).exp()  # (G, N)
    image = ax.pcolormesh(
        *(part.cpu().numpy() for part in (x.flatten(), y, density)),
        cmap="magma",
        norm=PowerNorm(0.5, vmin=0),
        shading="gouraud",
    )
    ax.figure.colorbar(image, ax=ax, label="p(y | x)")
    if data is not None:
        points = (part.flatten().cpu().numpy() for part in data)
        ax.plot(*points, ".", color="white", markersize=1.5, alpha=0.5, label="data")
        ax.legend(fontsize=8, loc="upper left", labelcolor="white", framealpha=0.2)
    ax.set(xlabel="x", ylabel="y", xlim=(float(x.min()), float(x.max())), ylim=(float(y.min()), float(y.max())))
    return ax


def comparison(result: Comparison, *, data: tuple[Tensor, Tensor] | None = None) -> np.ndarray:
    """What :func:`~pyro_bnn.compare` found, in one picture.

    For numbers at one-dimensional inputs: each method's predictive mean with its epistemic band, and below, the
    epistemic standard deviations of all methods together. Otherwise: one matrix per score, of all pairs.

    Args:
        result: The comparison.
        data: Training inputs and targets to show with curves, each of shape (M, 1).

    Returns:
        Array of axes.
    """
    is_curve = result.x[0].numel() == 1 and all(
        p.expectation[0].numel() == 1  # classes have two probabilities at least
        for p in result.predictions.values()
    )
    return _comparison_curves(result, data) if is_curve else _comparison_matrices(result)


def _comparison_curves(result: Comparison, data: tuple[Tensor, Tensor] | None) -> np.ndarray:
    columns = min(len(result.predictions), CURVES_IN_A_ROW)
    rows = -(-len(result.predictions) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.4 * rows + 3), layout="constrained")
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[1] * rows, 1.2])
    below = figure.add_subplot(grid[rows, :])
    x = result.x.flatten().cpu()
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


def _comparison_matrices(result: Comparison) -> np.ndarray:
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
