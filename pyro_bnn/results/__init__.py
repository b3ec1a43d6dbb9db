"""Uses of a posterior: prediction, comparison, calibration, pruning and pictures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["calibration", "plotting", "pruning"])
