"""Small networks and layers."""

from ._dense import mlp as mlp
from ._dropout import MCDropout as MCDropout
from ._lenet import lenet5 as lenet5
from ._residual import resnet20 as resnet20
from ._standardize import Standardize as Standardize

__all__ = ["MCDropout", "Standardize", "lenet5", "mlp", "resnet20"]
