"""Maps from a guide's free parameters to standard deviations.

The name of a map is the prefix of the guide's parameters, as in ``rho.net.0.weight``. To add a map, write a class in
this file and add its name to `__all__`; all tests then include it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .._core import checks as _checks
from .._core.remedies import explain_errors

__all__ = ["Capped", "LogVariance", "Precision", "ScaleMap", "Softplus"]


LARGEST_EXPONENT = 80.0  # slightly below the logarithm of the largest number in single precision


def _require_positive(scale: Tensor) -> None:
    if not bool((_checks.real_tensor("scale", scale) > 0).all()):
        raise ValueError(f"`scale` must be above 0, got {float(scale.min()):g}; pass a positive scale.")


class ScaleMap(ABC):
    """A map from a free parameter to a standard deviation."""

    name: ClassVar[str]
    """Prefix of the parameters' names in a guide. It must be a Python identifier."""

    moderate: ClassVar[float] = 0.0
    """Value of the free parameter of removed weights."""

    @abstractmethod
    def __call__(self, parameter: Tensor) -> Tensor:
        """Return the scale, which is above 0, and differentiable."""

    @abstractmethod
    def inverse(self, scale: Tensor) -> Tensor:
        """Return the parameter whose scale is `scale`."""

    def start(self, scale: Tensor) -> Tensor:
        """Return the initial parameter for an initial scale; :class:`Capped` may start at a smaller scale."""
        return self.inverse(scale)

    @abstractmethod
    def slope(self, parameter: Tensor, scale: Tensor, out: Tensor) -> Tensor:
        """Write the derivative of the scale with respect to the parameter into `out`, and return `out`.

        All tensors have shape (P,). `out` must not share memory with the other arguments.
        """

    def write(self, parameter: Tensor, out: Tensor, scratch: Tensor) -> None:
        """Write the scale into `out`, without gradients. A subclass may override this to allocate no memory.

        `parameter` and `out` have shape (P,). `scratch` has shape (2 or more, P) and may be overwritten.
        """
        out.copy_(self(parameter))


@dataclass(frozen=True)
class Softplus(ScaleMap):
    r"""The scale :math:`\sigma = \log(1 + e^\rho)`.

    If you add a constant to the parameter, small scales are multiplied by a factor, and large ones grow by the
    constant.

    References:
        Blundell et al. (2015), https://arxiv.org/abs/1505.05424, section 3.2.

    Example:
        >>> import torch
        >>> from pyro_bnn import scale_maps
        >>> scale_maps.Softplus()(torch.tensor([-3.0, 0.0]))
        tensor([0.0486, 0.6931])
    """

    name: ClassVar[str] = "rho"

    def __call__(self, parameter: Tensor) -> Tensor:
        return softplus(_checks.real_tensor("parameter", parameter))

    def inverse(self, scale: Tensor) -> Tensor:
        r"""Return :math:`\sigma + \log(1 - e^{-\sigma})`, which neither overflows nor loses digits."""
        _require_positive(scale)
        return scale + torch.log(-torch.expm1(-scale))

    def slope(self, parameter: Tensor, scale: Tensor, out: Tensor) -> Tensor:
        return torch.sigmoid(parameter, out=out)

    def write(self, parameter: Tensor, out: Tensor, scratch: Tensor) -> None:
        r"""Write the scale into `out` in full relative precision, even if it is tiny; see :meth:`ScaleMap.write`.

        Let :math:`u = e^\rho`, and let v be the rounded value of 1 + u. Then
        :math:`\log(1 + u) = \log v - ((v - 1) - u) / v`. On a CPU, this formula replaces torch's softplus, which is
        sometimes slow: its log1p took 0.5 ms for 478,410 numbers in some processes and 6 ms in others.
        """
        if not parameter.is_cpu or float(parameter.max()) > LARGEST_EXPONENT:
            softplus(parameter, out=out)  # type: ignore[call-arg]
            return
        u = torch.exp(parameter, out=out)
        v = torch.add(u, 1, out=scratch[0])
        error = torch.sub(v, 1, out=scratch[1]).sub_(u).div_(v)
        torch.log(v, out=out).sub_(error)


@dataclass(frozen=True)
class LogVariance(ScaleMap):
    r"""The scale :math:`\sigma = e^{v / 2}`: the parameter v is the logarithm of the variance.

    If you add a constant to the parameter, the scale is multiplied by a factor.

    Example:
        >>> import torch
        >>> from pyro_bnn import scale_maps
        >>> scale_maps.LogVariance()(torch.tensor([0.0, -4.0]))
        tensor([1.0000, 0.1353])
    """

    name: ClassVar[str] = "log_variance"

    def __call__(self, parameter: Tensor) -> Tensor:
        return (0.5 * _checks.real_tensor("parameter", parameter)).exp()

    def inverse(self, scale: Tensor) -> Tensor:
        _require_positive(scale)
        return 2 * scale.log()

    def slope(self, parameter: Tensor, scale: Tensor, out: Tensor) -> Tensor:
        return torch.mul(scale, 0.5, out=out)

    def write(self, parameter: Tensor, out: Tensor, scratch: Tensor) -> None:
        torch.mul(parameter, 0.5, out=out).exp_()


FIRST_SHARE = 0.9  # heuristic: largest initial scale over the cap, where the slope is a hundredth of that of Softplus


@dataclass(frozen=True)
class Capped(ScaleMap):
    r"""The scale :math:`\sigma = s / (1 + s / m)` with :math:`s = \log(1 + e^\rho)`. The scale never exceeds the cap m.

    Far below the cap, this map is almost equal to :class:`Softplus`. The slope :math:`(\sigma / s)^2\, ds / d\rho` is
    above 0 everywhere, so a scale at the cap can decrease again, unlike a clamped scale. Initial scales are at most
    nine tenths of the cap. In a :class:`~pyro_bnn.LowRankGuide` the cap applies to the scales :math:`\sigma`, not to
    the marginal standard deviations.

    Args:
        max_scale: The cap m, above 0.

    Example:
        >>> import torch
        >>> from pyro_bnn import scale_maps
        >>> scale_maps.Capped(0.1)(torch.tensor([-3.0, 0.0, 100.0]))
        tensor([0.0327, 0.0874, 0.0999])
    """

    name: ClassVar[str] = "capped_rho"

    max_scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_scale", _checks.positive("max_scale", self.max_scale))

    def __call__(self, parameter: Tensor) -> Tensor:
        scale = softplus(_checks.real_tensor("parameter", parameter))
        return (scale / (1 + scale / self.max_scale)).clamp(max=self.max_scale)  # rounding may exceed the cap

    def inverse(self, scale: Tensor) -> Tensor:
        """Return the parameter whose softplus is s = `scale` / (1 - `scale` / m)."""
        _require_positive(scale)
        if not bool((scale < self.max_scale).all()):
            raise ValueError(f"`scale` must be below `max_scale` {self.max_scale:g}, got {float(scale.max()):g}.")
        return Softplus().inverse(scale / (1 - scale / self.max_scale))

    def start(self, scale: Tensor) -> Tensor:
        """Return the parameter for `scale`, or for nine tenths of `max_scale` if `scale` is larger."""
        _checks.scale_in("max_scale", self.max_scale, scale.dtype)
        return self.inverse(scale.clamp(max=FIRST_SHARE * self.max_scale))

    def slope(self, parameter: Tensor, scale: Tensor, out: Tensor) -> Tensor:
        r"""Write the logistic function times :math:`(\sigma / s)^2 = (1 - \sigma / m)^2` into `out`."""
        torch.sigmoid(parameter, out=out)
        for _ in range(2):
            out.addcmul_(out, scale, value=-1 / self.max_scale)
        return out

    def write(self, parameter: Tensor, out: Tensor, scratch: Tensor) -> None:
        Softplus().write(parameter, out, scratch)
        divisor = torch.div(out, self.max_scale, out=scratch[0]).add_(1)
        out.div_(divisor).clamp_(max=self.max_scale)


@dataclass(frozen=True)
class Precision(ScaleMap):
    r"""The scale :math:`\sigma = S^{-1/2}`: the parameter S is the precision, one divided by the variance.

    Use this map with :func:`~pyro_bnn.optim.natural_gradient`, whose steps keep the precision above 0. Steps of an
    optimizer such as Adam can make the precision negative, and are far too small for precisions in the thousands.

    Example:
        >>> import torch
        >>> from pyro_bnn import scale_maps
        >>> scale_maps.Precision()(torch.tensor([1.0, 10_000.0]))
        tensor([1.0000, 0.0100])
    """

    name: ClassVar[str] = "precision"
    moderate: ClassVar[float] = 1.0

    def __call__(self, parameter: Tensor) -> Tensor:
        return _checks.real_tensor("parameter", parameter).rsqrt()

    def inverse(self, scale: Tensor) -> Tensor:
        _require_positive(scale)
        return scale.reciprocal().square()

    def slope(self, parameter: Tensor, scale: Tensor, out: Tensor) -> Tensor:
        r"""Write :math:`-\sigma / (2 S)` into `out`, for the scale :math:`\sigma` and the precision S."""
        return torch.div(scale, parameter, out=out).mul_(-0.5)

    def write(self, parameter: Tensor, out: Tensor, scratch: Tensor) -> None:
        torch.rsqrt(parameter, out=out)


explain_errors(__name__)
