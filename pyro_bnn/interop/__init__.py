"""Interfaces to other programs: scikit-learn's estimators, callbacks that log a fit, exported predictions, BoTorch."""

from .._core.remedies import explain_missing
from ._loggers import MLflow as MLflow
from ._loggers import TensorBoard as TensorBoard
from ._loggers import WandB as WandB
from .export import PredictiveModule as PredictiveModule

__all__ = ["MLflow", "PredictiveModule", "TensorBoard", "WandB"]

explain_missing(__name__)
