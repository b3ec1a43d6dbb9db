"""The classifier.

Names that are imported "as" themselves are types of inherited fields, which tools look up here.
"""

from __future__ import annotations

from collections.abc import Callable as Callable
from collections.abc import Mapping
from collections.abc import Sequence as Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor
from torch import nn as nn

from ..._core.signatures import ALPHA, explained
from ...auto.choosing import OF_CLASSES
from ...modelling.likelihoods import make_likelihood
from ...modelling.priors import PriorLike as PriorLike
from ...results.calibration import ConformalSets
from ...scores.uncertainty import ClassificationPrediction
from ._base import HINTS, BNNEstimator
from ._methods import Activation as Activation
from ._methods import Method as Method

Floats = NDArray[np.float64]

FEWEST_ROWS, MOST_CLASSES = 20, 0.5  # heuristic, as in scikit-learn: more rows with a larger share of distinct values
FOR_NUMBERS = "use BNNRegressor for numbers, or cut them into classes"  # advice if targets are not classes


@dataclass(eq=False, repr=False)
class OfClasses:
    """The parameter of classifiers. It comes first in the signature, as do all fields of the last base class."""

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = field(default=None, kw_only=True)


@explained("BNNClassifier().fit(X, y)", HINTS)
@dataclass(eq=False, repr=False)
class BNNClassifier(ClassifierMixin, BNNEstimator, OfClasses):
    r"""A Bayesian neural network that classifies rows of a table, as a scikit-learn estimator.

    Inputs are standardised internally. The network is an MLP whose weights have a prior. The parameters are those of
    :class:`BNNRegressor`, with `class_weight` instead of `likelihood`. The page :doc:`/how_to/scikit_learn` says when
    to use which method. `early_stopping` holds out the same share of each class.

    Args:
        class_weight: Weight of each class in the fit, ``{label: weight}``, or ``"balanced"`` for weights that are
            inversely proportional to the classes' numbers of rows. The weight of a row's class multiplies the row's
            `sample_weight`.

    Attributes:
        classes_: The C sorted labels. If a row may have several of L labels, the indices 0 to L - 1.
        model_: The fitted :class:`~pyro_bnn.BayesianModel`.
        posterior_: The :class:`~pyro_bnn.Posterior` of the model.
        status_: How the fit ended, and what to try if it failed.
        n_iter_: Number of epochs; for Markov chains the number of draws of each chain.
        n_features_in_: Number of columns of X.
        feature_names_in_: Names of the columns, if X was a data frame.

    Example:
        >>> import pyro_bnn as pb
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = pb.BNNClassifier(method="laplace", random_state=0)
        >>> classifier.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9
        True
        >>> classifier.predict_proba(X[:5]).shape
        (5, 3)
    """

    classes_: NDArray[Any] = field(init=False)

    @explained("classifier.fit(X, y)")
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> BNNClassifier:
        """Fit the network to a table; see :meth:`BNNRegressor.fit`.

        Args:
            X: Inputs, shape (N, D).
            y: Labels, as numbers or texts, shape (N,). If a row may have several labels, 1 or 0 for each label, shape
                (N, L).
            sample_weight: Weight of each row, shape (N,).

        Raises:
            ValueError: If a parameter or the data are of the wrong kind, or there is only one class.
        """
        with self._fitting():
            return self._learn(X, y, sample_weight)

    @explained("classifier.partial_fit(X, y, classes=[0, 1])")
    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> BNNClassifier:
        """Fit to a further part of the data; see :meth:`BNNRegressor.partial_fit`.

        Args:
            X: Inputs, shape (N, D).
            y: Labels, shape (N,), or (N, L) as in :meth:`fit`.
            classes: The labels of all parts. The first call needs `classes` if its `y` does not have all labels.
            sample_weight: Weight of each row, shape (N,).

        Raises:
            ValueError: If the method has no partial fits, or if a label is not one of the classes; see also
                :meth:`fit`.
        """
        is_next = self._is_next()
        with self._fitting(is_next=is_next):
            return self._learn(X, y, sample_weight, classes, is_part=True, is_next=is_next)

    def _learn(
        self, X: Any, y: Any, sample_weight: Any, classes: Any = None, *, is_part: bool = False, is_next: bool = False
    ) -> BNNClassifier:
        labels: Any
        _require_labels(y)
        x, labels = self._validated(X, y, is_next=is_next, multi_output=True)
        if not is_part:
            _require_few_classes(labels)
        if (kind := type_of_target(labels, input_name="y")).startswith("continuous"):
            raise ValueError(
                f"Unknown label type: `y` must be classes, got {kind} numbers such as {labels.flat[0]:g}; "
                f"{FOR_NUMBERS}."
            )
        check_classification_targets(labels)
        is_multilabel = kind == "multilabel-indicator"
        if not is_multilabel:
            labels = column_or_1d(labels, warn=True)
        rows, weights = self._weights(sample_weight, len(x))
        labels = labels.toarray() if issparse(labels) else labels
        unfit = {"for `partial_fit`": is_part, "with `sample_weight`": sample_weight is not None}
        unfit["with several labels for each row"] = is_multilabel
        fitted, calibrating = self._set_aside(len(rows), unfit)
        held_out = None if calibrating is None else (x[rows[calibrating]], labels[rows[calibrating]])
        all_labels, x, labels = labels[rows], x[rows[fitted]], labels[rows[fitted]]
        if self.class_weight is not None:
            of_classes = compute_sample_weight(self.class_weight, labels)
            weights = of_classes if weights is None else weights * of_classes
        if not is_next:
            self._is_multilabel = is_multilabel
            self.classes_ = self._classes(all_labels, classes)
        y_all, stratify = self._targets(labels)
        likelihood = "bernoulli" if self._is_multilabel else "categorical"
        designs = [self._design] if is_next else self._designs(OF_CLASSES, likelihood, likelihood)
        self._design, choices = designs[0], {likelihood: make_likelihood(likelihood)}
        num_classes, which = len(self.classes_), {"is_part": is_part, "is_next": is_next}
        self._fit(x, y_all, weights, designs, choices, num_classes, stratify, **which)
        if held_out is not None:
            prediction = self._predicted(held_out[0], keep_draws=False).as_kind(ClassificationPrediction)
            self._calibration = ConformalSets(prediction, self._targets(held_out[1])[0], seed=0)
        return self

    def _classes(self, labels: np.ndarray, classes: Any) -> np.ndarray:
        """Return the class labels or, with several labels per row, the indices of their columns."""
        if self._is_multilabel:
            return np.arange(labels.shape[1])
        found = np.unique(labels if classes is None else np.asarray(classes))
        if len(found) < 2:
            raise ValueError(
                f"`y` must have at least two classes, got one class, {found[0]}, in rows of a weight above 0."
            )
        return found

    def _targets(self, labels: np.ndarray) -> tuple[Tensor, np.ndarray | None]:
        """Return the targets, and each row's class for stratified splits (None with several labels)."""
        if self._is_multilabel:
            if labels.ndim != 2 or labels.shape[1] != len(self.classes_):
                raise ValueError(f"`y` must have the shape (N, {len(self.classes_)}), got {labels.shape}.")
            return torch.from_numpy(labels.astype(np.int64)), None
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise ValueError(f"`y` must have labels of `classes`, {self.classes_.tolist()}, got {unknown.tolist()}.")
        indices = np.searchsorted(self.classes_, labels)
        return torch.from_numpy(indices), indices

    @explained("classifier.predict(X)", {"return_std": "classes have no standard deviation; call `predict_proba(X)`"})
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable label of each row, shape (N,).

        If rows may have several labels, return 1 for each label with a probability above 0.5 and 0 for the others,
        shape (N, L).
        """
        probs = self.predict_proba(X)
        return (probs > 0.5).astype(int) if self._is_multilabel else self.classes_[probs.argmax(1)]

    @explained("classifier.predict_proba(X)")
    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probabilities of the classes, shape (N, C), in the order of :attr:`classes_`.

        They are means over draws of the weights. With several labels per row, return the probability of each label,
        shape (N, L).
        """
        probs = self._prediction(X, ClassificationPrediction, keep_draws=False).probs.numpy()
        probs = probs / probs.sum(-1, keepdims=True)
        return probs[..., 1] if self._is_multilabel else probs

    @explained("classifier.predict_set(X, level=0.9)", {"alpha": ALPHA})
    def predict_set(self, X: ArrayLike, level: float = 0.9) -> NDArray[np.bool_]:
        """Return for each row a set of classes that contains the row's label with a given probability.

        The estimator needs a `calibration_fraction`, since sets from uncalibrated probabilities have no guarantee.
        Random numbers, always from the same seed, bring the coverage close to the level (see
        :class:`~pyro_bnn.calibration.ConformalSets`). No set is empty.

        Args:
            X: Inputs, shape (N, D).
            level: The probability.

        Returns:
            Whether the set of each row contains each class of :attr:`classes_`, shape (N, C).

        Raises:
            ValueError: If `calibration_fraction` was None in the fit, or if too few rows were held out.
        """
        check_is_fitted(self)
        if self._calibration is None:
            raise ValueError(
                "`predict_set` needs held-out rows, since sets from uncalibrated probabilities have no guarantee; fit "
                "again with `calibration_fraction`, such as 0.2."
            )
        prediction = self._prediction(X, ClassificationPrediction, keep_draws=False)
        found: NDArray[np.bool_] = self._calibration.sets(prediction, level).numpy()
        return found

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Return the logarithms of :meth:`predict_proba`, shape (N, C)."""
        return np.log(self.predict_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @explained("classifier.predict_distribution(X)")
    def predict_distribution(self, X: ArrayLike) -> ClassificationPrediction:
        """Return the prediction with its uncertainties, and with :attr:`classes_` as names of the classes.

        Args:
            X: Inputs, shape (N, D).
        """
        prediction = self._prediction(X, ClassificationPrediction, keep_draws=True)
        return prediction if self._is_multilabel else replace(prediction, classes=self.classes_.tolist())


def _require_labels(y: Any) -> None:
    """Raise if labels are texts and some rows have no label, since scikit-learn's errors name no remedy."""
    import pandas  # imported late: importing takes long

    dtype = None if hasattr(y, "dtype") else object  # since numpy turns NaN among texts into the text "nan"
    values = None if issparse(y) else np.asarray(y, dtype)
    if values is None or values.ndim == 0 or values.dtype.kind not in "OT":
        return
    rows = pandas.isna(values).reshape(len(values), -1).any(1)
    if rows.any():
        raise ValueError(
            f"`y` must have a label in each row, got none in {rows.sum()} of {len(rows)} rows; drop these rows, or "
            'make them a class, as by `y.fillna("missing")`.'
        )
    kinds = sorted({type(label).__name__ for label in values.flat})
    if "str" in kinds and len(kinds) > 1:
        raise ValueError(f"`y` must be labels of one kind, got {' and '.join(kinds)}; pass `y.astype(str)`.")


def _require_few_classes(labels: Any) -> None:
    """Raise if the labels are mostly distinct whole numbers, probably targets of a regression."""
    if issparse(labels) or labels.size > len(labels) or not np.issubdtype(labels.dtype, np.number):
        return
    num_rows, num_distinct = len(labels), len(np.unique(labels))
    is_many = num_rows > FEWEST_ROWS and num_distinct > MOST_CLASSES * num_rows
    if is_many and (labels == np.round(labels)).all():
        raise ValueError(
            f"`y` must be classes, got {num_distinct} different whole numbers in {num_rows} rows; {FOR_NUMBERS}. If "
            "they are labels, pass them as text, such as `y.astype(str)`."
        )
