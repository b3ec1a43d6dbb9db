"""Interfaces to other programs: scikit-learn's estimators, and callbacks that log a fit."""

from .tensorboard import TensorBoard as TensorBoard

__all__ = ["TensorBoard"]
