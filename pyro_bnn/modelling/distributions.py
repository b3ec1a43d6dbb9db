"""Distributions that Pyro does not have."""

import math
from abc import abstractmethod
from typing import Any

import torch
from pyro.distributions import Categorical, TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all
from torch.nn.functional import logsigmoid

from .._core import checks as _checks
from .._core.gaussian_mixture import mixture_cdf, mixture_icdf
from .._core.remedies import explain_errors

__all__ = ["NormalMixture", "ScaleMixtureNormal"]


Size = torch.Size | list[int] | tuple[int, ...]


class _Mixture(TorchDistribution):
    support = constraints.real
    has_rsample = False

    @abstractmethod
    def _components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights, means and standard deviations of the components, each ``(*batch, M)``."""

    def expand(self, batch_shape: Size, _instance: Distribution | None = None) -> Any:
        new = self._get_checked_instance(type(self), _instance)
        batch_shape, old = torch.Size(batch_shape), len(self.batch_shape)
        for name in self.arg_constraints:
            value = getattr(self, name)
            setattr(new, name, value.expand(batch_shape + value.shape[old:]))
        TorchDistribution.__init__(new, batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability that a draw is at most `value`."""
        self._check(value)
        components = self._components()
        return mixture_cdf(*components, value).to(torch.promote_types(value.dtype, components[2].dtype))

    def icdf(self, value: Tensor) -> Tensor:
        """Return the quantile of a probability, accurate in both tails; at the probabilities 0 and 1 it is infinite."""
        if self._validate_args:
            inside = (_checks.tensor("value", value) >= 0) & (value <= 1)
            if not bool(inside.all()):
                raise ValueError(
                    f"probabilities must lie in [0, 1] to have a quantile, got {value.flatten()[:3].tolist()}."
                )
        components = self._components()
        quantile = mixture_icdf(*components, value.expand(torch.broadcast_shapes(value.shape, self.batch_shape)))
        return quantile.to(torch.promote_types(value.dtype, components[2].dtype))

    def _check(self, value: Tensor) -> None:
        """Raise unless values are finite and broadcast with the batch shape."""
        if not self._validate_args:
            return
        _checks.finite("value", value)
        try:
            torch.broadcast_shapes(value.shape, self.batch_shape)
        except RuntimeError:
            expected = tuple(self.batch_shape)
            raise ValueError(f"`value` must fit the batch shape {expected}, got {_checks.shape(value)}.") from None


class ScaleMixtureNormal(_Mixture):
    r"""Mixture of a narrow and a wide Gaussian, both with mean 0 (a continuous spike and slab).

    .. math:: p(w) = \pi\, N(w; 0, \sigma_1^2) + (1 - \pi)\, N(w; 0, \sigma_2^2).

    With the wider component a and the narrower one b, the log-density is computed as

    .. math:: \log p(w) = \log \pi_a N(w; 0, \sigma_a^2) + \mathrm{softplus}(z), \qquad
              z = \log\frac{\pi_b\sigma_a}{\pi_a\sigma_b} - \frac{w^2}{2}(\sigma_b^{-2} - \sigma_a^{-2}),

    which neither underflows in the tails nor loses digits by cancellation.

    Args:
        mixing: Weight of the first component, strictly between 0 and 1.
        scale1: Standard deviation of the first component, above 0.
        scale2: Standard deviation of the second component, above 0.
        validate_args: Whether to check arguments and values, as in torch.

    Raises:
        ValueError: If an argument is outside its range.

    References:
        Blundell et al. (2015), Weight Uncertainty in Neural Networks, https://arxiv.org/abs/1505.05424, section 3.3.

    Example:
        >>> import math
        >>> import torch
        >>> from pyro_bnn import distributions
        >>> prior = distributions.ScaleMixtureNormal(0.5, 1.0, math.exp(-6))
        >>> prior.log_prob(torch.tensor([0.0, 1000.0]))
        tensor([ 4.3904e+00, -5.0000e+05])
    """

    arg_constraints = {  # noqa: RUF012  # torch's own convention
        "mixing": constraints.unit_interval,
        "scale1": constraints.positive,
        "scale2": constraints.positive,
    }

    def __init__(
        self,
        mixing: float | Tensor,
        scale1: float | Tensor,
        scale2: float | Tensor,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.mixing, self.scale1, self.scale2 = _broadcast(mixing=mixing, scale1=scale1, scale2=scale2)
        if _is_validated(validate_args):
            for name, upper in (("mixing", 1.0), ("scale1", math.inf), ("scale2", math.inf)):
                _check_open_interval(name, getattr(self, name), upper)
        self.unexpanded = (self.mixing, self.scale1, self.scale2)
        super().__init__(self.mixing.shape, validate_args=validate_args)

    def expand(self, batch_shape: Size, _instance: Distribution | None = None) -> "ScaleMixtureNormal":
        """Return the distribution with a larger batch shape."""
        new: ScaleMixtureNormal = super().expand(batch_shape, _instance)
        new.unexpanded = self.unexpanded
        return new

    @property
    def mean(self) -> Tensor:
        """Mean, which is 0."""
        return torch.zeros_like(self.scale1)

    @property
    def variance(self) -> Tensor:
        """Weighted mean of the components' variances."""
        return self.mixing * self.scale1.square() + (1 - self.mixing) * self.scale2.square()

    def sample(self, sample_shape: Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draw values of shape `(*sample_shape, *batch_shape)`, without gradients."""
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            first = torch.rand(shape, dtype=self.mixing.dtype, device=self.mixing.device) < self.mixing
            noise = torch.randn(shape, dtype=self.scale1.dtype, device=self.scale1.device)
            return noise * torch.where(first, self.scale1, self.scale2)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density in nats, whose gradients with respect to value and parameters are exact."""
        self._check(value)
        mixing, scale1, scale2 = self.unexpanded  # to compute one logarithm instead of one per weight
        first_is_wide = scale1 >= scale2
        wide = torch.where(first_is_wide, scale1, scale2)
        narrow = torch.where(first_is_wide, scale2, scale1)
        log_mixing, log_rest = mixing.log(), (-mixing).log1p()
        log_weight_wide = torch.where(first_is_wide, log_mixing, log_rest)
        log_weight_narrow = torch.where(first_is_wide, log_rest, log_mixing)

        square = value.square()
        constant = log_weight_narrow - log_weight_wide + wide.log() - narrow.log()
        log_odds = constant - square * (0.5 * (narrow.pow(-2) - wide.pow(-2)))
        base = log_weight_wide - wide.log() - 0.5 * math.log(2 * math.pi) - square * (0.5 * wide.pow(-2))
        result = base - logsigmoid(-log_odds)
        return result.expand(torch.broadcast_shapes(result.shape, self.batch_shape))

    def _components(self) -> tuple[Tensor, Tensor, Tensor]:
        weights = torch.stack([self.mixing.double(), 1 - self.mixing.double()], -1)
        scales = torch.stack([self.scale1, self.scale2], -1)
        return weights, torch.zeros_like(scales), scales


class NormalMixture(_Mixture):
    r"""Finite mixture of univariate Gaussians.

    .. math:: p(y) = \sum_{m=1}^M \pi_m\, N(y; \mu_m, \sigma_m^2), \qquad \pi = \mathrm{softmax}(\text{logits}).

    Unlike `MixtureSameFamily`, this class has quantiles, and separates the variance within components from the variance
    between them. All arguments are tensors, so mixtures can be stacked.

    Args:
        logits: Unnormalised log-weights of the M components, shape (..., M).
        loc: Means of the components, shape (..., M).
        scale: Standard deviations of the components, above 0, shape (..., M).
        validate_args: Whether to check arguments and values, as in torch.

    Example:
        >>> import torch
        >>> from pyro_bnn import distributions
        >>> mixture = distributions.NormalMixture(
        ...     torch.zeros(2), torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5])
        ... )
        >>> mixture.mean, mixture.variance, mixture.cdf(torch.tensor(0.0))
        (tensor(0.), tensor(1.2500), tensor(0.5000))
    """

    arg_constraints = {  # noqa: RUF012  # torch's own convention
        "logits": constraints.real_vector,
        "loc": constraints.real_vector,
        "scale": constraints.independent(constraints.positive, 1),
    }

    def __init__(self, logits: Tensor, loc: Tensor, scale: Tensor, *, validate_args: bool | None = None) -> None:
        self.logits, self.loc, self.scale = _broadcast(logits=logits, loc=loc, scale=scale)  # (..., M)
        if self.logits.dim() == 0:
            raise ValueError("`logits`, `loc` and `scale` need a last axis of components, got three numbers.")
        if _is_validated(validate_args):
            for name in ("logits", "loc", "scale"):
                _checks.finite(name, getattr(self, name))
            _check_open_interval("scale", self.scale, math.inf)
        super().__init__(self.logits.shape[:-1], validate_args=validate_args)

    @property
    def weights(self) -> Tensor:
        """Probabilities of the components, shape (..., M)."""
        return self.logits.softmax(-1)

    @property
    def mean(self) -> Tensor:
        """Weighted mean of the components' means."""
        return (self.weights * self.loc).sum(-1)

    @property
    def within_variance(self) -> Tensor:
        """Weighted mean of the components' variances."""
        return (self.weights * self.scale.square()).sum(-1)

    @property
    def between_variance(self) -> Tensor:
        """Weighted variance of the components' means."""
        return (self.weights * (self.loc - self.mean.unsqueeze(-1)).square()).sum(-1)

    @property
    def variance(self) -> Tensor:
        """Variance within the components plus variance between them."""
        return self.within_variance + self.between_variance

    def sample(self, sample_shape: Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draw values of shape `(*sample_shape, *batch_shape)`, without gradients."""
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            index = Categorical(logits=self.logits, validate_args=False).sample(torch.Size(sample_shape)).unsqueeze(-1)
            loc, scale = (v.expand(*shape, -1).gather(-1, index).squeeze(-1) for v in (self.loc, self.scale))
            return loc + scale * torch.randn(shape, dtype=loc.dtype, device=loc.device)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density in nats."""
        self._check(value)
        standardised = (value.unsqueeze(-1) - self.loc) / self.scale
        parts = self.logits.log_softmax(-1) - self.scale.log() - 0.5 * standardised.square()  # (..., M)
        return parts.logsumexp(-1) - 0.5 * math.log(2 * math.pi)

    def _components(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.logits.double().softmax(-1), self.loc, self.scale


def _is_validated(validate_args: bool | None) -> bool:
    return Distribution._validate_args if validate_args is None else validate_args


def _check_open_interval(name: str, value: Tensor, upper: float) -> None:
    if not bool(((value > 0) & (value < upper)).all()):
        expected = "finite and above 0" if upper == math.inf else f"strictly between 0 and {upper:g}"
        raise ValueError(f"`{name}` must be {expected}, got {value.flatten()[:3].tolist()}.")


def _broadcast(**arguments: float | Tensor) -> tuple[Tensor, ...]:
    values = [v if isinstance(v, Tensor) else _checks.number(name, v) for name, v in arguments.items()]
    try:
        return tuple(broadcast_all(*values))
    except RuntimeError:
        names = ", ".join(f"`{name}`" for name in arguments)
        shown = [tuple(value.shape) for value in arguments.values() if isinstance(value, Tensor)]
        raise ValueError(f"{names} must have shapes that fit each other, got {shown}.") from None


explain_errors(__name__)
