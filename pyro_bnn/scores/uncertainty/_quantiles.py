"""Distribution function and quantiles of a mixture with one component per draw."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Poisson

from ..._core import checks as _checks
from ..._core.gaussian_mixture import BISECTIONS

NUM_DRAWS = 4000  # heuristic: draws for quantiles without closed form, whose levels have errors of at most 0.8 %


def levels_of(q: object) -> Tensor:
    """Return probabilities in double precision."""
    try:
        levels = torch.as_tensor(q if isinstance(q, Tensor) else np.array(q), dtype=torch.double)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        levels = torch.zeros(0)
    levels = _checks.tensor("q", levels)
    if isinstance(q, bool) or levels.numel() == 0 or not bool(((levels > 0) & (levels < 1)).all()):
        raise ValueError(
            f"`q` must be a probability strictly between 0 and 1, or a tensor or list of them, got {_checks.got(q)}."
        )
    return levels


def has_cdf(components: Distribution) -> bool:
    """Return whether the components' distribution function can be computed, and their quantiles can be bounded."""
    try:
        mean_cdf(components, components.mean[0])
    except NotImplementedError:
        return False
    return bool(torch.isfinite(components.variance).all()) or _quantiles(components, 0.5) is not None


def cdf_of_each_draw(components: Distribution, y: Tensor) -> Tensor:
    """Distribution function of each component, ``(S, N, *O)``."""
    least, most = _ends(components)
    inside = y.clamp_min(least).clamp_max(most)  # beyond a support, torch's functions are wrong
    if isinstance(components, Poisson):  # which has no function in torch
        below = torch.special.gammaincc(inside.floor() + 1, components.rate)
    else:
        below = components.cdf(inside)
    return below * (y >= least)


def mean_cdf(components: Distribution, y: Tensor) -> Tensor:
    return cdf_of_each_draw(components, y).mean(0)


def mixture_quantile(components: Distribution, q: float) -> Tensor:
    """Return the mixture's quantile, by bisection."""
    support = components.support
    are_counts = support is not None and support.is_discrete
    low, high = _bracket(components, q, are_counts=are_counts)
    for _ in range(BISECTIONS):
        middle = ((low + high) / 2).floor() if are_counts else (low + high) / 2
        below = mean_cdf(components, middle) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def quantile_of_draws(draws: Tensor, levels: Tensor) -> Tensor:
    """Return the k-th smallest draw for each of Q levels q, where k is q S rounded up, shape ``(Q, N, *O)``."""
    ordered, num_draws = draws.sort(0).values, len(draws)
    return torch.stack([ordered[max(-int(-level * num_draws // 1), 1) - 1] for level in levels.tolist()])


def _bracket(components: Distribution, q: float, *, are_counts: bool) -> tuple[Tensor, Tensor]:
    """Return bounds of the quantile; without a closed form for components, they come from Cantelli's inequality."""
    quantiles = None if are_counts else _quantiles(components, q)
    if quantiles is not None:
        return quantiles.amin(0), quantiles.amax(0)
    mean, sd = components.mean, components.variance.sqrt()
    low, high = (mean - sd * ((1 - q) / q) ** 0.5).amin(0), (mean + sd * (q / (1 - q)) ** 0.5).amax(0)
    if are_counts:
        return low.floor() - 1, high.ceil() + 1
    least, most = _ends(components)
    return low.clamp_min(least), high.clamp_max(most)


def _ends(components: Distribution) -> tuple[Any, Any]:
    """Return the ends of the components' support."""
    support = getattr(components.support, "base_constraint", components.support)
    return getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)


def _quantiles(components: Distribution, q: float) -> Tensor | None:
    """Return the components' quantiles, or None without closed form."""
    try:
        return components.icdf(torch.full_like(components.mean, q))
    except NotImplementedError:
        return None
