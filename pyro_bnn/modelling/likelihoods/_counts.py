"""Likelihoods of counts that vary more than a Poisson distribution allows."""

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Distribution

from ._distribution import MadeLikelihood


def negative_binomial(log_mean: Tensor, dispersion: Tensor) -> TorchDistributionMixin:
    r"""The negative binomial distribution with mean :math:`\mu` and variance :math:`\mu + \alpha \mu^2`."""
    logits = log_mean + dispersion.log()
    return dist.NegativeBinomial(dispersion.reciprocal(), logits=logits)


class NegativeBinomial(MadeLikelihood):
    r"""Counts with mean :math:`\mu = e^{f(x)}` and a variance above the mean.

    .. math:: \mathrm{Var}[y \mid f] = \mu + \alpha \mu^2.

    Output and targets have the same shape, (N, O) or (N,). A dispersion :math:`\alpha` near 0 gives a Poisson
    distribution; if it is below 0.001 in single precision, use :class:`~pyro_bnn.PoissonLikelihood`.

    Args:
        dispersion: The number :math:`\alpha`. A number fixes it, None learns it, starting at 1, and a distribution
            over positive numbers makes it the latent variable ``likelihood.dispersion`` with this prior.

    Raises:
        ValueError: If a number is not above 0, or a distribution is not over positive numbers.

    References:
        Cameron and Trivedi (2013), Regression Analysis of Count Data, section 3.3 (model NB2).
    """

    def __init__(self, dispersion: float | TorchDistributionMixin | None = None) -> None:
        super().__init__()
        self.add_positive("dispersion", dispersion)

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        (output,) = parts
        return negative_binomial(output, numbers["dispersion"])


class ZeroInflatedPoisson(MadeLikelihood):
    r"""Counts with more zeros than a Poisson distribution has.

    .. math:: y = 0 \text{ with probability } g(x), \text{ else } y \sim \mathrm{Poisson}(e^{f(x)}).

    Output of shape (N, 2 * O) goes with targets of shape (N, O): the first half of its last axis is f, the second the
    log-odds of g.

    References:
        Lambert (1992), Zero-Inflated Poisson Regression, https://doi.org/10.2307/1269547.
    """

    num_parts = 2

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        log_rate, gate = parts
        return dist.ZeroInflatedDistribution(dist.Poisson(log_rate.exp()), gate_logits=gate)


class ZeroInflatedNegativeBinomial(MadeLikelihood):
    r"""Counts with more zeros than a negative binomial distribution has.

    .. math:: y = 0 \text{ with probability } g(x), \text{ else } y \sim \mathrm{NB}(\mu = e^{f(x)}, \alpha).

    Output of shape (N, 2 * O) goes with targets of shape (N, O): the first half of its last axis is f, the second the
    log-odds of g.

    Args:
        dispersion: The number :math:`\alpha`, as for :class:`NegativeBinomial`.

    Raises:
        ValueError: If a number is not above 0, or a distribution is not over positive numbers.

    References:
        Greene (1994), Accounting for Excess Zeros and Sample Selection in Poisson and Negative Binomial Regression
        Models, https://ssrn.com/abstract=1293115.
    """

    num_parts = 2

    def __init__(self, dispersion: float | TorchDistributionMixin | None = None) -> None:
        super().__init__()
        self.add_positive("dispersion", dispersion)

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        log_mean, gate = parts
        base = negative_binomial(log_mean, numbers["dispersion"])
        return dist.ZeroInflatedDistribution(base, gate_logits=gate)
