"""Pictures of classifications: votes, and calibration."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from ..._core import checks as _checks
from ..._core.signatures import explained
from ...scores.metrics import calibration_bins, expected_calibration_error
from ...scores.uncertainty import ClassificationPrediction, Prediction
from ._figures import BLACK, BLUE, GREY, SKY, Width, check_axes, figure_of_width, inches, styled

IN_A_ROW: dict[Width, int] = {"column": 3, "page": 5}
"""Number of images in a row, chosen so that the names of the classes fit."""


@styled
def vote_histograms(
    images: Tensor,
    votes: Tensor,
    classes: Sequence[str],
    *,
    titles: Sequence[str] = (),
    width: Width = "page",
    axes: np.ndarray | None = None,
) -> np.ndarray:
    """Draw images, and below each image the number of weight draws that vote for each class.

    Args:
        images: Grey images, shape (M, H, W).
        votes: Number of draws that vote for each class, shape (M, C).
        classes: Names of the C classes.
        titles: A title for each image.
        width: Width of a new figure. A row has five images if `width` is "page", and three if it is "column".
        axes: Array of axes of shape (2, M), with the images in the first row and the votes in the second.

    Returns:
        Array of axes of shape (2, M).

    Example:
        >>> import torch
        >>> from pyro_bnn import plotting
        >>> images, votes = torch.rand(2, 8, 8), torch.tensor([[9, 1], [4, 6]])
        >>> axes = plotting.vote_histograms(images, votes, ["cat", "dog"])
        >>> axes.shape  # an image and its votes in each column
        (2, 2)
    """
    _checks.rows("images", images)
    _checks.rows("votes", votes)
    classes = list(classes) if isinstance(classes, str) else _checks.items("classes", classes, "a list of names")
    titles = _checks.items("titles", titles, "a list of texts")
    if images.dim() != 3 or not len(images) or votes.shape != (len(images), len(classes)):
        raise ValueError(
            f"`images` must have shape (M, H, W) and `votes` (M, C) for {len(classes)} names in `classes`, got "
            f"{_checks.shape(images)} and {_checks.shape(votes)}."
        )
    if titles and len(titles) != len(images):
        raise ValueError(f"`titles` must be as many as the {len(images)} images, or none, got {len(titles)}.")
    in_a_row = len(images)
    if axes is not None:
        _checks.kind("axes", axes, np.ndarray, "an array of axes of shape (2, M)")
        if axes.shape != (2, len(images)):
            raise ValueError(f"`axes` must have shape (2, M) for {len(images)} images, got {axes.shape}.")
    else:
        axes = _vote_axes(len(images), len(classes), width)
        in_a_row = min(in_a_row, IN_A_ROW[width])
    total = int(votes.sum(-1).max())
    for column, (image, vote) in enumerate(zip(images, votes, strict=True)):
        picture, bars = axes[0, column], axes[1, column]
        picture.imshow(image.cpu().numpy(), cmap="gray_r")
        picture.set_axis_off()
        if titles:
            picture.set_title(titles[column], fontsize=7)
        bars.barh(range(len(classes)), vote.cpu().numpy(), color=BLUE, height=0.75)
        bars.set(xlim=(0, total), ylim=(len(classes) - 0.4, -0.6))
        bars.set_xticks([0, total] if total % 2 else [0, total // 2, total])
        bars.grid(axis="y", visible=False)
        is_left = column % in_a_row == 0
        bars.set_yticks(range(len(classes)), classes if is_left else [""] * len(classes))
        bars.tick_params(axis="y", length=0)
        if is_left:
            bars.set_ylabel("class")
        if column + in_a_row >= len(images):
            bars.set_xlabel(f"votes of {total}")
    return axes


def _vote_axes(num_images: int, num_classes: int, width: Width) -> np.ndarray:
    """Return axes for rows of images, and for a row of bars below each row of images."""
    side = (inches(width) - 0.8) / IN_A_ROW[width]  # room beside the names of the classes
    in_a_row = min(num_images, IN_A_ROW[width])
    num_rows = -(-num_images // in_a_row)
    heights = (0.75 * side + 0.2, 0.135 * num_classes + 0.25)
    figure = figure_of_width(width, num_rows * sum(heights) + 0.2)
    if in_a_row < IN_A_ROW[width]:
        figure.set_figwidth(in_a_row * side + 0.8)
    grid = figure.subplots(2 * num_rows, in_a_row, squeeze=False, height_ratios=heights * num_rows)
    axes = np.concatenate([grid[::2].reshape(1, -1), grid[1::2].reshape(1, -1)])
    for ax in axes[:, num_images:].flat:
        ax.remove()
    return axes[:, :num_images]


def _probabilities(probs: object, y: object) -> Tensor:
    """Return the class probabilities that are given, or those of a given prediction."""
    if isinstance(y, Prediction):
        raise ValueError(
            f"`y` must be the labels, a tensor of shape (N,), got {_checks.described(y)}; the prediction is the first "
            "argument: call `plotting.reliability_diagram(prediction, y)`."
        )
    if isinstance(probs, ClassificationPrediction):
        return probs.probs
    if isinstance(probs, Prediction):
        raise ValueError(
            f"`probs` must be probabilities of classes, or a prediction of classes, got {_checks.described(probs)}, a "
            "prediction of numbers; for numbers call `plotting.regression_bands(x, prediction)`, or compare the "
            "coverage of intervals with their level: "
            "`metrics.interval_coverage(*prediction.interval(0.9), y)`."
        )
    return _checks.rows("probs", probs)


@explained("reliability_diagram(prediction, y)")
@styled
def reliability_diagram(
    probs: Tensor | ClassificationPrediction,
    y: Tensor,
    *,
    num_bins: int = 15,
    equal_mass: bool = False,
    width: Width = "column",
    axes: Sequence[Axes] | None = None,
) -> Sequence[Axes]:
    """Plot the accuracy against the confidence, with 95 % intervals.

    A second plot below shows the number of inputs in each bin.

    Each point is a bin, and shows the mean confidence, the accuracy, and the Wilson interval of the accuracy. Perfectly
    calibrated bins lie on the diagonal. A bin whose interval does not reach the diagonal is probably not calibrated.

    Args:
        probs: Class probabilities, shape (N, C), or a prediction that has them.
        y: Labels, shape (N,).
        num_bins: Number of bins.
        equal_mass: Whether the bins have equal numbers of inputs instead of equal width.
        width: Width of a new figure.
        axes: Two axes: accuracy, counts.

    Returns:
        A sequence of the two axes.

    Example:
        >>> import torch
        >>> from pyro_bnn import plotting
        >>> probs, y = (
        ...     torch.tensor([[0.9, 0.1], [0.4, 0.6]] * 50),
        ...     torch.arange(100) % 2,
        ... )
        >>> ax, below = plotting.reliability_diagram(probs, y)
        >>> ax.get_ylabel(), below.get_xlabel()
        ('accuracy', 'confidence (probability of the predicted class)')
    """
    probs = _probabilities(probs, y)
    _checks.rows("y", y)
    check_axes(axes, 2)
    if axes is None:
        side = min(inches(width), 4.5)
        figure = figure_of_width(width, 1.15 * side)
        figure.set_figwidth(side)
        axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    accuracies, counts = axes
    bins = calibration_bins(probs, y, num_bins=num_bins, equal_mass=equal_mass)
    edges, number = bins.edges.numpy(), bins.counts.cpu().numpy()
    filled = number > 0
    confidence, accuracy, low, high = (
        part.cpu().numpy()[filled] for part in (bins.confidence, bins.accuracy, *bins.accuracy_interval(0.95))
    )
    accuracies.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="perfectly calibrated")
    accuracies.errorbar(
        confidence,
        accuracy,
        yerr=np.stack([accuracy - low, high - accuracy]).clip(min=0),
        fmt="o",
        color=BLUE,
        ecolor=BLACK,
        elinewidth=0.8,
        clip_on=False,  # so that marks at 0 and 1 are not cut
        zorder=3,
        label="accuracy, 95 % interval",
    )
    error = expected_calibration_error(probs, y, num_bins=num_bins, equal_mass=equal_mass)
    start = np.floor(10 * edges[0]) / 10 if equal_mass else 0.0  # most confidences are just below 1
    accuracies.set(ylabel="accuracy", xlim=(start, 1), ylim=(0, 1))
    accuracies.set_title(f"expected calibration error {error:.4f}")
    accuracies.legend(loc="upper left")
    counts.bar(edges[:-1], number, np.diff(edges), align="edge", color=SKY, edgecolor=BLACK, linewidth=0.5)
    counts.set(xlabel="confidence (probability of the predicted class)", ylabel="inputs")
    if number.max() > 100 * number[filled].min():
        counts.set(yscale="log", ylim=(0.5, 2 * number.max()), ylabel="inputs (log)")
    return axes
