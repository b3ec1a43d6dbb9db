"""Small networks and layers."""

from .._core.remedies import explain_errors
from ._networks import MCDropout, Standardize, lenet5, mlp, resnet20

__all__ = ["MCDropout", "Standardize", "lenet5", "mlp", "resnet20"]

explain_errors(__name__)
