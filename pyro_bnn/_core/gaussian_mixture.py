"""Distribution function, quantiles and CRPS of a mixture of Gaussians, in double precision."""

import math

import torch
from torch import Tensor

BISECTIONS = 80  # a quantile's interval then is 2^-80 times as wide as the first, below the rounding error


def normal_cdf(z: Tensor) -> Tensor:
    """Return the distribution function of N(0, 1). Unlike ``torch.special.ndtr``, it is not 0 far in the lower tail."""
    return 0.5 * torch.erfc(z * -math.sqrt(0.5))


def mixture_cdf(weights: Tensor, loc: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    """Return the probability that a draw is at most y, shape (...). The parameters have shape (..., M)."""
    weights, loc, scale, y = weights.double(), loc.double(), scale.double(), y.double()
    return (weights * normal_cdf((y.unsqueeze(-1) - loc) / scale)).sum(-1)


def mixture_icdf(weights: Tensor, loc: Tensor, scale: Tensor, q: Tensor) -> Tensor:
    """Compute quantiles by bisection. q has shape (...), and the parameters have shape (..., M)."""
    weights, loc, scale, q = weights.double(), loc.double(), scale.double(), q.double()
    sign = torch.where(q <= 0.5, 1.0, -1.0).to(q)
    tail = torch.minimum(q, 1 - q)
    loc = sign.unsqueeze(-1) * loc
    quantiles = loc + scale * torch.special.ndtri(tail).unsqueeze(-1)
    low, high = quantiles.amin(-1), quantiles.amax(-1)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = mixture_cdf(weights, loc, scale, middle) < tail
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return sign * high


def mixture_crps(weights: Tensor, loc: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    r"""Return the continuous ranked probability score at y, shape (...). The parameters have shape (..., M).

    .. math:: \sum_i w_i A(y - \mu_i, \sigma_i^2) - \tfrac12 \sum_{ij} w_i w_j A(\mu_i - \mu_j, \sigma_i^2+\sigma_j^2)

    where :math:`A(\mu, \sigma^2)` is the mean absolute value of a draw from a Gaussian (Grimit et al., 2006).
    """
    weights, loc, scale, y = weights.double(), loc.double(), scale.double(), y.double()
    total = (weights * _mean_absolute(y.unsqueeze(-1) - loc, scale)).sum(-1)
    variance = scale.square()
    for i in range(loc.shape[-1]):
        others = slice(i, None)  # every pair once; a component paired with itself counts half
        pair_scale = (variance[..., others] + variance[..., i, None]).sqrt()
        pairs = weights[..., others] * _mean_absolute(loc[..., others] - loc[..., i, None], pair_scale)
        total = total - weights[..., i] * (pairs.sum(-1) - 0.5 * pairs[..., 0])
    return total


def _mean_absolute(loc: Tensor, scale: Tensor) -> Tensor:
    """Return the mean of |x| for x from N(loc, scale^2)."""
    z = loc / scale
    return loc * torch.erf(z * math.sqrt(0.5)) + scale * (math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp())
