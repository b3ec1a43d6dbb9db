"""Natural gradients, and changes to any optimizer of torch: what `optimizer=` takes besides torch's own."""

from ._natural import natural_gradient as natural_gradient
from ._optimizers import clipped as clipped
from ._optimizers import scheduled as scheduled

__all__ = ["clipped", "natural_gradient", "scheduled"]
