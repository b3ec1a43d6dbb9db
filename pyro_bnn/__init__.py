"""Bayesian neural networks on Pyro: any torch module as a Pyro model, its posterior, and its uncertainty."""

from . import data as data
from . import distributions as distributions
from . import kl as kl
from . import metrics as metrics
from . import nets as nets
from . import uncertainty as uncertainty
from .checkpoint import load_state as load_state
from .checkpoint import save_state as save_state
from .guides import GuidePosterior as GuidePosterior
from .guides import Init as Init
from .guides import MeanFieldGuide as MeanFieldGuide
from .guides import NetworkInit as NetworkInit
from .guides import NormalInit as NormalInit
from .guides import Site as Site
from .guides import UniformInit as UniformInit
from .guides import auto_delta as auto_delta
from .guides import auto_low_rank_multivariate_normal as auto_low_rank_multivariate_normal
from .guides import auto_multivariate_normal as auto_multivariate_normal
from .guides import auto_normal as auto_normal
from .history import EpochRecord as EpochRecord
from .history import History as History
from .likelihoods import BernoulliLikelihood as BernoulliLikelihood
from .likelihoods import CategoricalLikelihood as CategoricalLikelihood
from .likelihoods import GaussianLikelihood as GaussianLikelihood
from .likelihoods import HeteroscedasticGaussianLikelihood as HeteroscedasticGaussianLikelihood
from .likelihoods import Likelihood as Likelihood
from .likelihoods import PoissonLikelihood as PoissonLikelihood
from .model import BayesianModel as BayesianModel
from .posterior import EnsemblePosterior as EnsemblePosterior
from .posterior import Posterior as Posterior
from .posterior import Status as Status
from .prediction import predict as predict
from .prediction import predict_point as predict_point
from .priors import FanInNormalPrior as FanInNormalPrior
from .priors import LaplacePrior as LaplacePrior
from .priors import NormalPrior as NormalPrior
from .priors import Prior as Prior
from .priors import PriorByName as PriorByName
from .priors import ScaleMixturePrior as ScaleMixturePrior
from .svi import NonFiniteError as NonFiniteError
from .svi import SVIPosterior as SVIPosterior
from .svi import fit_svi as fit_svi

__version__ = "0.1.0"
