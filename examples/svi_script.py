"""A plain Pyro script that imports a model and a guide, and nothing else.

Fits scikit-learn's digits with Pyro's own SVI loop, then again with `Trace_ELBO()(model, guide)` and a torch optimizer,
and predicts with Pyro's own `Predictive`. Prints the losses, which fall, and the test accuracies.
"""

import argparse

import pyro
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from pyro_bnn import BayesianModel, CategoricalLikelihood, MeanFieldGuide, NormalPrior


def load() -> tuple[torch.Tensor, ...]:
    digits = load_digits()
    split = train_test_split(digits.data / 16, digits.target, test_size=0.25, random_state=0)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in split)
    return x_train.float(), y_train, x_test.float(), y_test


def pair(num_data: int) -> tuple[BayesianModel, MeanFieldGuide]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    model = BayesianModel(net, prior=NormalPrior(0.3), likelihood=CategoricalLikelihood(), num_data=num_data)
    return model, MeanFieldGuide(model)


def accuracy(model: BayesianModel, guide: MeanFieldGuide, x: torch.Tensor, y: torch.Tensor) -> float:
    """Accuracy of the majority vote over predictive draws, with Pyro's own tool."""
    votes = Predictive(model, guide=guide, num_samples=50, parallel=True)(x)["obs"]  # (S, N)
    return float((votes.mode(0).values == y).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="optimisation steps")
    arguments = parser.parse_args()
    x_train, y_train, x_test, y_test = load()

    model, guide = pair(len(x_train))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for step in range(arguments.steps):
        loss = svi.step(x_train, y_train)
        if step % 100 == 0:
            print(f"pyro.infer.SVI         step {step:4d}   negative ELBO {loss:9.0f} nats")
    print(f"pyro.infer.SVI         test accuracy {accuracy(model, guide, x_test, y_test):.1%}")

    model, guide = pair(len(x_train))
    objective = Trace_ELBO()(model, guide)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.01)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        loss = objective(x_train, y_train)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"Trace_ELBO, torch.optim step {step:4d}   negative ELBO {loss.item():9.0f} nats")
    print(f"Trace_ELBO, torch.optim test accuracy {accuracy(model, guide, x_test, y_test):.1%}")


if __name__ == "__main__":
    main()
