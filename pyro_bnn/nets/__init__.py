"""Small networks and layers."""

from .._core.remedies import explain_missing
from ._convolutional import lenet5 as lenet5
from ._convolutional import resnet20 as resnet20
from ._layers import MCDropout as MCDropout
from ._layers import Standardize as Standardize
from ._layers import mlp as mlp

__all__ = ["MCDropout", "Standardize", "lenet5", "mlp", "resnet20"]

explain_missing(__name__)
