"""Inference: methods that compute a posterior from a model and data."""

from .._core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, dict.fromkeys(["kl", "scale_maps"], "."))
