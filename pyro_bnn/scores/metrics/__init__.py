"""Scores of predictions: accuracy, calibration, and detection of unknown inputs.

Where scikit-learn has the same score, the values agree. Every function takes tensors on any device, numpy arrays, data
frames and lists. It raises an error if there are no rows, or if numbers are NaN, infinite or complex. Probabilities
must not be negative, and must sum to 1. Labels must be whole numbers from 0 to C - 1.
"""

from ..._core.remedies import explain_errors
from ._classification import (
    CalibrationBins,
    OODScores,
    accuracy,
    adaptive_calibration_error,
    brier_score,
    calibration_bins,
    calibration_error_by_chance,
    expected_calibration_error,
    negative_log_likelihood,
    ood_scores,
)
from ._inputs import Numbers as Numbers
from ._inputs import as_tensor as as_tensor
from ._inputs import probabilities as probabilities
from ._regression import crps_from_draws, crps_of_normal_mixture, interval_coverage, root_mean_squared_error

__all__ = [
    "CalibrationBins",
    "OODScores",
    "accuracy",
    "adaptive_calibration_error",
    "brier_score",
    "calibration_bins",
    "calibration_error_by_chance",
    "crps_from_draws",
    "crps_of_normal_mixture",
    "expected_calibration_error",
    "interval_coverage",
    "negative_log_likelihood",
    "ood_scores",
    "root_mean_squared_error",
]

explain_errors(__name__)
