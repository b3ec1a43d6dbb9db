r"""Weights of the KL term in a fit, and divergences between distributions.

The loss of a batch b is :math:`N \cdot \mathrm{NLL}_b + \lambda\, \mathrm{KL}`. Here N is the number of rows in the
data set, and the NLL is a mean over the rows of the batch. The weight :math:`\lambda = 1` gives the ELBO; any other
constant weight acts as a temperature. Some papers, such as Graves (2011), sum the NLL over the rows of a batch, so
their weight 1/M for M batches corresponds to the weight 1 here.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import torch
from pyro.distributions import Delta, MaskedDistribution
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from .._core import checks as _checks
from .._core.reflection import unwrap
from .._core.remedies import explain_errors
from .._core.scope import seeded
from ..scores.uncertainty import RunningMoments

__all__ = ["Divergence", "KLWeight", "blundell", "constant", "divergence", "linear_warmup", "per_weight"]


KLWeight = Callable[[int, int, int], float]
"""Function from (epoch, batch, num_batches) to the weight of the KL term. Epochs and batches are counted from 0."""

LARGEST_WEIGHT = 1e30  # heuristic: smaller KL weights already hide the data, and single precision ends at 3e38
CHUNK_NUMBERS = 2**22  # heuristic: values that a Monte Carlo estimate draws at once; in float64 they take 32 MB


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

    The weight 1 gives the ELBO, and a smaller weight gives a cold posterior. With the weight 0, a fit ignores the
    prior.

    Example:
        >>> from pyro_bnn import kl
        >>> kl.constant(0.1)(0, 3, 100)
        0.1
    """
    return _Constant(check_weight(weight))


def as_function(weight: float | KLWeight) -> KLWeight:
    """Return the KL weight as a function of the step; a number becomes :func:`constant`."""
    if callable(weight) and not isinstance(weight, type):
        return weight
    return constant(cast("float", weight))  # raises for anything but a number


def check_weight(weight: float) -> float:
    """Return a KL weight if it is a number from 0 to 1e30; else raise a `ValueError`."""
    found = _checks.as_float(weight)
    if not found >= 0 or weight == float("inf"):
        raise ValueError(f"a KL weight must be a finite number of at least 0, got {_checks.got(weight)}.")
    if found > LARGEST_WEIGHT:
        raise ValueError(f"a KL weight must be at most {LARGEST_WEIGHT:g}; 1 gives the ELBO, 0.1 a tenth of the KL.")
    return found


def blundell() -> KLWeight:
    r"""Return a weight that halves from each batch to the next: :math:`M\, 2^{M-i} / (2^M - 1)` for i = 1, ..., M.

    The mean weight over the M batches of an epoch is 1.

    References:
        Blundell et al. (2015), https://arxiv.org/abs/1505.05424, section 3.4.

    Example:
        >>> from pyro_bnn import kl
        >>> [round(kl.blundell()(0, batch, 3), 4) for batch in range(3)]
        [1.7143, 0.8571, 0.4286]
    """
    return _Halving()


def per_weight(num_weights: int) -> KLWeight:
    """Return the constant weight 1 / `num_weights`, as in some other libraries. It gives a very cold posterior.

    Example:
        >>> from pyro_bnn import kl
        >>> kl.per_weight(1000)(0, 0, 10)  # epoch, batch, number of batches
        0.001
    """
    return constant(1 / _checks.at_least("num_weights", num_weights, 1))


def linear_warmup(num_epochs: int, weight: float = 1.0) -> KLWeight:
    """Return a weight that grows by equal amounts from near 0 to `weight` in `num_epochs` epochs, and then stays there.

    Example:
        >>> from pyro_bnn import kl
        >>> weight = kl.linear_warmup(2)
        >>> weight(0, 0, 2), weight(0, 1, 2), weight(5, 0, 2)
        (0.25, 0.5, 1.0)
    """
    num_epochs = _checks.at_least("num_epochs", num_epochs, 1)
    return _Warmup(num_epochs, check_weight(weight))


@dataclass(frozen=True)
class Divergence:
    """A Kullback-Leibler divergence, in nats; :func:`divergence` has an example.

    Args:
        value: The divergence, a tensor of the batch shape. A Monte Carlo estimate of a small divergence can be below 0.
        standard_error: Standard error of the value, with the value's shape; 0 for a closed form or an infinite value.
        num_samples: Number of draws of the estimate; 0 for a closed form.
    """

    value: Tensor
    standard_error: Tensor
    num_samples: int


def divergence(
    p: Distribution,
    q: Distribution,
    *,
    closed_form: bool = True,
    num_samples: int = 10_000,
    seed: int | None = None,
) -> Divergence:
    r"""Return the Kullback-Leibler divergence KL(p || q), which is not symmetric.

    .. math:: \mathrm{KL}(p \,\|\, q) = E_{w \sim p}[\log p(w) - \log q(w)] \ge 0, \quad 0 \text{ iff } p = q.

    ``divergence(target, guide)`` is the *forward* KL; a guide that minimises it covers all of the target.
    ``divergence(guide, target)`` is the *reverse* KL of variational inference; a guide that minimises it stays close to
    one mode.

    The closed form of torch or Pyro is used if there is one, also under ``to_event``; otherwise the divergence is
    estimated from draws of p. Closed forms are differentiable, and so are estimates if p has reparameterised draws.

    Args:
        p: The distribution over which the mean is taken.
        q: The distribution with which p is compared, of the same batch and event shape.
        closed_form: Whether to use a closed form if there is one.
        num_samples: Number S of draws of an estimate. Memory grows with S only if gradients are needed.
        seed: Seed of the draws; with ``None``, torch's generators are used.

    Returns:
        The divergence, with one value per element of the batch shape. It is infinite if p has draws outside the support
        of q.

    Raises:
        ValueError: If the shapes differ, if `num_samples` is below 2, if p or q has no density, or if a gradient
            would need draws of p that are not reparameterised.

    References:
        Bishop (2006), Pattern Recognition and Machine Learning, section 10.1.2, on the two directions.

    Example:
        >>> from pyro.distributions import Normal
        >>> from pyro_bnn import kl
        >>> found = kl.divergence(Normal(0.0, 1.0), Normal(1.0, 1.0))
        >>> found.value, found.num_samples  # a closed form
        (tensor(0.5000), 0)
    """
    num_samples = _checks.at_least("num_samples", num_samples, 2)
    _checks.flag("closed_form", closed_form)
    if seed is not None:
        _checks.seed(seed)
    for name, distribution in (("p", p), ("q", q)):
        _checks.kind(name, distribution, Distribution, "a torch or Pyro distribution")
    if p.batch_shape != q.batch_shape or p.event_shape != q.event_shape:
        raise ValueError(
            "`p` and `q` must have the same batch and event shape, got batch shapes "
            f"{tuple(p.batch_shape)} and {tuple(q.batch_shape)}, event shapes {tuple(p.event_shape)} and "
            f"{tuple(q.event_shape)}; use `.expand(batch_shape)` and `.to_event(num_dims)`."
        )
    if any(isinstance(unwrap(distribution), (Delta, MaskedDistribution)) for distribution in (p, q)):
        raise ValueError("`p` and `q` must have densities, got a Delta or a masked distribution.")
    if closed_form:
        with suppress(NotImplementedError):
            value = _closed_form(p, q)
            return Divergence(value, torch.zeros_like(value), 0)
    with seeded(seed):
        return _monte_carlo(p, q, num_samples)


def _closed_form(p: Distribution, q: Distribution) -> Tensor:
    """Compute a closed form, and sum it over the event axes that `to_event` has made."""
    base_p, base_q = unwrap(p), unwrap(q)
    if len(base_p.event_shape) != len(base_q.event_shape):
        return kl_divergence(p, q)
    value = kl_divergence(base_p, base_q)
    return value.flatten(len(p.batch_shape)).sum(-1) if value.dim() > len(p.batch_shape) else value


def _monte_carlo(p: Distribution, q: Distribution, num_samples: int) -> Divergence:
    """Estimate the divergence from chunks of draws. The standard error has no gradient."""
    chunk = max(1, CHUNK_NUMBERS // max(1, (p.batch_shape + p.event_shape).numel()))
    moments, total = RunningMoments(), torch.zeros(())
    while moments.count < num_samples:
        log_ratio = _log_ratio(p, q, min(chunk, num_samples - moments.count))  # (chunk, *batch)
        moments.add(log_ratio.detach())
        total = total.to(log_ratio) + log_ratio.sum(0)
    assert moments.variance is not None
    value, error = total / num_samples, (moments.variance / num_samples).sqrt()
    return Divergence(value, error.masked_fill(value == math.inf, 0.0), num_samples)


def _log_ratio(p: Distribution, q: Distribution, size: int) -> Tensor:
    draws = p.rsample((size,)) if p.has_rsample else p.sample((size,))
    log_p = p.log_prob(draws)
    if log_p.requires_grad and not p.has_rsample:
        raise ValueError(
            f"the divergence has no gradient in the parameters of `p`, {type(p).__name__}, whose draws are not "
            "reparameterised; detach them, or call this under `torch.no_grad()`."
        )
    inside = torch.tensor(True) if q.support is None else q.support.check(draws)
    if bool(inside.all()):
        return log_p - q.log_prob(draws)
    mask = inside.reshape(inside.shape + (1,) * (draws.dim() - inside.dim()))
    log_q = q.log_prob(torch.where(mask, draws, q.sample((size,))))  # draws from q replace those outside
    return log_p - log_q.masked_fill(~inside, -math.inf)


explain_errors(__name__)
