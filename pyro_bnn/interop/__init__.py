"""Interfaces to scikit-learn and TensorBoard; exports to plain torch and ONNX."""

from .export import PredictiveModule as PredictiveModule
