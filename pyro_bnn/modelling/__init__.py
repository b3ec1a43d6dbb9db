"""Distributions, priors, likelihoods, and the model of which they are parts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["distributions"])
