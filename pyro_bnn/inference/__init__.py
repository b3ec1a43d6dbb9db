"""From a model and data to a posterior: guides, estimators, and one folder for each inference method."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["kl", "scale_maps"])
