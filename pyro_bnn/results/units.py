"""Predictions in the units of the targets, if a network was fitted to standardised targets."""

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.distributions import Normal

from ..modelling.distributions import NormalMixture
from ..scores.uncertainty import MixtureDensityPrediction, RegressionPrediction


def in_units(prediction: RegressionPrediction, mean: Tensor, scale: Tensor) -> RegressionPrediction:
    """Turn a prediction of y into a prediction of ``mean + scale * y``. `mean` and `scale` have the shape (O,)."""
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
