"""Methods beside the networks of `uci`: scikit-learn's regressors, and BNNRegressor with its defaults."""

import math
import warnings
from abc import abstractmethod

import numpy as np
import torch
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import train_test_split

from pyro_bnn import BNNRegressor

from ._regression import LEVEL, VALIDATION, Budget, Method, Problem, Score, Setting, score_of

MOST_ROWS = 1500
"""Largest number of rows for a Gaussian process, chosen at random, since its time grows with their cube."""


class Gaussian(Method):
    """A regressor of scikit-learn that predicts a Gaussian."""

    @abstractmethod
    def predict(self, problem: Problem, setting: Setting, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Means and standard deviations at the test inputs, shape (M,) each, and the noise scale."""

    def evaluate(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Score:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # if a hyperparameter reaches a bound
            mean, scale, noise = self.predict(problem, setting, seed)
        y = problem.y_test.numpy().ravel()
        half = norm.ppf((1 + LEVEL) / 2) * scale
        return Score(
            rmse=problem.unit * float(np.sqrt(np.mean((mean - y) ** 2))),
            log_likelihood=float(norm.logpdf(y, mean, scale).mean()) - math.log(problem.unit),
            coverage=float(np.mean(np.abs(y - mean) <= half)),
            noise=problem.unit * noise,
        )


class GaussianProcess(Gaussian):
    """A length scale for each input and a noise level, chosen by marginal likelihood."""

    name = "Gaussian process"

    def predict(self, problem: Problem, setting: Setting, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
        rows = torch.randperm(len(problem.x), generator=torch.Generator().manual_seed(seed))[:MOST_ROWS]
        lengths = RBF(np.ones(problem.x.shape[1]), (1e-2, 1e3))
        kernel = ConstantKernel(1.0, (1e-3, 1e4)) * lengths + WhiteKernel(0.1, (1e-6, 10.0))
        model = GaussianProcessRegressor(kernel, random_state=seed)
        model.fit(problem.x[rows].numpy(), problem.y[rows].numpy().ravel())
        mean, scale = model.predict(problem.x_test.numpy(), return_std=True)
        return mean, scale, math.sqrt(model.kernel_.k2.noise_level)


class Ridge(Gaussian):
    """A linear model with a Gaussian prior, whose width and noise are chosen by marginal likelihood."""

    name = "Bayesian ridge"

    def predict(self, problem: Problem, setting: Setting, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
        model = BayesianRidge().fit(problem.x.numpy(), problem.y.numpy().ravel())
        mean, scale = model.predict(problem.x_test.numpy(), return_std=True)
        return mean, scale, float(model.alpha_) ** -0.5


class BoostedTrees(Gaussian):
    """Gradient-boosted trees. The scale is that of the errors on a fifth of the training rows, left out of a first fit.

    Args:
        name: Name of the method in the tables.
        grid: Settings that are compared.
    """

    def __init__(self, name: str, grid: tuple[Setting, ...]) -> None:
        self.name, self.grid = name, grid

    def predict(self, problem: Problem, setting: Setting, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
        model = HistGradientBoostingRegressor(
            learning_rate=setting.lr, max_iter=setting.trees, min_samples_leaf=setting.leaf, random_state=seed
        )
        x, y = problem.x.numpy(), problem.y.numpy().ravel()
        first_x, held_x, first_y, held_y = train_test_split(x, y, test_size=VALIDATION, random_state=seed)
        errors = held_y - model.fit(first_x, first_y).predict(held_x)
        scale = math.sqrt(np.mean(errors**2))
        mean = model.fit(x, y).predict(problem.x_test.numpy())
        return mean, np.full_like(mean, scale), scale


class Defaults(Method):
    """BNNRegressor with its defaults, except for its argument `method`."""

    def __init__(self, name: str, method: str) -> None:
        self.name, self._method = name, method

    def evaluate(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Score:
        max_iter = None if budget.steps >= Budget().steps else budget.steps
        regressor = BNNRegressor(method=self._method, random_state=seed, max_iter=max_iter)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the row has the status
            regressor.fit(problem.x.numpy(), problem.y.numpy())
        prediction = regressor.predict_distribution(problem.x_test.numpy())
        log_density = prediction.log_prob(problem.y_test.to(prediction.mean))
        return score_of(problem, prediction, log_density, regressor.status_)


YARDSTICKS: tuple[Method, ...] = (
    Defaults("BNNRegressor()", "auto"),
    Defaults("BNNRegressor, svi", "svi"),
    GaussianProcess(),
    Ridge(),
    BoostedTrees("boosted trees", (Setting(lr=0.1, trees=100, leaf=20),)),  # scikit-learn's defaults
    BoostedTrees(
        "boosted trees, tuned",
        tuple(Setting(lr=lr, trees=500, leaf=leaf) for lr in (0.02, 0.05, 0.15) for leaf in (5, 20)),
    ),
)
