"""Distributions, priors and likelihoods, and the model that combines them."""

from .._core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, dict.fromkeys(["distributions", "likelihoods"], "."))
