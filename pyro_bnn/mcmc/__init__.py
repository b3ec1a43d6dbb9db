"""Markov chain Monte Carlo on the same model that SVI uses."""

from ._diagnostics import Convergence as Convergence
from ._diagnostics import ConvergenceWarning as ConvergenceWarning
from ._diagnostics import Diagnostics as Diagnostics
from ._fit import fit_hmc as fit_hmc
from ._fit import fit_nuts as fit_nuts
from ._posterior import ChainStatistics as ChainStatistics
from ._posterior import MCMCPosterior as MCMCPosterior
