"""The scale is the exponential of the parameter; the class goes into `pyro_bnn/inference/scale_maps.py`."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyro_bnn.inference.scale_maps import ScaleMap


@dataclass(frozen=True)
class LogScale(ScaleMap):
    r"""The scale :math:`\sigma = e^r`: the parameter r is the logarithm of the scale.

    Example:
        >>> LogScale()(torch.tensor([0.0, -2.0]))
        tensor([1.0000, 0.1353])
    """

    name: ClassVar[str] = "log_scale"

    def __call__(self, parameter: Tensor) -> Tensor:
        """The exponential of the parameter."""
        return parameter.exp()

    def inverse(self, scale: Tensor) -> Tensor:
        """The logarithm of the scale."""
        return scale.log()

    def slope(self, parameter: Tensor, scale: Tensor, out: Tensor) -> Tensor:
        """The scale itself."""
        return out.copy_(scale)
