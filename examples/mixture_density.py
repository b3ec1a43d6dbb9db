"""Mixture density network
=======================

A mixture density network predicts y from x if the same x has several likely values of y. The script prints the test
log-likelihood of a single Gaussian, of the mixture and of the true density, and the modes at x = 0.5.

y is uniform in [0, 1], and x = y + 0.3 sin(2 pi y) + Gaussian noise of scale 0.05. For x near 0.5 three values of y are
likely. A single Gaussian is so wide that it covers all three, and a mixture shows three separate peaks. Both networks
are Bayesian, fitted by SVI with KL weight 1.
"""

import argparse
import math
from functools import partial

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


# %%
# Data
# ----


def forward_problem(y: Tensor) -> Tensor:
    return y + 0.3 * torch.sin(2 * torch.pi * y)


def draw_data(num_data: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.rand(num_data, 1, generator=generator)
    noise = NOISE * torch.randn(num_data, 1, generator=generator)
    return forward_problem(y) + noise, y


def true_log_density(x: Tensor, y: Tensor) -> Tensor:
    """The true log p(y | x), by Bayes' rule, for y in [0, 1]; x and y have
    shape (N, 1).
    """

    def log_joint(y: Tensor) -> Tensor:
        return torch.distributions.Normal(forward_problem(y), NOISE).log_prob(x)

    grid = (torch.arange(2000) + 0.5) / 2000
    evidence = log_joint(grid).logsumexp(-1, keepdim=True) - math.log(2000)
    return log_joint(y) - evidence


# %%
# Fit
# ---


def fit(
    likelihood: pb.Likelihood,
    num_outputs: int,
    data: tuple[Tensor, Tensor],
    num_epochs: int,
) -> tuple[pb.BayesianModel, pb.GuidePosterior]:
    x, y = data
    torch.manual_seed(0)
    net = nets.mlp(
        [1, 20, num_outputs],
        activation=torch.nn.Tanh,
        first=[nets.Standardize.of(x)],
    )
    if isinstance(likelihood, pb.MixtureDensityLikelihood):
        # so that the components start apart
        net[-1].bias.data = likelihood.initial_bias(y)
    model = pb.BayesianModel(
        net, prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=len(x)
    )
    adam = partial(torch.optim.Adam, lr=0.03)
    cosine = partial(
        torch.optim.lr_scheduler.CosineAnnealingLR, T_max=num_epochs
    )
    posterior = pb.fit_svi(
        model,
        data,
        pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.02)),
        optimizer=pb.optim.scheduled(adam, cosine),
        num_epochs=num_epochs,
        estimator=pb.LocalReparameterization(),
        seed=0,
    )
    return model, posterior


# %%
# Scores
# ------


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


# %%
# Pictures
# --------


def draw_density(
    name: str,
    shown: RegressionPrediction,
    data: tuple[Tensor, Tensor],
    ax: Axes,
) -> None:
    plotting.predictive_density(X_GRID, shown, Y_GRID, ax=ax)
    ax.collections[0].set_clim(0, 22)  # one scale for both pictures
    ax.plot(*data, ".", color="C1", alpha=0.4, ms=2, mew=0, label="data")
    ax.legend(loc="upper left", markerscale=3)
    ax.set_title(f"predictive density: {name}")
    ax.axvline(CUT, color="black", linestyle=":", linewidth=0.8)


def draw_cut(densities: dict[str, Tensor], ax: Axes) -> None:
    for name, density in densities.items():
        ax.plot(Y_GRID, density, label=name)
    inside = Y_GRID[(Y_GRID >= 0) & (Y_GRID <= 1)]
    truth = true_log_density(torch.tensor([[CUT]]), inside[:, None]).exp()
    ax.plot(inside, truth, color="black", linewidth=0.8, label="truth")
    ax.set(xlabel="y", ylabel=f"p(y | x = {CUT})", ylim=(0, 3.8))
    ax.set_title(f"the cut at x = {CUT}")
    ax.legend(loc="upper right")


def draw_parts(
    shown: MixtureDensityPrediction, x_data: Tensor, ax: Axes
) -> None:
    parts = {
        "noise": shown.within_components,
        "several answers": shown.between_components,
        "epistemic": shown.epistemic,
    }
    x = X_GRID.flatten()
    for label, variance in parts.items():
        ax.semilogy(x, variance.flatten(), label=label)
    for start, end in ((x[0], x_data.min()), (x_data.max(), x[-1])):
        shade = ax.axvspan(start, end, color="0.9", linewidth=0, zorder=0)
    shade.set_label("no data")
    ax.set(xlabel="x", ylabel="variance of y (log scale)")
    ax.set(ylim=(1e-4, 0.9))
    ax.set_yticks([1e-3, 0.01, 0.1], ["0.001", "0.01", "0.1"])
    ax.set_xlim(float(x[0]), float(x[-1]))
    ax.set_title("the mixture's variance in three parts")
    ax.legend(loc="upper center", ncols=2)


# %%
# Run
# ---


@plotting.style()
def main(epochs: int) -> None:
    data, (x_test, y_test) = draw_data(1000, seed=0), draw_data(2000, seed=1)
    mixture = f"mixture of {NUM_COMPONENTS}"
    settings = {
        "one Gaussian": (pb.HeteroscedasticGaussianLikelihood(), 2),
        mixture: (
            pb.MixtureDensityLikelihood(NUM_COMPONENTS),
            3 * NUM_COMPONENTS,
        ),
    }
    axes = plotting.new_axes(1, 2, size=("page", 3.2))[0]
    scores, cuts = {}, {}
    print("mean test log-likelihood, in nats:")
    for ax, (name, (likelihood, num_outputs)) in zip(
        axes, settings.items(), strict=True
    ):
        model, posterior = fit(likelihood, num_outputs, data, epochs)
        predict = partial(pb.predict, model, posterior, num_samples=100, seed=0)
        scores[name] = predict(x_test, y=y_test).log_density
        print(f"{name:14} {with_error(scores[name])}")
        shown = predict(X_GRID, keep_draws=True)
        draw_density(name, shown, data, ax)
        at_cut = predict(torch.tensor([[CUT]]), keep_draws=True)
        cuts[name] = at_cut.log_prob(Y_GRID[:, None, None]).exp().flatten()
    gain = scores[mixture] - scores["one Gaussian"]
    print(f"{'the truth':14} {with_error(true_log_density(x_test, y_test))}")
    print(f"{'gain':14} {with_error(gain)}")
    found = [f"y = {y:.2f} (density {p:.1f})" for y, p in modes(cuts[mixture])]
    print(f"modes at x = {CUT}:", ", ".join(found))

    left, right = plotting.new_axes(1, 2, size=("page", 3.2))[0]
    draw_cut(cuts, left)
    draw_parts(shown, data[0], right)
    plotting.save(axes, "mixture_density.png")
    plotting.save(left, "mixture_parts.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=800, help="of each fit")
    main(**vars(parser.parse_args()))

# %%
# *Near x = 0.5, the data (dots) have three branches. One Gaussian covers them
# all, also between the branches; the mixture follows each of them.*
#
# *At the cut, the mixture has the three peaks of the true density. Most of its
# variance comes from the several answers, and not from the noise or from the
# unsure weights (epistemic). Left of the data, this last part should grow, but
# the mean-field guide of SVI is too certain there.*
