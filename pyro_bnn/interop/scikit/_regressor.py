"""The regressor."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from ..._core import checks as _checks
from ...auto.choosing import OF_NUMBERS, has_few_values
from ...modelling.likelihoods import LIKELIHOODS, NOISE_PRIOR, GaussianLikelihood, make_likelihood
from ...scores.uncertainty import RegressionPrediction
from ._base import DTYPE, BNNEstimator, in_units, standard_units

Floats = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class BNNRegressor(RegressorMixin, BNNEstimator):
    r"""A Bayesian neural network for regression on tables, as a scikit-learn estimator.

    Inputs and targets are standardised internally. The network is an MLP; its weights and the noise scale have priors.
    Several targets share the network; each has its own noise.

    Which `method`? ``"auto"``, the default, chooses the design and the length of the fit. It holds out some rows,
    compares five networks with their priors and noise on them, and fits the best one to all rows as ``"mclmc"`` does,
    for as long as `time_limit` allows. It keeps the settings that you give. If there are too many rows, or no C
    compiler, it uses ``"svi"`` instead, and `status_` says why. The other methods fit one network, by default of 20
    tanh units:

    ``"svi"`` fits one Gaussian for each weight; it is fast, for any number of rows. ``"natural"`` fits the same by
    natural gradients. ``"nuts"`` draws from the exact
    posterior, in time that grows with the rows: use it for up to some thousand. ``"mclmc"`` trains `num_members`
    networks and lets a Markov chain explore the mode of each: best where the modes of the posterior differ, above all
    with two or more hidden layers, at several times the cost. ``"ensemble"`` fits several point estimates, good where
    the target is nearly without noise. ``"laplace"`` fits a Gaussian around one point estimate, for any number of rows,
    over all weights if they are at most 1000, otherwise over those of the last layer. It predicts with the network
    linearised in its weights there. It chooses the noise by the evidence, and also the prior, unless you name one. It
    accepts Gaussian priors, and all likelihoods except mixtures. ``"kronecker"`` does the same over all weights of a
    network of any size, with Kronecker factors, for constant noise and for classes; it needs laplace-torch.
    ``"swag"`` fits a Gaussian of low rank to the path of a point estimate.

    Args:
        hidden_layer_sizes: Number of units of each hidden layer; a single number means one layer. None lets ``"auto"``
            choose, and means 20 for the other methods; None also lets it choose `likelihood`, `activation` and `prior`.
        method: The inference method: ``"auto"``, ``"svi"``, ``"natural"``, ``"nuts"``, ``"mclmc"``, ``"laplace"``,
            ``"kronecker"``, ``"swag"`` or ``"ensemble"``.
        likelihood: Distribution of a target given the network, by name: ``"gaussian"`` with the same noise for all
            rows, ``"gaussian:SCALE"`` with a known noise scale in standard units, ``"heteroscedastic"`` with noise that
            depends on the inputs, ``"mixture:COMPONENTS"``, or ``"poisson"`` for counts.
        activation: Activation after each hidden layer: ``"relu"``, ``"tanh"``, ``"logistic"``, ``"silu"`` or
            ``"gelu"``, or a function that makes one.
        prior: Prior of the weights; None is a Gaussian whose variance is inverse to the number of a unit's inputs.
        time_limit: Seconds that ``"auto"`` may take on torch's threads, besides compiling; the result then depends on
            the speed of the machine. None takes about a minute of processor time for a thousand rows, and between 20
            seconds and 5 minutes in all, by lengths that are the same on every machine.
        max_iter: Limit of epochs; None uses that of :func:`~pyro_bnn.fit`, which ends earlier at a plateau. For
            ``"nuts"`` and ``"mclmc"`` the number of draws of each chain, after as many warm-up draws; None is 200 draws
            after 200 (``"nuts"``) or 600 (``"mclmc"``) of warm-up. For ``"auto"`` it limits both numbers.
        batch_size: Number of rows in a batch; None chooses it from the number of rows. Markov chains use no batches.
        learning_rate: First learning rate: of Adam, 0.02 by default; of natural gradients, as a fraction of a Newton
            step, 0.1.
        early_stopping: Whether to hold out rows, and keep the epoch that predicts them best. Markov chains use all
            rows.
        validation_fraction: Share of the rows that `early_stopping` holds out.
        kl_weight: Weight of the KL divergence of ``"svi"`` and ``"natural"``. With 1 the fit maximises the ELBO; less
            follows the data more closely, with narrower weights.
        num_samples: Number of weight draws of a prediction; None is 100, or 800 for chains, whose draws are stored.
        num_members: Number of members of ``"ensemble"``, and of chains of ``"mclmc"``.
        num_chains: Number of chains of ``"nuts"``.
        random_state: Seed, or numpy generator, of everything random, predictions included; None draws a seed at each
            fit, and numpy's global generator is not changed.
        verbose: Whether to show a progress bar.

    Attributes:
        model_: The fitted :class:`~pyro_bnn.BayesianModel`, for targets in standard units.
        posterior_: Its :class:`~pyro_bnn.Posterior`.
        status_: How the fit ended and, if there is trouble, what to try.
        n_iter_: Number of epochs; for ``"nuts"`` and ``"mclmc"`` the number of draws.
        n_features_in_: Number of columns of X.
        feature_names_in_: Names of the columns, if X was a data frame.

    Example:
        >>> X = np.linspace(-1, 1, 30)[:, None]
        >>> regressor = BNNRegressor((5,), method="laplace", random_state=0).fit(X, 100 * X[:, 0])
        >>> low, high = regressor.predict_interval([[0.5]])[0]
        >>> bool(40 < low < 50 < high < 60)
        True
    """

    likelihood: str | None = field(default=None, kw_only=True)
    _mean: torch.Tensor = field(init=False)
    _scale: torch.Tensor = field(init=False)

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "BNNRegressor":
        """Fit the network to a table.

        Args:
            X: Inputs, shape (N, D): an array, a list of rows, a data frame of numbers, or a sparse matrix, which
                takes the memory of a full one.
            y: Targets, shape (N,) or (N, O).
            sample_weight: Weight of each row, shape (N,): a row of weight 2 counts as the same row twice, and one of
                weight 0 is left out. None gives all rows the same weight.

        Returns:
            The estimator.

        Raises:
            ValueError: If a parameter or the data are of the wrong kind.

        Warns:
            ConvergenceWarning: scikit-learn's, if the fit shows a sign of trouble; the message says what to try.
        """
        return self._learn(X, y, sample_weight)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "BNNRegressor":
        """Fit to a next part of the data: the posterior of the rows so far becomes the prior.

        The first part sets the standard units. The methods are ``"svi"``, which ``"auto"`` means here, and
        ``"natural"``. Each part estimates the noise anew.

        Args:
            X: Inputs, shape (N, D).
            y: Targets, shape (N,) or (N, O).
            sample_weight: Weight of each row, shape (N,), as in :meth:`fit`.

        Returns:
            The estimator.

        Raises:
            ValueError: If the method has no Gaussian posterior, or as for :meth:`fit`.

        References:
            Nguyen et al. (2018), Variational Continual Learning, https://arxiv.org/abs/1710.10628.
        """
        return self._learn(X, y, sample_weight, is_part=True, is_next=self._is_next())

    def _learn(
        self, X: Any, y: Any, sample_weight: Any, *, is_part: bool = False, is_next: bool = False
    ) -> "BNNRegressor":
        x, targets = self._table(X, y, is_next=is_next, multi_output=True, y_numeric=True)
        y_all = torch.tensor(targets.reshape(len(x), -1), dtype=DTYPE)
        rows, weights = self._weights(sample_weight, len(x))
        x, y_all = x[rows], y_all[rows]
        num_targets = y_all.shape[1]
        if is_next:
            if num_targets != len(self._mean):
                raise ValueError(f"`y` must have {len(self._mean)} columns, as in the first part, got {num_targets}.")
            designs = [self._design]
        else:
            self._has_target_axis = targets.ndim == 2
            likelihood = self.likelihood
            if likelihood is None and has_few_values(y_all):
                likelihood = "gaussian"
            designs = self._designs(OF_NUMBERS, "gaussian", likelihood)
            self._design = designs[0]
        likelihoods = {design.likelihood: make_likelihood(design.likelihood) for design in designs}
        kind = LIKELIHOODS[next(iter(likelihoods)).partition(":")[0]].targets
        if kind == "classes":
            raise ValueError(
                f"`likelihood` must be one of numbers or counts, got {self.likelihood!r}; use a BNNClassifier."
            )
        if "gaussian" in likelihoods and num_targets > 1:  # one noise scale for each target
            scales = dist.LogNormal(*NOISE_PRIOR).expand([num_targets]).to_event(1)
            likelihoods["gaussian"] = GaussianLikelihood(scales)
        if not is_next:
            counts = y_all.new_zeros(num_targets), y_all.new_ones(num_targets)
            self._mean, self._scale = counts if kind == "counts" else standard_units(y_all, weights)
        y_standard = (y_all - self._mean) / self._scale
        return self._fit(x, y_standard, weights, designs, likelihoods, num_targets, is_part=is_part, is_next=is_next)

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Floats: ...
    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Floats, Floats]: ...
    def predict(self, X: ArrayLike, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """Predictive means, and standard deviations of an observation.

        Args:
            X: Inputs, shape (N, D).
            return_std: Whether to return the standard deviations too; they include noise and uncertainty about the
                weights.

        Returns:
            The means, in the shape of the targets given to :meth:`fit`; with `return_std` a pair.
        """
        prediction = self._in_units(X, keep_draws=False)
        mean = self._shaped(prediction.mean)
        return (mean, self._shaped(prediction.total.sqrt())) if return_std else mean

    def predict_interval(self, X: ArrayLike, level: float = 0.95) -> Floats:
        """Intervals that contain an observation with a given probability; both tails have equal probability.

        Args:
            X: Inputs, shape (N, D).
            level: The probability, strictly between 0 and 1.

        Returns:
            Lower and upper ends, shape (N, 2), or (N, O, 2) for several targets.
        """
        tail = (1 - _checks.between_zero_and_one("level", level)) / 2
        return np.moveaxis(self.predict_quantile(X, [tail, 1 - tail]), 0, -1)

    def predict_quantile(self, X: ArrayLike, q: float | Sequence[float]) -> Floats:
        """Quantiles of an observation.

        Args:
            X: Inputs, shape (N, D).
            q: A probability, strictly between 0 and 1, or Q of them.

        Returns:
            Quantiles, shape (N,), or (Q, N) for several probabilities; for several targets with a last axis (O,).
        """
        quantiles = self._in_units(X, keep_draws=True).quantile(q)
        return self._shaped(quantiles)

    def predict_distribution(self, X: ArrayLike) -> RegressionPrediction:
        """The whole prediction: its aleatoric and epistemic variance, densities, quantiles, draws and scores.

        Args:
            X: Inputs, shape (N, D).

        Returns:
            A prediction of shape (N, O), also for a single target, in the units of the targets.
        """
        return self._in_units(X, keep_draws=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _in_units(self, X: ArrayLike, *, keep_draws: bool) -> RegressionPrediction:
        prediction = self._prediction(X, RegressionPrediction, keep_draws=keep_draws)
        return in_units(prediction, self._mean, self._scale)

    def _shaped(self, values: torch.Tensor) -> Floats:
        """Values of shape (..., O) as an array; (...) if the targets had no axis O."""
        return (values if self._has_target_axis else values[..., 0]).numpy()
