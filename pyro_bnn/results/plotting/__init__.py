"""Pictures of fits, predictions and uncertainty.

Every function takes tensors or NumPy arrays, draws on given axes or on new ones, and returns the axes. :func:`save`
writes the picture. If your program has imported ``matplotlib.pyplot``, new axes belong to figures of pyplot:
``plt.show()`` shows these figures, and ``plt.close("all")`` frees them. Without pyplot, or outside the main thread, a
figure is freed when it is no longer used.

All pictures have the same :func:`style`, with letters of 7 or 8 points and colours that colour-blind people can
distinguish. They are as wide as one column of a paper (``width="column"``, 3.4 inches) or its text (``width="page"``, 7
inches), so they need no scaling.
"""

from ..._core.remedies import explain_errors
from ._classification import detection_curves, reliability_diagram, vote_histograms
from ._comparison import comparison
from ._figures import PALETTE, new_axes, save, style
from ._regression import predictive_density, regression_bands
from ._training import accuracy_curves, loss_curves
from ._weights import pruning_curve, signal_to_noise, weight_density, weight_histograms

__all__ = [
    "PALETTE",
    "accuracy_curves",
    "comparison",
    "detection_curves",
    "loss_curves",
    "new_axes",
    "predictive_density",
    "pruning_curve",
    "regression_bands",
    "reliability_diagram",
    "save",
    "signal_to_noise",
    "style",
    "vote_histograms",
    "weight_density",
    "weight_histograms",
]

explain_errors(__name__)
