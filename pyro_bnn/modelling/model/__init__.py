"""A network, a prior and a likelihood as one Pyro model."""

from ._latents import LatentVariables as LatentVariables
from ._model import BayesianModel as BayesianModel
from ._model import carried_paths as carried_paths
from ._model import network_values as network_values
from ._model import own_paths as own_paths
from ._model import random_paths as random_paths
from ._model import require_bayesian as require_bayesian
from ._network import rest_frozen as rest_frozen
from ._reset import reset_network as reset_network
from ._response import Interceptor as Interceptor
from ._response import check_input as check_input
from ._selection import SITE_PREFIX as SITE_PREFIX
from ._selection import Owned as Owned
from ._selection import Rules as Rules
from ._selection import Selection as Selection
from ._selection import SelectionWarning as SelectionWarning
from ._selection import layers as layers
from ._selection import owned as owned
from ._selection import rules_of as rules_of
from ._selection import sites_among as sites_among
