"""Stochastic-gradient Markov chain Monte Carlo, with gradients of minibatches."""

from ._fit import fit_sgmcmc as fit_sgmcmc
from ._samplers import SGHMC as SGHMC
from ._samplers import SGLD as SGLD
from ._samplers import ChainOptimizer as ChainOptimizer
from ._samplers import ConstantSteps as ConstantSteps
from ._samplers import CyclicalSteps as CyclicalSteps
from ._samplers import Stage as Stage
from ._samplers import StepSizes as StepSizes
from ._samplers import StochasticGradientSampler as StochasticGradientSampler
