"""Predictions in regression by mixtures, or with censored targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from torch import Tensor

from ._prediction import array
from ._regression import RegressionPrediction


@dataclass(frozen=True, repr=False)
class MixtureDensityPrediction(RegressionPrediction):
    r"""A prediction in which each draw gives a mixture, so that the variance has three parts.

    In draw s, component m has the weight :math:`\pi_{sm}`, the mean :math:`\mu_{sm}` and the variance
    :math:`\sigma_{sm}^2`. The law of total variance, applied twice, says

    .. math:: \mathrm{Var}[y] =
        \underbrace{\tfrac1S \sum_s \sum_m \pi_{sm} \sigma_{sm}^2}_\text{within components}
        + \underbrace{\tfrac1S \sum_s \sum_m \pi_{sm} (\mu_{sm} - \bar\mu_s)^2}_\text{between components}
        + \underbrace{\mathrm{Var}_s[\bar\mu_s]}_\text{between draws}, \qquad
        \bar\mu_s = \sum_m \pi_{sm} \mu_{sm}.

    The first part (noise) and the second (several plausible values at one input) are `aleatoric`; the last is
    `epistemic`.

    Args:
        within_components: Mean over draws of the variance within components, shape ``(N, *O)``.
        between_components: Mean over draws of the variance between components, shape ``(N, *O)``.

    References:
        Choi et al. (2018), Uncertainty-Aware Learning from Demonstration using Mixture Density Networks with
        Sampling-Free Variance Modeling, https://arxiv.org/abs/1709.02249, for the split of one network's variance.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(1, 6), pb.NormalPrior()
        >>> mixture = pb.MixtureDensityLikelihood(2)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=mixture, num_data=20)
        >>> guide = pb.MeanFieldGuide(model)
        >>> prediction = pb.predict(model, guide, torch.zeros(3, 1), seed=0)
        >>> list(prediction.variances())
        ['total', 'aleatoric', 'epistemic', 'within_components', 'between_components']
    """

    within_components: Tensor
    between_components: Tensor

    def variances(self) -> dict[str, Tensor]:
        parts = {"within_components": self.within_components, "between_components": self.between_components}
        return super().variances() | parts

    def _gaussians(self) -> tuple[Tensor, Tensor, Tensor]:
        components = vars(self._kept_components())  # a NormalMixture, whose class is in a higher layer than this module
        weights = components["logits"].double().softmax(-1) / self.num_samples
        parts = (weights, components["loc"].double(), components["scale"].double())
        joined = [part.movedim(0, -2).flatten(-2) for part in parts]  # (S, N, *O, M) to (N, *O, S * M)
        return joined[0], joined[1], joined[2]


@dataclass(frozen=True, repr=False)
class CensoredPrediction(RegressionPrediction):
    """A prediction of the values that would be observed without censoring limits, or after full follow-up.

    Only `log_density` describes the censored targets. The probability of survival beyond a time t is ``1 -
    prediction.cdf(t)``. The error of a censored target is unknown, so `score` returns only the ``nll``, and `crps` and
    conformal intervals raise an error.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 30)[:, None]
        >>> amounts = pb.likelihoods.Censored(low=0.0, scale=0.1)
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=amounts, num_data=30)
        >>> posterior = pb.fit_laplace(model, (x, x.clamp(min=0)))
        >>> prediction = pb.predict(model, posterior, torch.tensor([[-0.5]]), seed=0)
        >>> type(prediction).__name__, bool(prediction.mean < 0)  # before censoring
        ('CensoredPrediction', True)
    """

    def _axes_in_words(self) -> str:
        return f"uncensored, {super()._axes_in_words()}"

    def score(self, y: Tensor | None = None) -> dict[str, float]:
        """Return the ``nll`` of the targets of `predict`, in nats per row."""
        y = self._targets_for_score(y)
        if not self._has_density_of(y):
            raise ValueError(
                "censored targets are scored by the likelihood only, got targets that were not given to `predict`; "
                "call `predict(..., y=y)`."
            )
        return {"nll": self.nll}

    def crps(self, y: Tensor) -> NoReturn:
        """Raise, since the CRPS needs complete targets."""
        raise ValueError(
            "the CRPS needs complete targets, got a prediction for censored ones, whose errors are unknown; use the "
            "log score, `predict(..., y=y).score()`, or for complete values "
            "`metrics.crps_from_draws(prediction.sample(1000), values)`."
        )

    def targets_like(self, y: Tensor) -> NoReturn:
        """Raise, since calibration needs complete targets."""
        raise ValueError(
            "calibration needs complete targets, got a prediction for censored ones, whose errors are unknown; use the "
            "quantiles of the prediction."
        )

    def target_columns(self, outputs: Sequence[str] | None) -> dict[str, np.ndarray]:
        """Return the column ``target`` or, for survival times, the columns ``time`` and ``event``."""
        if self.targets is None or self.targets.shape == self.mean.shape:
            return super().target_columns(outputs)
        return {"time": array(self.targets[..., 0]), "event": array(self.targets[..., 1])}
