"""The picture of how well scores tell unknown inputs from known ones."""

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from ..._core import checks as _checks
from ...scores.metrics import ood_scores
from ...scores.uncertainty import ClassificationPrediction
from ._figures import check_axes, figure_of_width
from ._style import BLUE, DASHES, GREY, PALETTE, VERMILION, Width, styled

MOST_DRAWN = 2000
"""Largest number of points on a curve: of more scores, this many quantiles are drawn, which the eye cannot tell."""

Scores = Mapping[str, Tensor] | ClassificationPrediction


@styled
def detection_curves(
    known: Scores, unknown: Scores, *, width: Width = "page", axes: np.ndarray | None = None
) -> np.ndarray:
    r"""Distributions of scores of known and of unknown inputs, and the ROC curves of the scores beside them.

    Args:
        known: Prediction of known inputs, of which the entropy (total uncertainty) and the mutual information
            (epistemic, if there are several draws) are drawn; or scores by name, each of shape (N,). A larger score
            counts as less known.
        unknown: Prediction or scores of unknown inputs, of shape (M,), by the same names.
        width: Width of a new figure: panels are beside each other on a page, and one below the other in a column.
        axes: One axes for each score, and one for the ROC curves.

    Returns:
        Array of the axes.

    Example:
        >>> import torch
        >>> axes = detection_curves({"distance": torch.tensor([0.1, 0.4])}, {"distance": torch.tensor([0.3, 0.9])})
        >>> axes[-1].get_legend().get_texts()[0].get_text()
        'distance:\n0.750 ± 0.354'
    """
    pairs = _pairs(known, unknown)
    check_axes(axes, len(pairs) + 1)
    if axes is None:
        num_panels = len(pairs) + 1
        figure = figure_of_width(width, 2.4 if width == "page" else 2.3 * num_panels)
        axes = figure.subplots(*((1, num_panels) if width == "page" else (num_panels, 1)))
    roc = axes[-1]
    for index, (ax, (name, (low, high))) in enumerate(zip(axes, pairs.items(), strict=False)):
        _draw_shares(ax, name, low, high)
        if index == 0:
            ax.legend(loc="lower right")
        if index == 0 or width == "column":
            ax.set_ylabel("share of inputs below")
        found = ood_scores(low, high)
        rates = _rates(low, high)
        label = f"{name.partition(' (')[0]}:\n{found.auroc:.3f} ± {found.auroc_standard_error:.3f}"
        color, dashes = PALETTE[index % len(PALETTE)], DASHES[index % len(DASHES)]
        roc.plot(*rates, color=color, linestyle=dashes, label=label)
    roc.plot([0, 1], [0, 1], ":", color=GREY, linewidth=0.8)
    roc.set(xlabel="known taken for unknown", ylabel="unknown found", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    roc.legend(loc="lower right", title="AUROC ± standard error", title_fontsize=7, handlelength=1.6)
    return axes


def _pairs(known: Scores, unknown: Scores) -> dict[str, tuple[Tensor, Tensor]]:
    """Scores of known and unknown inputs by name."""
    sides = {"known": known, "unknown": unknown}
    scores: dict[str, Mapping[str, Tensor]] = {}
    for side, value in sides.items():
        if isinstance(value, ClassificationPrediction):
            value = _scores(value)
        _checks.kind(side, value, Mapping, "a prediction of classes, or a dict of scores")
        scores[side] = value
    names = list(scores["known"])
    if not names or set(names) != set(scores["unknown"]):
        raise ValueError(
            f"`known` and `unknown` must have the same scores, and at least one, got {names} and "
            f"{list(scores['unknown'])}."
        )
    for side, found in scores.items():
        for name, part in found.items():
            _checks.finite(side, _checks.rows(side, part))
            if part.dim() != 1 or not len(part):
                raise ValueError(
                    f"`{side}` must have scores of shape (N,), one at least, got {_checks.shape(part)} for {name!r}."
                )
    return {name: (scores["known"][name].cpu(), scores["unknown"][name].cpu()) for name in names}


def _scores(prediction: ClassificationPrediction) -> dict[str, Tensor]:
    found = {"entropy (nats)": prediction.total.flatten()}
    if prediction.mutual_information is not None:
        found["mutual information (nats)"] = prediction.mutual_information.flatten()
    return found


def _draw_shares(ax: Axes, name: str, known: Tensor, unknown: Tensor) -> None:
    """Draw the empirical distribution functions, from 0 to 1 over the range of both."""
    both = torch.cat([known, unknown])
    first, last = float(both.min()), float(both.max())
    for values, label, color, dashes in (
        (known, f"known ({len(known):,})", BLUE, "-"),
        (unknown, f"unknown ({len(unknown):,})", VERMILION, DASHES[1]),
    ):
        ordered = np.sort(values.double().numpy())
        chosen = np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_DRAWN)).round().astype(int)
        shares = (chosen + 1) / len(ordered)
        levels, heights = [first, ordered[0], *ordered[chosen], last], [0, 0, *shares, 1]
        ax.step(levels, heights, where="post", color=color, linestyle=dashes, label=label)
    ax.set(xlabel=name, ylim=(-0.02, 1.02))


def _rates(known: Tensor, unknown: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Shares of known and of unknown inputs at or above a threshold that falls, from 0 to 1."""
    low, high = (np.sort(values.double().numpy()) for values in (known, unknown))
    levels = np.unique(np.concatenate([low, high]))
    chosen = np.linspace(0, len(levels) - 1, min(len(levels), MOST_DRAWN)).round().astype(int)
    above = [1 - np.searchsorted(values, levels[chosen]) / len(values) for values in (low, high)]
    return np.append(0, above[0][::-1]), np.append(0, above[1][::-1])
