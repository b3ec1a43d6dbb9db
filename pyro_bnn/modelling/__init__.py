"""Assumptions before seeing data: distributions, priors, likelihoods and the model that joins them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["distributions"])
