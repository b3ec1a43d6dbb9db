"""A demonstration on digits, another on a noisy sine, and a comparison of methods with NUTS. None needs a download."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from pyro.distributions import LogNormal
from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor, nn

from .._core.scope import seeded, silent_fits
from ..data import regression_problem
from ..inference.estimators import Estimator, LocalReparameterization
from ..inference.guides import DeltaGuide, GuidePosterior, MeanFieldGuide, NetworkInit, auto_guide
from ..inference.laplace import fit_laplace
from ..inference.mcmc import MCMCPosterior, fit_nuts
from ..inference.posterior import EnsemblePosterior, Posterior, Status
from ..inference.svi import fit_svi, scheduled
from ..modelling.likelihoods import GaussianLikelihood
from ..modelling.model import BayesianModel
from ..modelling.priors import NormalPrior, Prior, ScaleMixturePrior
from ..nets import Standardize, mlp
from ..results import plotting
from ..results.comparison import Comparison, compare
from ..results.prediction import predict
from ..scores.uncertainty import RegressionPrediction
from .datasets import load_data
from .folders import Folder
from .recipes import find_recipe
from .reports.evaluation import ClassifierScores, report_evaluation
from .reports.pictures import save_picture
from .reports.trained import Trained
from .runs import fit

Fit = Posterior | tuple[BayesianModel, Posterior]
GAP, NOISE, NUM_UNITS, PRIOR_SCALE = 0.5, 2.0, 20, 2.0
MIXTURE = ScaleMixturePrior(mixing=0.5, scale1=2.5, scale2=0.25)
DROPOUT, ENSEMBLE = 0.05, 5
NUM_SCALES = 2.0  # half the width of the bands in the picture, in standard deviations


def digits_demo(folder: Folder, *, seed: int = 0) -> ClassifierScores:
    """Train on the digits 0 to 6, and measure whether 7, 8 and 9 are detected as unknown."""
    config = replace(find_recipe("digits", "default"), seed=seed)
    images, unknown = load_data(config, root=None)
    model, posterior = fit(config, images, folder)
    return report_evaluation(Trained(model, posterior, images, unknown, seed=seed), folder)


def regression_demo(folder: Folder, *, seed: int = 0) -> dict[str, float]:
    """Fit 92 noisy points of a sine with NUTS, plot predictive bands, and return the numbers to print."""
    x, y = regression_problem(seed=seed)
    with seeded(seed):
        net = mlp([1, 20, 1], activation=nn.Tanh, first=[Standardize(torch.zeros(1), torch.full((1,), 0.25))])
    noise = GaussianLikelihood(LogNormal(0.0, 1.0))
    model = BayesianModel(net, prior=NormalPrior(5.0), likelihood=noise, num_data=len(x))
    with silent_fits():  # a demonstration is short
        posterior = fit_nuts(model, (x, y), max_tree_depth=7, num_warmup=600, num_samples=400, progress=True, seed=seed)
    grid = torch.linspace(-1, 1, 401)[:, None]
    prediction = predict(model, posterior, grid, seed=seed).as_kind(RegressionPrediction)

    truth = 10 * torch.sin(2 * torch.pi * grid)
    ax = plotting.regression_bands(grid, prediction, data=(x, y), truth=truth, num_scales=NUM_SCALES)
    save_picture(folder, "regression.png", ax)

    inside = grid.flatten().abs() <= 0.5
    epistemic, aleatoric = prediction.epistemic.sqrt().flatten(), prediction.aleatoric.sqrt().flatten()
    within = (prediction.mean - truth).flatten().abs() <= NUM_SCALES * epistemic
    band = 2 * NUM_SCALES * epistemic
    result = {
        "epistemic_scale_inside": float(epistemic[inside].mean()),
        "epistemic_scale_outside": float(epistemic[~inside].mean()),
        "band_inside": float(band[inside].mean()),
        "band_at_end": float(band[0]),
        "aleatoric_scale_inside": float(aleatoric[inside].mean()),
        "noise_scale_true": 2.0,
        "truth_in_band": float(within.double().mean()),
    }
    folder.write_json("regression.json", result)
    return result


@dataclass(kw_only=True)
class RegressionStudy:
    """A comparison of methods with NUTS on 92 points of 10 sin(2 pi x), with known noise and a gap in the middle."""

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
            (self.x, self.y),
            guide,
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
            progress=True,
            seed=self.seed,
        )

    def methods(self) -> dict[str, Callable[[], Fit]]:
        """Return the name of each approximate method, and a function that fits the posterior by this method."""
        mixture, dropout = self._make(prior=MIXTURE), self._make(dropout=DROPOUT)
        members = [self._make(member=index) for index in range(ENSEMBLE)]
        return {
            "laplace": lambda: fit_laplace(self.model, (self.x, self.y)),
            "full-rank": lambda: self._fit(
                self.model, auto_guide(AutoMultivariateNormal, self.model, init=NetworkInit(0.02))
            ),
            "mean-field": lambda: self._mean_field(self.model),
            "mean-field, LRT": lambda: self._mean_field(self.model, LocalReparameterization()),
            "mixture": lambda: (mixture, self._mean_field(mixture)),
            "mc-dropout": lambda: (dropout, self._fit(dropout, DeltaGuide(dropout))),
            "ensemble": lambda: EnsemblePosterior(
                [self._fit(member, DeltaGuide(member), seed=index) for index, member in enumerate(members)]
            ),
        }

    def _mean_field(self, model: BayesianModel, estimator: Estimator | None = None) -> GuidePosterior:
        guide = MeanFieldGuide(model, init=NetworkInit(0.05))
        return self._fit(model, guide, elbo=TraceMeanField_ELBO(), estimator=estimator)

    def run(self, report: Callable[[str, Status], None]) -> Comparison:
        """Fit all methods, report each status, and compare the methods near the data, in the gap, and outside."""
        entries: dict[str, Fit] = {}
        for name, method in {"nuts": self.nuts, **self.methods()}.items():
            entry = entries[name] = method()
            posterior = entry[1] if isinstance(entry, tuple) else entry
            report(name, posterior.status)
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
    """Write two tables, and a picture if input and target are single numbers. Return the names of the pictures."""
    with folder.new("comparison.csv") as path:
        result.to_csv(path)
    with folder.new("comparison.json") as path:
        result.to_json(path)
    x, y = data
    if not y.is_floating_point() or x[0].numel() > 1 or y[0].numel() > 1:
        return []
    return [save_picture(folder, "comparison.png", plotting.comparison(result, data=data)[0])]
