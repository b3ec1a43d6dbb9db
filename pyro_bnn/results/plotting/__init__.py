"""Pictures of fits, predictions and uncertainty.

Every function draws on the axes that it is given, or on new ones, and returns them; :func:`save` writes the picture.
New axes belong to a figure that pyplot does not know: nothing global changes, and no figure stays in memory after use.
To see a window, pass axes made with pyplot.

All pictures have one look, :func:`style`, with letters of 7 or 8 points and colours that the colour-blind can tell
apart; ``width="column"`` and ``width="page"`` make them as wide as one column (3.4 inches) and as the text (7 inches)
of a paper, to be included without scaling.
"""

from ._classification import reliability_diagram as reliability_diagram
from ._classification import vote_histograms as vote_histograms
from ._comparison import comparison as comparison
from ._detection import detection_curves as detection_curves
from ._figures import new_axes as new_axes
from ._figures import save as save
from ._regression import predictive_density as predictive_density
from ._regression import regression_bands as regression_bands
from ._style import PALETTE as PALETTE
from ._style import style as style
from ._training import accuracy_curves as accuracy_curves
from ._training import loss_curves as loss_curves
from ._weights import pruning_curve as pruning_curve
from ._weights import signal_to_noise as signal_to_noise
from ._weights import weight_density as weight_density
from ._weights import weight_histograms as weight_histograms

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
