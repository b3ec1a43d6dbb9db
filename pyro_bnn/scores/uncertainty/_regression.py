"""Predictions in regression."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from ..._core import checks as _checks
from ..._core.gaussian_mixture import mixture_cdf, mixture_icdf
from ..._core.inputs import as_targets
from ..._core.scope import seeded
from ..._core.signatures import ALPHA, explained
from ..._core.summary import counted, share
from .. import metrics
from ._prediction import Prediction, array, by_output, frame, in_double, require_variance, take
from ._quantiles import NUM_DRAWS, has_cdf, levels_of, mean_cdf, mixture_quantile, quantile_of_draws

if TYPE_CHECKING:
    import pandas


CRPS_DRAWS = 1000  # heuristic: draws for a CRPS without closed form, with an error of 3 % of a standard deviation


@dataclass(frozen=True, repr=False)
class RegressionPrediction(Prediction):
    """Mean and variances of the predictive mixture, which has one component per draw of the weights.

    `total`, `aleatoric` and `epistemic` are variances. Their roots `sd`, `aleatoric_sd` and `epistemic_sd` are in the
    units of the targets. Variances are in double precision, since squares of numbers above 1e19 are infinite in single
    precision. Other arguments are those of :class:`Prediction`.

    Args:
        mean: Predictive mean, shape ``(N, *O)``.
        aleatoric: Mean of the components' variances, shape ``(N, *O)``.
        variance_of_means: Unbiased variance of the draws' means, shape ``(N, *O)``; None for a single draw.
        components: The mixture's components, batch shape ``(S, N, *O)``; None unless `keep_draws`.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> prediction = pb.predict(model, pb.fit_laplace(model, (x, 2 * x)), x, seed=0)
        >>> round(float(prediction.aleatoric.sqrt().mean()), 3)  # the noise
        0.1
    """

    mean: Tensor
    aleatoric: Tensor
    variance_of_means: Tensor | None
    components: Distribution | None

    @property
    def expectation(self) -> Tensor:
        return self.mean

    def _axes_in_words(self) -> str:
        shape = self.mean.shape[1:]
        outputs = counted(shape.numel(), "output") if len(shape) < 2 else f"outputs of shape {tuple(shape)}"
        return outputs if self.components is None else f"{outputs} with quantiles"

    def _uncertainty_in_words(self) -> str:
        if self.variance_of_means is None:
            aleatoric = float(self.aleatoric.mean()) ** 0.5
            return f"aleatoric_sd {aleatoric:.3g} (root mean square); one draw, so no epistemic_sd"
        sds = [float(part.mean()) ** 0.5 for part in (self.total, self.aleatoric, self.variance_of_means)]
        parts = (share(sd, sds[0]) for sd in sds)
        shown = "sd {}, aleatoric_sd {}, epistemic_sd {} (root mean squares)".format(*parts)
        return f"{shown}\nvariances: total = sd², aleatoric = aleatoric_sd², epistemic = epistemic_sd²"

    @property
    def epistemic(self) -> Tensor:
        """Unbiased variance of the draws' means, shape ``(N, *O)``; needs at least two draws."""
        return require_variance(self.variance_of_means)

    @property
    def total(self) -> Tensor:
        """Variance of an observation, shape ``(N, *O)``: aleatoric plus epistemic."""
        return self.aleatoric + self.epistemic

    @property
    def sd(self) -> Tensor:
        """Standard deviation of an observation, shape ``(N, *O)``."""
        return self.total.sqrt().to(self.mean.dtype)

    @property
    def aleatoric_sd(self) -> Tensor:
        """Standard deviation due to noise, shape ``(N, *O)``."""
        return self.aleatoric.sqrt().to(self.mean.dtype)

    @property
    def epistemic_sd(self) -> Tensor:
        """Standard deviation due to unknown weights, shape ``(N, *O)``."""
        return self.epistemic.sqrt().to(self.mean.dtype)

    @explained("prediction.interval(0.9)", {"alpha": ALPHA})
    def interval(self, level: float = 0.9) -> Tensor:
        """Return the lower and upper ends of central intervals, shape ``(2, N, *O)``.

        An observation lies in its interval with probability `level`, and is as likely to lie below it as above it. For
        counts, the probability is at least `level`, and the probabilities below and above may differ. In
        :meth:`~pyro_bnn.BNNRegressor.predict_interval`, the axis of the two ends comes last.

        Args:
            level: Probability of the interval.

        Example:
            >>> import torch
            >>> import pyro_bnn as pb
            >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior(1e-6)
            >>> noise = pb.GaussianLikelihood(0.1)
            >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
            >>> guide = pb.DeltaGuide(model, init=pb.NormalInit(1e-9))
            >>> prediction = pb.predict(model, guide, torch.zeros(3, 1))
            >>> lower, upper = prediction.interval(0.9)  # each has the shape of the mean
            >>> upper.round(decimals=2).flatten()
            tensor([0.1600, 0.1600, 0.1600])
        """
        tail = (1 - _checks.between_zero_and_one("level", level)) / 2
        return self.quantile([tail, 1 - tail])

    def variances(self) -> dict[str, Tensor]:
        """Return the predictive variance and its parts by name, ``(N, *O)``; with one draw, only the aleatoric part."""
        if self.variance_of_means is None:
            return {"aleatoric": self.aleatoric}
        return {"total": self.total, "aleatoric": self.aleatoric, "epistemic": self.variance_of_means}

    def to_frame(
        self, *, level: float | None = None, outputs: Sequence[str] | None = None, index: Iterable[Any] | None = None
    ) -> "pandas.DataFrame":
        """Return the prediction as a data frame; see :meth:`Prediction.to_frame`.

        The columns are ``mean``, the standard deviations ``sd``, ``aleatoric_sd`` and ``epistemic_sd``, and with
        `level` also ``lower`` and ``upper``. With several outputs, each output has all these columns, whose names then
        end in the output's name or number.

        Args:
            level: Probability of the interval from ``lower`` to ``upper``; see :meth:`interval`.
            outputs: Names of the outputs; by default their numbers.
            index: Labels of the rows; by default 0 to N - 1.
        """
        columns = by_output("mean", self.mean, outputs)
        for name, variance in self.variances().items():
            column = "sd" if name == "total" else f"{name}_sd"
            columns |= by_output(column, variance.sqrt().to(self.mean.dtype), outputs)
        if level is not None:
            for name, bound in zip(("lower", "upper"), self.interval(level), strict=True):
                columns |= by_output(name, bound, outputs)
        columns |= self.target_columns(outputs)
        if self.log_density is not None:
            columns["log_density"] = array(self.log_density)
        return frame(columns, len(self), index)

    def target_columns(self, outputs: Sequence[str] | None) -> dict[str, Any]:
        """Return the targets as columns of a data frame; no columns without targets."""
        return {} if self.targets is None else by_output("target", self.targets, outputs)

    def score(self, y: Tensor | None = None) -> dict[str, float]:
        """Return scores against targets of shape ``(N, *O)``.

        Returns:
            ``rmse`` (in the units of y), ``nll`` (in nats per row) and, with `keep_draws`, ``crps`` (in the units of
            y). For targets other than those passed to `predict`, ``nll`` needs `keep_draws`.
        """
        y = self._whole_targets(y)
        scores = {"rmse": metrics.root_mean_squared_error(self.mean, y)}
        if self._has_density_of(y):
            scores["nll"] = self.nll
        elif self.components is not None:
            scores["nll"] = float(-self.log_prob(y).mean())
        if self.components is not None:
            scores["crps"] = self.crps(y)
        return scores

    @explained("prediction.crps(y)")
    def crps(self, y: Tensor) -> float:
        """Return the continuous ranked probability score at targets y, averaged over rows and outputs.

        The score is in the units of y; smaller is better. It needs `keep_draws`. For Gaussians and mixtures of
        Gaussians it is exact, and the time grows with the square of the number of Gaussians
        (:func:`~pyro_bnn.metrics.crps_of_normal_mixture`). Otherwise it is estimated from 1000 draws, always with the
        same seed (:func:`~pyro_bnn.metrics.crps_from_draws`).

        Args:
            y: Targets, shape ``(N, *O)``.
        """
        y, gaussians = self._whole_targets(as_targets("y", y, self.mean)), self._gaussians()
        if gaussians is None:
            return metrics.crps_from_draws(self.sample(CRPS_DRAWS, seed=0), y)
        return metrics.crps_of_normal_mixture(*gaussians, y)

    def _whole_targets(self, y: Tensor | None) -> Tensor:
        found, expected = self._targets_for_score(y), _checks.shape(self.mean)
        if found.shape != expected:
            remedy = _checks.reshaped(found, expected) or _checks.other_rows(found, expected)
            raise ValueError(f"`y` must have shape {expected}, got {_checks.shape(found)}{remedy}.")
        return found

    def _kept_components(self) -> Distribution:
        if self.components is None:
            raise ValueError("the mixture's components were not kept; call `predict(..., keep_draws=True)`.")
        return self.components

    def _gaussians(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the components' weights, means and scales, each ``(N, *O, M)``, or None if they are not Gaussian."""
        components = self._kept_components()
        if not isinstance(components, Normal):
            return None
        loc, scale = (value.double().movedim(0, -1) for value in (components.loc, components.scale))
        return torch.full_like(loc, 1 / self.num_samples), loc, scale

    def targets_like(self, y: Tensor) -> Tensor:
        """Return targets in the shape of the mean, ``(N, *O)``. For a single output, y may have the shape (N,).

        Raises:
            ValueError: If y has another shape, or elements that are not finite real numbers.
        """
        shape, found = self.mean.shape, as_targets("y", y, self.mean)
        if found.shape != shape and (found.shape != shape[:1] or shape[1:].numel() != 1):
            remedy = _checks.other_rows(found, shape)
            raise ValueError(f"`y` must have shape {tuple(shape)}, got {_checks.shape(found)}{remedy}.")
        return self._aligned(found.reshape(shape))

    def _aligned(self, y: Tensor) -> Tensor:
        expected, wanted = self.mean.shape, f"`y` must have shape (..., {', '.join(map(str, self.mean.shape))})"
        y = y if isinstance(y, Tensor) else as_targets("y", y, self.mean)
        _checks.finite("y", y)
        if y.is_complex():
            raise ValueError(f"`y` must be real, got {y.dtype}; call `y.real`.")
        given = y
        try:
            y = y.to(self.mean).expand(torch.broadcast_shapes(y.shape, expected))
        except RuntimeError:
            raise ValueError(f"{wanted}, got {_checks.shape(y)}.") from None
        if y.shape[y.dim() - len(expected) :] != expected:
            raise ValueError(f"{wanted}, got {_checks.shape(given)}{_checks.reshaped(given, expected)}.")
        return y

    def _for_each(self, function: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """Apply a function to each block ``(N, *O)`` of y, shape ``(..., N, *O)``; stack the results."""
        y = self._aligned(y)
        lead = y.shape[: y.dim() - self.mean.dim()]
        results = [function(values) for values in y.reshape(-1, *self.mean.shape)]
        shape = results[0].shape if results else function(self.mean).shape
        return torch.stack(results).reshape(*lead, *shape) if results else self.mean.new_zeros(*lead, *shape)

    @explained("prediction.log_prob(y)")
    def log_prob(self, y: Tensor) -> Tensor:
        r"""Return the log-density (or log-probability) of each row of y under the mixture, in nats.

        .. math:: \log p(y \mid x) = \log \tfrac1S \sum_s \prod_o p(y_o \mid f_{w_s}(x)).

        At the targets, it equals `log_density`. The leading axes of y may hold, for example, a grid of values.

        Args:
            y: Values that broadcast to ``(..., N, *O)``; the result has shape ``(..., N)``.
        """
        components = self._kept_components()

        def log_prob(values: Tensor) -> Tensor:
            elements = components.log_prob(values)  # (S, N, *O)
            rows = elements.flatten(2).sum(-1) if elements.dim() > 2 else elements
            return rows.logsumexp(0) - math.log(self.num_samples)

        return self._for_each(log_prob, y)

    @explained("prediction.sample(100)")
    def sample(self, num_samples: int, *, seed: int | None = None) -> Tensor:
        """Draw observations of all rows, shape ``(num_samples, N, *O)``; each sample uses one draw for all rows.

        Args:
            num_samples: Number of observations of each row.
            seed: Seed of the draws; with ``None``, a seed is drawn.
        """
        components = self._kept_components()
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        _checks.in_memory("num_samples", num_samples, self.mean.nbytes)
        device = self.mean.device
        with seeded(seed, device):
            index = torch.randint(self.num_samples, (num_samples,), device=device)
            return take(components, index, 0).sample()

    @explained("prediction.cdf(y)")
    def cdf(self, y: Tensor) -> Tensor:
        """Return the probability that an observation is at most y, element by element.

        Without a closed form, it is the share of 4000 draws that are at most y. These draws always have the same seed.

        Args:
            y: Values that broadcast to ``(..., N, *O)``, the shape of the result.
        """
        gaussians = self._gaussians()
        components = in_double(self._kept_components())
        draws = self.sample(NUM_DRAWS, seed=0) if gaussians is None and not has_cdf(components) else None

        def cdf(values: Tensor) -> Tensor:
            if draws is not None:
                return (draws <= values).to(self.mean.dtype).mean(0)
            below = mean_cdf(components, values.double()) if gaussians is None else mixture_cdf(*gaussians, values)
            return below.to(self.mean.dtype)

        return self._for_each(cdf, y)

    @explained("prediction.quantile([0.05, 0.95])")
    def quantile(self, q: float | Sequence[Any] | Tensor) -> Tensor:
        """Return quantiles of the mixture, element by element, by bisection.

        Without a closed form of the distribution function, they are quantiles of 4000 draws, always with the same seed.

        Args:
            q: One or several probabilities, strictly between 0 and 1.

        Returns:
            Quantiles, shape ``(*q.shape, N, *O)``. For counts, the smallest whole number at which the distribution
            function is at least q.
        """
        levels = levels_of(q)
        gaussians = self._gaussians()
        components = in_double(self._kept_components())
        if gaussians is None and not has_cdf(components):
            found = quantile_of_draws(self.sample(NUM_DRAWS, seed=0), levels.flatten())
            return found.to(self.mean.dtype).reshape(*levels.shape, *self.mean.shape)

        def quantile(level: float) -> Tensor:
            if gaussians is not None:
                return mixture_icdf(*gaussians, torch.full_like(self.mean, level, dtype=torch.double))
            return mixture_quantile(components, level)

        quantiles = [quantile(level).to(self.mean.dtype) for level in levels.flatten().tolist()]
        return torch.stack(quantiles).reshape(*levels.shape, *self.mean.shape)
