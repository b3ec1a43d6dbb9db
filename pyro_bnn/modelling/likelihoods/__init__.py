"""Likelihoods, which map a network's output to the distribution of an observation.

:class:`DistributionLikelihood` takes any distribution. The likelihoods for classification, Gaussian noise and simple
counts are in `pyro_bnn` itself.
"""

from ..._core.remedies import explain_errors
from ._base import Likelihood as Likelihood
from ._base import Weighted as Weighted
from ._censored import Censored, Survival
from ._classification import BernoulliLikelihood as BernoulliLikelihood
from ._classification import CategoricalLikelihood as CategoricalLikelihood
from ._classification import Ordinal
from ._classification import require_classes as require_classes
from ._distribution import DistributionLikelihood
from ._families import Beta, NegativeBinomial, StudentT, ZeroInflatedNegativeBinomial, ZeroInflatedPoisson
from ._named import LIKELIHOOD_CHOICES as LIKELIHOOD_CHOICES
from ._named import LIKELIHOODS as LIKELIHOODS
from ._named import NOISE_PRIOR as NOISE_PRIOR
from ._named import likelihoods_in_words as likelihoods_in_words
from ._named import make_likelihood as make_likelihood
from ._named import name_of_likelihood as name_of_likelihood
from ._named import nearest_call as nearest_call
from ._numbers import NumbersLikelihood as NumbersLikelihood
from ._regression import GaussianLikelihood as GaussianLikelihood
from ._regression import HeteroscedasticGaussianLikelihood as HeteroscedasticGaussianLikelihood
from ._regression import MixtureDensityLikelihood as MixtureDensityLikelihood
from ._regression import PoissonLikelihood as PoissonLikelihood

__all__ = [
    "Beta",
    "Censored",
    "DistributionLikelihood",
    "NegativeBinomial",
    "Ordinal",
    "StudentT",
    "Survival",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
]

explain_errors(__name__)
