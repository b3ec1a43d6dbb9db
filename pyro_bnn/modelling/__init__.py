"""What is believed before the data: distributions, priors, likelihoods and the model of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["distributions"])
