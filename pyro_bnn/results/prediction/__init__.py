"""Prediction: the mean over draws from a posterior, and its uncertainty."""

from ._batch import new_seed as new_seed
from ._batch import predicted_draws as predicted_draws
from ._own_model import require_model as require_model
from ._predict import predict as predict
from ._predict import predict_point as predict_point
