"""Uses of a posterior: prediction, comparison, calibration, pruning and pictures."""

from .._core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, dict.fromkeys(["calibration", "plotting", "pruning"], "."))
