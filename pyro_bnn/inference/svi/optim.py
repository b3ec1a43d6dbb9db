"""Functions for the argument `optimizer` of a fit: natural gradients, schedules and clipped gradients."""

from ..._core.remedies import explain_errors
from ._natural import natural_gradient as natural_gradient
from ._optimizers import clipped as clipped
from ._optimizers import scheduled as scheduled

__all__ = ["clipped", "natural_gradient", "scheduled"]

explain_errors(__name__)
