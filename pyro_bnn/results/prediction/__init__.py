"""Prediction: the mean over draws from a posterior, and its uncertainty."""

from ._own_model import require_model as require_model
from ._predict import predict as predict
from ._predict import predict_point as predict_point
