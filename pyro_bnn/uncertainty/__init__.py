"""Predictive uncertainty and its parts.

Classes: the total is the entropy of the mean probabilities, in nats; it splits into the expected entropy (aleatoric)
and the mutual information between label and weights (epistemic). Numbers: the total variance splits into the mean of
the variances (aleatoric) and the variance of the means (epistemic). Where each draw predicts a mixture, the aleatoric
part splits once more.

References:
    Depeweg et al. (2018), Decomposition of Uncertainty, https://arxiv.org/abs/1710.07283.
"""

from ._accumulators import Accumulator as Accumulator
from ._accumulators import ClassAccumulator as ClassAccumulator
from ._accumulators import MixtureAccumulator as MixtureAccumulator
from ._accumulators import MomentAccumulator as MomentAccumulator
from ._classification import ClassificationPrediction as ClassificationPrediction
from ._entropy import entropy as entropy
from ._entropy import expected_entropy as expected_entropy
from ._entropy import mutual_information as mutual_information
from ._entropy import predictive_entropy as predictive_entropy
from ._prediction import Prediction as Prediction
from ._prediction import concatenate as concatenate
from ._regression import MixtureDensityPrediction as MixtureDensityPrediction
from ._regression import RegressionPrediction as RegressionPrediction

__all__ = [
    "Accumulator",
    "ClassificationPrediction",
    "MixtureDensityPrediction",
    "Prediction",
    "RegressionPrediction",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "predictive_entropy",
]
