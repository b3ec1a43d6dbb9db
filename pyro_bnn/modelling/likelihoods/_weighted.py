"""Observations whose log-densities are weighted in a fit."""

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Distribution, constraints

from ..._core import checks as _checks

Size = torch.Size | list[int] | tuple[int, ...]


class Weighted(TorchDistribution):
    """A distribution whose log-densities are multiplied by weights, while its draws are those of the distribution.

    Args:
        base: Distribution of single elements, batch shape ``(*draws, N, ...)``.
        weights: Factors of the log-densities, a shape that broadcasts to the batch shape.
    """

    arg_constraints = {}  # noqa: RUF012  # torch's own convention

    def __init__(self, base: TorchDistributionMixin, weights: Tensor) -> None:
        self.base, self.weights = base, weights
        super().__init__(base.batch_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Support of the base distribution."""
        return self.base.support

    def expand(self, batch_shape: Size, _instance: Distribution | None = None) -> "Weighted":
        """The same with a larger batch shape."""
        return Weighted(self.base.expand(batch_shape), self.weights)

    def sample(self, sample_shape: Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws of the base distribution, which the weights do not change."""
        draws: Tensor = self.base.sample(torch.Size(sample_shape))
        return draws

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of the base distribution times the weight, in nats."""
        weighted: Tensor = self.base.log_prob(value) * self.weights
        return weighted


def join_weights(y: Tensor, weights: object) -> Tensor:
    """Targets and their weights side by side in a new last axis of two; see :meth:`Likelihood.join_weights`."""
    _checks.kind("y", y, Tensor, "a tensor of targets")
    dtype = y.dtype if y.is_floating_point() else torch.get_default_dtype()
    try:
        factors = torch.as_tensor(weights, dtype=dtype, device=y.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"`weights` must be numbers, got {type(weights).__name__}.") from None
    if factors.shape == y.shape[:1]:
        factors = factors.reshape(-1, *[1] * (y.dim() - 1)).expand(y.shape)
    if factors.dim() and factors.shape != y.shape:
        raise ValueError(
            f"`weights` must be a number, or have the shape {_checks.shape(y)[:1]} or {_checks.shape(y)}, got "
            f"{_checks.shape(factors)}."
        )
    joined = torch.stack([y.to(dtype), factors.expand(y.shape)], -1)
    check_joined(joined)
    return joined


def check_joined(y: Tensor) -> None:
    """Raise unless targets and weights, shape (N, ..., 2), are finite and no weight is negative."""
    if not y.is_floating_point():
        raise ValueError(f"targets with weights must be floating point, got {y.dtype}; make them by `join_weights`.")
    _checks.finite("y", y)
    if bool((y[..., 1] < 0).any()):
        raise ValueError(f"weights of targets must be at least 0, got values down to {float(y[..., 1].min()):.3g}.")


def class_weights(weights: object) -> Tensor:
    """The weights of C classes as a vector of double precision.

    Raises:
        ValueError: If they are not at least two finite numbers above 0.
    """
    try:
        vector = torch.as_tensor(weights, dtype=torch.float64).detach().to("cpu", copy=True)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"`class_weights` must be one number per class, got {weights!r}.") from None
    if vector.dim() != 1 or len(vector) < 2:
        raise ValueError(f"`class_weights` must be a vector of C numbers, got shape {_checks.shape(vector)}.")
    if not bool((torch.isfinite(vector) & (vector > 0)).all()):
        raise ValueError(f"`class_weights` must be finite and above 0, got {vector.tolist()}.")
    return vector
