"""The classifier."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import nn

from ...modelling.likelihoods import CategoricalLikelihood, Likelihood
from ...modelling.priors import Prior
from ...scores.uncertainty import ClassificationPrediction
from ._base import BNNEstimator

Floats = NDArray[np.float64]


class BNNClassifier(ClassifierMixin, BNNEstimator):
    r"""A Bayesian neural network that tells classes of table rows, as an estimator of scikit-learn.

    Inputs are standardised inside. The network is an MLP whose weights have a prior. For the methods see
    :class:`BNNRegressor`, whose parameters these are but for `likelihood`, and which has an example.

    Args:
        hidden_layer_sizes: Number of units of each hidden layer; a number is one layer.
        method: How to infer: ``"svi"``, ``"nuts"``, ``"laplace"`` or ``"ensemble"``.
        activation: Function that makes the activation after each hidden layer.
        prior: Prior of the weights; None is a Gaussian whose variance is inverse to the number of a unit's inputs.
        max_iter: Limit of epochs, or number of draws of each chain of ``"nuts"``; None is the method's own.
        batch_size: Number of rows in a batch; None chooses it from the number of rows. NUTS has no batches.
        learning_rate: First learning rate of Adam.
        early_stopping: Whether to leave out rows, and keep the epoch that predicts them best. NUTS uses all rows.
        validation_fraction: Share of the rows of each class that are left out by `early_stopping`.
        kl_weight: Weight of the KL divergence of ``"svi"``. With 1 it is the bound itself; less follows the data more
            closely, with narrower weights.
        num_draws: Number of weight draws of a prediction.
        num_members: Number of members of ``"ensemble"``.
        num_chains: Number of chains of ``"nuts"``.
        random_state: Seed, or numpy generator, of everything random, predictions included; None draws a seed at each
            fit and leaves numpy's global generator as it was.
        verbose: Whether to show a progress bar.

    Attributes:
        classes_: The labels, sorted, shape (C,).
        model_: The fitted :class:`~pyro_bnn.BayesianModel`.
        posterior_: Its :class:`~pyro_bnn.Posterior`.
        status_: How the fit ended and, if there is trouble, what to try.
        n_iter_: Number of epochs; of draws for ``"nuts"``.
        n_features_in_: Number of columns of X.
        feature_names_in_: Names of the columns, if X was a data frame.
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | int = (20,),
        *,
        method: str = "svi",
        activation: Callable[[], nn.Module] = nn.Tanh,
        prior: Prior | None = None,
        max_iter: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 0.02,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        kl_weight: float = 1.0,
        num_draws: int = 100,
        num_members: int = 5,
        num_chains: int = 2,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.method = method
        self.activation = activation
        self.prior = prior
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.kl_weight = kl_weight
        self.num_draws = num_draws
        self.num_members = num_members
        self.num_chains = num_chains
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "BNNClassifier":
        """Fit the network to a table.

        Args:
            X: Inputs, shape (N, D): an array, a list of rows or a data frame of numbers.
            y: Labels, shape (N,): numbers or texts.
            sample_weight: Weight of each row, shape (N,): a row of weight 2 counts as the same row twice, and one of
                weight 0 is left out. None weights all alike.

        Returns:
            The estimator.

        Raises:
            ValueError: If a parameter or the data are of the wrong kind, or there is only one class.

        Warns:
            ConvergenceWarning: scikit-learn's, if the fit shows a sign of trouble; the message says what to try.
        """
        x, labels = self._table(X, y)
        check_classification_targets(labels)
        labels = column_or_1d(labels, warn=True)
        rows, weights = self._weights(sample_weight, len(x))
        self.classes_, indices = np.unique(labels[rows], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"`y` must have at least two classes, got one class, {self.classes_[0]!r}, in rows of a weight above 0."
            )
        return self._fit(x[rows], torch.from_numpy(indices), weights, indices)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The label of largest probability of each row, shape (N,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities of the classes, shape (N, C), in the order of :attr:`classes_`: means over weight draws."""
        probs = self._classification(X, keep_draws=False).probs.numpy()
        return probs / probs.sum(1, keepdims=True)

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of :meth:`predict_proba`, shape (N, C)."""
        return np.log(self.predict_proba(X))

    def predict_distribution(self, X: ArrayLike) -> ClassificationPrediction:
        """The whole prediction: entropies, and how far the weight draws agree; classes are numbered as in `classes_`.

        Args:
            X: Inputs, shape (N, D).
        """
        return self._classification(X, keep_draws=True)

    @property
    def _num_targets(self) -> int:
        return len(self.classes_)

    def _make_likelihood(self) -> Likelihood:
        return CategoricalLikelihood()

    def _classification(self, X: ArrayLike, *, keep_draws: bool) -> ClassificationPrediction:
        return cast(ClassificationPrediction, self._prediction(X, keep_draws=keep_draws))
