"""What `uci` compares: one network, one split of a data set in standard units, and the methods with their grids."""

import functools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import nets
from pyro_bnn.data import Regression

NUM_HIDDEN, NUM_MEMBERS = 50, 5
NOISE = dist.LogNormal(-2.0, 1.0)
"""Prior of the noise's scale, the target's being 1: 95 % between 0.02 and 1."""

VALIDATION = 0.2
"""The part of a training split on which settings are compared."""

Fit = tuple[pb.BayesianModel, pb.Posterior]


@dataclass(frozen=True)
class Problem:
    """Inputs and targets of mean 0 and scale 1 over the training part, and what that scale was.

    Args:
        x: Training inputs, shape (N, D).
        y: Training targets, shape (N, 1).
        x_test: Test inputs, shape (M, D), by the constants of the training part.
        y_test: Test targets, shape (M, 1), likewise.
        unit: Standard deviation of the training targets, in their own units.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    unit: float

    @classmethod
    def of(cls, data: Regression) -> "Problem":
        inputs, target = nets.Standardize.of(data.x_train), nets.Standardize.of(data.y_train)
        parts = inputs(data.x_train), target(data.y_train), inputs(data.x_test), target(data.y_test)
        return cls(*parts, unit=float(data.y_train.std()))


def held_out(data: Regression, seed: int) -> Regression:
    """A part of the training rows as the test rows; those of the data's own are left out."""
    rows = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(seed))
    test, train = rows.tensor_split([round(VALIDATION * len(rows))])
    return Regression(data.x_train[train], data.y_train[train], data.x_train[test], data.y_train[test])


@dataclass(frozen=True)
class Score:
    """Scores in the units of the target.

    Args:
        rmse: Root mean squared error of the mixture's mean.
        log_likelihood: Mean log-density of the mixture over weight draws, in nats.
    """

    rmse: float
    log_likelihood: float


def score(problem: Problem, fit: Fit, num_samples: int, seed: int) -> Score:
    """Scores on the test part; the density of y is that of y / unit, divided by the unit."""
    prediction = pb.predict(*fit, problem.x_test, y=problem.y_test, num_samples=num_samples, seed=seed)
    return Score(
        rmse=problem.unit * pb.metrics.root_mean_squared_error(prediction.mean, problem.y_test),
        log_likelihood=float(prediction.log_density.mean()) - math.log(problem.unit),
    )


@dataclass(frozen=True)
class Budget:
    """Sizes that decide how long everything takes.

    Args:
        steps: Optimisation steps of each fit.
        batch_size: Rows of a step, or all where there are fewer.
        draws: Draws of NUTS, after as many of warm-up, in the search a half of both.
        depth: Largest depth of its trees.
        predictive_draws: Weight draws of the other methods' predictions.
        compile: Compile the sampler.
    """

    steps: int = 3000
    batch_size: int = 1500
    draws: int = 150
    depth: int = 6
    predictive_draws: int = 100
    compile: bool = True


@dataclass(frozen=True)
class Setting:
    """Numbers that are chosen on a validation part.

    Args:
        gain: Gain of the fan-in prior, or standard deviation of the wide component of a mixture prior.
        kl_weight: Weight of the KL term; below 1 it gives a cold posterior.
        dropout: Probability to drop a hidden unit.
    """

    gain: float = 2.0
    kl_weight: float = 1.0
    dropout: float | None = None


class Method(ABC):
    """One way to infer, with a grid of settings of which a validation part chooses one.

    Attributes:
        name: Column of the tables, and what `--methods` takes.
        grid: Settings.
        tuned_as: The method that the grid is searched with, None being this one.
    """

    name: str
    grid: Sequence[Setting]
    tuned_as: "type[Method] | None" = None

    @abstractmethod
    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        """The posterior from the problem's training part."""

    def num_samples(self, budget: Budget) -> int:
        """Number of weight draws of a prediction."""
        return budget.predictive_draws


class Map(Method):
    """One point, the noise's scale included."""

    name = "map"
    grid = (Setting(gain=2.0), Setting(gain=1.0))

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        return fit_point(problem, setting, budget, seed)

    def num_samples(self, budget: Budget) -> int:
        return 1


class MCDropout(Method):
    """The same with masks that stay on, and a wide prior."""

    name = "mc-dropout"
    grid = (Setting(gain=4.0, dropout=0.005), Setting(gain=4.0, dropout=0.05))

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        return fit_point(problem, setting, budget, seed)


class Ensemble(Method):
    """Five of those points, each from its own start; the gain is the one that suits one of them."""

    name = "ensemble"
    grid = Map.grid
    tuned_as = Map

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        members = [fit_point(problem, setting, budget, 100 * seed + member) for member in range(NUM_MEMBERS)]
        return members[0][0], pb.EnsemblePosterior([posterior for _, posterior in members])

    def num_samples(self, budget: Budget) -> int:
        return NUM_MEMBERS


class MeanField(Method):
    """One Gaussian per weight, with local reparameterisation and divergences in closed form."""

    name = "mean-field"
    grid = (Setting(kl_weight=0.1), Setting(kl_weight=1.0))

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        return fit_mean_field(problem, pb.FanInNormalPrior(setting.gain), TraceMeanField_ELBO, setting, budget, seed)


class Mixture(Method):
    """The same under a scale mixture: half of the weights are small."""

    name = "mixture"
    grid = (Setting(gain=1.0, kl_weight=0.1), Setting(gain=1.0, kl_weight=1.0))

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        prior = pb.ScaleMixturePrior(mixing=0.5, scale1=setting.gain, scale2=0.1)
        return fit_mean_field(problem, prior, Trace_ELBO, setting, budget, seed)


class LowRank(Method):
    """A Gaussian with correlations in ten directions; the KL weight is the one that suits a mean-field posterior."""

    name = "low-rank"
    grid = MeanField.grid
    tuned_as = MeanField

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        model = make_model(problem, pb.FanInNormalPrior(setting.gain), seed)
        guide = pb.auto_low_rank_multivariate_normal(model, rank=10, init=INIT)
        return model, optimise(problem, model, guide, setting, budget, seed)


class Nuts(Method):
    """One chain from the network's first weights, in float32."""

    name = "nuts"
    grid = (Setting(gain=2.0),)

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        model = make_model(problem, pb.FanInNormalPrior(setting.gain), seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ConvergenceWarning)  # the row has the status
            posterior = pb.fit_nuts(
                model,
                problem.x,
                problem.y,
                num_samples=budget.draws,
                num_warmup=budget.draws,
                num_chains=1,
                max_tree_depth=budget.depth,
                init=INIT,
                dtype=None,
                compile=budget.compile,
                seed=seed,
            )
        return model, posterior

    def num_samples(self, budget: Budget) -> int:
        return budget.draws


METHODS: tuple[Method, ...] = (Map(), MCDropout(), MeanField(), Mixture(), LowRank(), Ensemble(), Nuts())
INIT = pb.NetworkInit(scale=0.02)


def make_model(problem: Problem, prior: pb.Prior, seed: int, *, dropout: float | None = None) -> pb.BayesianModel:
    """One hidden layer of tanh units, and a latent noise scale; the seed decides the first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nets.mlp([problem.x.shape[1], NUM_HIDDEN, 1], activation=nn.Tanh, dropout=dropout)
    return pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(NOISE), num_data=len(problem.x))


def fit_point(problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
    model = make_model(problem, pb.FanInNormalPrior(setting.gain), seed, dropout=setting.dropout)
    return model, optimise(problem, model, pb.auto_delta(model), setting, budget, seed)


def fit_mean_field(
    problem: Problem, prior: pb.Prior, elbo: type[ELBO], setting: Setting, budget: Budget, seed: int
) -> Fit:
    model = make_model(problem, prior, seed)
    guide = pb.MeanFieldGuide(model, init=INIT)
    estimator = pb.LocalReparameterization()
    return model, optimise(problem, model, guide, setting, budget, seed, elbo=elbo, estimator=estimator)


def optimise(
    problem: Problem,
    model: pb.BayesianModel,
    guide: nn.Module,
    setting: Setting,
    budget: Budget,
    seed: int,
    *,
    elbo: type[ELBO] = Trace_ELBO,
    estimator: pb.Estimator | None = None,
) -> pb.GuidePosterior:
    """Adam with a cosine decay, for about as many steps whatever the number of rows."""
    batches = math.ceil(len(problem.x) / budget.batch_size)
    epochs = max(round(budget.steps / batches), 1)
    return pb.fit_svi(
        model,
        guide,
        (problem.x, problem.y),
        optimizer=pb.scheduled(
            functools.partial(torch.optim.Adam, lr=0.03),
            functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs),
        ),
        num_epochs=epochs,
        batch_size=math.ceil(len(problem.x) / batches),
        kl_weight=setting.kl_weight,
        elbo=elbo(),
        estimator=estimator,
        seed=seed,
    )
