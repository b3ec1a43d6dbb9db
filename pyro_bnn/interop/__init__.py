"""Interfaces to other programs: scikit-learn, loggers of fits, exported predictions, BoTorch."""

from .._core.remedies import explain_errors
from ._loggers import MLflow, TensorBoard, WandB
from .export import PredictiveModule

__all__ = ["MLflow", "PredictiveModule", "TensorBoard", "WandB"]

explain_errors(__name__)
