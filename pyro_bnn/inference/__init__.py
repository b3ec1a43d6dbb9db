"""Inference: methods that compute a posterior from a model and data."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["kl", "scale_maps"])
