"""Stochastic variational inference."""

from . import optim as optim
from ._batches import Data as Data
from ._batches import count_batches as count_batches
from ._batches import whole_data as whole_data
from ._execution import Execution as Execution
from ._fit import PosteriorWarning as PosteriorWarning
from ._fit import fit_svi as fit_svi
from ._gradient_noise import GradientNoise as GradientNoise
from ._gradient_noise import ParameterNoise as ParameterNoise
from ._gradient_noise import gradient_noise as gradient_noise
from ._loop import Callback as Callback
from ._loop import StatefulCallback as StatefulCallback
from ._natural import NaturalGradient as NaturalGradient
from ._natural import natural_gradient as natural_gradient
from ._optimizers import OptimizerMaker as OptimizerMaker
from ._optimizers import ScheduledMaker as ScheduledMaker
from ._optimizers import SkippingOptimizer as SkippingOptimizer
from ._optimizers import clipped as clipped
from ._optimizers import require_maker as require_maker
from ._optimizers import scheduled as scheduled
from ._step import NonFiniteError as NonFiniteError
from ._step import StepTerms as StepTerms
from ._svi_step import SVIStep as SVIStep
from ._svi_step import svi_step as svi_step
