"""Posteriors, the results of inference: draws of the latent variables, and a status."""

from ..joint import Draw as Draw
from ._asked import default_num_draws as default_num_draws
from ._asked import num_members as num_members
from ._asked import warn_of_changes as warn_of_changes
from ._asked import warn_of_shared_network as warn_of_shared_network
from ._asked import with_learned as with_learned
from ._destination import Destination as Destination
from ._ensemble import OTHERS as OTHERS
from ._ensemble import EnsemblePosterior as EnsemblePosterior
from ._posterior import Moments as Moments
from ._posterior import Posterior as Posterior
from ._posterior import spaced as spaced
from ._saving import Calibration as Calibration
from ._saving import Saved as Saved
from ._saving import restored as restored
from ._saving import restored_calibration as restored_calibration
from ._saving import saved as saved
from ._status import ConvergenceWarning as ConvergenceWarning
from ._status import Status as Status
from ._status import warn_unless_ok as warn_unless_ok
