"""The methods that `uci` compares, with the grids of their settings.

- Plain network (MAP): `DeltaGuide`, the noise scale included. Ensemble: five of them. MC dropout: MAP with
  `nets.MCDropout`.
- Mean field, Adam: `MeanFieldGuide` with local reparameterisation and closed-form KL. Natural gradients: the same by
  `natural_gradient`. Low rank: `LowRankGuide` with 10 directions.
- Laplace: `fit_laplace` (Hessian), or `fit_gauss_newton` (full, Kronecker, last layer), at a MAP.
- SWAG of rank 20 over the last third of the steps. SGHMC: four chains. NUTS: four chains compiled to C.
- BNNRegressor() with its defaults, and with `method="svi"` and 20 units. A Gaussian process (at most 1500 rows) and
  Bayesian ridge regression, by marginal likelihood. Boosted trees of scikit-learn, with its defaults and tuned.

The noise scale has a LogNormal(-2, 1) prior in networks of 50 tanh units. A fit takes 3000 steps with Adam on a cosine,
in batches of at most 1500 rows. Predictions take 200 draws. Inputs and targets are standardised by the training rows.

The setting is chosen once for each data set and method, by the log-likelihood of a fifth of the training rows of splits
0, 1 and 2; with more than 2000 rows, and for NUTS, of split 0 only. These rows are test rows of other splits, which
changes the scores little. A value of NUTS or SGHMC has a star if R-hat is above 1.01 on at least one split.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal

import torch
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn import scale_maps
from pyro_bnn.inference.estimators import Estimator

from ._regression import Budget, Fit, NetworkMethod, Problem, Setting, make_model, make_network

NUM_MEMBERS = 5
RANK = 10
INIT = pb.NetworkInit(scale=0.02)
GAINS = (0.5, 1.0, 2.0)

Structure = Literal["full", "kronecker"]


class Map(NetworkMethod):
    """A point estimate of all weights and of the noise scale."""

    name = "plain network (MAP)"
    grid = tuple(Setting(gain=gain) for gain in GAINS)

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        return fit_point(problem, setting, budget, seed)


class MCDropout(Map):
    """A point estimate with dropout that stays on, and with a wide prior."""

    name = "MC dropout"
    grid = tuple(Setting(gain=4.0, dropout=dropout) for dropout in (0.005, 0.02, 0.05))


class Ensemble(NetworkMethod):
    """Five point estimates, each with its own initial weights; the gain is the best one for a single point estimate."""

    name = "ensemble of five"
    grid = Map.grid
    tuned_as = Map()

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        members = [fit_point(problem, setting, budget, 100 * seed + member) for member in range(NUM_MEMBERS)]
        return members[0][0], pb.EnsemblePosterior([posterior for _, posterior in members])


class MeanField(NetworkMethod):
    """One Gaussian per weight, by Adam with local reparameterisation and divergences in closed form."""

    name = "mean field, Adam"
    grid = tuple(
        Setting(gain=gain, kl_weight=weight) for gain, weight in ((2.0, 0.1), (2.0, 0.3), (2.0, 1.0), (1.0, 0.3))
    )

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        model = make_model(problem, setting.gain, seed)
        guide = pb.MeanFieldGuide(model, init=INIT)
        options = {"elbo": TraceMeanField_ELBO, "estimator": pb.LocalReparameterization()}
        return model, optimise(problem, model, guide, setting, budget, seed, **options)


class NaturalMeanField(NetworkMethod):
    """The same Gaussians, by natural gradients."""

    name = "natural gradients"
    grid = MeanField.grid

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        model = make_model(problem, setting.gain, seed)
        guide = pb.MeanFieldGuide(model, init=INIT, scale_map=scale_maps.Precision())
        maker = pb.optim.natural_gradient(0.1, hessian_decay=0.99, clip=0.1)
        return model, optimise(problem, model, guide, setting, budget, seed, maker=maker)


class LowRank(NetworkMethod):
    """A Gaussian with correlations in ten directions."""

    name = "low rank"
    grid = MeanField.grid

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        model = make_model(problem, setting.gain, seed)
        guide = pb.LowRankGuide(model, rank=RANK, init=INIT)
        return model, optimise(problem, model, guide, setting, budget, seed, elbo=TraceMeanField_ELBO)


class Laplace(NetworkMethod):
    """A Gaussian at a point estimate, with the full Hessian of weights and noise scale, for predictions by draws."""

    name = "Laplace (Hessian, drawn weights)"
    grid = Map.grid
    most_rows = 2000  # each column of the Hessian is a pass over all rows

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        model, point = fit_point(problem, setting, budget, seed)
        posterior = pb.fit_laplace(model, (problem.x, problem.y), init=point, max_iter=budget.steps, seed=seed)
        draws = posterior.sample(budget.predictive_draws, seed=seed)  # stored draws have no median to linearise around
        return model, pb.StoredPosterior(draws, method=self.name, status=posterior.status, seconds=posterior.seconds)


class Linearised(NetworkMethod):
    """A Gaussian at a point estimate, with a Gauss-Newton matrix; the network is linearised in its weights there.

    The noise scale is that of the point estimate.

    Args:
        name: Name of the method in the tables.
        structure: Structure of the matrix, such as "diagonal".
        where: Which weights stay random.
    """

    grid = Map.grid

    def __init__(self, name: str, structure: Structure, where: str = "**") -> None:
        self.name, self._structure, self._where = name, structure, where

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        _, point = fit_point(problem, setting, budget, seed)
        values = point.median()
        likelihood = pb.GaussianLikelihood(float(values.pop("likelihood.scale")))
        prior, num_data = pb.FanInNormalPrior(setting.gain), len(problem.x)
        model = pb.BayesianModel(make_network(problem, seed), prior=prior, likelihood=likelihood, num_data=num_data)
        options = {"structure": self._structure, "where": self._where, "batch_size": budget.batch_size}
        return model, pb.fit_gauss_newton(model, (problem.x, problem.y), init=values, **options)


class Swag(NetworkMethod):
    """A Gaussian along the path of an optimizer, which has a constant learning rate in the last third of its steps."""

    name = "SWAG"
    grid = tuple(Setting(gain=1.0, lr=lr) for lr in (0.001, 0.003, 0.01))

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        model = make_model(problem, setting.gain, seed)
        guide = pb.DeltaGuide(model)
        found = max(2 * budget.steps // 3, 1)
        optimise(problem, model, guide, setting, budget, seed, steps=found)
        batch_size = math.ceil(len(problem.x) / max(10, math.ceil(len(problem.x) / budget.batch_size)))
        batches = math.ceil(len(problem.x) / batch_size)
        epochs = max((budget.steps - found) // batches, 2)
        swag = pb.SWAG(guide, rank=min(20, epochs))
        pb.fit_svi(
            model,
            (problem.x, problem.y),
            guide,
            optimizer=functools.partial(torch.optim.Adam, lr=setting.lr, fused=True),
            num_epochs=epochs,
            batch_size=batch_size,
            callbacks=[swag],
            seed=seed + 1,
        )
        return model, swag.posterior(model)


class Sghmc(NetworkMethod):
    """Chains of stochastic-gradient HMC, half of each as warm-up; no step is rejected."""

    name = "SGHMC"
    grid = tuple(Setting(gain=1.0, lr=lr) for lr in (3e-7, 1e-6, 3e-6))

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        model = make_model(problem, setting.gain, seed)
        batches, batch_size = batches_of(problem, budget)
        posterior = pb.fit_sgmcmc(
            model,
            (problem.x, problem.y),
            sampler=pb.SGHMC(lr=setting.lr, momentum=0.99),
            num_epochs=max(round(budget.steps / batches), 2),
            num_samples=min(250, budget.steps // 2),
            batch_size=batch_size,
            num_chains=budget.chains,
            seed=seed,
        )
        return model, posterior


class Nuts(NetworkMethod):
    """Chains of the No-U-Turn sampler in C, which start near the network's initial weights."""

    name = "NUTS"
    grid = (Setting(gain=1.0), Setting(gain=2.0))
    most_searched = 1

    def fit(self, problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
        model = make_model(problem, setting.gain, seed)
        assert budget.draws is not None  # see Budget.of
        assert budget.depth is not None
        posterior = pb.fit_nuts(
            model,
            (problem.x, problem.y),
            num_samples=budget.draws,
            num_warmup=budget.draws,
            num_chains=budget.chains,
            max_tree_depth=budget.depth,
            init=INIT,
            compile=budget.compile,
            seed=seed,
        )
        return model, posterior


NETWORK_METHODS: tuple[NetworkMethod, ...] = (
    Map(),
    Ensemble(),
    MCDropout(),
    MeanField(),
    NaturalMeanField(),
    LowRank(),
    Laplace(),
    Linearised("Laplace (full)", "full"),
    Linearised("Laplace (Kronecker)", "kronecker"),
    Linearised("Laplace (last layer)", "full", "net.2.*"),
    Swag(),
    Sghmc(),
    Nuts(),
)


def fit_point(problem: Problem, setting: Setting, budget: Budget, seed: int) -> Fit:
    model = make_model(problem, setting.gain, seed, dropout=setting.dropout)
    return model, optimise(problem, model, pb.DeltaGuide(model), setting, budget, seed)


def batches_of(problem: Problem, budget: Budget) -> tuple[int, int]:
    """Number of batches in an epoch, and number of rows in each."""
    batches = math.ceil(len(problem.x) / budget.batch_size)
    return batches, math.ceil(len(problem.x) / batches)


def optimise(
    problem: Problem,
    model: pb.BayesianModel,
    guide: nn.Module,
    setting: Setting,
    budget: Budget,
    seed: int,
    *,
    steps: int | None = None,
    maker: Callable | None = None,
    elbo: type[ELBO] = Trace_ELBO,
    estimator: Estimator | None = None,
) -> pb.GuidePosterior:
    """Fit by Adam or another optimizer with cosine decay, in about the same number of steps for any number of rows."""
    batches, batch_size = batches_of(problem, budget)
    epochs = max(round((budget.steps if steps is None else steps) / batches), 1)
    return pb.fit_svi(
        model,
        (problem.x, problem.y),
        guide,
        optimizer=pb.optim.scheduled(
            maker or functools.partial(torch.optim.Adam, lr=0.03, fused=True),
            functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs),
        ),
        num_epochs=epochs,
        batch_size=batch_size,
        kl_weight=setting.kl_weight,
        elbo=elbo(),
        estimator=estimator,
        seed=seed,
    )
