"""Predictions in the units of targets that were standardised for the fit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.distributions import Normal

from .._core.summary import counted, few
from ..modelling.distributions import NormalMixture
from ..scores.uncertainty import MixtureDensityPrediction, RegressionPrediction

FAR_LARGER = 3.0  # heuristic: rows get a note if their sd exceeds that of the training targets by this factor


def note_on_unlike_rows(sd: np.ndarray, scale: np.ndarray | Sequence[float], names: Sequence[object]) -> str:
    """Return a note on rows whose `sd`, (N, O), is far above `scale`, the sd of the training targets; else ""."""
    unlike = np.flatnonzero((sd > FAR_LARGER * np.asarray(scale)).any(1))
    if not len(unlike):
        return ""
    rows = f"{counted(len(unlike), 'row')} ({few(str(names[i]) for i in unlike.tolist())})"
    return (
        f"The predicted standard deviation of {rows} is more than {FAR_LARGER:g} times that of the training targets. "
        "Such rows are unlike the training rows; do not rely on their predictions."
    )


def in_units(prediction: RegressionPrediction, mean: Tensor, scale: Tensor) -> RegressionPrediction:
    """Turn a prediction of y into a prediction of ``mean + scale * y``. `mean` and `scale` have shape (O,)."""
    variance = scale.square()
    changed: dict[str, Any] = {"mean": mean + scale * prediction.mean, "aleatoric": variance * prediction.aleatoric}
    if prediction.variance_of_means is not None:
        changed["variance_of_means"] = variance * prediction.variance_of_means
    if isinstance(prediction, MixtureDensityPrediction):
        changed["within_components"] = variance * prediction.within_components
        changed["between_components"] = variance * prediction.between_components
    components = prediction.components
    if isinstance(components, NormalMixture):
        loc, width = mean[:, None] + scale[:, None] * components.loc, scale[:, None] * components.scale
        changed["components"] = NormalMixture(components.logits, loc, width, validate_args=False)
    elif isinstance(components, Normal):
        changed["components"] = Normal(mean + scale * components.loc, scale * components.scale, validate_args=False)
    return replace(prediction, **changed)
