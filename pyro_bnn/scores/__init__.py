"""Uncertainty and scores of predictions."""

from .._core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, dict.fromkeys(["acquisition", "metrics", "uncertainty"], "."))
