"""Eight methods on one curve
==========================

A small network is fitted to 92 noisy points of 10 sin(2 pi x) on [-0.5, 0.5], and predicts on [-1.5, 1.5]. The methods
are maximum likelihood, MAP, MC dropout, four kinds of variational inference, and a deep ensemble. The script writes
`regression_methods.png`. The script prints how far the predicted mean is from the true curve inside the range of the
data. The script also prints the epistemic and aleatoric standard deviations inside and outside this range.

The KL weight of the variational fits is small: with weight 1 (`--kl-weight 1`) the variational Gaussians stay near
their prior and do not fit the sine. Outside the data the epistemic bands depend on prior and method, and the aleatoric
band is arbitrary.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from pyro.infer.autoguide import AutoMultivariateNormal

import pyro_bnn as pb
from pyro_bnn import LocalReparameterization, nets, plotting

X, Y = pb.data.regression_problem()
GRID = torch.linspace(-1.5, 1.5, 500)[:, None]
TRUTH = 10 * torch.sin(2 * torch.pi * GRID)
INSIDE = GRID.flatten().abs() <= 0.5

PRIOR, MAP_PRIOR = (
    pb.NormalPrior(1.0),
    pb.NormalPrior(2.0),
)  # a plain network fits better with a wide prior
MIXTURE = pb.ScaleMixturePrior(mixing=0.5, scale1=1.0, scale2=0.05)
WEIGHT_DECAY, DROPOUT, BATCH_SIZE = (
    1e-3,
    0.01,
    8,
)  # the settings of the study that this example follows
INIT = pb.NetworkInit(scale=0.03)

Options = argparse.Namespace
Fit = tuple[pb.BayesianModel, pb.Posterior]


def two_heads(
    options: Options,
    prior: pb.Prior = PRIOR,
    member: int = 0,
    dropout: float = 0,
) -> pb.BayesianModel:
    """A model whose network returns mean and log variance; seed and member
    alone determine the initial weights.
    """
    torch.manual_seed(1000 * options.seed + member)
    net, likelihood = (
        nets.mlp([1, 20, 20, 2], dropout=dropout or None),
        pb.HeteroscedasticGaussianLikelihood(),
    )
    return pb.BayesianModel(
        net, prior=prior, likelihood=likelihood, num_data=len(X)
    )


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Adam, with smaller steps for the matrix of the full-rank guide.

    All entries of a row together set the standard deviation of one weight, so
    full steps would be too large.
    """
    groups = [
        [
            p
            for p in parameters
            if (p.dim() == 2 and p.shape[0] > 100) == is_large
        ]
        for is_large in (False, True)
    ]
    return torch.optim.Adam(
        [{"params": groups[0]}, {"params": groups[1], "lr": 1e-3}], lr=0.03
    )


def fit(
    options: Options,
    model: pb.BayesianModel,
    guide: torch.nn.Module,
    kl_weight: float = 1.0,
    **settings,
) -> Fit:
    posterior = pb.fit_svi(
        model,
        guide,
        (X, Y),
        optimizer=pb.optim.scheduled(
            adam,
            partial(
                torch.optim.lr_scheduler.CosineAnnealingLR, T_max=options.epochs
            ),
        ),
        num_epochs=options.epochs,
        batch_size=BATCH_SIZE,
        kl_weight=kl_weight,
        seed=options.seed,
        **settings,
    )
    return model, posterior


def maximum_likelihood(options: Options) -> Fit:
    torch.manual_seed(1000 * options.seed)
    net, likelihood = (
        nets.mlp([1, 20, 20, 1]),
        pb.GaussianLikelihood(),
    )  # one noise scale, learned
    model = pb.BayesianModel(
        net, prior=PRIOR, likelihood=likelihood, num_data=len(X)
    )
    return fit(options, model, pb.DeltaGuide(model), kl_weight=0.0)


def maximum_a_posteriori(options: Options, member: int = 0) -> Fit:
    model = two_heads(options, MAP_PRIOR, member=member)
    return fit(options, model, pb.DeltaGuide(model))


def mc_dropout(options: Options) -> Fit:
    model = two_heads(
        options,
        pb.NormalPrior.from_weight_decay(WEIGHT_DECAY, num_data=len(X)),
        dropout=DROPOUT,
    )
    return fit(options, model, pb.DeltaGuide(model))


def mean_field(options: Options, prior: pb.Prior = PRIOR, **settings) -> Fit:
    model = two_heads(options, prior)
    return fit(
        options,
        model,
        pb.MeanFieldGuide(model, init=INIT),
        options.kl_weight,
        **settings,
    )


def full_rank(options: Options) -> Fit:
    model = two_heads(options)
    return fit(
        options,
        model,
        pb.auto_guide(AutoMultivariateNormal, model, init=INIT),
        options.kl_weight,
    )


def deep_ensemble(options: Options) -> Fit:
    fits = [maximum_a_posteriori(options, member) for member in range(5)]
    return fits[0][0], pb.EnsemblePosterior(
        [posterior for _, posterior in fits]
    )


def methods(kl_weight: float) -> dict:
    weight = f"KL weight {kl_weight:g}"
    return {
        "maximum likelihood": maximum_likelihood,
        "MAP, variance head": maximum_a_posteriori,
        f"MC dropout, p = {DROPOUT:g}": mc_dropout,
        f"mean field, {weight}": mean_field,
        f"local reparam., {weight}": partial(
            mean_field, estimator=LocalReparameterization()
        ),
        f"mixture prior, {weight}": partial(mean_field, prior=MIXTURE),
        f"full rank, {weight}": full_rank,
        "deep ensemble of 5 MAPs": deep_ensemble,
    }


def medians(variance: torch.Tensor) -> list[float]:
    """Return the median standard deviation inside the range of the data, and
    the median outside this range.
    """
    return [
        float(variance.sqrt().flatten()[rows].median())
        for rows in (INSIDE, ~INSIDE)
    ]


def report(name: str, prediction: pb.uncertainty.RegressionPrediction) -> str:
    error = float((prediction.mean - TRUTH)[INSIDE].square().mean().sqrt())
    values = [*medians(prediction.epistemic), *medians(prediction.aleatoric)]
    return f"{name:32} {error:6.2f}     " + "  ".join(
        f"{v:7.2f}" if v > 1e-3 else "   none" for v in values
    )


@plotting.style()
def main() -> None:
    title, _, text = __doc__.split("\n", 2)  # without the line below the title
    parser = argparse.ArgumentParser(
        description=f"{title}\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--epochs",
        type=int,
        default=200,
        help="epochs of each fit (default: %(default)s)",
    )
    parser.add_argument(
        "--kl-weight",
        type=float,
        default=0.05,
        help="KL weight of variational fits; 1 is the ELBO "
        "(default: %(default)s)",
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
    axes = plotting.new_axes(2, 4, size=("page", 3.6))
    print(
        f"{'':32} RMSE to   epistemic sd, median  aleatoric sd, median (truth "
        "2)"
    )
    print(f"{'method':32} the truth   inside  outside   inside  outside")
    growing = []
    for ax, (name, method) in zip(
        axes.flat, methods(options.kl_weight).items(), strict=True
    ):
        model, posterior = method(options)
        prediction = pb.predict(
            model, posterior, GRID, num_samples=100, seed=options.seed
        )
        print(report(name, prediction), flush=True)
        inside, outside = medians(prediction.epistemic)
        growing += (
            [name.partition(",")[0]] if outside > 1.2 * inside > 1e-3 else []
        )
        plotting.regression_bands(
            GRID, prediction, data=(X, Y), truth=TRUTH, ax=ax
        )
        ax.set(
            ylim=(-40, 40), title=name.replace(", KL weight", ",\nKL weight")
        )
        ax.label_outer()
        ax.get_legend().remove()
    print(
        '"none": a single network has no epistemic part; it cannot know where '
        "it has no data."
    )
    print(
        "epistemic sd at least a fifth larger outside the data than inside, "
        "for:",
        ", ".join(growing),
    )
    ax.figure.legend(
        *ax.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=5,
        frameon=False,
    )
    plotting.save(axes[0, 0], options.out / "regression_methods.png")


if __name__ == "__main__":
    main()
