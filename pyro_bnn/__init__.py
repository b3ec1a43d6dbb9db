"""Bayesian neural networks on Pyro: any torch module as a Pyro model, its posterior, and its uncertainty."""

import typing

from . import data as data
from . import distributions as distributions
from . import kl as kl
from . import metrics as metrics
from . import nets as nets
from . import pruning as pruning
from . import scale_maps as scale_maps
from . import uncertainty as uncertainty
from ._checkpointing import Checkpoint as Checkpoint
from ._checkpointing import Interrupted as Interrupted
from .checkpoint import load_posterior as load_posterior
from .checkpoint import save_posterior as save_posterior
from .comparison import Comparison as Comparison
from .comparison import Estimate as Estimate
from .comparison import MethodScore as MethodScore
from .comparison import PairScore as PairScore
from .comparison import compare as compare
from .estimators import Estimator as Estimator
from .estimators import Flipout as Flipout
from .estimators import Layer as Layer
from .estimators import LocalReparameterization as LocalReparameterization
from .fitting import fit as fit
from .guides import Diagnosis as Diagnosis
from .guides import FlatGuide as FlatGuide
from .guides import FlatState as FlatState
from .guides import GuidePosterior as GuidePosterior
from .guides import Init as Init
from .guides import LowRankGuide as LowRankGuide
from .guides import MeanFieldGuide as MeanFieldGuide
from .guides import NetworkInit as NetworkInit
from .guides import Noise as Noise
from .guides import NormalInit as NormalInit
from .guides import RandomParameter as RandomParameter
from .guides import SiteDiagnosis as SiteDiagnosis
from .guides import UniformInit as UniformInit
from .guides import auto_delta as auto_delta
from .guides import auto_low_rank_multivariate_normal as auto_low_rank_multivariate_normal
from .guides import auto_multivariate_normal as auto_multivariate_normal
from .guides import auto_normal as auto_normal
from .history import EpochRecord as EpochRecord
from .history import History as History
from .joint import Site as Site
from .laplace import LaplacePosterior as LaplacePosterior
from .laplace import fit_laplace as fit_laplace
from .likelihoods import BernoulliLikelihood as BernoulliLikelihood
from .likelihoods import CategoricalLikelihood as CategoricalLikelihood
from .likelihoods import GaussianLikelihood as GaussianLikelihood
from .likelihoods import HeteroscedasticGaussianLikelihood as HeteroscedasticGaussianLikelihood
from .likelihoods import Likelihood as Likelihood
from .likelihoods import MixtureDensityLikelihood as MixtureDensityLikelihood
from .likelihoods import PoissonLikelihood as PoissonLikelihood
from .mcmc import HMC as HMC
from .mcmc import NUTS as NUTS
from .mcmc import ChainStatistics as ChainStatistics
from .mcmc import Convergence as Convergence
from .mcmc import ConvergenceWarning as ConvergenceWarning
from .mcmc import Diagnostics as Diagnostics
from .mcmc import MCMCPosterior as MCMCPosterior
from .mcmc import Sampler as Sampler
from .mcmc import fit_mcmc as fit_mcmc
from .mcmc import fit_nuts as fit_nuts
from .model import BayesianModel as BayesianModel
from .posterior import EnsemblePosterior as EnsemblePosterior
from .posterior import Posterior as Posterior
from .posterior import Status as Status
from .prediction import predict as predict
from .prediction import predict_point as predict_point
from .priors import FanInNormalPrior as FanInNormalPrior
from .priors import HierarchicalNormalPrior as HierarchicalNormalPrior
from .priors import HierarchicalPrior as HierarchicalPrior
from .priors import HorseshoePrior as HorseshoePrior
from .priors import LaplacePrior as LaplacePrior
from .priors import LearnedNormalPrior as LearnedNormalPrior
from .priors import NormalPrior as NormalPrior
from .priors import Prior as Prior
from .priors import PriorByName as PriorByName
from .priors import ScaleMixturePrior as ScaleMixturePrior
from .priors import WeightPrior as WeightPrior
from .svi import Execution as Execution
from .svi import GradientNoise as GradientNoise
from .svi import NonFiniteError as NonFiniteError
from .svi import ParameterNoise as ParameterNoise
from .svi import PosteriorWarning as PosteriorWarning
from .svi import StatefulCallback as StatefulCallback
from .svi import StepTerms as StepTerms
from .svi import SVIStep as SVIStep
from .svi import clipped as clipped
from .svi import fit_svi as fit_svi
from .svi import gradient_noise as gradient_noise
from .svi import scheduled as scheduled
from .svi import svi_step as svi_step

if typing.TYPE_CHECKING:
    from .scikit import BNNClassifier as BNNClassifier
    from .scikit import BNNRegressor as BNNRegressor

__version__ = "0.1.0"


def __getattr__(name: str) -> typing.Any:
    """The estimators for scikit-learn, which is imported at their first use."""
    if name in ("BNNClassifier", "BNNRegressor"):
        from . import scikit

        return getattr(scikit, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "BNNClassifier", "BNNRegressor"]
