"""Gaussians of which some elements are fixed at zero."""

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints, kl_divergence, register_kl

from ..distributions import Size


class PrunedNormal(TorchDistribution):
    """Independent Gaussians, but exactly 0 where an element was removed.

    A removed weight is no random variable any more, and costs no divergence: its density is taken to be the prior's at
    zero, so that the two cancel, and the ELBO is that of a network without it. No gradient reaches its parameters.

    Args:
        normal: The Gaussians.
        keep: Which elements are random, boolean.
        prior: What the elements are drawn from in the model.
    """

    arg_constraints = {}  # noqa: RUF012  # torch's own convention
    support = constraints.real
    has_rsample = True

    def __init__(self, normal: Normal, keep: Tensor, prior: Distribution) -> None:
        self.normal, self.keep, self.prior = normal, keep, prior
        super().__init__(normal.batch_shape, validate_args=False)

    def expand(self, batch_shape: Size, _instance: Distribution | None = None) -> "PrunedNormal":
        """The same with a larger batch shape."""
        return PrunedNormal(self.normal.expand(batch_shape), self.keep.expand(batch_shape), self.prior)

    @property
    def mean(self) -> Tensor:
        """Means, 0 where removed."""
        return self._or_zero(self.normal.mean)

    @property
    def variance(self) -> Tensor:
        """Variances, 0 where removed."""
        return self._or_zero(self.normal.variance)

    def rsample(self, sample_shape: Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws, 0 where removed."""
        return self._or_zero(self.normal.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density in nats; where removed, the prior's at zero."""
        at_zero = self.prior.log_prob(torch.zeros_like(value))
        return torch.where(self.keep, self.normal.log_prob(value), at_zero)

    def _or_zero(self, value: Tensor) -> Tensor:
        return torch.where(self.keep, value, torch.zeros_like(value))


@register_kl(PrunedNormal, Distribution)
def _divergence(q: PrunedNormal, p: Distribution) -> Tensor:
    return q._or_zero(kl_divergence(q.normal, p))
