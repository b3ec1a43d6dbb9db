"""Training loops: Pyro's SVI, your own loop, one call
===================================================

Fit the same model in three ways: by Pyro's own SVI, by `svi_step` in your own loop, and by a call of `fit_svi`.

All three fit scikit-learn's digits from the same start and with the same random numbers. The first is a plain Pyro
script that takes only a model and a guide from this library; the other two compute steps directly, without effect
handlers. The output shows the result, which is the same for all three, and the time of each. All three predict with
Pyro's own `Predictive`.
"""

import argparse
import functools
import time
from collections.abc import Callable

import pyro
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from pyro_bnn import (
    BayesianModel,
    CategoricalLikelihood,
    MeanFieldGuide,
    NormalPrior,
    fit_svi,
    svi_step,
)

Data = tuple[Tensor, Tensor]
LEARNING_RATE = 0.01


def load() -> tuple[Data, Data]:
    digits = load_digits()
    split = train_test_split(
        digits.data / 16, digits.target, test_size=0.25, random_state=0
    )
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in split)
    return (x_train, y_train), (x_test, y_test)


def pair(num_data: int) -> tuple[BayesianModel, MeanFieldGuide]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)
    ).double()
    model = BayesianModel(
        net,
        prior=NormalPrior(0.3),
        likelihood=CategoricalLikelihood(),
        num_data=num_data,
    )
    return model, MeanFieldGuide(model)


def with_pyros_svi(
    model: BayesianModel, guide: MeanFieldGuide, data: Data, num_steps: int
) -> float:
    svi = SVI(
        model, guide, pyro.optim.Adam({"lr": LEARNING_RATE}), Trace_ELBO()
    )
    losses = [svi.step(*data) for _ in range(num_steps)]
    return -losses[-1]


def with_own_loop(
    model: BayesianModel, guide: MeanFieldGuide, data: Data, num_steps: int
) -> float:
    with svi_step(
        model, guide, torch.optim.Adam(guide.parameters(), lr=LEARNING_RATE)
    ) as step:
        elbos = [step(*data).elbo for _ in range(num_steps)]
    return float(elbos[-1])


def with_fit_svi(
    model: BayesianModel, guide: MeanFieldGuide, data: Data, num_steps: int
) -> float:
    adam = functools.partial(torch.optim.Adam, lr=LEARNING_RATE)
    return fit_svi(
        model, guide, data, optimizer=adam, num_epochs=num_steps, seed=1
    ).history.elbo[-1]


WAYS: dict[str, Callable[..., float]] = {
    "pyro.infer.SVI": with_pyros_svi,
    "svi_step": with_own_loop,
    "fit_svi": with_fit_svi,
}


def accuracy(
    model: BayesianModel, guide: MeanFieldGuide, x: Tensor, y: Tensor
) -> float:
    """Return the accuracy of a majority vote.

    Pyro's `Predictive` draws 50 labels for each row; the most frequent wins.
    """
    votes = Predictive(model, guide=guide, num_samples=50, parallel=True)(x)[
        "obs"
    ]  # (S, N)
    return float((votes.mode(0).values == y).float().mean())


def main() -> None:
    title, _, text = __doc__.split("\n", 2)  # without the line below the title
    parser = argparse.ArgumentParser(
        description=f"{title}\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=300,
        help="optimisation steps (default: %(default)s)",
    )
    arguments = parser.parse_args()
    train, test = load()

    for name, way in WAYS.items():
        model, guide = pair(len(train[0]))
        torch.manual_seed(1)
        start = time.perf_counter()
        elbo = way(model, guide, train, arguments.steps)
        seconds = time.perf_counter() - start
        torch.manual_seed(2)
        share = accuracy(model, guide, *test)
        print(
            f"{name:14}  last ELBO {elbo:.6f} nats  test accuracy {share:.1%} "
            f" {seconds:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
