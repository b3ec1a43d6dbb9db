"""Estimators for scikit-learn: from a table to predictions with intervals."""

from ._classifier import BNNClassifier as BNNClassifier
from ._regressor import BNNRegressor as BNNRegressor
