"""Stochastic-gradient Markov chain Monte Carlo, with gradients of minibatches."""

from ._fit import fit_sgmcmc as fit_sgmcmc
from ._plans import ConstantSteps as ConstantSteps
from ._plans import CyclicalSteps as CyclicalSteps
from ._plans import Stage as Stage
from ._plans import StepSizes as StepSizes
from ._samplers import SGHMC as SGHMC
from ._samplers import SGLD as SGLD
from ._samplers import ChainOptimizer as ChainOptimizer
from ._samplers import StochasticGradientSampler as StochasticGradientSampler
