"""Continual learning on five tasks
================================

Variational continual learning: the posterior of one task is the prior of the next.

Each task shuffles the pixels of digits in its own way. With `--dataset mnist` the tasks are those of split MNIST: the
first is to distinguish 0 from 1, the second 2 from 3, and the last 8 from 9. Each of these tasks has its own output
layer. A network learns the tasks one after the other, and never sees the images of an earlier task again. Two methods
are compared: a plain network whose training continues, and a posterior that becomes the prior of the next task (Nguyen
et al., 2018, https://arxiv.org/abs/1710.10628). After the last task, the script prints the test accuracy of all tasks,
and writes `continual_learning.png`.
"""

import argparse
import functools
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import data, metrics, plotting

NUM_TASKS = 5
METHODS = ("point, trained further", "posterior as prior")


@dataclass(frozen=True)
class Task:
    """A task: its pixels and labels, and the name of its output layer."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    head: str = "head"


def shuffled(images: data.Images, seed: int) -> list[Task]:
    """Return tasks that all have the same images, but each with its own order
    of the pixels.
    """
    num_pixels = images.x_train[0].numel()
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.arange(num_pixels)] + [
        torch.randperm(num_pixels, generator=generator)
        for _ in range(NUM_TASKS - 1)
    ]
    x_train, x_test = images.x_train.flatten(1), images.x_test.flatten(1)
    return [
        Task(x_train[:, order], images.y_train, x_test[:, order], images.y_test)
        for order in orders
    ]


def split(images: data.Images) -> list[Task]:
    """Return the tasks of split MNIST: task t has the digits 2 t and 2 t + 1.

    The label of an image is 1 if its digit is odd.
    """

    def part(x: Tensor, y: Tensor, task: int) -> tuple[Tensor, Tensor]:
        rows = (y == 2 * task) | (y == 2 * task + 1)
        return x[rows].flatten(1), y[rows] % 2

    train, test = (
        (images.x_train, images.y_train),
        (images.x_test, images.y_test),
    )
    return [
        Task(*part(*train, task), *part(*test, task), f"head{task}")
        for task in range(NUM_TASKS)
    ]


class Learner:
    """The parameters learned so far: those of all output layers, and those of
    the other layers, which all tasks share.
    """

    def __init__(
        self,
        method: str,
        num_units: int,
        prior: pb.Prior,
        kl_weight: float,
        seed: int,
    ) -> None:
        self.is_point, self.num_units, self.seed = (
            method == METHODS[0],
            num_units,
            seed,
        )
        self.first_prior, self.kl_weight = (
            prior,
            0.0 if self.is_point else kl_weight,
        )  # maximum likelihood
        self.prior = prior
        self.parameters: dict[str, Tensor] = {}

    def build(self, task: Task) -> tuple[pb.BayesianModel, nn.Module]:
        """Return the network with the output layer of a task, and a guide that
        starts from what was learned so far.
        """
        torch.manual_seed(self.seed)
        units = self.num_units
        sizes = (
            nn.Linear(task.x_train.shape[1], units),
            nn.ReLU(),
            nn.Linear(units, units),
            nn.ReLU(),
        )
        head = nn.Linear(units, int(task.y_train.max()) + 1)
        net = nn.Sequential(
            OrderedDict({"body": nn.Sequential(*sizes), task.head: head})
        )
        likelihood = pb.CategoricalLikelihood()
        model = pb.BayesianModel(
            net,
            prior=self.prior,
            likelihood=likelihood,
            num_data=len(task.x_train),
        )
        guide = (
            pb.DeltaGuide(model) if self.is_point else pb.MeanFieldGuide(model)
        )
        fresh = guide.state_dict()
        guide.load_state_dict(
            {
                name: self.parameters.get(name, value)
                for name, value in fresh.items()
            }
        )
        return model, guide

    def learn(self, task: Task, num_epochs: int, lr: float) -> None:
        """Continue learning with the images of a task."""
        model, guide = self.build(task)
        posterior = pb.fit_svi(
            model,
            guide,
            (task.x_train, task.y_train),
            optimizer=pb.optim.scheduled(
                functools.partial(torch.optim.Adam, lr=lr),
                functools.partial(
                    torch.optim.lr_scheduler.CosineAnnealingLR, T_max=num_epochs
                ),
            ),
            num_epochs=num_epochs,
            batch_size=128 if len(task.x_train) < 2000 else 256,
            elbo=None if self.is_point else TraceMeanField_ELBO(),
            estimator=None if self.is_point else pb.LocalReparameterization(),
            kl_weight=self.kl_weight,
            seed=self.seed,
        )
        if not self.is_point:  # a new output layer has no posterior yet
            self.prior = posterior.as_prior(otherwise=self.first_prior)
        self.parameters |= {
            name: value.clone() for name, value in guide.state_dict().items()
        }

    def accuracy(self, task: Task) -> float:
        """Share of a task's test images that are recognised."""
        model, guide = self.build(task)
        return metrics.accuracy(
            pb.predict(model, guide, task.x_test, num_samples=30, seed=0).probs,
            task.y_test,
        )


@plotting.style()
def main() -> None:
    title, _, text = __doc__.split("\n", 2)  # without the line below the title
    parser = argparse.ArgumentParser(
        description=f"{title}\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dataset",
        choices=["digits", "mnist"],
        default="digits",
        help="name of the data set (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder that contains MNIST/raw "
        "(default: $PYRO_BNN_DATA, or data)",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        help="epochs for each task (default: 30 for digits, 10 for MNIST)",
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
    is_mnist = options.dataset == "mnist"
    images = data.load_images(options.dataset, root=options.data)
    tasks = split(images) if is_mnist else shuffled(images, options.seed)

    ax = plotting.new_axes(1, 1, size=("column", 2.5))[0, 0]
    print(
        f"{'accuracy after all tasks':26s}"
        + "".join(f"{f'task {t + 1}':>8s}" for t in range(NUM_TASKS))
        + "    mean"
    )
    for method in METHODS:
        if is_mnist:  # the published network, prior and bound
            learner, lr = (
                Learner(method, 256, pb.NormalPrior(1.0), 1.0, options.seed),
                0.005,
            )
        else:  # few images count little against the prior of 17,000 weights:
            # use a cold posterior
            learner, lr = (
                Learner(method, 100, pb.NormalPrior(0.5), 0.1, options.seed),
                0.01,
            )
        means = []
        for count, task in enumerate(tasks, start=1):
            learner.learn(task, options.epochs or (10 if is_mnist else 30), lr)
            accuracies = [learner.accuracy(known) for known in tasks[:count]]
            means.append(sum(accuracies) / count)
        print(
            f"{method:26s}"
            + "".join(f"{value:8.1%}" for value in [*accuracies, means[-1]]),
            flush=True,
        )
        ax.plot(range(1, NUM_TASKS + 1), means, marker="o", label=method)
    ax.set(
        xlabel="tasks seen",
        ylabel="mean test accuracy of the tasks seen",
        xticks=range(1, NUM_TASKS + 1),
    )
    ax.legend()
    plotting.save(ax, options.out / "continual_learning.png")


if __name__ == "__main__":
    main()
