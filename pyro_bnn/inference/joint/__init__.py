"""The joint density of data and latent variables, and its parts: sites and prior densities."""

from ._densities import LOG_ROOT_TAU as LOG_ROOT_TAU
from ._densities import Density as Density
from ._densities import Joint as Joint
from ._densities import NormalDensity as NormalDensity
from ._densities import Piece as Piece
from ._densities import density_of as density_of
from ._gradients import CHECKPOINTED as CHECKPOINTED
from ._gradients import check_gradients as check_gradients
from ._potential import NetworkPotential as NetworkPotential
from ._potential import Potential as Potential
from ._potential import TracePotential as TracePotential
from ._potential import draw_batches as draw_batches
from ._potential import learnable_names as learnable_names
from ._potential import network_potential as network_potential
from ._potential import warn_of_learnable as warn_of_learnable
from ._sites import Coordinates as Coordinates
from ._sites import Draw as Draw
from ._sites import Layout as Layout
from ._sites import Site as Site
from ._sites import constrained as constrained
from ._sites import find_sites as find_sites
