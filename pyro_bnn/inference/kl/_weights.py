"""Weights of the KL term during a fit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from ..._core import checks as _checks

KLWeight = Callable[[int, int, int], float]
"""Function that returns the weight of the KL term for (epoch, batch, num_batches). Epochs and batches count from 0."""

LARGEST_WEIGHT = 1e30
"""Heuristic: largest KL weight. Smaller ones already hide the data, and single precision ends at 3e38."""


@dataclass(frozen=True)
class _Constant:
    weight: float

    def __call__(self, epoch: int, batch: int, num_batches: int) -> float:
        return self.weight


@dataclass(frozen=True)
class _Halving:
    def __call__(self, epoch: int, batch: int, num_batches: int) -> float:
        return num_batches * 2.0 ** -(batch + 1) / (1 - 2.0**-num_batches)


@dataclass(frozen=True)
class _Warmup:
    num_epochs: int
    weight: float

    def __call__(self, epoch: int, batch: int, num_batches: int) -> float:
        return self.weight * min(1.0, (epoch * num_batches + batch + 1) / (self.num_epochs * num_batches))


def constant(weight: float) -> KLWeight:
    """Return a weight that is the same at every step.

    The weight 1 gives the ELBO, a smaller weight gives a cold posterior, and the weight 0 ignores the prior.

    Example:
        >>> from pyro_bnn import kl
        >>> kl.constant(0.1)(0, 3, 100)
        0.1
    """
    return _Constant(check_weight(weight))


def as_function(weight: float | KLWeight) -> KLWeight:
    """Return a weight as a function of the step: a number becomes :func:`constant`, a function stays unchanged."""
    if callable(weight) and not isinstance(weight, type):
        return weight
    return constant(cast("float", weight))  # raises for anything but a number


def check_weight(weight: float) -> float:
    """Return the KL weight if it is a number from 0 to 1e30; else raise a `ValueError`."""
    found = _checks.as_float(weight)
    if not found >= 0 or weight == float("inf"):
        raise ValueError(f"a KL weight must be a finite number of at least 0, got {_checks.got(weight)}.")
    if found > LARGEST_WEIGHT:
        raise ValueError(f"a KL weight must be at most {LARGEST_WEIGHT:g}; 1 gives the ELBO, 0.1 a tenth of the KL.")
    return found


def blundell() -> KLWeight:
    r"""Return a weight that halves from batch to batch: :math:`M\, 2^{M-i} / (2^M - 1)` for i = 1, ..., M.

    The mean weight over the M batches of an epoch is 1.

    The weight is computed as :math:`M\, 2^{-i} / (1 - 2^{-M})`, which stays finite for every M.

    References:
        Blundell et al. (2015), https://arxiv.org/abs/1505.05424, section 3.4.

    Example:
        >>> from pyro_bnn import kl
        >>> [round(kl.blundell()(0, batch, 3), 4) for batch in range(3)]
        [1.7143, 0.8571, 0.4286]
    """
    return _Halving()


def per_weight(num_weights: int) -> KLWeight:
    """Return the constant weight 1 / `num_weights`, as in some other libraries.

    The weight 1 / `num_weights` gives a very cold posterior.

    Example:
        >>> from pyro_bnn import kl
        >>> kl.per_weight(1000)(0, 0, 10)  # epoch, batch, number of batches
        0.001
    """
    return constant(1 / _checks.at_least("num_weights", num_weights, 1))


def linear_warmup(num_epochs: int, weight: float = 1.0) -> KLWeight:
    """Return a weight that grows in equal steps from near 0 to `weight` in `num_epochs` epochs, and then stays there.

    Example:
        >>> from pyro_bnn import kl
        >>> weight = kl.linear_warmup(2)
        >>> weight(0, 0, 2), weight(0, 1, 2), weight(5, 0, 2)
        (0.25, 0.5, 1.0)
    """
    num_epochs = _checks.at_least("num_epochs", num_epochs, 1)
    return _Warmup(num_epochs, check_weight(weight))
