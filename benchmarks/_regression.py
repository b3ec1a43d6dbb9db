"""What all methods of `uci` share: one split of a data set in standardised units, the scores, and the network."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import nets
from pyro_bnn.data import Regression
from pyro_bnn.inference.mcmc import Convergence, convergence
from pyro_bnn.inference.svi import NonFiniteError

from ._results import processor_seconds

NUM_HIDDEN = 50
NOISE = dist.LogNormal(-2.0, 1.0)
"""Prior of the noise scale, for targets of scale 1: 95 % lies between 0.02 and 1."""

VALIDATION = 0.2
"""Share of the training rows on which settings are compared."""

LEVEL = 0.95
"""Probability of the intervals whose coverage is measured."""

NUTS_SIZES = {
    "yacht": (500, 10),
    "energy": (500, 10),
    "concrete": (2500, 8),
    "wine-quality-red": (1000, 7),
    "kin8nm": (500, 8),
    "power-plant": (300, 7),
}
"""Number of draws of each chain, which is also the number of warm-up draws, and largest depth of the trees. Heuristic:
as much as time allows; with 1000 draws the chains of concrete did not agree on all splits (docs/results)."""

NUM_JUDGED = 100
"""Number of test inputs at which chains are judged: R-hat and ESS take a millisecond for each."""

Fit = tuple[pb.BayesianModel, pb.Posterior]


@dataclass(frozen=True)
class Problem:
    """Inputs and targets in units of the training part."""

    x: Tensor  # (N, D)
    y: Tensor  # (N, 1)
    x_test: Tensor  # (M, D)
    y_test: Tensor  # (M, 1)
    unit: float  # standard deviation of the training targets

    @classmethod
    def of(cls, data: Regression) -> "Problem":
        inputs, target = nets.Standardize.of(data.x_train), nets.Standardize.of(data.y_train)
        parts = inputs(data.x_train), target(data.y_train), inputs(data.x_test), target(data.y_test)
        return cls(*parts, unit=float(data.y_train.std()))


def held_out(data: Regression, seed: int) -> Regression:
    """Data whose test rows are a part of the training rows; the real test rows are left out."""
    rows = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(seed))
    test, train = rows.tensor_split([round(VALIDATION * len(rows))])
    return Regression(data.x_train[train], data.y_train[train], data.x_train[test], data.y_train[test])


@dataclass(frozen=True)
class Score:
    """Scores on the test part, in the units of the target."""

    rmse: float  # root mean squared error of the mixture's mean
    log_likelihood: float  # mean log-density of the mixture over draws of the weights, in nats
    coverage: float  # fraction of the targets in the central interval of probability 0.95
    noise: float  # root mean square of the noise scale that the method infers
    # largest R-hat of the network's output at 100 test inputs and of the noise scale; None for a single chain
    r_hat: float | None = None
    ess: float | None = None  # smallest effective sample size of the same quantities
    status: str = ""  # how the fit ended


def score(problem: Problem, fit: Fit, num_samples: int, seed: int) -> Score:
    """Scores on the test part; the density of y is that of y / unit, divided by the unit."""
    model, posterior = fit
    y = problem.y_test
    prediction = pb.predict(*fit, problem.x_test, y=y, num_samples=num_samples, keep_draws=True, seed=seed)
    result = score_of(problem, prediction, prediction.log_density, str(posterior.status))
    if not isinstance(posterior, pb.MCMCPosterior) or posterior.num_chains < 2:
        return result
    judged = agreement(model, posterior, problem.x_test[:NUM_JUDGED])
    return replace(result, r_hat=judged.worst_r_hat, ess=judged.worst_ess)


def score_of(problem: Problem, prediction: Any, log_density: Tensor, status: str) -> Score:
    """Scores of a prediction of the test part, given the log-density of each target in standard units."""
    y, tail = problem.y_test.to(prediction.mean), (1 - LEVEL) / 2
    below = prediction.cdf(y)
    return Score(
        rmse=problem.unit * pb.metrics.root_mean_squared_error(prediction.mean, y),
        log_likelihood=float(log_density.mean()) - math.log(problem.unit),
        coverage=float(((below >= tail) & (below <= 1 - tail)).double().mean()),
        noise=problem.unit * float(prediction.aleatoric.mean().sqrt()),
        status=status,
    )


def agreement(model: pb.BayesianModel, posterior: pb.MCMCPosterior, x: Tensor) -> Convergence:
    """R-hat and effective sample sizes of the noise scale and of the network's output at inputs x."""
    draws = pb.predict(model, posterior, x, num_samples=posterior.num_stored, keep_draws=True, seed=0).components
    quantities = torch.cat([draws.mean[..., 0], draws.stddev[:, 0]], 1)  # (K S, N + 1)
    return convergence(quantities.unflatten(0, (posterior.num_chains, -1)))


@dataclass(frozen=True)
class Budget:
    """Sizes that determine the cost of the benchmark."""

    steps: int = 3000  # optimisation steps of each fit; also the steps of each chain of SGHMC
    batch_size: int = 1500  # rows of a step, at most; a smaller data set uses all its rows
    # draws of each chain of NUTS, which is also the number of warm-up draws; with None, it depends on the data set
    draws: int | None = None
    depth: int | None = None  # largest depth of the trees of NUTS; with None, it depends on the data set
    chains: int = 4  # number of chains of NUTS and SGHMC
    predictive_draws: int = 200  # draws of the weights in a prediction; all stored draws if there are fewer
    compile: bool = True  # whether to run NUTS in C

    def without_nuts(self) -> "Budget":
        """The same budget with the default sizes of NUTS."""
        return replace(self, draws=Budget.draws, depth=Budget.depth, compile=Budget.compile)

    def of(self, name: str) -> "Budget":
        """The same budget, with the sizes of NUTS for a data set unless they are given."""
        draws, depth = NUTS_SIZES[name]
        return replace(self, draws=self.draws or draws, depth=self.depth or depth)


@dataclass(frozen=True)
class Setting:
    """Numbers that are chosen on validation rows."""

    gain: float = 2.0  # gain of the fan-in prior
    kl_weight: float = 1.0  # weight of the KL term; below 1 it gives a cold posterior
    dropout: float | None = None  # probability that a hidden unit is dropped
    lr: float | None = None  # learning rate of SWAG's path or of boosted trees, or step size of SGHMC
    trees: int | None = None  # number of boosted trees
    leaf: int | None = None  # smallest number of training rows in a leaf


class Method(ABC):
    """A prediction method, with a grid of settings; the best setting on validation rows is used.

    Attributes:
        name: Name of the method in the tables and for `--methods`.
        grid: Settings that are compared.
        most_searched: Largest number of splits on whose validation rows the grid is searched.
        most_rows: Largest number of training rows with which the method is run.
        tuned_as: The method for which the grid is searched; with None, this method.
    """

    name: str
    grid: Sequence[Setting] = (Setting(),)
    most_searched: int = 3
    most_rows: float = math.inf
    tuned_as: "Method | None" = None

    @abstractmethod
    def evaluate(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Score:
        """The scores on the problem's test part, after a fit to its training part."""


class NetworkMethod(Method):
    """A method that infers the weights of the network."""

    @abstractmethod
    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        """The posterior from the problem's training part."""

    def evaluate(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Score:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ConvergenceWarning)  # the row has the status
            fit = self.fit(problem, setting, budget, seed)
        return score(problem, fit, min(budget.predictive_draws, fit[1].num_stored or budget.predictive_draws), seed)


def make_network(problem: Problem, seed: int, *, dropout: float | None = None) -> nn.Module:
    """One hidden layer of tanh units; the seed determines the initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nets.mlp([problem.x.shape[1], NUM_HIDDEN, 1], activation=nn.Tanh, dropout=dropout)


def make_model(problem: Problem, gain: float, seed: int, *, dropout: float | None = None) -> pb.BayesianModel:
    """The network with a fan-in prior and a latent noise scale."""
    net, likelihood = make_network(problem, seed, dropout=dropout), pb.GaussianLikelihood(NOISE)
    return pb.BayesianModel(net, prior=pb.FanInNormalPrior(gain), likelihood=likelihood, num_data=len(problem.x))


def timed(method: Method, problem: Problem, setting: Setting, budget: Budget, seed: int) -> tuple[Score | None, float]:
    """The scores (None if a number was not finite), and processor seconds."""
    begin = processor_seconds()
    try:
        result: Score | None = method.evaluate(problem, setting, budget, seed)
    except NonFiniteError:
        result = None
    if result is not None and not math.isfinite(result.log_likelihood + result.rmse):
        result = None
    return result, round(processor_seconds() - begin, 2)
