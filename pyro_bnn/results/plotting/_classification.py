"""Pictures of classifications: votes, calibration, and detecting unknown inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter
from torch import Tensor

from ..._core import checks as _checks
from ..._core.signatures import explained
from ...scores.metrics import calibration_bins, expected_calibration_error, ood_scores
from ...scores.uncertainty import ClassificationPrediction, Prediction
from ._figures import (
    BLACK,
    BLUE,
    DASHES,
    GREY,
    PALETTE,
    SKY,
    VERMILION,
    Width,
    check_axes,
    figure_of_width,
    flat,
    inches,
    items_of,
    panels,
    styled,
)

IN_A_ROW: dict[Width, int] = {"column": 3, "page": 5}  # images, with room for the names of the classes


@explained("vote_histograms(images, prediction.votes, class_names)")
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
    """Draw images, and below each the number of draws of the weights that vote for each class.

    Args:
        images: Grey images, shape (M, H, W).
        votes: Number of draws in which each class is the most probable one, shape (M, C).
        classes: Names of the C classes.
        titles: A title for each image.
        width: Width of a new figure, with five images in a row on a "page", and three in a "column".
        axes: Array of axes of shape (2, M), with the images in the first row.

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
    classes = list(classes) if isinstance(classes, str) else items_of("classes", classes, "a list of names")
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
            picture.set_title(titles[column], fontsize=8)
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
    min_inputs: int = 20,
    equal_mass: bool = False,
    width: Width = "column",
    axes: Sequence[Axes] | None = None,
) -> Sequence[Axes]:
    """Plot accuracy against confidence, and in a second panel the number of inputs in each bin.

    Each point is a bin, with its mean confidence and the 90 % Wilson interval of its accuracy. A bin whose interval
    does not reach the diagonal is probably not calibrated. For the points, small bins are joined with their neighbours.
    The calibration error in the title is computed from the bins in the second panel.

    Args:
        probs: Class probabilities, shape (N, C), or a prediction that has them.
        y: Labels, shape (N,).
        num_bins: Number of bins.
        min_inputs: Smallest number of inputs in the bin of a point. With 1, no bins are joined.
        equal_mass: Whether bins have equal numbers of inputs instead of equal width.
        width: Width of a new figure.
        axes: Two axes: accuracy, counts.

    Example:
        >>> import torch
        >>> from pyro_bnn import plotting
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]] * 50)
        >>> ax, below = plotting.reliability_diagram(probs, torch.arange(100) % 2)
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
    shown = bins.joined(min_inputs)
    confidence, accuracy, low, high = (
        part[shown.counts > 0].cpu().numpy()
        for part in (shown.confidence, shown.accuracy, *shown.accuracy_interval(0.9))
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
        label="accuracy, 90 % interval",
    )
    error = expected_calibration_error(probs, y, num_bins=num_bins, equal_mass=equal_mass)
    start = min(np.floor(10 * float(probs.amax(-1).min())) / 10, 0.9)  # with two classes, none is below 0.5
    accuracies.set(ylabel="accuracy", xlim=(start, 1), ylim=(0, 1))
    accuracies.set_title(f"expected calibration error {error:.4f}")
    accuracies.legend(loc="lower right")
    counts.bar(edges[:-1], number, np.diff(edges), align="edge", color=SKY, edgecolor=BLACK, linewidth=0.5)
    counts.set(xlabel="confidence (probability of the predicted class)", ylabel="inputs", xlim=(start, 1))
    if number.max() > 100 * number[number > 0].min():
        counts.set(yscale="log", ylim=(0.5, 2 * number.max()), ylabel="inputs (log)")
        counts.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        counts.minorticks_off()
    return axes


NUM_TICKS = 4  # largest number of intervals between ticks, so that numbers with four decimals do not overlap

InputScores = Mapping[str, Tensor] | ClassificationPrediction


@explained("detection_curves(known, unknown)")
@styled
def detection_curves(
    known: InputScores, unknown: InputScores, *, width: Width = "page", axes: Sequence[Axes] | np.ndarray | None = None
) -> np.ndarray:
    r"""Draw the distributions of scores of known and unknown inputs, and their ROC curves.

    Args:
        known: Prediction of known inputs, or their scores, ``{name: shape (N,)}``, which should be larger for unknown
            inputs. The scores of a prediction are the entropy (total uncertainty) and, with several draws, the mutual
            information (epistemic uncertainty).
        unknown: Prediction of unknown inputs, or their scores, ``{name: shape (M,)}``.
        width: Width of a new figure. Panels are side by side on a "page", and stacked in a "column".
        axes: One axes for each score, and one for the ROC curves.

    Returns:
        Array of axes, one for each score, and the last for the ROC curves.

    Example:
        >>> import torch
        >>> from pyro_bnn import plotting
        >>> known, unknown = torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.9])
        >>> axes = plotting.detection_curves({"distance": known}, {"distance": unknown})
        >>> axes[-1].get_legend().get_texts()[0].get_text()
        'distance:\n0.750 ± 0.354'
    """
    from sklearn.metrics import roc_curve  # importing it takes seconds

    pairs = _pairs(known, unknown)
    num_panels = len(pairs) + 1
    drawn: Any = panels(axes, num_panels, width, on_page=2.4, in_column=2.3 * num_panels)
    *shares, roc = drawn
    for index, (ax, (name, (low, high))) in enumerate(zip(shares, pairs.items(), strict=True)):
        ax.ecdf(low, color=BLUE, linestyle="-", label=f"known ({len(low):,})")
        ax.ecdf(high, color=VERMILION, linestyle=DASHES[1], label=f"unknown ({len(high):,})")
        ax.set(xlabel=name, ylim=(-0.02, 1.02))
        ax.locator_params(axis="x", nbins=NUM_TICKS)
        if index == 0:
            ax.legend(loc="best")
        if index == 0 or width == "column":
            ax.set_ylabel("share of inputs below")
        found = ood_scores(low, high)
        is_unknown = np.repeat([False, True], [len(low), len(high)])
        false_positive, true_positive, _ = roc_curve(is_unknown, np.concatenate([low, high]))
        label = f"{name.partition(' (')[0]}:\n{found.auroc:.3f} ± {found.auroc_standard_error:.3f}"
        colors = PALETTE[2:]  # the first two are those of known and unknown inputs
        color, dashes = colors[index % len(colors)], DASHES[index % len(DASHES)]
        roc.plot(false_positive, true_positive, color=color, linestyle=dashes, label=label)
    roc.plot([0, 1], [0, 1], ":", color=GREY, linewidth=0.8)
    roc.set(xlabel="known taken for unknown", ylabel="unknown found", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    roc.legend(loc="lower right", title="AUROC ± standard error", handlelength=1.6)
    return drawn


def _pairs(known: InputScores, unknown: InputScores) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return ``{name of a score: (known, unknown)}``."""
    sides: dict[str, dict[str, np.ndarray]] = {}
    for side, value in (("known", known), ("unknown", unknown)):
        scores = _scores(value) if isinstance(value, ClassificationPrediction) else value
        _checks.kind(side, scores, Mapping, "a prediction of classes, or a dict of scores")
        for name, part in scores.items():
            _checks.finite(side, _checks.rows(side, part))
            if part.dim() != 1:
                raise ValueError(f"`{side}` must have scores of shape (N,), got {_checks.shape(part)} for {name!r}.")
        sides[side] = {name: flat(part.double()) for name, part in scores.items()}
    first, second = sides.values()
    if not first or first.keys() != second.keys():
        raise ValueError(
            f"`known` and `unknown` must have the same scores, and at least one, got {[*first]} and {[*second]}."
        )
    return {name: (first[name], second[name]) for name in first}


def _scores(prediction: ClassificationPrediction) -> dict[str, Tensor]:
    found = {"entropy (nats)": prediction.total.flatten()}
    if prediction.mutual_information is not None:
        found["mutual information (nats)"] = prediction.mutual_information.flatten()
    return found
