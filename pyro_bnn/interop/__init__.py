"""Interfaces to other programs: scikit-learn's estimators, callbacks that log a fit, exported predictions, BoTorch."""

from .export import PredictiveModule as PredictiveModule
from .mlflow import MLflow as MLflow
from .tensorboard import TensorBoard as TensorBoard
from .wandb import WandB as WandB

__all__ = ["MLflow", "PredictiveModule", "TensorBoard", "WandB"]
