"""Scores of predictions: accuracy, calibration, and detection of unknown inputs.

Scores are those of scikit-learn if it has them. Every function takes tensors on any device, numpy arrays, data frames
and lists. Every function raises an error for input that makes its score meaningless: NaN and infinity, complex numbers,
no rows, probabilities that are negative or do not sum to 1, labels that are not whole numbers from 0 to C - 1.
"""

from ._chance import calibration_error_by_chance as calibration_error_by_chance
from ._classification import CalibrationBins as CalibrationBins
from ._classification import accuracy as accuracy
from ._classification import adaptive_calibration_error as adaptive_calibration_error
from ._classification import brier_score as brier_score
from ._classification import calibration_bins as calibration_bins
from ._classification import expected_calibration_error as expected_calibration_error
from ._classification import negative_log_likelihood as negative_log_likelihood
from ._detection import OODScores as OODScores
from ._detection import ood_scores as ood_scores
from ._regression import crps_from_draws as crps_from_draws
from ._regression import crps_of_normal_mixture as crps_of_normal_mixture
from ._regression import interval_coverage as interval_coverage
from ._regression import mixture_log_likelihood as mixture_log_likelihood
from ._regression import root_mean_squared_error as root_mean_squared_error

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
    "mixture_log_likelihood",
    "negative_log_likelihood",
    "ood_scores",
    "root_mean_squared_error",
]
