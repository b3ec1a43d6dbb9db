"""What a prior is."""

from abc import ABC, abstractmethod

from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn


class Prior(ABC):
    """Maps one parameter of a network to its prior distribution.

    A subclass implements :meth:`elementwise`; the base class gives the result the parameter's own shape, so that the
    prior of a whole tensor is one Pyro site.
    """

    @abstractmethod
    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """The prior of the elements of `parameter`, on its device and in its dtype.

        Args:
            name: Site name, such as ``net.0.weight``.
            parameter: The parameter with its initial value.
            module: The layer that owns it.

        Returns:
            A distribution over real numbers whose batch shape broadcasts to the parameter's shape.
        """

    def __call__(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """The prior of the whole parameter: event shape `parameter.shape`, no batch shape."""
        return self.elementwise(name, parameter, module).expand(parameter.shape).to_event(parameter.dim())
