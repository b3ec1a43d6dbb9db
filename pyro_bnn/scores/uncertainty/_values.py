"""Predictions of a user's Pyro model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from .. import metrics
from ._prediction import Prediction, by_output, frame, require_variance

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class ValuePrediction(Prediction):
    """Values of a Pyro model of your own, over draws of its latent variables: its return value, or observations.

    If the model returns a mean, `variance` is the epistemic part. For observations, of which one is drawn for each draw
    of the latent variables, `variance` is the total. Only observations have a log-density.

    Args:
        num_samples: Number of draws, S.
        log_density: Log-density of the targets under the observed site, in nats, shape (N,); None without targets, and
            for a return value.
        targets: Targets of `log_density`.
        mean: Mean of the values, shape ``(N, *O)``.
        variance_of_values: Unbiased variance of the values over draws, shape ``(N, *O)``; None for a single draw.
        values: The values of each draw, shape ``(S, N, *O)``; None unless `keep_draws`.
    """

    mean: Tensor
    variance_of_values: Tensor | None
    values: Tensor | None

    @property
    def expectation(self) -> Tensor:
        return self.mean

    @property
    def variance(self) -> Tensor:
        """Unbiased variance of the values over draws, shape ``(N, *O)``; needs at least two draws."""
        return require_variance(self.variance_of_values)

    def quantile(self, levels: list[float]) -> Tensor:
        """Quantiles of the values over draws at Q levels strictly between 0 and 1, shape ``(Q, N, *O)``."""
        if self.values is None:
            raise ValueError("quantiles need the values of all draws; call `predict(..., keep_draws=True)`.")
        found = [_checks.between_zero_and_one("levels", level) for level in levels]
        return torch.quantile(self.values, self.values.new_tensor(found), dim=0)

    def uncertainty_in_words(self) -> str:
        if self.variance_of_values is None:
            return "one draw, so no uncertainty"
        return f"standard deviation over draws (root mean square) {float(self.variance.mean()) ** 0.5:.3g}"

    def score(self, y: Tensor | None = None) -> dict[str, float]:
        """Root mean squared error ``rmse``, and the ``nll`` if there is a log-density; see :meth:`Prediction.score`."""
        y = self._targets_for_score(y)
        has_density = self.targets is not None and self.log_density is not None and torch.equal(y, self.targets)
        return {"rmse": metrics.root_mean_squared_error(self.mean, y)} | ({"nll": self.nll} if has_density else {})

    def to_frame(self, *, index: Iterable[Any] | None = None) -> "pandas.DataFrame":
        """The columns ``mean`` and ``sd``; see :meth:`Prediction.to_frame`."""
        columns = by_output("mean", self.mean, None)
        if self.variance_of_values is not None:
            columns |= by_output("sd", self.variance.sqrt(), None)
        return frame(columns, len(self), index)
