"""Make pictures of docs/understand, docs/start and docs/results, and print the numbers shown beside them.

`python docs/pictures/make.py` makes all of them, some minutes on one core; `python docs/pictures/make.py priors` makes
one. `--quick` makes all in seconds, from fits that are far too short; the test uses it.
"""

import argparse
import functools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import pyro.distributions as dist
import torch
from matplotlib.axes import Axes
from pyro.infer import TraceMeanField_ELBO
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import pyro_bnn as pb
from drawing import legend_above, redraw, save_small
from pyro_bnn import nets, plotting
from results import PICTURES as OF_RESULTS
from uci_dots import uci

HERE = Path(__file__).parent
GRID = torch.linspace(15, 50, 141)[:, None]  # body mass index
GAP = (25.0, 32.0)
"""Patients with an index between these are left out of the fits."""

NOISE = 0.65
REGIONS = ("where data are", "in the gap", "beyond 42.2")
BLUE, VERMILION, *_ = plotting.PALETTE
BAND = "#A6CFE8"

Predictions = Mapping[str, pb.uncertainty.RegressionPrediction]


@dataclass(frozen=True)
class Patients:
    """Body mass index, shape (N, 1), and progression of diabetes after a year, in hundreds, shape (N, 1)."""

    x: Tensor
    y: Tensor

    @classmethod
    def all(cls) -> "Patients":
        """The 442 patients of scikit-learn's table."""
        table, target = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
        return cls(*(torch.tensor(part.to_numpy()).float()[:, None] for part in (table["bmi"], target / 100)))

    @property
    def in_gap(self) -> Tensor:
        """Whether the index of each patient is in the gap, shape (N,)."""
        return ((self.x > GAP[0]) & (self.x < GAP[1])).flatten()

    def part(self, rows: Tensor) -> "Patients":
        """The patients of some rows."""
        return Patients(self.x[rows], self.y[rows])


def with_gap() -> tuple[pb.BayesianModel, Patients, Patients]:
    """A network of 20 tanh units; patients of the fit, and others that are set aside; none is in the gap."""
    patients = Patients.all()
    is_aside = torch.arange(len(patients.x)) % 4 == 0
    fit, aside = (patients.part(~patients.in_gap & rows) for rows in (~is_aside, is_aside))
    torch.manual_seed(0)
    net = nets.mlp([1, 20, 1], activation=nn.Tanh, first=[nets.Standardize.of(fit.x)])
    likelihood = pb.GaussianLikelihood(NOISE)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(2.0), likelihood=likelihood, num_data=len(fit.x))
    return model, fit, aside


def fitted(model: pb.BayesianModel, x: Tensor, y: Tensor, num_epochs: int, kl_weight: float = 1.0) -> pb.GuidePosterior:
    """A mean-field fit with the least noisy gradients."""
    adam = functools.partial(torch.optim.Adam, lr=0.02)
    cosine = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=num_epochs)
    return pb.fit_svi(
        model,
        (x, y),
        pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.05)),
        optimizer=pb.optim.scheduled(adam, cosine),
        num_epochs=num_epochs,
        elbo=TraceMeanField_ELBO(),
        estimator=pb.LocalReparameterization(),
        kl_weight=kl_weight,
        seed=0,
    )


def spread(prediction: pb.uncertainty.RegressionPrediction, fit: Patients) -> str:
    """Mean epistemic standard deviation of each region, as a row of a table."""
    sd, index = prediction.epistemic.sqrt().flatten(), GRID.flatten()
    gap, beyond = (index > GAP[0]) & (index < GAP[1]), index > fit.x.max()
    inside = ~gap & ~beyond & (index >= fit.x.min())
    return "".join(f"{float(sd[rows].mean()):16.2f}" for rows in (inside, gap, beyond))


def ground(ax: Axes, x: Tensor, *gaps: tuple[float, float]) -> None:
    """A grey ground where the fit has no data: in gaps, and on both sides of the data."""
    for number, (start, end) in enumerate(((15, float(x.min())), *gaps, (float(x.max()), 50))):
        ax.axvspan(start, end, color="0.93", linewidth=0, zorder=0, label="_no data" if number else "no data")


def epistemic_bands(predictions: Predictions, fit: Patients, compared: str, low: float, high: float) -> Axes:
    """For each prediction on the grid a panel with its mean, its epistemic band and the data; return the first panel.

    Dashed lines are the edges of the band of the prediction `compared`. The axes of y end at `low` and `high`.
    """
    axes = plotting.new_axes(1, len(predictions), size=("page", 2.7))[0]
    x = GRID.flatten()
    bands, label = {}, f"band of {compared}"
    for name, prediction in predictions.items():
        mean, sd = prediction.mean.flatten(), prediction.epistemic.sqrt().flatten()
        bands[name] = (mean - 2 * sd, mean, mean + 2 * sd)
    for ax, (name, (lower, mean, upper)) in zip(axes, bands.items(), strict=True):
        ground(ax, fit.x, GAP)
        ax.plot(fit.x, fit.y, "o", color="0.25", ms=2.4, mec="white", mew=0.3, zorder=1.9, label="data")
        ax.fill_between(x, lower, upper, color=BAND, linewidth=0, zorder=1.8)
        ax.fill([], [], facecolor=BAND, edgecolor=BLUE, linewidth=0.8, label="\N{PLUS-MINUS SIGN} 2 epistemic sd")
        ax.plot(x, np.stack([lower, upper], 1), color=BLUE, linestyle="-", linewidth=0.8)
        ax.plot(x, mean, color=BLUE, linestyle="-", linewidth=1.3, label="mean")
        edges = np.stack(bands[compared][::2], 1)[: 0 if name == compared else None]
        look = {"color": "black", "linestyle": (0, (4, 2)), "linewidth": 0.9, "label": [label, f"_{label}"]}
        ax.plot(x[: len(edges)], edges, **look)
        ax.set(title=name, xlabel="body mass index", xlim=(15, 50), xticks=(20, 30, 40, 50))
        ax.set(ylim=(low, high), yticks=range(math.ceil(low), math.floor(high) + 1))
        ax.tick_params(labelleft=ax is axes[0])
    axes[0].set_ylabel("progression / 100")
    with matplotlib.rc_context({"legend.markerscale": 2}):
        legend_above(axes[0], last="no data")
    return axes[0]


def priors(out: Path, quick: bool) -> None:
    """Functions drawn from priors, before any data."""
    shown = {
        "FanInNormalPrior(1)": pb.FanInNormalPrior(1.0),
        "NormalPrior(0.3)": pb.NormalPrior(0.3),
        "FanInNormalPrior(4)": pb.FanInNormalPrior(4.0),
        "ScaleMixturePrior(0.5, 1, 0.01)": pb.ScaleMixturePrior(0.5, 1.0, 0.01),
        "HierarchicalNormalPrior()": pb.HierarchicalNormalPrior(),
        "NormalPrior(1)": pb.NormalPrior(1.0),
        "LaplacePrior(0.2)": pb.LaplacePrior(0.2),
    }
    rows = {
        4: ("FanInNormalPrior(1)", "LaplacePrior(0.2)", "NormalPrior(0.3)"),
        20: ("FanInNormalPrior(4)", "HierarchicalNormalPrior()", "NormalPrior(1)"),
    }
    num_draws = 50 if quick else 2000
    x = torch.linspace(-3, 3, 121)[:, None]
    functions = {}
    print(f"{'prior, 1-50-50-1 tanh':34s} sd of f(0)  sd of f(3)")
    for seed, (name, prior) in enumerate(shown.items()):
        torch.manual_seed(0)
        net = nets.mlp([1, 50, 50, 1], activation=nn.Tanh)
        model = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(0.1), num_data=1)
        draws = pb.predict(model, model.sample_latents, x, num_samples=num_draws, keep_draws=True, seed=seed)
        functions[name] = draws.components.mean[..., 0]  # (S, N)
    for name, values in sorted(functions.items(), key=lambda item: float(item[1][:, 60].std())):
        sds = values.std(0)
        print(f"{name:34s} {float(sds[60]):10.2f} {float(sds[-1]):11.2f}")
    axes = plotting.new_axes(2, 3, size=("page", 4.2))
    for of_row, (end, names) in zip(axes, rows.items(), strict=True):
        for ax, name in zip(of_row, names, strict=True):
            sds = functions[name].std(0)
            line, *_ = ax.plot(x, functions[name][:5].T, color=BLUE, linestyle="-", linewidth=0.9)
            band = ax.fill_between(x.flatten(), -2 * sds, 2 * sds, facecolor=BAND, linewidth=0, zorder=0)
            targets = [ax.axhline(y, color=VERMILION, linestyle=":", linewidth=1.1) for y in (-2, 2)]
            ax.set(title=f"{name}\nsd of f(0): {float(sds[60]):.1f}", xlim=(-3, 3), xticks=(-3, 0, 3))
            ax.set(ylim=(-end, end), yticks=range(-end, end + 1, end // 2))
            ax.set(ylabel="f(x)" if ax is of_row[0] else "")
            ax.set(xlabel="x" if ax in axes[1] else "")
            ax.tick_params(labelleft=ax is of_row[0])
    labels = ["five functions", f"± 2 sd of {num_draws} functions", "± 2: range of standardised targets"]
    axes[0, 0].figure.legend([line, band, targets[0]], labels, loc="outside upper left", ncols=3)
    save_small(axes[0, 0], out / "priors.png", num_colors=32)


def width(out: Path, quick: bool) -> None:
    """Effect of the network's width under a prior of fixed scale, and under a prior scaled by fan-in."""
    widths = [4, 8, 16, 32, 64, 128, 256]
    num_draws = 30 if quick else 500
    x = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))
    axes = plotting.new_axes(1, 2, size=("page", 2.8))
    print(f"{'prior':24s} width  sd of a logit  mean of the largest probability")
    kinds = {"NormalPrior(1)": pb.NormalPrior(1.0), "FanInNormalPrior(√2)": pb.FanInNormalPrior(math.sqrt(2))}
    for (name, prior), style in zip(kinds.items(), ("o-", "s--"), strict=True):
        sds, largest = [], []
        for units in widths:
            torch.manual_seed(0)
            net = nets.mlp([10, units, units, 5])
            model = pb.BayesianModel(net, prior=prior, likelihood=pb.CategoricalLikelihood(), num_data=1)
            draws = pb.predict(model, model.sample_latents, x, num_samples=num_draws, keep_draws=True, seed=0)
            sds.append(float(draws.logit_variance.mean().sqrt()))
            largest.append(float(draws.logits.exp().amax(-1).mean()))
        print(f"{name:24s} {widths[0]:5d} {sds[0]:14.2f} {largest[0]:32.2f}")
        print(f"{name:24s} {widths[-1]:5d} {sds[-1]:14.2f} {largest[-1]:32.2f}", flush=True)
        axes[0, 0].plot(widths, sds, style, label=name)
        axes[0, 1].plot(widths, largest, style, label=name)
    labels = ("sd of a logit (log scale)", "largest class probability (mean)")
    for ax, label in zip(axes[0], labels, strict=True):
        ax.set_xscale("log", base=2)
        ax.set_xticks(widths, labels=[str(units) for units in widths])
        ax.set(xlabel="hidden units in each of two layers (log scale)", ylabel=label)
    axes[0, 0].set_yscale("log")
    axes[0, 0].set_yticks([1, 10, 100], labels=["1", "10", "100"])
    axes[0, 0].minorticks_off()
    axes[0, 0].set_ylim(0.7, 600)
    axes[0, 1].axhline(0.2, color="0.5", linestyle=":", linewidth=0.9)
    axes[0, 1].text(256, 0.21, "chance", ha="right", va="bottom", color="0.35")
    axes[0, 1].set_ylim(0, 1.04)
    axes[0, 0].figure.get_layout_engine().set(wspace=0.05)
    legend_above(axes[0, 0])
    save_small(axes[0, 0], out / "width.png", num_colors=32)


def kl_weight(out: Path, quick: bool) -> None:
    """One fit for each of four KL weights, from warm to cold; the picture has room for three."""
    model, fit, aside = with_gap()
    predictions = {}
    print("KL weight   KL, nats  NLL, nats" + "".join(f"{name:>16s}" for name in REGIONS))
    for weight in (3.0, 1.0, 0.1, 0.01):
        posterior = fitted(model, fit.x, fit.y, 30 if quick else 4000, weight)
        prediction = pb.predict(model, posterior, GRID, num_samples=400, seed=0)
        nll = pb.predict(model, posterior, aside.x, y=aside.y, num_samples=400, seed=0).nll
        kl = sum(posterior.history.kl[-50:]) / len(posterior.history.kl[-50:])
        print(f"{weight:9g} {kl:10.1f} {nll:10.3f}{spread(prediction, fit)}", flush=True)
        if weight <= 1:
            predictions[f"KL weight {weight:g}"] = prediction
    ax = epistemic_bands(predictions, fit, "KL weight 1", 0, 3.6)
    save_small(ax, out / "kl_weight.png", num_colors=64)


def estimators(out: Path, quick: bool) -> None:
    """Variance of the gradient by batch size for three estimators, on a regression and on images."""
    num_draws, num_groups = (4, 2) if quick else (40, 5)
    x, y = (torch.tensor(part).float() for part in load_diabetes(return_X_y=True))
    y = ((y - y.mean()) / y.std())[:, None]
    torch.manual_seed(0)
    net = nets.mlp([10, 20, 1], activation=nn.Tanh, first=[nets.Standardize.of(x)])
    likelihood = pb.GaussianLikelihood(0.7)
    model = pb.BayesianModel(net, prior=pb.FanInNormalPrior(1.0), likelihood=likelihood, num_data=len(x))
    guide = fitted(model, x, y, 5 if quick else 300).guide
    problems = {f"diabetes, {len(x)} rows": (model, guide, x, y, [4, 20, 100, 442])}
    digits = pb.data.load_images("digits")
    torch.manual_seed(0)
    net = nets.mlp([64, 100, 10], first=[nn.Flatten()])
    num_data = len(digits.x_train)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(0.3), likelihood=pb.CategoricalLikelihood(), num_data=num_data)
    adam = functools.partial(torch.optim.Adam, lr=0.01)
    guide = pb.MeanFieldGuide(model)
    pair = digits.x_train, digits.y_train
    pb.fit_svi(model, pair, guide, optimizer=adam, num_epochs=1 if quick else 20, batch_size=100, seed=0)
    problems[f"digits, {num_data} rows"] = (model, guide, *pair, [10, 50, 250, 1250])
    kinds = {"drawn weights": None, "Flipout": pb.Flipout(), "LocalReparameterization": pb.LocalReparameterization()}
    axes = plotting.new_axes(1, 2, size=("page", 2.9))
    print("variance of the gradient of the loss per data point,\nsummed over parameters (± standard error)")
    widths = [max(17, len(name) + 2) for name in kinds]  # 80 columns in all
    for ax, (title, (model, guide, x, y, sizes)) in zip(axes[0], problems.items(), strict=True):
        print(f"{title:19s}" + "".join(map(str.rjust, kinds, widths)))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        options = {"num_samples": num_draws, "elbo": TraceMeanField_ELBO()}
        measure = functools.partial(pb.gradient_noise, model, guide, **options)
        for size in sizes:
            for name, estimator in kinds.items():
                noises = [measure(x[:size], y[:size], estimator=estimator, seed=seed) for seed in range(num_groups)]
                groups = [sum(row.noise**2 for row in noise.parameters) / model.num_data**2 for noise in noises]
                found[name].append((float(np.mean(groups)), float(np.std(groups, ddof=1) / num_groups**0.5)))
            cells = (f"{found[name][-1][0]:.3g} ± {found[name][-1][1]:.1g}" for name in kinds)
            print(f"{size:19d}" + "".join(map(str.rjust, cells, widths)), flush=True)
        looks = ({"marker": "o"}, {"marker": "s", "markersize": 8, "markerfacecolor": "none"}, {"marker": "D"})
        for (name, row), look, line in zip(found.items(), looks, ("-", "--", "-."), strict=True):
            ax.plot(sizes, [value for value, _ in row], line, linewidth=1.2, label=name, **{"markersize": 4} | look)
        ax.set(xscale="log", yscale="log", ylim=(4e-3, 8), xlabel="rows in the batch (log scale)", title=title)
        ax.set_xticks(sizes, labels=[str(size) for size in sizes])
        ax.set_yticks([0.01, 0.1, 1], labels=["0.01", "0.1", "1"] if ax is axes[0, 0] else [])
        ax.minorticks_off()
    axes[0, 0].set_ylabel("variance of the gradient (log scale)")
    with matplotlib.rc_context({"legend.handlelength": 4}):  # long enough for a dash and a dot
        legend_above(axes[0, 0])
    save_small(axes[0, 0], out / "estimators.png", num_colors=32)


def trust(out: Path, quick: bool) -> None:
    """NUTS, chains (MCLMC), a mean-field Gaussian and Laplace (Gauss-Newton) on the same model."""
    model, fit, _ = with_gap()
    num_draws = 40 if quick else 400
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)  # printed as the status
        chains = pb.fit_nuts(
            model,
            (fit.x, fit.y),
            num_samples=num_draws,
            num_warmup=num_draws,
            num_chains=2 if quick else 4,
            max_tree_depth=3 if quick else 10,
            target_accept=0.95,
            compile=not quick,
            seed=0,
        )
    mean_field = fitted(model, fit.x, fit.y, 30 if quick else 4000)
    plain = pb.fit(model, (fit.x, fit.y), method="svi", guide=pb.DeltaGuide(model), seed=0)
    laplace = pb.fit_gauss_newton(model, (fit.x, fit.y), init=plain, structure="full")
    default = pb.fit(model, (fit.x, fit.y), seed=0)
    posteriors = {"NUTS": chains, "chains (MCLMC)": default, "mean field": mean_field}
    posteriors["Laplace (Gauss-Newton)"] = laplace
    print(chains.status)
    print(f"{'epistemic sd':22s}" + "".join(f"{name:>16s}" for name in REGIONS))
    predictions = {}
    for name, posterior in posteriors.items():
        predictions[name] = pb.predict(model, posterior, GRID, num_samples=None if quick else 1000, seed=0)
        print(f"{name:22s}{spread(predictions[name], fit)}", flush=True)
    ax = epistemic_bands(predictions, fit, "NUTS", -2, 5.3)
    save_small(ax, out / "trust.png", num_colors=64)


def regression(out: Path, quick: bool) -> None:
    """The picture of the quickstart on regression, by the same code in another size."""
    patients = Patients.all()
    x, y = patients.x, patients.y
    torch.manual_seed(0)
    net = nn.Sequential(nets.Standardize.of(x), nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1))
    likelihood = pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0))
    model = pb.BayesianModel(net, prior=pb.FanInNormalPrior(2**0.5), likelihood=likelihood, num_data=len(x))
    options = {"method": "svi", "num_epochs": 20} if quick else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)  # printed as the status
        posterior = pb.fit(model, (x, y), seed=0, **options)
    print(posterior.status)
    ax = plotting.new_axes(1, 1, size=("page", 3.2))[0, 0]
    ground(ax, x)
    prediction = pb.predict(model, posterior, GRID, seed=0)
    plotting.regression_bands(GRID, prediction, data=(x, y), ax=ax)
    ax.set(xlabel="body mass index", ylabel="progression / 100", ylim=(-1, 6.2))
    legend_above(ax, last="no data")
    save_small(ax, out / "regression.png", num_colors=32)
    phone = out / "regression_phone.png"
    redraw(ax.figure, phone)
    save_small(ax, phone, num_colors=32)


PICTURES: Mapping[str, Callable[[Path, bool], None]] = {
    **{function.__name__: function for function in (priors, width, kl_weight, estimators, trust, regression, uci)},
    **OF_RESULTS,
}
"""Function that makes each picture, by the name of its file."""


def draw(name: str, out: Path, quick: bool) -> None:
    """Make one picture in the library's style."""
    with plotting.style():
        PICTURES[name](out, quick)


def main() -> None:
    """Make the pictures that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="pictures to make; all without any")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="short fits: to see that all works, not for the pages")
    arguments = parser.parse_args()
    for name in arguments.names or PICTURES:
        print(f"--- {name}")
        draw(name, arguments.out, arguments.quick)


if __name__ == "__main__":
    main()
