"""A network, a prior and a likelihood as one Pyro model."""

from ._model import BayesianModel as BayesianModel
from ._response import Interceptor as Interceptor
