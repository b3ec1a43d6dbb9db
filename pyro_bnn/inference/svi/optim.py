"""Natural gradients, and torch's optimizers with a schedule or clipped gradients, for the argument `optimizer`."""

from ._natural import natural_gradient as natural_gradient
from ._optimizers import clipped as clipped
from ._optimizers import scheduled as scheduled

__all__ = ["clipped", "natural_gradient", "scheduled"]
