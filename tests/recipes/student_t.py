"""A prior with heavy tails."""

from dataclasses import dataclass

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks
from ._base import Prior


@dataclass(frozen=True)
class StudentTPrior(Prior):
    r"""Independent Student-t on every element, with density proportional to :math:`(1 + w^2 / (\nu s^2))^{-(\nu+1)/2}`.

    Args:
        df: Degrees of freedom :math:`\nu`; the variance is finite above 2.
        scale: Scale s.

    Raises:
        ValueError: If a number is not above 0.

    References:
        Fortuin et al. (2022), Bayesian Neural Network Priors Revisited, https://arxiv.org/abs/2102.06571.

    Example:
        >>> StudentTPrior(4.0)
        StudentTPrior(df=4.0, scale=1.0)
    """

    df: float = 3.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _checks.positive("df", self.df)
        _checks.positive("scale", self.scale)

    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """StudentT(df, 0, scale)."""
        df, scale = parameter.new_tensor(self.df), parameter.new_tensor(self.scale)
        return dist.StudentT(df, parameter.new_zeros(()), scale, validate_args=False)
