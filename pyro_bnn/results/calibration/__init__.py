"""Intervals and sets with a guaranteed coverage, and probabilities corrected on held-out rows.

Conformal prediction corrects a model's intervals with held-out rows, which took no part in the fit. The corrected
intervals contain at least the wanted share of new targets, even if the model is wrong. New rows must come from the same
distribution as the held-out rows.

References:
    Vovk et al. (2005), Algorithmic Learning in a Random World; Lei et al. (2018), https://arxiv.org/abs/1604.04173.
"""

from ..._core.remedies import explain_errors
from ...inference.checkpoint import load_calibration
from ...inference.posterior import Calibration
from ._intervals import AdaptiveIntervals, ConformalIntervals
from ._intervals import IntervalScore as IntervalScore
from ._rows import fewest_rows as fewest_rows
from ._rows import rank_of as rank_of
from ._rows import set_aside as set_aside
from ._scaling import SpreadFactor, Temperature
from ._sets import ConformalSets

__all__ = [
    "AdaptiveIntervals",
    "Calibration",
    "ConformalIntervals",
    "ConformalSets",
    "SpreadFactor",
    "Temperature",
    "load_calibration",
]

explain_errors(__name__)
