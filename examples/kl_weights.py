"""What the weight of the KL term does
======================================

Mean-field fits of simulated data, whose true curve is known: one fit for each of six KL weights.

The KL weights refer to the ELBO of the whole data set: with weight 1 the fit maximises this ELBO. There are M batches
and W random parameters. The list begins with the largest weights (warm) and ends with the smallest (cold)::

    1                 the ELBO itself.
    Blundell, mean 1  M 2^(M-i) / (2^M - 1) in batch i: the ELBO on average over
                      an epoch.
    1/M               M times colder than the ELBO. Graves' weight 1/M gives the
                      ELBO if the likelihood is summed over one batch; here the
                      likelihood is that of the whole data set.
    Blundell, sum 1   2^(M-i) / (2^M - 1) in batch i: M times colder than the
                      ELBO on average, since the likelihood is that of the
                      whole data set.
    1/W               one over the number of weights: W times colder.
    0                 no prior at all.

With the first two KL weights, which are 1 on average, the mean-field Gaussian stays at the prior instead of fitting the
curve. Weight 1 and the last four weights are from an earlier study, which counted the likelihood twice; this script
counts it once. The script prints a table, and writes `kl_weights_kl.png`, `kl_weights_prediction.png` and
`kl_weights_mse.png`.
"""

import argparse
from functools import partial
from pathlib import Path

import torch

import pyro_bnn as pb
from pyro_bnn import kl, nets, plotting

X, Y = pb.data.regression_problem()
GRID = torch.linspace(-1.5, 1.5, 500)[:, None]
TRUTH = 10 * torch.sin(2 * torch.pi * GRID)
INSIDE = GRID.flatten().abs() <= 0.5
BATCH_SIZE = 8


def blundell_sum_one(epoch: int, batch: int, num_batches: int) -> float:
    return kl.blundell()(epoch, batch, num_batches) / num_batches


def make_model(seed: int) -> pb.BayesianModel:
    torch.manual_seed(seed)
    net, likelihood = (
        nets.mlp([1, 20, 20, 2]),
        pb.HeteroscedasticGaussianLikelihood(),
    )
    return pb.BayesianModel(
        net, prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=len(X)
    )


def fit(
    weight: float | kl.KLWeight, num_epochs: int, seed: int
) -> tuple[pb.GuidePosterior, pb.uncertainty.RegressionPrediction]:
    model = make_model(seed)
    # Heuristic: a variance head causes rare steep steps, which would spoil
    # Adam's step size.
    adam = pb.optim.clipped(partial(torch.optim.Adam, lr=0.03), 300.0)
    posterior = pb.fit_svi(
        model,
        pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.03)),
        (X, Y),
        optimizer=pb.optim.scheduled(
            adam,
            partial(
                torch.optim.lr_scheduler.CosineAnnealingLR, T_max=num_epochs
            ),
        ),
        num_epochs=num_epochs,
        batch_size=BATCH_SIZE,
        kl_weight=weight,
        seed=seed,
    )
    prediction = pb.predict(model, posterior, GRID, num_samples=100, seed=seed)
    assert isinstance(prediction, pb.uncertainty.RegressionPrediction)
    return posterior, prediction


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
        "--out",
        type=Path,
        default=Path(),
        help="folder for the pictures (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of all random numbers (default: %(default)s)",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    model = make_model(arguments.seed)
    num_weights = sum(
        model.initial_value(name).numel() for name in model.site_names
    )
    num_batches = -(-len(X) // BATCH_SIZE)
    weights = {
        "1 (the ELBO)": 1.0,
        "Blundell, mean 1": kl.blundell(),
        f"1/M = 1/{num_batches}": 1 / num_batches,
        "Blundell, sum 1": blundell_sum_one,
        f"1/W = 1/{num_weights}": kl.per_weight(num_weights),
        "0": 0.0,
    }
    kl_ax, mse_ax = (
        plotting.new_axes(1, 1, size=("column", 2.5))[0, 0] for _ in range(2)
    )
    panels = plotting.new_axes(2, 3, size=("page", 4))
    print(
        f"{'KL weight':18} KL, nats   ELBO/N   MSE to the truth   epistemic sd "
        "inside  outside"
    )
    errors = {}
    for ax, (name, weight) in zip(panels.flat, weights.items(), strict=True):
        posterior, prediction = fit(weight, arguments.epochs, arguments.seed)
        errors[name] = float((prediction.mean - TRUTH)[INSIDE].square().mean())
        epochs, epistemic_scale = (
            posterior.history.epochs,
            prediction.epistemic.sqrt().flatten(),
        )
        last = epochs[
            -max(1, len(epochs) // 10) :
        ]  # the ELBO of one epoch is noisy
        kl_nats, elbo = (
            sum(values) / len(last)
            for values in ([r.kl for r in last], [r.elbo for r in last])
        )
        print(
            f"{name:18} {kl_nats:8.1f} {elbo / len(X):8.2f} "
            f"{errors[name]:18.2f} "
            f"{float(epistemic_scale[INSIDE].mean()):21.2f} "
            f"{float(epistemic_scale[~INSIDE].mean()):8.2f}",
            flush=True,
        )
        kl_ax.plot(
            [record.epoch + 1 for record in epochs],
            [record.kl for record in epochs],
            label=name,
            linewidth=1.2,
        )
        plotting.regression_bands(
            GRID, prediction, data=(X, Y), truth=TRUTH, ax=ax
        )
        ax.set(ylim=(-40, 40), title=f"KL weight {name}")
        ax.label_outer()
        ax.get_legend().set_visible(ax is panels[0, 0])
    kl_ax.set(xlabel="epoch", ylabel="KL(q || prior) (nats)", yscale="log")
    kl_ax.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        ncols=2,
        title="KL weight",
        title_fontsize=7,
    )
    mse_ax.bar_label(
        mse_ax.barh(list(errors), list(errors.values())),
        fmt=" %.1f",
        fontsize=7,
    )
    mse_ax.set(
        xlabel="MSE of the mean to the truth, inside",
        ylabel="KL weight",
        xlim=(0, 1.2 * max(errors.values())),
    )
    mse_ax.invert_yaxis()
    mse_ax.grid(axis="y", visible=False)
    for ax, name in (
        (kl_ax, "kl"),
        (panels[0, 0], "prediction"),
        (mse_ax, "mse"),
    ):
        plotting.save(ax, arguments.out / f"kl_weights_{name}.png")


if __name__ == "__main__":
    main()
