"""Pictures of classifications: votes, calibration, and scores of known and unknown inputs."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from .. import _checks
from ..metrics import calibration_bins
from ._figures import check_ax, new_axes

IN_DOMAIN, OUT_OF_DOMAIN = "tab:blue", "tab:orange"


def vote_histograms(
    images: Tensor, votes: Tensor, classes: Sequence[str], *, titles: Sequence[str] = (), axes: np.ndarray | None = None
) -> np.ndarray:
    """Images in a row, and below each the number of weight draws that vote for each class.

    Args:
        images: Grey images, shape (M, H, W).
        votes: Number of draws that vote for each class, shape (M, C).
        classes: Names of the C classes.
        titles: A title for each image.
        axes: Array of axes of shape (2, M).
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
    if axes is not None:
        _checks.kind("axes", axes, np.ndarray, "an array of axes of shape (2, M)")
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
    for name, part in (("in_domain", in_domain), ("out_of_domain", out_of_domain)):
        _checks.finite(name, _checks.rows(name, part))
        if part.dim() != 1 or not len(part):
            raise ValueError(f"`{name}` must have shape (N,) with at least one score, got {_checks.shape(part)}.")
    _checks.kind("score", score, str, "the name of the score, as text")
    check_ax(ax)
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
        num_bins: Number of bins, of equal width.
        ax: Axes to draw on.
    """
    _checks.rows("probs", probs)
    _checks.rows("y", y)
    check_ax(ax)
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
