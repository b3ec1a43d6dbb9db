"""Estimators for scikit-learn."""

from ._base import standard_units as standard_units
from ._classifier import BNNClassifier as BNNClassifier
from ._methods import METHODS as METHODS
from ._regressor import BNNRegressor as BNNRegressor
