"""Divergences between distributions."""

import math
from contextlib import suppress
from dataclasses import dataclass

import torch
from pyro.distributions import Delta, MaskedDistribution
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from ..._core import checks as _checks
from ..._core.reflection import unwrap
from ..._core.scope import seeded
from ...scores.uncertainty import RunningMoments

CHUNK_NUMBERS = 2**22
"""Heuristic: number of values that a Monte Carlo estimate draws at once; in float64 they take 32 MB."""


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

    ``divergence(target, guide)`` is the *forward* KL. A guide that minimises the forward KL covers all of the target.
    ``divergence(guide, target)`` is the *reverse* KL of variational inference. A guide that minimises the reverse KL
    stays close to one mode.

    The closed form of torch or Pyro is used if there is one, also under ``to_event``; otherwise the divergence is
    estimated by a mean over draws from p. A closed form is differentiable. An estimate is differentiable if p has
    reparameterised draws.

    Args:
        p: The distribution over which the mean is taken.
        q: The distribution with which p is compared, of the same batch and event shape.
        closed_form: Whether to use a closed form if there is one; if false, the divergence is always estimated.
        num_samples: Number S of draws of a Monte Carlo estimate. The draws are made in chunks, so memory grows with S
            only if gradients are needed.
        seed: Seed that makes the estimate repeatable and leaves torch's generators unchanged; None uses torch's
            generators.

    Returns:
        The divergence, with one value per element of the batch shape. A value is infinite if p has draws outside the
        support of q.

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
    """Return the closed form of torch or Pyro, summed over the event of distributions inside `to_event`."""
    base_p, base_q = unwrap(p), unwrap(q)
    if len(base_p.event_shape) != len(base_q.event_shape):
        return kl_divergence(p, q)
    value = kl_divergence(base_p, base_q)
    return value.flatten(len(p.batch_shape)).sum(-1) if value.dim() > len(p.batch_shape) else value


def _monte_carlo(p: Distribution, q: Distribution, num_samples: int) -> Divergence:
    """Estimate the divergence from chunks of draws. The value is differentiable, but its standard error is not."""
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
