"""Markov chain Monte Carlo on the same model that SVI uses."""

from ._diagnostics import LARGEST_WITHIN as LARGEST_WITHIN
from ._diagnostics import Convergence as Convergence
from ._diagnostics import ConvergenceWarning as ConvergenceWarning
from ._diagnostics import Diagnostics as Diagnostics
from ._diagnostics import Modes as Modes
from ._diagnostics import convergence as convergence
from ._diagnostics import judge as judge
from ._diagnostics import modes as modes
from ._diagnostics import modes_of_predictions as modes_of_predictions
from ._fit import fit_mcmc as fit_mcmc
from ._fit import fit_nuts as fit_nuts
from ._hmc import HMC as HMC
from ._kernel import ChainStatistics as ChainStatistics
from ._kernel import Draws as Draws
from ._kernel import Kernel as Kernel
from ._kernel import NotInCError as NotInCError
from ._kernel import Sampler as Sampler
from ._kernel import ValueAndGrad as ValueAndGrad
from ._kernel import leapfrog as leapfrog
from ._mclmc import MCLMC as MCLMC
from ._nuts import NUTS as NUTS
from ._posterior import MCMCPosterior as MCMCPosterior
from ._start import Descent as Descent
from ._start import FreshInit as FreshInit
