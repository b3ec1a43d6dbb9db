"""Small networks and layers."""

from ._convolutional import lenet5 as lenet5
from ._convolutional import resnet20 as resnet20
from ._dense import mlp as mlp
from ._layers import MCDropout as MCDropout
from ._layers import Standardize as Standardize

__all__ = ["MCDropout", "Standardize", "lenet5", "mlp", "resnet20"]
