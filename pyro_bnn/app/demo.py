"""Two short demonstrations that need no download: digits with three unknown classes, and a noisy sine."""

import functools
from dataclasses import replace

import torch

from .._core.scope import seeded
from ..data import regression_problem
from ..inference.guides import MeanFieldGuide, NetworkInit
from ..inference.svi import fit_svi
from ..modelling.likelihoods import HeteroscedasticGaussianLikelihood
from ..modelling.model import BayesianModel
from ..modelling.priors import NormalPrior
from ..nets import mlp
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


def digits_demo(folder: Folder, *, seed: int = 0, progress: bool = False) -> ClassifierScores:
    """Train on the digits 0 to 6, and measure whether 7, 8 and 9 are noticed as unknown."""
    config = replace(find_recipe("digits", "default"), seed=seed)
    images, unknown = load_data(config, root=None)
    model, posterior = fit(config, images, folder, progress=progress)
    return report_evaluation(Trained(model, posterior, images, unknown, seed=seed), folder)


def regression_demo(folder: Folder, *, seed: int = 0) -> dict[str, float]:
    """Fit 92 noisy points of a sine, and plot the predictive bands inside and outside their range.

    Returns:
        Standard deviations: the mean epistemic one inside and outside the data's range, the mean aleatoric one inside,
        and that of the true noise.
    """
    x, y = regression_problem(seed=seed)
    with seeded(seed):
        net = mlp([1, 20, 20, 2])
    likelihood = HeteroscedasticGaussianLikelihood()
    # Heuristic: inputs in [-0.5, 0.5] need weights well above 1 to bend a line twice.
    model = BayesianModel(net, prior=NormalPrior(3.0), likelihood=likelihood, num_data=len(x))
    guide = MeanFieldGuide(model, init=NetworkInit(scale=0.05))
    posterior = fit_svi(
        model,
        guide,
        (x, y),
        optimizer=functools.partial(torch.optim.Adam, lr=1e-2),
        num_epochs=200,
        batch_size=8,
        kl_weight=1 / 12,  # heuristic and common: one over the number of batches; the ELBO has 1
        seed=seed,
    )
    grid = torch.linspace(-1.5, 1.5, 500)[:, None]
    prediction = predict(model, posterior, grid, num_samples=100, seed=seed).as_kind(RegressionPrediction)

    truth = 10 * torch.sin(2 * torch.pi * grid)
    ax = plotting.regression_bands(grid, prediction, data=(x, y), truth=truth)
    ax.set(ylim=(-40, 40))  # the bands are wider at the edges
    save_picture(folder, "regression.png", ax)

    inside = grid.flatten().abs() <= 0.5
    epistemic, aleatoric = prediction.epistemic.sqrt().flatten(), prediction.aleatoric.sqrt().flatten()
    result = {
        "epistemic_scale_inside": float(epistemic[inside].mean()),
        "epistemic_scale_outside": float(epistemic[~inside].mean()),
        "aleatoric_scale_inside": float(aleatoric[inside].mean()),
        "noise_scale_true": 2.0,
    }
    folder.write_json("regression.json", result)
    return result
