"""From a model and data to a posterior: guides, estimators, and a folder for each way to infer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["kl", "scale_maps"])
