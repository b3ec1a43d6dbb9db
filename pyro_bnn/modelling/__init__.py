"""Distributions, priors and likelihoods, and the model that combines them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["distributions", "likelihoods"])
