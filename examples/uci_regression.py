"""Regression on a table of numbers
===================================

Four methods fit the same network to a table, and their errors and log-likelihoods are compared.

The network has one hidden layer of 50 tanh units, standardised inputs and targets, and a latent noise scale. The
network is fitted in four ways: one point estimate (MAP), an ensemble of five such estimates, a mean-field Gaussian, and
draws from the exact posterior (NUTS). The script prints the root mean squared error and the mean log-likelihood of test
targets, in the units of the target, with standard errors over the splits. With `--data` the script uses one of six UCI
data sets in its published splits, otherwise scikit-learn's diabetes data in random splits.

With so few rows, a plain network (MAP) fits the noise. The predictions of the plain network are then too certain, and
their log-likelihood is low.
"""

import argparse
import math
import statistics
import warnings
from functools import partial
from pathlib import Path

import pyro.distributions as dist
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import data, nets

NUM_HIDDEN, NUM_MEMBERS, GAIN = 50, 5, 2.0
NOISE = dist.LogNormal(-2.0, 1.0)  # the target's scale is 1

Options = argparse.Namespace
Fit = tuple[pb.BayesianModel, pb.Posterior]


def load(options: Options, split: int) -> data.Regression:
    if options.data:
        return data.load_uci(options.dataset, split, root=options.data)
    from sklearn.datasets import load_diabetes

    x, y = (
        torch.tensor(part, dtype=torch.float32)
        for part in load_diabetes(return_X_y=True)
    )
    rows = torch.randperm(
        len(x), generator=torch.Generator().manual_seed(split)
    )
    test, train = rows.tensor_split([len(x) // 10])
    return data.Regression(x[train], y[train, None], x[test], y[test, None])


def make_model(x: torch.Tensor, seed: int) -> pb.BayesianModel:
    torch.manual_seed(seed)
    net = nets.mlp([x.shape[1], NUM_HIDDEN, 1], activation=nn.Tanh)
    likelihood = pb.GaussianLikelihood(NOISE)
    return pb.BayesianModel(
        net,
        prior=pb.FanInNormalPrior(GAIN),
        likelihood=likelihood,
        num_data=len(x),
    )


def optimise(
    options: Options,
    model: pb.BayesianModel,
    guide: nn.Module,
    xy: tuple[torch.Tensor, ...],
    **settings,
) -> pb.Posterior:
    return pb.fit_svi(
        model,
        guide,
        xy,
        optimizer=pb.optim.scheduled(
            partial(torch.optim.Adam, lr=0.03),
            partial(
                torch.optim.lr_scheduler.CosineAnnealingLR, T_max=options.steps
            ),
        ),
        num_epochs=options.steps,
        batch_size=min(len(xy[0]), 1500),
        seed=options.seed,
        **settings,
    )


def maximum_a_posteriori(
    options: Options, *xy: torch.Tensor, member: int = 0
) -> Fit:
    model = make_model(xy[0], 100 * options.seed + member)
    return model, optimise(options, model, pb.DeltaGuide(model), xy)


def deep_ensemble(options: Options, *xy: torch.Tensor) -> Fit:
    fits = [
        maximum_a_posteriori(options, *xy, member=member)
        for member in range(NUM_MEMBERS)
    ]
    return fits[0][0], pb.EnsemblePosterior(
        [posterior for _, posterior in fits]
    )


def mean_field(options: Options, *xy: torch.Tensor) -> Fit:
    model = make_model(xy[0], options.seed)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.02))
    cold = {
        "kl_weight": options.kl_weight,
        "estimator": pb.LocalReparameterization(),
    }
    return model, optimise(options, model, guide, xy, **cold)


def nuts(options: Options, *xy: torch.Tensor) -> Fit:
    model = make_model(xy[0], options.seed)
    lengths = {
        "num_samples": options.draws,
        "num_warmup": options.draws,
        "num_chains": 1,
        "max_tree_depth": 6,
    }
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", pb.ConvergenceWarning
        )  # one short chain; its status says so
        start = pb.NetworkInit(scale=0.02)
        posterior = pb.fit_nuts(
            model,
            xy,
            init=start,
            compile=options.compile,
            seed=options.seed,
            **lengths,
        )
    return model, posterior


METHODS = {
    "MAP": (maximum_a_posteriori, 1),
    "deep ensemble": (deep_ensemble, NUM_MEMBERS),
    "mean-field": (mean_field, 100),
    "NUTS": (nuts, None),
}


def scores(options: Options, name: str, split: int) -> tuple[float, float]:
    """Root mean squared error and mean log-likelihood of the test targets."""
    parts = load(options, split)
    inputs, target = (
        nets.Standardize.of(parts.x_train),
        nets.Standardize.of(parts.y_train),
    )
    method, num_samples = METHODS[name]
    model, posterior = method(
        options, inputs(parts.x_train), target(parts.y_train)
    )
    x, y, unit = (
        inputs(parts.x_test),
        target(parts.y_test),
        float(parts.y_train.std()),
    )
    prediction = pb.predict(
        model, posterior, x, y=y, num_samples=num_samples, seed=options.seed
    )
    rmse = unit * pb.metrics.root_mean_squared_error(prediction.mean, y)
    return rmse, float(prediction.log_density.mean()) - math.log(
        unit
    )  # the density of y is the density of y / unit, divided by unit


def with_error(values: list[float]) -> str:
    error = (
        f" ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}"
        if len(values) > 1
        else ""
    )
    return f"{statistics.fmean(values):8.3f}{error}"


def main() -> None:
    title, _, text = __doc__.split("\n", 2)  # without the line below the title
    parser = argparse.ArgumentParser(
        description=f"{title}\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder that contains uci/NAME "
        "(default: none; then scikit-learn's diabetes)",
    )
    parser.add_argument(
        "--dataset",
        default="yacht",
        choices=data.UCI_SETS,
        help="name of the data set in that folder (default: %(default)s)",
    )
    parser.add_argument(
        "--splits",
        type=int,
        default=3,
        help="number of splits, from the first (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=600,
        help="optimisation steps of each fit (default: %(default)s)",
    )
    parser.add_argument(
        "--draws",
        type=int,
        default=100,
        help="draws of NUTS, after equally many of warm-up "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--kl-weight",
        type=float,
        default=0.1,
        help="KL weight of the mean-field fit; 1 is the ELBO "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--compile", action="store_true", help="draw in C (needs a C compiler)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of all random numbers (default: %(default)s)",
    )
    options = parser.parse_args()

    likelihoods = {}
    print(f"{'method':14} {'RMSE':>16} {'log-likelihood':>20}")
    for name in METHODS:
        pairs = [
            scores(options, name, split) for split in range(options.splits)
        ]
        rmse, likelihood = ([pair[index] for pair in pairs] for index in (0, 1))
        likelihoods[name] = statistics.fmean(likelihood)
        print(
            f"{name:14} {with_error(rmse):>16} {with_error(likelihood):>20}",
            flush=True,
        )
    better = [
        name
        for name, value in likelihoods.items()
        if value > likelihoods["MAP"] + 0.01
    ]
    print(
        "log-likelihood better than that of one point:",
        ", ".join(better) or "none",
    )


if __name__ == "__main__":
    main()
