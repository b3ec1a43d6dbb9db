"""The picture of scores that should separate unknown from known inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from ..._core import checks as _checks
from ...scores.metrics import ood_scores
from ...scores.uncertainty import ClassificationPrediction
from ._figures import BLUE, DASHES, GREY, PALETTE, VERMILION, Width, flat, panels, styled

NUM_TICKS = 4
"""Largest number of intervals between ticks, so that numbers with four decimals do not overlap."""

InputScores = Mapping[str, Tensor] | ClassificationPrediction


@styled
def detection_curves(
    known: InputScores, unknown: InputScores, *, width: Width = "page", axes: Sequence[Axes] | np.ndarray | None = None
) -> np.ndarray:
    r"""Draw the distributions of scores for known and for unknown inputs, and the ROC curves of the scores.

    Args:
        known: Prediction of known inputs, or scores of known inputs by name. The scores of a prediction are its entropy
            (total uncertainty) and, with several draws, its mutual information (epistemic). Scores that you pass by
            name have the shape (N,). Scores should be larger for unknown inputs.
        unknown: Prediction of unknown inputs, or scores of unknown inputs by name, each of shape (M,). The scores
            have the same names as in `known`.
        width: Width of a new figure. Panels are in a row if `width` is "page", and below each other if it is "column".
        axes: One axes for each score, and one for the ROC curves.

    Returns:
        Array of axes: one for each score, and the last one for the ROC curves. If you pass `axes`, the same axes.

    Example:
        >>> import torch
        >>> from pyro_bnn import plotting
        >>> axes = plotting.detection_curves(
        ...     {"distance": torch.tensor([0.1, 0.4])},
        ...     {"distance": torch.tensor([0.3, 0.9])},
        ... )
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
            ax.legend(loc="lower right")
        if index == 0 or width == "column":
            ax.set_ylabel("share of inputs below")
        found = ood_scores(low, high)
        is_unknown = np.repeat([False, True], [len(low), len(high)])
        false_positive, true_positive, _ = roc_curve(is_unknown, np.concatenate([low, high]))
        label = f"{name.partition(' (')[0]}:\n{found.auroc:.3f} ± {found.auroc_standard_error:.3f}"
        color, dashes = PALETTE[index % len(PALETTE)], DASHES[index % len(DASHES)]
        roc.plot(false_positive, true_positive, color=color, linestyle=dashes, label=label)
    roc.plot([0, 1], [0, 1], ":", color=GREY, linewidth=0.8)
    roc.set(xlabel="known taken for unknown", ylabel="unknown found", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    roc.legend(loc="lower right", title="AUROC ± standard error", title_fontsize=7, handlelength=1.6)
    return drawn


def _pairs(known: InputScores, unknown: InputScores) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return pairs of the scores of known and unknown inputs, by name."""
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
