"""Predictive uncertainty and its parts.

In classification, the total uncertainty is the entropy of the mean probabilities, in nats. It is the sum of the
expected entropy (aleatoric) and the mutual information of label and weights (epistemic).

In regression, the total uncertainty is a variance. Each draw predicts a mean and a variance. The total variance is the
mean of the draws' variances (aleatoric) plus the variance of their means (epistemic). For mixtures, the aleatoric part
is the variance within components plus that between components.

References:
    Depeweg et al. (2018), Decomposition of Uncertainty, https://arxiv.org/abs/1710.07283.
"""

from ..._core.remedies import explain_errors
from ._accumulators import Accumulator
from ._accumulators import ClassAccumulator as ClassAccumulator
from ._accumulators import MixtureAccumulator as MixtureAccumulator
from ._accumulators import MomentAccumulator as MomentAccumulator
from ._accumulators import RunningMoments as RunningMoments
from ._classification import ClassificationPrediction
from ._entropy import entropy, expected_entropy, mutual_information, predictive_entropy
from ._prediction import MOST_KEPT as MOST_KEPT
from ._prediction import P_co as P_co
from ._prediction import Prediction, ValuePrediction
from ._prediction import Sliced as Sliced
from ._prediction import are_few as are_few
from ._prediction import concatenate as concatenate
from ._prediction import in_double as in_double
from ._quantiles import cdf_of_each_draw as cdf_of_each_draw
from ._quantiles import has_cdf as has_cdf
from ._regression import RegressionPrediction
from ._special import CensoredPrediction, MixtureDensityPrediction

__all__ = [
    "Accumulator",
    "CensoredPrediction",
    "ClassificationPrediction",
    "MixtureDensityPrediction",
    "Prediction",
    "RegressionPrediction",
    "ValuePrediction",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "predictive_entropy",
]

explain_errors(__name__)
