"""Distances between posteriors, in the space of predictions."""

from ._compare import compare as compare
from ._result import Comparison as Comparison
from ._result import Estimate as Estimate
from ._result import Scores as Scores
from ._result import cells_of as cells_of
from ._result import in_digits as in_digits
