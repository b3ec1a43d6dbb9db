"""Distribution functions that torch does not have, from SciPy."""

from collections.abc import Callable

import numpy as np
import pyro.distributions as dist
import scipy.special
import torch
from torch import Tensor
from torch.distributions import Beta, Binomial, Distribution, NegativeBinomial, Poisson, StudentT

Arrays = Callable[..., np.ndarray]


def _student_t(of: StudentT, value: Tensor) -> Tensor:
    return _by(scipy.special.stdtr, of.df, (value - of.loc) / of.scale)


def _beta(of: Beta, value: Tensor) -> Tensor:
    return _by(scipy.special.betainc, of.concentration1, of.concentration0, value.clamp(0, 1))


def _poisson(of: Poisson, value: Tensor) -> Tensor:
    return _of_counts(scipy.special.pdtr, value, of.rate)


def _binomial(of: Binomial, value: Tensor) -> Tensor:
    below = torch.minimum(value.floor(), of.total_count)
    return _by(scipy.special.bdtr, below.clamp_min(0), of.total_count, of.probs) * (value >= 0)


def _negative_binomial(of: NegativeBinomial, value: Tensor) -> Tensor:
    failure = torch.sigmoid(-of.logits)  # not 1 - probs, which loses digits
    count = value.floor()
    return _by(scipy.special.betainc, of.total_count, count.clamp_min(0) + 1, failure) * (count >= 0)


def _zero_inflated(of: dist.ZeroInflatedDistribution, value: Tensor) -> Tensor:
    return (of.gate + (1 - of.gate) * cdf(of.base_dist, value)) * (value >= 0)


def _of_counts(function: Arrays, value: Tensor, *arguments: Tensor) -> Tensor:
    count = value.floor()
    return _by(function, count.clamp_min(0), *arguments) * (count >= 0)


def _by(function: Arrays, *arguments: Tensor) -> Tensor:
    """A function of arrays, computed in double precision."""
    arrays = (argument.detach().double().cpu().numpy() for argument in arguments)
    return torch.as_tensor(function(*arrays)).to(
        arguments[0].device, torch.promote_types(arguments[0].dtype, torch.float32)
    )


KNOWN: dict[type[Distribution], Callable[..., Tensor]] = {
    StudentT: _student_t,
    Beta: _beta,
    Poisson: _poisson,
    Binomial: _binomial,
    NegativeBinomial: _negative_binomial,
    dist.ZeroInflatedDistribution: _zero_inflated,
}
"""Distribution functions by class; they also hold for subclasses."""


def cdf(distribution: Distribution, value: Tensor) -> Tensor:
    """Probability that a draw is no larger than a value; distributions in :data:`KNOWN` have no gradient.

    Raises:
        NotImplementedError: If there is no closed form here or in torch.
    """
    for kind, function in KNOWN.items():
        if isinstance(distribution, kind):
            return function(distribution, value)
    return distribution.cdf(value)
