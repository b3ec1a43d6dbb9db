"""Compares approximate posteriors with NUTS on noisy data from a sine, with a gap."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor, nn

from .._core.scope import seeded
from ..data import regression_problem
from ..inference.estimators import Estimator, LocalReparameterization
from ..inference.guides import DeltaGuide, GuidePosterior, MeanFieldGuide, NetworkInit, auto_guide
from ..inference.laplace import fit_laplace
from ..inference.mcmc import MCMCPosterior, fit_nuts
from ..inference.posterior import EnsemblePosterior, Posterior
from ..inference.svi import fit_svi, scheduled
from ..modelling.likelihoods import GaussianLikelihood
from ..modelling.model import BayesianModel
from ..modelling.priors import NormalPrior, Prior, ScaleMixturePrior
from ..nets import Standardize, mlp
from ..results import plotting
from ..results.comparison import Comparison, compare
from .folders import Folder
from .reports.pictures import save_picture

Fit = Posterior | tuple[BayesianModel, Posterior]

GAP, NOISE, NUM_UNITS, PRIOR_SCALE = 0.5, 2.0, 20, 2.0
MIXTURE = ScaleMixturePrior(mixing=0.5, scale1=2.5, scale2=0.25)
DROPOUT, ENSEMBLE = 0.05, 5


@dataclass(kw_only=True)
class RegressionStudy:
    """A comparison of methods with NUTS on 92 points of 10 sin(2 pi x), with known noise and a gap in the middle.

    The methods with the mixture prior and with MC dropout have their own models, and the others share one posterior.
    """

    seed: int = 0
    num_steps: int = 3000
    num_samples: int = 500

    def __post_init__(self) -> None:
        self.x, self.y = regression_problem(noise=NOISE, gap=GAP, seed=self.seed)
        self.model = self._make()

    def _make(self, *, prior: Prior | None = None, dropout: float | None = None, member: int = 0) -> BayesianModel:
        with seeded(1000 * self.seed + member):
            scale = Standardize(torch.zeros(1), torch.full((1,), 0.25))
            net = mlp([1, NUM_UNITS, 1], activation=nn.Tanh, first=[scale], dropout=dropout)
        prior = prior or NormalPrior(PRIOR_SCALE)
        return BayesianModel(net, prior=prior, likelihood=GaussianLikelihood(NOISE), num_data=len(self.x))

    def _fit(
        self,
        model: BayesianModel,
        guide: nn.Module,
        *,
        elbo: ELBO | None = None,
        estimator: Estimator | None = None,
        seed: int = 0,
    ) -> GuidePosterior:
        return fit_svi(
            model,
            guide,
            (self.x, self.y),
            optimizer=scheduled(
                functools.partial(torch.optim.Adam, lr=0.02),
                functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=self.num_steps),
            ),
            num_epochs=self.num_steps,
            elbo=elbo,
            estimator=estimator,
            progress=True,
            seed=self.seed + seed,
        )

    def nuts(self) -> MCMCPosterior:
        """Draw from the posterior with NUTS. The other methods are compared with the draws of NUTS."""
        return fit_nuts(
            self.model,
            (self.x, self.y),
            num_samples=self.num_samples,
            num_warmup=self.num_samples,
            compile="auto",
            progress=True,
            seed=self.seed,
        )

    def methods(self) -> dict[str, Callable[[], Fit]]:
        """Return the name of each approximate method, and a function that fits it."""
        return {
            "laplace": lambda: fit_laplace(self.model, (self.x, self.y)),
            "full-rank": lambda: self._fit(
                self.model, auto_guide(AutoMultivariateNormal, self.model, init=NetworkInit(0.02))
            ),
            "mean-field": lambda: self._mean_field(self.model),
            "mean-field, LRT": lambda: self._mean_field(self.model, LocalReparameterization()),
            "mixture": self._mixture,
            "mc-dropout": self._dropout,
            "ensemble": lambda: EnsemblePosterior([self._member(index) for index in range(ENSEMBLE)]),
        }

    def _mean_field(self, model: BayesianModel, estimator: Estimator | None = None) -> GuidePosterior:
        guide = MeanFieldGuide(model, init=NetworkInit(0.05))
        return self._fit(model, guide, elbo=TraceMeanField_ELBO(), estimator=estimator)

    def _mixture(self) -> Fit:
        model = self._make(prior=MIXTURE)
        return model, self._mean_field(model)

    def _dropout(self) -> Fit:
        model = self._make(dropout=DROPOUT)
        return model, self._fit(model, DeltaGuide(model))

    def _member(self, index: int) -> GuidePosterior:
        model = self._make(member=index)
        return self._fit(model, DeltaGuide(model), seed=index)

    def run(self, report: Callable[[str], None] = print) -> Comparison:
        """Fit all methods, report each fit, and compare the methods near the data, in the gap, and outside."""
        entries: dict[str, Fit] = {}
        for name, method in {"nuts": self.nuts, **self.methods()}.items():
            entry = entries[name] = method()
            posterior = entry[1] if isinstance(entry, tuple) else entry
            report(f"{name}: {posterior.status}")
        x = torch.linspace(-1, 1, 201)[:, None]
        noise = NOISE * torch.randn(x.shape, generator=torch.Generator().manual_seed(self.seed + 1))
        y = 10 * torch.sin(2 * torch.pi * x) + noise
        regions = {
            "data": ((x.abs() >= GAP / 2) & (x.abs() <= 0.5)).flatten(),
            "gap": (x.abs() < GAP / 2).flatten(),
            "outside": (x.abs() > 0.5).flatten(),
        }
        return compare(self.model, entries, x, y=y, regions=regions, seed=self.seed)


def save_comparison(result: Comparison, folder: Folder, data: tuple[Tensor, Tensor]) -> list[str]:
    """Write two tables and, for a single input and a single number as target, a picture. Return the pictures' names."""
    with folder.new("comparison.csv") as path:
        result.to_csv(path)
    with folder.new("comparison.json") as path:
        result.to_json(path)
    x, y = data
    if not y.is_floating_point() or x[0].numel() > 1 or y[0].numel() > 1:
        return []
    return [save_picture(folder, "comparison.png", plotting.comparison(result, data=data)[0])]
