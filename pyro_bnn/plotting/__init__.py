"""Pictures of fits, predictions and uncertainty.

Every function draws on the axes that it is given, or on new ones, and returns them; :func:`save` writes the picture.
New axes belong to a figure that pyplot does not know: nothing global changes, and no figure stays in memory after use.
To see a window, pass axes made with pyplot.
"""

from ._classification import reliability_diagram as reliability_diagram
from ._classification import score_histograms as score_histograms
from ._classification import vote_histograms as vote_histograms
from ._comparison import comparison as comparison
from ._figures import new_axes as new_axes
from ._figures import save as save
from ._regression import predictive_density as predictive_density
from ._regression import regression_bands as regression_bands
from ._training import accuracy_curves as accuracy_curves
from ._training import loss_curves as loss_curves
from ._weights import pruning_curve as pruning_curve
from ._weights import signal_to_noise as signal_to_noise
from ._weights import weight_density as weight_density
from ._weights import weight_histograms as weight_histograms

__all__ = [
    "accuracy_curves",
    "comparison",
    "loss_curves",
    "new_axes",
    "predictive_density",
    "pruning_curve",
    "regression_bands",
    "reliability_diagram",
    "save",
    "score_histograms",
    "signal_to_noise",
    "vote_histograms",
    "weight_density",
    "weight_histograms",
]
