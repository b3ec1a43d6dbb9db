"""The classifier."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from ...auto.choosing import OF_CLASSES
from ...modelling.likelihoods import CategoricalLikelihood
from ...scores.uncertainty import ClassificationPrediction
from ._base import BNNEstimator

Floats = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class BNNClassifier(ClassifierMixin, BNNEstimator):
    r"""A Bayesian neural network that classifies rows of a table, as a scikit-learn estimator.

    Inputs are standardised internally. The network is an MLP whose weights have a prior. The parameters are those of
    :class:`BNNRegressor` without `likelihood`; its description says when to choose which method. `early_stopping` holds
    out the same share of the rows of each class.

    Attributes:
        classes_: The labels, sorted, shape (C,).
        model_: The fitted :class:`~pyro_bnn.BayesianModel`.
        posterior_: Its :class:`~pyro_bnn.Posterior`.
        status_: How the fit ended and, if there is trouble, what to try.
        n_iter_: Number of epochs; for ``"nuts"`` the number of draws.
        n_features_in_: Number of columns of X.
        feature_names_in_: Names of the columns, if X was a data frame.
    """

    classes_: NDArray[Any] = field(init=False)

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "BNNClassifier":
        """Fit the network to a table.

        Args:
            X: Inputs, shape (N, D): an array, a list of rows or a data frame of numbers.
            y: Labels, shape (N,): numbers or texts.
            sample_weight: Weight of each row, shape (N,): a row of weight 2 counts as the same row twice, and one of
                weight 0 is left out. None gives all rows the same weight.

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
        y_all, num_classes = torch.from_numpy(indices), len(self.classes_)
        likelihoods = {"categorical": CategoricalLikelihood()}
        designs = self._designs(OF_CLASSES, "categorical")
        return self._fit(x[rows], y_all, weights, designs, likelihoods, num_classes, indices)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each row, shape (N,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities of the classes, shape (N, C), in the order of :attr:`classes_`: means over weight draws."""
        probs = self._prediction(X, ClassificationPrediction, keep_draws=False).probs.numpy()
        return probs / probs.sum(1, keepdims=True)

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of :meth:`predict_proba`, shape (N, C)."""
        return np.log(self.predict_proba(X))

    def predict_distribution(self, X: ArrayLike) -> ClassificationPrediction:
        """The whole prediction: entropies, and how far the weight draws agree; classes are numbered as in `classes_`.

        Args:
            X: Inputs, shape (N, D).
        """
        return self._prediction(X, ClassificationPrediction, keep_draws=True)
