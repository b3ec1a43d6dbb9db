"""How much the gradient varies
===============================

Compare the noise of three gradient estimators: sampled weights (RT), flipout and local reparameterisation (LRT).

A network is fitted to scikit-learn's 442 diabetes patients. At the fitted parameters the script draws the gradient of
the loss twice on each of many random batches. Half the squared difference of such a pair estimates the variance that
comes from the noise of the weights, without the variance that comes from the choice of the batch. The script prints and
plots the sum of this variance over all parameters, by batch size.

The fit is short on purpose. With more epochs the standard deviations of the weights grow. The likelihood divides by the
exponential of a network output, so with large standard deviations the gradients have heavy tails, and 300 pairs are too
few to estimate their variance.
"""

import argparse
import functools
from pathlib import Path

import torch
from pyro.infer import TraceMeanField_ELBO
from sklearn.datasets import load_diabetes

from pyro_bnn import (
    BayesianModel,
    Flipout,
    HeteroscedasticGaussianLikelihood,
    LocalReparameterization,
    MeanFieldGuide,
    NetworkInit,
    NormalPrior,
    fit_svi,
    nets,
)
from pyro_bnn.inference.estimators import Estimator
from pyro_bnn.results.plotting import new_axes, save, style

ESTIMATORS: dict[str, Estimator | None] = {
    "RT": None,
    "flipout": Flipout(),
    "LRT": LocalReparameterization(),
}
LABELS = {
    "RT": "sampled weights (RT)",
    "flipout": "flipout",
    "LRT": "local reparameterisation (LRT)",
}
BATCH_SIZES = [4, 16, 64, 256, 442]
Variances = dict[str, dict[int, tuple[float, float]]]
"""Variance of the gradient and its standard error, by method and batch size."""


def fitted(
    x: torch.Tensor, y: torch.Tensor, num_epochs: int
) -> tuple[BayesianModel, MeanFieldGuide]:
    torch.manual_seed(0)
    model = BayesianModel(
        nets.mlp([10, 20, 20, 2]),
        prior=NormalPrior(1.0),
        likelihood=HeteroscedasticGaussianLikelihood(),
        num_data=len(x),
    )
    guide = MeanFieldGuide(model, init=NetworkInit(scale=0.01))
    fit_svi(
        model,
        guide,
        (x, y),
        optimizer=functools.partial(torch.optim.Adam, lr=0.01),
        num_epochs=num_epochs,
        batch_size=34,
        elbo=TraceMeanField_ELBO(),
        estimator=LocalReparameterization(),
        seed=0,
    )
    return model, guide


def gradient(
    model: BayesianModel,
    guide: MeanFieldGuide,
    x: torch.Tensor,
    y: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the negative ELBO per data point, from one draw, as one
    vector.
    """
    guide.zero_grad()
    loss = (
        TraceMeanField_ELBO().differentiable_loss(model, guide, x, y)
        / model.num_data
    )
    loss.backward()
    return torch.cat(
        [parameter.grad.flatten() for parameter in guide.parameters()]
    )


def measure(
    model: BayesianModel,
    guide: MeanFieldGuide,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    num_pairs: int,
) -> Variances:
    found: Variances = {}
    for name, estimator in ESTIMATORS.items():
        torch.manual_seed(1)
        found[name] = {}
        for batch_size in BATCH_SIZES:
            halves = []
            for _ in range(num_pairs):
                rows = torch.randperm(len(x))[:batch_size]
                if estimator is None:
                    pair = [
                        gradient(model, guide, x[rows], y[rows])
                        for _ in range(2)
                    ]
                else:
                    with estimator.applied(model, guide):
                        pair = [
                            gradient(model, guide, x[rows], y[rows])
                            for _ in range(2)
                        ]
                halves.append((pair[0] - pair[1]).square().sum() / 2)
            values = torch.stack(halves)
            found[name][batch_size] = (
                float(values.mean()),
                float(values.std() / num_pairs**0.5),
            )
            print(
                f"{LABELS[name]}, batches of {batch_size}: {num_pairs} pairs "
                "of gradients drawn",
                flush=True,
            )
    return found


def report(variances: Variances) -> None:
    print(
        "variance of the gradient of the loss per data point, summed over "
        "parameters (± standard error)"
    )
    print("batch size" + "".join(f"{name:>20}" for name in variances))
    for batch_size in BATCH_SIZES:
        cells = (
            f"{value:.3g} ± {error:.1g}"
            for value, error in (row[batch_size] for row in variances.values())
        )
        print(f"{batch_size:10d}" + "".join(f"{cell:>20}" for cell in cells))
    (lrt, lrt_error), (rt, rt_error) = (
        variances[name][BATCH_SIZES[-1]] for name in ("LRT", "RT")
    )
    apart = (rt - lrt) / (rt_error**2 + lrt_error**2) ** 0.5
    print(
        f"all {BATCH_SIZES[-1]} rows: LRT has {lrt / rt:.1%} of the variance "
        f"of RT, {apart:.1f} standard errors less"
    )


def draw(variances: Variances, path: Path) -> None:
    ax = new_axes(1, 1, size=("column", 2.5))[0, 0]
    for (name, row), line in zip(
        variances.items(), ("o-", "s--", "D-."), strict=True
    ):
        values, errors = zip(*row.values(), strict=True)
        ax.errorbar(
            BATCH_SIZES, values, yerr=errors, fmt=line, label=LABELS[name]
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="rows in the batch",
        ylabel="variance (± s.e.)",
    )
    ax.set_xticks(BATCH_SIZES, labels=[str(size) for size in BATCH_SIZES])
    ax.minorticks_off()
    ax.set_title("gradient noise from one draw of the weights")
    ax.legend()
    save(ax, path)


def main() -> None:
    title, _, text = __doc__.split("\n", 2)  # without the line below the title
    parser = argparse.ArgumentParser(
        description=f"{title}\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("gradient-variance"),
        help="folder for the picture (default: %(default)s)",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=300,
        help="pairs of gradients per method and batch size "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        default=30,
        help="epochs of the fit before the gradients are drawn "
        "(default: %(default)s)",
    )
    arguments = parser.parse_args()
    table = (
        torch.tensor(part).float() for part in load_diabetes(return_X_y=True)
    )
    x, y = ((part - part.mean(0)) / part.std(0) for part in table)
    y = y[:, None]
    model, guide = fitted(x, y, arguments.epochs)
    variances = measure(model, guide, x, y, num_pairs=arguments.pairs)
    report(variances)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with style():
        draw(variances, arguments.out / "gradient_variance.png")
    print(f"picture: {arguments.out / 'gradient_variance.png'}")


if __name__ == "__main__":
    main()
