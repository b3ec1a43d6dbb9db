"""Standard units: mean 0 and scale 1 over weighted rows, and predictions back in the units of the targets."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.distributions import Normal

from ...modelling.distributions import NormalMixture
from ...scores.uncertainty import MixtureDensityPrediction, RegressionPrediction


def standard_units(values: Tensor, weights: np.ndarray | None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, which is 1 for a constant one, over rows with weights or without."""
    scaler = StandardScaler().fit(values.numpy(), sample_weight=weights)
    return torch.from_numpy(scaler.mean_).to(values), torch.from_numpy(scaler.scale_).to(values)


def in_units(prediction: RegressionPrediction, mean: Tensor, scale: Tensor) -> RegressionPrediction:
    """A prediction of standardised targets as one of the targets y = mean + scale * standardised.

    Args:
        prediction: The prediction, without targets.
        mean: Mean of each target, shape (O,).
        scale: Scale of each target, shape (O,).
    """
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
