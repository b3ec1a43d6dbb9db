"""Temperatures of class probabilities, and factors of standard deviations, learned from held-out rows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ..._core import checks as _checks
from ..._core.records import plain, record
from ...inference.posterior import Calibration
from ...scores.uncertainty import ClassificationPrediction, RegressionPrediction
from ._rows import deviations, prediction_labels, require_classes

LOWEST, HIGHEST = 0.02, 50.0  # heuristic: smallest and largest temperature to try


@dataclass(frozen=True)
class Temperature(Calibration):
    r"""Class probabilities raised to a power: :math:`p_c^{1/T} / \sum_k p_k^{1/T}`.

    With T above 1, the probabilities become less extreme. Their order does not change.

    Args:
        value: The temperature, T.

    References:
        Guo et al. (2017), On Calibration of Modern Neural Networks, https://arxiv.org/abs/1706.04599.

    Example:
        >>> import torch
        >>> from pyro_bnn import calibration
        >>> calibration.Temperature(2.0).probs_of(torch.tensor([[0.9, 0.1]]))
        tensor([[0.7500, 0.2500]])
    """

    value: float

    def __post_init__(self) -> None:
        _checks.positive("value", self.value)

    @classmethod
    def fit(cls, prediction: ClassificationPrediction, y: Tensor) -> "Temperature":
        """Return the temperature with the smallest NLL on held-out rows.

        Args:
            prediction: Prediction of rows that took no part in the fit.
            y: Their labels, shape (N,).
        """
        labels = prediction_labels(prediction, y)[:, None]

        def nll(log_temperature: float) -> float:
            return -float(_log_probs(prediction.probs, math.exp(log_temperature)).gather(1, labels).mean())

        found = minimize_scalar(nll, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded")
        return cls(math.exp(found.x))

    def probs(self, prediction: ClassificationPrediction) -> Tensor:
        """Return the corrected class probabilities of a prediction, shape (N, C)."""
        require_classes(prediction)
        return self.probs_of(prediction.probs)

    def probs_of(self, probs: Tensor) -> Tensor:
        """Return corrected class probabilities, shape (N, C)."""
        return _log_probs(probs, self.value).exp().to(probs.dtype)

    def to_record(self) -> dict[str, Any]:
        """See :meth:`Calibration.to_record`."""
        return dict(plain(self))

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> "Temperature":
        """See :meth:`Calibration.from_record`."""
        return record(cls, values, "calibration")


def _log_probs(probs: Tensor, temperature: float) -> Tensor:
    """Return corrected log-probabilities, which are finite even if a probability was rounded to 0."""
    return (probs.double().clamp_min(torch.finfo(probs.dtype).tiny).log() / temperature).log_softmax(-1)


@dataclass(frozen=True)
class SpreadFactor(Calibration):
    """A factor for each output, which multiplies its predictive standard deviations.

    Args:
        value: The factors, shape ``(*O)``.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_laplace(model, (x, 2 * x))
        >>> prediction = pb.predict(model, posterior, x, seed=0)
        >>> factor = pb.calibration.SpreadFactor.fit(prediction, 2 * x + 1)
        >>> bool(factor.value > 5)  # the targets are far outside
        True
    """

    value: Tensor

    def __post_init__(self) -> None:
        _checks.finite("value", _checks.real_tensor("value", self.value))
        if bool((self.value < 0).any()):
            raise ValueError(f"`value` must be factors of at least 0, got {float(self.value.min()):.4g}.")

    @classmethod
    def fit(cls, prediction: RegressionPrediction, y: Tensor) -> "SpreadFactor":
        r"""Return the factors that minimise the Gaussian NLL of held-out rows.

        .. math:: s^2 = \tfrac1N \sum_i (y_i - m_i)^2 / \sigma_i^2.

        Args:
            prediction: Prediction of rows that took no part in the fit.
            y: Their targets, shape ``(N, *O)``.
        """
        sd = deviations(prediction)
        return cls(((prediction.targets_like(y) - prediction.mean).double() / sd).square().mean(0).sqrt())

    def sd(self, prediction: RegressionPrediction) -> Tensor:
        """Return corrected standard deviations, shape ``(N, *O)``."""
        sd = deviations(prediction)
        return (self.value.to(sd.device) * sd).to(prediction.mean.dtype)

    def to_record(self) -> dict[str, Any]:
        """See :meth:`Calibration.to_record`."""
        return dict(plain(self))

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> "SpreadFactor":
        """See :meth:`Calibration.from_record`."""
        return record(cls, values, "calibration")
