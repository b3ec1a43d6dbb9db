"""Small networks and layers."""

from .._core.remedies import explain_missing
from ._networks import MCDropout as MCDropout
from ._networks import Standardize as Standardize
from ._networks import lenet5 as lenet5
from ._networks import mlp as mlp
from ._networks import resnet20 as resnet20

__all__ = ["MCDropout", "Standardize", "lenet5", "mlp", "resnet20"]

explain_missing(__name__)
