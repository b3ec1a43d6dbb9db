"""The table of BNNRegressor beside scikit-learn's regressors: its scores are in the units of the targets."""

import math

import torch

from benchmarks.tables import METHODS, report, table
from pyro_bnn.data import Regression

from .tolerances import STANDARD_ERRORS

NOISE = 5.0


def linear_data(num_train=400, num_test=400):
    x = torch.randn(num_train + num_test, 2) * 30
    y = 100 + x @ torch.tensor([[2.0], [-1.0]]) + NOISE * torch.randn(num_train + num_test, 1)
    return Regression(x[:num_train], y[:num_train], x[num_train:], y[num_train:])


def test_a_linear_model_of_linear_data_scores_what_the_noise_allows():
    rmse, log_likelihood, _ = METHODS["Bayesian ridge"](linear_data(), 0)
    error = NOISE / math.sqrt(2 * 400)  # of a standard deviation from 400 values
    assert abs(rmse - NOISE) < STANDARD_ERRORS * error + 0.1
    entropy = 0.5 * math.log(2 * math.pi * math.e * NOISE**2)
    assert abs(log_likelihood + entropy) < STANDARD_ERRORS * math.sqrt(0.5 / 400) + 0.02


def row(method, split, rmse, log_likelihood):
    scores = {"rmse": rmse, "log_likelihood": log_likelihood, "seconds": 3.0}
    return {"dataset": "yacht", "method": method, "split": split, **scores}


def test_the_table_has_means_and_standard_errors_and_marks_the_best():
    rows = [row("svi", 0, 1.0, -2.0), row("svi", 1, 3.0, -2.0), row("Gaussian process", 0, 1.5, -3.0)]
    lines = table(rows, "rmse").splitlines()
    assert lines[0] == "| data set | svi | Gaussian process |"
    assert lines[2] == "| yacht | 2.000 ± 1.000 | **1.500** (1) |"
    assert "**-2.000 ± 0.000**" in table(rows, "log_likelihood")
    assert "- svi: yacht 3" in report(rows)
