"""Mixture density network
=======================

A mixture density network predicts y from x if the same x has several likely values of y. The script prints the test
log-likelihood of a single Gaussian, of the mixture and of the true density, and the modes at x = 0.5.

y is uniform in [0, 1], and x = y + 0.3 sin(2 pi y) + Gaussian noise of scale 0.05. For x near 0.5 three values of y are
likely. A single Gaussian is so wide that it covers all three, and a mixture shows three separate peaks. Both networks
are Bayesian, fitted by SVI with KL weight 1. The picture `mixture_density.png` shows the predictive densities, and
`mixture_parts.png` a cut at x = 0.5 and the three parts of the mixture's variance.
"""

import argparse
import math
from functools import partial
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

import pyro_bnn as pb
from pyro_bnn import nets, plotting
from pyro_bnn.scores.uncertainty import (
    MixtureDensityPrediction,
    RegressionPrediction,
)

NOISE, CUT, NUM_COMPONENTS = 0.05, 0.5, 5
Y_GRID = torch.linspace(-0.2, 1.2, 281)
X_GRID = torch.linspace(-0.4, 1.4, 181)[:, None]

Options = argparse.Namespace


# %%
# Data
# ----


def forward_problem(y: Tensor) -> Tensor:
    return y + 0.3 * torch.sin(2 * torch.pi * y)


def draw_data(num_data: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.rand(num_data, 1, generator=generator)
    return forward_problem(y) + NOISE * torch.randn(
        num_data, 1, generator=generator
    ), y


def true_log_density(x: Tensor, y: Tensor) -> Tensor:
    """The true log p(y | x), by Bayes' rule, for y in [0, 1]; x and y have
    shape (N, 1).
    """

    def log_joint(y: Tensor) -> Tensor:
        return torch.distributions.Normal(forward_problem(y), NOISE).log_prob(x)

    grid = (torch.arange(2000) + 0.5) / 2000
    return log_joint(y) - (
        log_joint(grid).logsumexp(-1, keepdim=True) - math.log(2000)
    )


# %%
# Fit
# ---


def fit(
    options: Options,
    likelihood: pb.Likelihood,
    num_outputs: int,
    data: tuple[Tensor, Tensor],
) -> tuple[pb.BayesianModel, pb.GuidePosterior]:
    torch.manual_seed(options.seed)
    net = nets.mlp(
        [1, 20, num_outputs],
        activation=torch.nn.Tanh,
        first=[nets.Standardize.of(data[0])],
    )
    if isinstance(likelihood, pb.MixtureDensityLikelihood):
        net[-1].bias.data = likelihood.initial_bias(
            data[1]
        )  # so that the components start apart
    model = pb.BayesianModel(
        net,
        prior=pb.NormalPrior(1.0),
        likelihood=likelihood,
        num_data=len(data[0]),
    )
    posterior = pb.fit_svi(
        model,
        pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.02)),
        data,
        optimizer=pb.optim.scheduled(
            partial(torch.optim.Adam, lr=0.03),
            partial(
                torch.optim.lr_scheduler.CosineAnnealingLR, T_max=options.epochs
            ),
        ),
        num_epochs=options.epochs,
        estimator=pb.LocalReparameterization(),
        seed=options.seed,
    )
    return model, posterior


# %%
# Scores and pictures
# -------------------


def modes(density: Tensor) -> list[tuple[float, float]]:
    """Grid points at local maxima of the density, each with its density.

    A maximum is left out if its density is at most a tenth of the largest
    density.
    """
    inner = density[1:-1]
    is_mode = (
        (inner > density[:-2])
        & (inner > density[2:])
        & (inner > density.max() / 10)
    )
    return [
        (float(Y_GRID[i + 1]), float(inner[i]))
        for i in is_mode.nonzero().flatten()
    ]


def with_error(values: Tensor) -> str:
    error = values.std() / len(values) ** 0.5
    return f"{float(values.mean()):6.3f} ± {float(error):.3f}"


def draw_parts(
    prediction: MixtureDensityPrediction, data: tuple[Tensor, Tensor], ax: Axes
) -> None:
    parts = {
        "noise": prediction.within_components,
        "several answers": prediction.between_components,
        "epistemic": prediction.epistemic,
    }
    for label, variance in parts.items():
        ax.semilogy(
            X_GRID.flatten(), variance.flatten(), label=label, linewidth=1.3
        )
    x = X_GRID.flatten()
    is_outside = (x < data[0].min()) | (x > data[0].max())
    ax.fill_between(
        x,
        1e-4,
        4,
        where=is_outside,
        color="0.9",
        linewidth=0,
        zorder=0,
        label="no data",
    )
    ax.set(xlabel="x", ylabel="variance of y", ylim=(1e-4, 4))
    ax.set_xlim(float(x[0]), float(x[-1]))
    ax.set_title("the mixture's variance in three parts")
    ax.legend(loc="upper center", ncols=2)


# %%
# Run
# ---


@plotting.style()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--epochs",
        type=int,
        default=800,
        help="epochs of each fit (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        type=int,
        default=1000,
        help="number of training points (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        help="folder for the picture (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of all random numbers (default: %(default)s)",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data, (x_test, y_test) = (
        draw_data(options.data, options.seed),
        draw_data(2000, options.seed + 1),
    )

    axes = plotting.new_axes(1, 2, size=(6.2, 2.8))[0]
    at_cut, parts = plotting.new_axes(1, 2, size=(6.2, 2.8))[0]
    x_cut, densities = torch.tensor([[CUT]]), {}
    settings = {
        "one Gaussian": (pb.HeteroscedasticGaussianLikelihood(), 2),
        f"mixture of {NUM_COMPONENTS}": (
            pb.MixtureDensityLikelihood(NUM_COMPONENTS),
            3 * NUM_COMPONENTS,
        ),
    }
    print("mean test log-likelihood, in nats:", flush=True)
    for ax, (name, (likelihood, num_outputs)) in zip(
        axes, settings.items(), strict=True
    ):
        predict = partial(
            pb.predict,
            *fit(options, likelihood, num_outputs, data),
            num_samples=100,
            seed=0,
        )
        densities[name] = predict(x_test, y=y_test).log_density
        print(f"{name:14} {with_error(densities[name])}", flush=True)
        prediction = predict(X_GRID, keep_draws=True)
        assert isinstance(prediction, RegressionPrediction)
        plotting.predictive_density(X_GRID, prediction, Y_GRID, ax=ax)
        ax.plot(*data, ".", color="C1", alpha=0.4, ms=2, mew=0, label="data")
        ax.legend(loc="upper left", markerscale=3)
        ax.set_title(f"predictive density: {name}")
        ax.axvline(CUT, color="black", linestyle=":", linewidth=0.8)
        cut = (
            predict(x_cut, keep_draws=True)
            .log_prob(Y_GRID[:, None, None])
            .exp()
            .flatten()
        )
        at_cut.plot(Y_GRID, cut, label=name, linewidth=1.3)
        if isinstance(prediction, MixtureDensityPrediction):
            draw_parts(prediction, data, parts)
    gain = densities[f"mixture of {NUM_COMPONENTS}"] - densities["one Gaussian"]
    print(f"{'the truth':14} {with_error(true_log_density(x_test, y_test))}")
    print(
        f"{'gain':14} {with_error(gain)}, "
        f"{float(gain.mean() / gain.std() * len(gain) ** 0.5):.1f} standard "
        "errors"
    )
    print(
        f"modes at x = {CUT}:",
        ", ".join(
            f"y = {y:.2f} (density {height:.1f})" for y, height in modes(cut)
        ),
    )
    inside = Y_GRID[(Y_GRID >= 0) & (Y_GRID <= 1)]
    truth = true_log_density(x_cut, inside[:, None]).exp().flatten()
    at_cut.plot(inside, truth, color="black", linewidth=0.8, label="the truth")
    at_cut.set(
        xlabel="y",
        ylabel=f"p(y | x = {CUT})",
        title=f"the cut at x = {CUT}",
        ylim=(0, 4.2),
    )
    at_cut.legend(loc="upper right")
    plotting.save(axes, options.out / "mixture_density.png")
    plotting.save(at_cut, options.out / "mixture_parts.png")


if __name__ == "__main__":
    main()

# %%
# *Near x = 0.5, the data (dots) have three branches. One Gaussian covers them
# all, also between the branches; the mixture follows each of them.*
#
# *At the cut, the mixture has the three peaks of the true density. Most of its
# variance comes from the several answers, and not from the noise or from the
# unsure weights (epistemic).*
