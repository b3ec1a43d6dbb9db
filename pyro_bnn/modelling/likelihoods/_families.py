"""Likelihoods for overdispersed counts, for regression with outliers, and for proportions."""

from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Distribution

from ..._core import checks as _checks
from ._distribution import MadeLikelihood
from ._numbers import WEAK


def negative_binomial(log_mean: Tensor, dispersion: Tensor) -> TorchDistributionMixin:
    r"""Return a distribution with mean :math:`\mu` and variance :math:`\mu + \alpha \mu^2`."""
    logits = log_mean + dispersion.log()
    return dist.NegativeBinomial(dispersion.reciprocal(), logits=logits)


class NegativeBinomial(MadeLikelihood):
    r"""Counts with mean :math:`\mu = e^{f(x)}` and a variance above the mean.

    .. math:: \mathrm{Var}[y \mid f] = \mu + \alpha \mu^2.

    Output and targets have the same shape, (N, O) or (N,). A dispersion :math:`\alpha` near 0 gives a Poisson
    distribution. In single precision, use :class:`~pyro_bnn.PoissonLikelihood` if :math:`\alpha` is below 0.001.

    Args:
        dispersion: The dispersion :math:`\alpha`: a number; None to learn it, starting at 1; or a distribution over
            positive numbers, which is the prior of the latent variable ``likelihood.dispersion``.

    Raises:
        ValueError: If the dispersion is not above 0, or its distribution is not over positive numbers.

    References:
        Cameron and Trivedi (2013), Regression Analysis of Count Data, section 3.3 (model NB2).

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> counts = pb.likelihoods.NegativeBinomial(0.5)(torch.zeros(1))
        >>> counts.mean, counts.variance
        (tensor([1.]), tensor([1.5000]))
    """

    def __init__(self, dispersion: float | TorchDistributionMixin | None = None) -> None:
        super().__init__()
        self.add_positive("dispersion", dispersion)

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        (output,) = parts
        return negative_binomial(output, numbers["dispersion"])


class ZeroInflatedPoisson(MadeLikelihood):
    r"""Counts with more zeros than in a Poisson distribution.

    .. math:: y = 0 \text{ with probability } g(x), \text{ else } y \sim \mathrm{Poisson}(e^{f(x)}).

    Output of shape (N, 2 * O) goes with targets of shape (N, O). Along the last axis, f comes first, then the log-odds
    of g.

    References:
        Lambert (1992), Zero-Inflated Poisson Regression, https://doi.org/10.2307/1269547.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> output = torch.tensor([[1.0, 0.0]])  # log-rate, log-odds of a zero
        >>> pb.likelihoods.ZeroInflatedPoisson()(output).mean.round(decimals=2)
        tensor([[1.3600]])
    """

    num_parts = 2

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        log_rate, gate = parts
        return dist.ZeroInflatedDistribution(dist.Poisson(log_rate.exp()), gate_logits=gate)


class ZeroInflatedNegativeBinomial(MadeLikelihood):
    r"""Counts with more zeros than in a negative binomial distribution.

    .. math:: y = 0 \text{ with probability } g(x), \text{ else } y \sim \mathrm{NB}(\mu = e^{f(x)}, \alpha).

    Output of shape (N, 2 * O) goes with targets of shape (N, O). Along the last axis, f comes first, then the log-odds
    of g.

    Args:
        dispersion: The dispersion :math:`\alpha`, as for :class:`NegativeBinomial`.

    Raises:
        ValueError: If the dispersion is not above 0, or its distribution is not over positive numbers.

    References:
        Greene (1994), Accounting for Excess Zeros and Sample Selection in Poisson and Negative Binomial Regression
        Models, https://ssrn.com/abstract=1293115.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> likelihood = pb.likelihoods.ZeroInflatedNegativeBinomial(0.5)
        >>> output = torch.tensor([[1.0, 0.0]])  # log-mean, log-odds of a zero
        >>> likelihood(output).mean.round(decimals=2)
        tensor([[1.3600]])
    """

    num_parts = 2

    def __init__(self, dispersion: float | TorchDistributionMixin | None = None) -> None:
        super().__init__()
        self.add_positive("dispersion", dispersion)

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        log_mean, gate = parts
        base = negative_binomial(log_mean, numbers["dispersion"])
        return dist.ZeroInflatedDistribution(base, gate_logits=gate)


class StudentT(MadeLikelihood):
    r"""Student's t distribution, centred at the network's output, for regression with outliers.

    .. math:: y = f(x) + \sigma t, \qquad t \sim t_\nu, \qquad \mathrm{Var}[y \mid f] = \sigma^2 \frac{\nu}{\nu - 2}.

    Output and targets have the same shape, (N, O) or (N,). The fewer degrees of freedom there are, the less influence
    an outlier has.

    Args:
        df: Degrees of freedom :math:`\nu`: a number above 2; None to learn it, starting at 4; or a distribution over
            positive numbers, which is the prior of :math:`\nu - 2`, the latent variable ``likelihood.df_above_2``.
        scale: Scale :math:`\sigma`: a number; None to learn it, starting at 1; or a distribution over positive numbers,
            which is the prior of the latent variable ``likelihood.scale``; by default the weak ``LogNormal(0.0, 3.0)``.

    Raises:
        ValueError: If `df` is not above 2, if `scale` is not above 0, or if a distribution is not over positive
            numbers.

    References:
        Lange, Little and Taylor (1989), Robust Statistical Modeling Using the t Distribution,
        https://doi.org/10.2307/2290063.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> likelihood = pb.likelihoods.StudentT(df=4.0, scale=0.1)
        >>> round(float(likelihood(torch.zeros(1)).variance), 3)
        0.02
    """

    def __init__(
        self, df: float | TorchDistributionMixin | None = 4.0, scale: float | TorchDistributionMixin | None = WEAK
    ) -> None:
        super().__init__()
        above: Any = df
        if df is not None and not isinstance(df, Distribution):
            above = _checks.number("df", df) - 2
            if above <= 0:
                raise ValueError(
                    f"`df` must be above 2, got {df}: the variance would be infinite. For fewer use "
                    "`DistributionLikelihood(lambda out: dist.StudentT(df, out, scale))`."
                )
        self.add_positive("df_above_2", above, start=2.0)
        self.add_positive("scale", scale)

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        (output,) = parts
        return dist.StudentT(2 + numbers["df_above_2"], output, numbers["scale"])

    def extra_repr(self) -> str:
        fixed, text = self._buffers.get("fixed_df_above_2"), super().extra_repr()
        return text if fixed is None else f"df={2 + float(fixed):.4g},{text.partition(',')[2]}"


class Beta(MadeLikelihood):
    r"""Beta distribution of a proportion. The output is the log-odds of the distribution's mean.

    .. math:: y \sim \mathrm{Beta}(\mu\phi, (1 - \mu)\phi), \qquad \mu = \frac{1}{1 + e^{-f(x)}}, \qquad
              \mathrm{Var}[y \mid f] = \frac{\mu(1 - \mu)}{1 + \phi}.

    Output and targets have the same shape, (N, O) or (N,). Targets lie strictly between 0 and 1. If some targets are 0
    or 1, transform all targets, for example to ``(y * (N - 1) + 0.5) / N``.

    Args:
        precision: The precision :math:`\phi`: a number; None to learn it, starting at 10; or a distribution over
            positive numbers, which is the prior of the latent variable ``likelihood.precision``.

    Raises:
        ValueError: If the precision is not above 0, or its distribution is not over positive numbers.

    References:
        Ferrari and Cribari-Neto (2004), Beta Regression for Modelling Rates and Proportions,
        https://doi.org/10.1080/0266476042000214501; Smithson and Verkuilen (2006), A Better Lemon Squeezer?,
        https://doi.org/10.1037/1082-989X.11.1.54, for zeros and ones.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> shares = pb.likelihoods.Beta(precision=9.0)(torch.zeros(1))
        >>> shares.mean, shares.stddev.round(decimals=2)
        (tensor([0.5000]), tensor([0.1600]))
    """

    def __init__(self, precision: float | TorchDistributionMixin | None = None) -> None:
        super().__init__()
        self.add_positive("precision", precision, start=10.0)

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        (output,) = parts
        smallest = torch.finfo(output.dtype).tiny  # a mean that was rounded to 0 has no density
        above, below = (torch.sigmoid(logit) * numbers["precision"] for logit in (output, -output))
        return dist.Beta(above.clamp_min(smallest), below.clamp_min(smallest))

    def check_values(self, output: Tensor, y: Tensor) -> None:
        super().check_values(output, y)
        at_ends = (y <= 0) | (y >= 1)
        if bool(at_ends.any()):
            raise ValueError(
                f"targets of Beta must lie strictly between 0 and 1, got {int(at_ends.sum())} equal to 0 or 1; change "
                "all targets, as by `(y * (N - 1) + 0.5) / N`."
            )
