"""Predictions of numbers in the target's own units."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from ...distributions import NormalMixture
from ...uncertainty import RegressionPrediction
from .targets import Target

__all__ = ["in_units"]


def in_units(prediction: RegressionPrediction, target: Target) -> RegressionPrediction:
    """A prediction of standardised targets, in the target's own units and in double precision.

    With y = mean + scale * z, means are scaled and shifted, variances get the factor scale^2, and a density of y is
    that of z divided by scale.

    Args:
        prediction: The prediction, of shape (N, O).
        target: The target, with mean and scale of each output.
    """
    if prediction.mean.dim() != 2 or target.is_as_given:
        return prediction
    mean, scale = (prediction.mean.new_tensor(part, dtype=torch.double) for part in (target.mean, target.scale))

    def factor(variance: Tensor) -> Tensor:
        return variance.double() * scale.square()

    parts = ("aleatoric", "within_components", "between_components", "variance_of_means")
    variances: dict[str, Any] = {
        name: factor(value) for name, value in vars(prediction).items() if name in parts and value is not None
    }
    return replace(
        prediction,
        mean=mean + scale * prediction.mean.double(),
        components=None if prediction.components is None else _rescaled(prediction.components, mean, scale),
        log_density=None if prediction.log_density is None else prediction.log_density.double() - scale.log().sum(),
        targets=None if prediction.targets is None else mean + scale * prediction.targets.double(),
        **variances,
    )


def _rescaled(components: Distribution, mean: Tensor, scale: Tensor) -> Distribution:
    if isinstance(components, NormalMixture):
        loc, spread = mean[:, None] + scale[:, None] * components.loc, scale[:, None] * components.scale
        return NormalMixture(components.logits.double(), loc, spread, validate_args=False)
    if isinstance(components, Normal):
        return Normal(mean + scale * components.loc, scale * components.scale, validate_args=False)
    raise ValueError(f"a {type(components).__name__} has no units; choose another likelihood.")
