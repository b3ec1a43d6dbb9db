"""Interfaces to other programs: scikit-learn's estimators, callbacks that log a fit, exported predictions."""

from .export import PredictiveModule as PredictiveModule
from .tensorboard import TensorBoard as TensorBoard

__all__ = ["PredictiveModule", "TensorBoard"]
