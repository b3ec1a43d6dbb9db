"""Two short demonstrations without a download: a classifier of digits with unknown classes, and a noisy sine."""

from dataclasses import replace

import torch
from pyro.distributions import LogNormal
from torch import nn

from .._core.scope import seeded, silent_fits
from ..data import regression_problem
from ..inference.mcmc import fit_nuts
from ..modelling.likelihoods import GaussianLikelihood
from ..modelling.model import BayesianModel
from ..modelling.priors import NormalPrior
from ..nets import Standardize, mlp
from ..results import plotting
from ..results.prediction import predict
from ..scores.uncertainty import RegressionPrediction
from .datasets import load_data
from .folders import Folder
from .recipes import find_recipe
from .reports.evaluation import ClassifierScores, report_evaluation
from .reports.pictures import save_picture
from .reports.trained import Trained
from .runs import fit

NUM_SCALES = 2.0  # half the width of the bands in the picture, in standard deviations


def digits_demo(folder: Folder, *, seed: int = 0) -> ClassifierScores:
    """Train on the digits 0 to 6, and measure whether 7, 8 and 9 are detected as unknown."""
    config = replace(find_recipe("digits", "default"), seed=seed)
    images, unknown = load_data(config, root=None)
    model, posterior = fit(config, images, folder)
    return report_evaluation(Trained(model, posterior, images, unknown, seed=seed), folder)


def regression_demo(folder: Folder, *, seed: int = 0) -> dict[str, float]:
    """Fit 92 noisy points of a sine with NUTS, plot predictive bands, and return the numbers of `cli/demo.py`."""
    x, y = regression_problem(seed=seed)
    with seeded(seed):
        net = mlp([1, 20, 1], activation=nn.Tanh, first=[Standardize(torch.zeros(1), torch.full((1,), 0.25))])
    noise = GaussianLikelihood(LogNormal(0.0, 1.0))
    model = BayesianModel(net, prior=NormalPrior(5.0), likelihood=noise, num_data=len(x))
    with silent_fits():  # a demonstration is short
        posterior = fit_nuts(
            model, (x, y), max_tree_depth=7, num_warmup=600, num_samples=400, compile="auto", progress=True, seed=seed
        )
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
