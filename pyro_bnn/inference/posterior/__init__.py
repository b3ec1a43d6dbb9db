"""Posteriors, the results of inference: draws of the latent variables, and a status."""

from ._calibration import Calibration as Calibration
from ._destination import Destination as Destination
from ._draws import Draw as Draw
from ._draws import check_samples as check_samples
from ._draws import spaced as spaced
from ._ensemble import EnsemblePosterior as EnsemblePosterior
from ._posterior import Moments as Moments
from ._posterior import Posterior as Posterior
from ._saving import Saved as Saved
from ._saving import restored as restored
from ._saving import restored_calibration as restored_calibration
from ._saving import saved as saved
from ._status import Status as Status
