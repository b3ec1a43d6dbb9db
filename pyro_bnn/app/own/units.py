"""Predictions of numbers in the target's own units."""

from dataclasses import replace

import torch

from ...interop import scikit
from ...scores.uncertainty import RegressionPrediction
from .targets import Target


def in_units(prediction: RegressionPrediction, target: Target) -> RegressionPrediction:
    """A prediction of standardised targets, in the target's own units and in double precision.

    With y = mean + scale * z, means are scaled and shifted, variances are multiplied by scale^2, and densities are
    divided by scale.
    """
    if prediction.mean.dim() != 2 or target.is_as_given:
        return prediction
    mean, scale = (prediction.mean.new_tensor(part, dtype=torch.double) for part in (target.mean, target.scale))
    return replace(
        scikit.in_units(prediction, mean, scale),
        log_density=None if prediction.log_density is None else prediction.log_density.double() - scale.log().sum(),
        targets=None if prediction.targets is None else mean + scale * prediction.targets.double(),
    )
