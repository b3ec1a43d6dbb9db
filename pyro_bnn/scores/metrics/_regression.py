"""Scores of predictions in regression."""

import math

import torch

from ..._core import checks as _checks
from ..._core.gaussian_mixture import mixture_crps
from ._inputs import Numbers, as_tensor, number_inputs, probabilities


def root_mean_squared_error(mean: Numbers, y: Numbers) -> float:
    """Return the root mean squared error of predictive means, in units of the targets.

    Args:
        mean: Predictive means, shape ``(N, *O)``.
        y: Targets, shape ``(N, *O)``.

    Example:
        >>> from pyro_bnn import metrics
        >>> metrics.root_mean_squared_error([0.0, 0.0], [3.0, 3.0])
        3.0
    """
    mean, y = as_tensor("mean", mean), as_tensor("y", y)
    number_inputs(y, mean=mean)
    return math.sqrt(float((mean.double() - y.double()).square().mean()))


def interval_coverage(lower: Numbers, upper: Numbers, y: Numbers) -> float:
    """Return the fraction of targets inside their intervals, ends included.

    Args:
        lower: Lower ends, shape ``(N, *O)``.
        upper: Upper ends, shape ``(N, *O)``.
        y: Targets, shape ``(N, *O)``.

    Example:
        >>> from pyro_bnn import metrics
        >>> metrics.interval_coverage([0.0, 0.0], [1.0, 1.0], [0.5, 2.0])
        0.5
    """
    lower, upper, y = as_tensor("lower", lower), as_tensor("upper", upper), as_tensor("y", y)
    number_inputs(y, lower=lower, upper=upper)
    if bool((lower > upper).any()):
        raise ValueError(f"`lower` must not exceed `upper`, got {int((lower > upper).sum())} intervals where it does.")
    return float(((lower <= y) & (y <= upper)).double().mean())


def crps_from_draws(draws: Numbers, y: Numbers) -> float:
    r"""Estimate the continuous ranked probability score from independent draws, averaged over all targets.

    .. math:: \frac1S \sum_s |x_s - y| - \frac1{2S(S-1)} \sum_{st} |x_s - x_t|.

    The score is in the units of y; smaller is better. The estimator is fair: for every number of draws, its
    expectation is the score of the predictive distribution. So a single estimate may be slightly below 0.

    Args:
        draws: At least two independent draws from the predictive distribution, shape ``(S, N, *O)``.
        y: Targets, shape ``(N, *O)``.

    References:
        Gneiting and Raftery (2007), Strictly Proper Scoring Rules, Prediction, and Estimation. Ferro (2014), Fair
        scores for ensemble forecasts.

    Example:
        >>> from pyro_bnn import metrics
        >>> round(metrics.crps_from_draws([[0.0], [2.0]], [1.0]), 4)
        0.0
    """
    draws, y = as_tensor("draws", draws), as_tensor("y", y)
    if draws.dim() != y.dim() + 1 or draws.shape[1:] != y.shape or len(draws) < 2:
        raise ValueError(
            f"`draws` must have shape (S, *y.shape) with at least 2 draws, got {_checks.shape(draws)} for `y` of shape "
            f"{_checks.shape(y)}."
        )
    _checks.finite("y", y)
    number_inputs(y.expand_as(draws), draws=draws)
    num_draws = len(draws)
    ordered = draws.double().sort(0).values
    rank = torch.arange(num_draws, dtype=torch.double, device=draws.device).reshape(-1, *[1] * y.dim())
    half_distance = ((2 * rank - num_draws + 1) * ordered).sum(0) / (num_draws * (num_draws - 1))
    return float(((ordered - y.double()).abs().mean(0) - half_distance).mean())


def crps_of_normal_mixture(weights: Numbers, loc: Numbers, scale: Numbers, y: Numbers) -> float:
    """Return the continuous ranked probability score of a mixture of M Gaussians, averaged over all targets.

    The score is in the units of y; smaller is better. Time grows with the square of M.

    Args:
        weights: Probabilities of the components, shape (..., M) or (M,).
        loc: Means of the components, shape (..., M).
        scale: Standard deviations of the components, above 0, shape (..., M).
        y: Targets, shape (...).

    References:
        Grimit et al. (2006), The continuous ranked probability score for circular variables and its application to
        mesoscale forecast ensemble verification.

    Example:
        >>> from pyro_bnn import metrics
        >>> score = metrics.crps_of_normal_mixture([[1.0]], [[0.0]], [[1.0]], [0.0])
        >>> round(score, 4)  # (sqrt 2 - 1) / sqrt pi
        0.2337
    """
    weights, loc, scale = as_tensor("weights", weights), as_tensor("loc", loc), as_tensor("scale", scale)
    y = as_tensor("y", y)
    if loc.shape[:-1] != y.shape or loc.dim() == 0:
        raise ValueError(
            f"`loc` must have the shape of `y` and a last axis of components, got {_checks.shape(loc)} and "
            f"{_checks.shape(y)}."
        )
    weights = weights.expand_as(loc) if weights.shape == loc.shape[-1:] else weights
    for name, value in (("loc", loc), ("y", y)):
        _checks.finite(name, value)
    number_inputs(loc, scale=scale, weights=weights)
    probabilities("weights", weights)
    if not bool((scale > 0).all()):
        raise ValueError(f"`scale` must be above 0, got values down to {float(scale.min()):.3g}.")
    return float(mixture_crps(weights, loc, scale, y).mean())
