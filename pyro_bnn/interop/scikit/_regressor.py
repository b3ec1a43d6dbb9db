"""The regressor.

Names that are imported "as" themselves are types of inherited fields, which tools look up here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable as Callable
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn as nn

from ..._core import checks as _checks
from ..._core.scope import outer_stacklevel
from ..._core.signatures import ALPHA, explained
from ...auto.choosing import OF_NUMBERS, has_few_values
from ...modelling.likelihoods import (
    LIKELIHOODS,
    NOISE_PRIOR,
    GaussianLikelihood,
    Likelihood,
    make_likelihood,
    name_of_likelihood,
)
from ...modelling.priors import PriorLike as PriorLike
from ...results.calibration import ConformalIntervals
from ...results.units import in_units, note_on_unlike_rows
from ...scores.uncertainty import RegressionPrediction
from ._base import DTYPE, HINTS, BNNEstimator, standard_units
from ._methods import Activation as Activation
from ._methods import Method as Method

Floats = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class OfNumbers:
    """The parameter of regressors. It comes first in the signature, as do all fields of the last base class."""

    likelihood: str | Likelihood | None = field(default=None, kw_only=True)


@explained("BNNRegressor().fit(X, y)", HINTS)
@dataclass(eq=False, repr=False)
class BNNRegressor(RegressorMixin, BNNEstimator, OfNumbers):
    r"""A Bayesian neural network for regression on tables, as a scikit-learn estimator.

    Inputs and targets are standardised internally. The network is an MLP; its weights and the noise scale have priors.
    Several targets share the network, but each has its own noise. By default (method ``"auto"``), the estimator
    compares five networks, with their priors and noise, on held-out rows. It then runs chains (MCLMC) for the best one.
    `status_` says what was chosen and why. The page :doc:`/how_to/scikit_learn` describes the methods.

    Args:
        hidden_layer_sizes: Number of units of each hidden layer; a single number means one layer. By default,
            ``"auto"`` chooses the layers, and other methods use one layer of 20 units. ``"auto"`` also chooses
            `likelihood`, `activation` and `prior`, unless you set them.
        likelihood: Distribution of a target given the network's output:

            - ``"gaussian"`` has the same noise for all rows.
            - ``"gaussian:SCALE"`` has a known noise scale in standard units.
            - ``"heteroscedastic"`` has noise that depends on the inputs, up to ten times the standard deviation of the
              targets.
            - ``"mixture:COMPONENTS"`` is a mixture of Gaussians.
            - ``"poisson"`` is for counts.
            - A likelihood object, such as ``GaussianLikelihood(0.1)``, is for targets in standard units.

        method: The inference method:

            - ``"auto"`` chooses the network and the length of the fit; with too many rows, or no C compiler, it means
              ``"svi"``.
            - ``"svi"`` fits one Gaussian for each weight, for any number of rows.
            - ``"natural"`` also fits one Gaussian for each weight, but with natural gradients.
            - ``"nuts"`` draws by NUTS, which is asymptotically exact, for up to a thousand rows.
            - ``"mclmc"`` trains `num_members` networks, and explores the mode of each with a chain.
            - ``"ensemble"`` trains several plain networks.
            - ``"laplace"`` fits a Gaussian around the weights of one plain network, with
              :func:`~pyro_bnn.fit_gauss_newton`: all weights if there are at most 1000, otherwise only the last
              layer's.
            - ``"kronecker"`` fits a Gaussian around all weights of a plain network of any size.
            - ``"swag"`` trains a plain network, and fits a Gaussian to the weights that further training visits.

        prior: Prior of the weights, or a distribution of one real number, such as ``dist.Normal(0.0, 1.0)``, for each
            weight. With ``None``, a Gaussian whose variance is inversely proportional to the number of inputs of the
            weight's unit.
        activation: Activation after each hidden layer: ``"relu"``, ``"tanh"``, ``"logistic"``, ``"silu"`` or
            ``"gelu"``, or a function that makes an activation module.
        time_limit: Seconds that ``"auto"`` may take, imports and compilation included; a fit may end about two seconds
            late. With a limit, the result depends on the speed of the machine, and `status_` says what was cut short.
            Without a limit, ``"auto"`` makes the same steps on every machine; a thousand rows take about half a minute
            on two cores.
        random_state: Seed, or numpy's ``RandomState``, for everything random, including predictions. With ``None``,
            each fit has a new seed, which does not come from numpy's global generator.
        verbose: Whether to show the progress of the fit; 0 shows nothing. For the default, see `progress` of
            :func:`~pyro_bnn.fit_svi`.
        calibration_fraction: Share of the rows that are held out from the fit for calibration. They correct the
            intervals of :meth:`predict_interval` (:class:`~pyro_bnn.calibration.ConformalIntervals`), or make the sets
            of :meth:`BNNClassifier.predict_set`. Calibration cannot be combined with `sample_weight`,
            :meth:`partial_fit` or several labels for each row.
        num_samples: Number of draws in a prediction. By default, ``"ensemble"`` uses each member once, chains use all
            stored draws (at most 800), and other methods use 100 draws.
        max_iter: Largest number of epochs, by default as in :func:`~pyro_bnn.fit`. A fit ends earlier at a plateau. For
            ``"nuts"`` and ``"mclmc"``, the number of draws of each chain, and also the number of its warm-up draws. By
            default, there are 200 draws, after 200 warm-up draws for ``"nuts"`` and 600 for ``"mclmc"``. For
            ``"auto"``, the largest value of each of these two numbers.
        batch_size: Number of rows in a batch; with ``None``, chosen from the number of rows. Chains use no batches.
        learning_rate: Initial learning rate; with ``None``, 0.02 for Adam, and 0.1 of a Newton step for natural
            gradients.
        early_stopping: Whether to hold out rows, and to keep the posterior that predicts them best. Chains do not use
            early stopping.
        validation_fraction: Share of the rows that `early_stopping` holds out.
        kl_weight: Weight of the KL divergence in ``"svi"`` and ``"natural"``: 1 for the ELBO; below 1, the posterior is
            narrower.
        num_members: Number of members of ``"ensemble"``, or of chains of ``"mclmc"``.
        num_chains: Number of chains of ``"nuts"``, by default 2; ``"auto"`` chooses its own number.

    Attributes:
        model_: The fitted :class:`~pyro_bnn.BayesianModel`, for targets in standard units.
        posterior_: The :class:`~pyro_bnn.Posterior` of the model.
        status_: How the fit ended, and what to try if it failed. Notebooks show this below the parameters, and
            ``print(regressor)`` does, too.
        n_iter_: Number of epochs; for Markov chains the number of draws of each chain.
        n_features_in_: Number of columns of X.
        feature_names_in_: Names of the columns, if X was a data frame.

    Example:
        >>> import numpy as np
        >>> from pyro_bnn import BNNRegressor
        >>> X = np.linspace(-1, 1, 60)[:, None]
        >>> y = 100 * X[:, 0] + 10 * np.random.default_rng(0).normal(size=60)
        >>> regressor = BNNRegressor(
        ...     (5,), method="laplace", max_iter=300, random_state=0
        ... ).fit(X, y)
        >>> regressor.predict_interval([[0.5], [3.0]], level=0.9).round(-1)
        array([[ 40.,  70.],
               [ 70., 210.]])
    """

    _mean: torch.Tensor = field(init=False)
    _scale: torch.Tensor = field(init=False)
    _sd_of_targets: torch.Tensor = field(init=False)

    @explained("regressor.fit(X, y)")
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> BNNRegressor:
        """Fit the network to a table.

        Args:
            X: Inputs, shape (N, D): an array, a list of rows, a data frame of numbers, or a sparse matrix, which
                becomes dense.
            y: Targets, shape (N,) or (N, O).
            sample_weight: Weight of each row, shape (N,): 2 counts like two equal rows, and 0 leaves a row out.

        Raises:
            ValueError: If a parameter or the data are of the wrong kind.

        Warns:
            UserWarning: If a parameter is set that the method does not use, there are fewer than 8 rows, or a target is
                constant.
            ConvergenceWarning: If the status of the fit is not ok. The message says what to try.
        """
        with self._fitting():
            return self._learn(X, y, sample_weight)

    @explained("regressor.partial_fit(X, y)")
    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> BNNRegressor:
        """Fit to a further part of the data, with the posterior of the earlier parts as the prior.

        The first part determines the standardisation. Each call estimates the noise from its own rows only. The method
        must be ``"svi"``, ``"natural"``, or ``"auto"``, which here means ``"svi"``.

        Args:
            X: Inputs, shape (N, D).
            y: Targets, shape (N,) or (N, O).
            sample_weight: Weight of each row, shape (N,).

        Raises:
            ValueError: If the method has no partial fits; see also :meth:`fit`.

        References:
            Nguyen et al. (2018), Variational Continual Learning, https://arxiv.org/abs/1710.10628.
        """
        is_next = self._is_next()
        with self._fitting(is_next=is_next):
            return self._learn(X, y, sample_weight, is_part=True, is_next=is_next)

    def _learn(
        self, X: Any, y: Any, sample_weight: Any, *, is_part: bool = False, is_next: bool = False
    ) -> BNNRegressor:
        _require_numbers(y)
        x, targets = self._validated(X, y, is_next=is_next, multi_output=True, y_numeric=True)
        y_all = torch.tensor(targets.reshape(len(x), -1), dtype=DTYPE)
        rows, weights = self._weights(sample_weight, len(x))
        unfit = {"for `partial_fit`": is_part, "with `sample_weight`": sample_weight is not None}
        fitted, calibrating = self._set_aside(len(rows), unfit)
        held_out = None if calibrating is None else (x[rows[calibrating]], y_all[rows[calibrating]])
        x, y_all = x[rows[fitted]], y_all[rows[fitted]]
        num_targets, likelihood = y_all.shape[1], self.likelihood
        suited = [name for name, choice in LIKELIHOODS.items() if choice.targets != "classes"]
        own = {name_of_likelihood(likelihood, suited): likelihood} if isinstance(likelihood, Likelihood) else {}
        if is_next:
            if num_targets != len(self._mean):
                raise ValueError(f"`y` must have {len(self._mean)} columns, as in the first part, got {num_targets}.")
            designs = [self._design]
        else:
            self._has_target_axis = targets.ndim == 2
            name = next(iter(own)) if isinstance(likelihood, Likelihood) else likelihood
            if name is None and has_few_values(y_all):
                name = "gaussian"
            designs = self._designs(OF_NUMBERS, "gaussian", name)
            self._design = designs[0]
        likelihoods = own or {design.likelihood: make_likelihood(design.likelihood, suited) for design in designs}
        kind = LIKELIHOODS[next(iter(likelihoods)).partition(":")[0]].targets
        if kind == "classes":
            raise ValueError(
                f"`likelihood` must be one of numbers or counts, got {self.likelihood!r}; use a BNNClassifier."
            )
        if "gaussian" in likelihoods and not own and num_targets > 1:  # one noise scale for each target
            scales = dist.LogNormal(*NOISE_PRIOR).expand([num_targets]).to_event(1)
            likelihoods["gaussian"] = GaussianLikelihood(scales)
        if not is_next:
            counts = y_all.new_zeros(num_targets), y_all.new_ones(num_targets)
            in_standard = standard_units(y_all, weights)
            self._mean, self._scale = counts if kind == "counts" else in_standard
            self._sd_of_targets = in_standard[1]
            if bool((y_all == y_all[0]).all(0).any()):
                constant = "`y` has the same value in all rows, so the fit learns no relation to `X`; check the column."
                warnings.warn(constant, UserWarning, stacklevel=outer_stacklevel())
        y_standard = (y_all - self._mean) / self._scale
        self._fit(x, y_standard, weights, designs, likelihoods, num_targets, is_part=is_part, is_next=is_next)
        if held_out is not None:
            prediction = self._predicted(held_out[0], keep_draws=False).as_kind(RegressionPrediction)
            y_held = (held_out[1] - self._mean) / self._scale
            self._calibration = ConformalIntervals(prediction, y_held, is_count=kind == "counts")
        return self

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Floats: ...
    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Floats, Floats]: ...
    @explained("regressor.predict(X, return_std=True)", {"level": "call `predict_interval(X, level=0.9)`"})
    def predict(self, X: ArrayLike, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """Predict the mean of an observation, and on request its standard deviation.

        Args:
            X: Inputs, shape (N, D).
            return_std: Whether to return standard deviations, too. A standard deviation includes the noise and the
                uncertainty about the weights.

        Returns:
            The means, in the shape of the targets; with `return_std`, a pair (means, standard deviations).

        Warns:
            UserWarning: With `return_std`, as in :meth:`predict_distribution`.
        """
        prediction = self._in_units(X, keep_draws=False)
        mean = self._shaped(prediction.mean)
        return (mean, self._shaped(self._noted(prediction).total.sqrt())) if return_std else mean

    @explained("regressor.predict_interval(X, level=0.9)", {"alpha": ALPHA})
    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> Floats:
        """Return the ends of an interval for each row of X, shape (N, 2), or (N, O, 2) for several targets.

        A new observation lies in its interval with probability `level`, and is as likely below as above. For counts,
        the probability is at least `level`, and the probabilities below and above may differ. As in MAPIE, the axis of
        the two ends comes last; in :meth:`~pyro_bnn.RegressionPrediction.interval` it comes first.

        With a `calibration_fraction`, held-out rows correct the intervals, and the probability is guaranteed as long as
        new rows have the same distribution as the old rows. Without it, the intervals are right if the model is right.

        Args:
            X: Inputs, shape (N, D).
            level: The probability.

        Returns:
            Lower ends ``[..., 0]`` and upper ends ``[..., 1]``.

        Example:
            >>> import numpy as np
            >>> from pyro_bnn import BNNRegressor
            >>> X = np.linspace(-1, 1, 40)[:, None]
            >>> regressor = BNNRegressor(method="laplace", max_iter=300, random_state=0)
            >>> regressor = regressor.fit(X, 2 * X[:, 0])
            >>> lower, upper = regressor.predict_interval(X, level=0.9).T
            >>> lower.shape, bool((lower < upper).all())
            ((40,), True)
        """
        check_is_fitted(self)
        if self._calibration is None:
            tail = (1 - _checks.between_zero_and_one("level", level)) / 2
            return self.predict_quantile(X, [tail, 1 - tail])
        prediction = self._prediction(X, RegressionPrediction, keep_draws=False)
        self._noted(in_units(prediction, self._mean, self._scale))
        ends = self._calibration.interval(prediction, level)
        return np.moveaxis(self._shaped(self._mean + self._scale * ends), 0, -1)

    @explained("regressor.predict_quantile(X, [0.05, 0.95])", {"alpha": "pass the probability as `q`"})
    def predict_quantile(self, X: ArrayLike, q: float | Sequence[float]) -> Floats:
        """Return quantiles of an observation.

        Args:
            X: Inputs, shape (N, D).
            q: One probability, strictly between 0 and 1, or a list of Q probabilities.

        Returns:
            Quantiles, shape (N,), or (N, Q) for a list; with several targets, (N, O) or (N, O, Q). In
            :meth:`~pyro_bnn.RegressionPrediction.quantile`, the axis Q comes first.
        """
        quantiles = self._shaped(self._noted(self._in_units(X, keep_draws=True)).quantile(q))
        return np.moveaxis(quantiles, range(np.ndim(q)), range(-np.ndim(q), 0))

    @explained("regressor.predict_distribution(X)")
    def predict_distribution(self, X: ArrayLike) -> RegressionPrediction:
        """Return the prediction, with aleatoric and epistemic variance, densities, quantiles, draws and scores.

        Args:
            X: Inputs, shape (N, D).

        Returns:
            A prediction in the units of the targets, shape (N, O) even for one target.

        Warns:
            UserWarning: If a predicted standard deviation is more than 3 times that of the training targets.
        """
        return self._noted(self._in_units(X, keep_draws=True))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _in_units(self, X: ArrayLike, *, keep_draws: bool) -> RegressionPrediction:
        prediction = self._prediction(X, RegressionPrediction, keep_draws=keep_draws)
        return in_units(prediction, self._mean, self._scale)

    def _noted(self, prediction: RegressionPrediction) -> RegressionPrediction:
        """Return the prediction; warn if rows are unlike the training rows."""
        means = prediction.variance_of_means
        variance = prediction.aleatoric if means is None else prediction.aleatoric + means
        note = note_on_unlike_rows(variance.sqrt().numpy(), self._sd_of_targets.numpy(), range(len(variance)))
        if note:
            warnings.warn(note, UserWarning, stacklevel=outer_stacklevel())
        return prediction

    def _shaped(self, values: torch.Tensor) -> Floats:
        """Convert (..., O) to NumPy, without the axis O if the targets had none."""
        return (values if self._has_target_axis else values[..., 0]).numpy()


def _require_numbers(y: Any) -> None:
    """Raise if targets are texts or booleans, which scikit-learn would turn into numbers."""
    values = np.asarray(y).ravel()
    others = (value for value in values if isinstance(value, str | bool | np.bool_))
    other = next(others, None) if values.dtype.kind in "OUSTb" else None
    if other is not None:
        found = f"text such as '{other}'" if isinstance(other, str) else f"booleans such as {other}"
        raise ValueError(
            f"`y` must be numbers, got {found}; use BNNClassifier for classes, or convert them, as by `.astype(float)`."
        )
