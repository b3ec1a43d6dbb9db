"""The problem of `benchmarks.hmc_images`: a small LeNet on 2,000 digits, the chains, and the methods' settings."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import nets
from pyro_bnn.data import load_images
from pyro_bnn.inference.mcmc import ChainStatistics, Descent

from . import _methods_list as listed
from . import _methods_posteriors as posteriors
from ._methods import Fit, Method, Network, Points, PointSetting, Problem
from ._methods_scores import Pictures
from ._results import processor_seconds, read_record, write_json

PRIOR_SCALE = 0.5
NUM_ASIDE = 2000
"""Number of training images on which settings are chosen."""


class SmallNetwork(Network):
    """A LeNet of 2,618 weights, which halves the images first. Its tanh is smooth, unlike ReLU, which HMC needs."""

    @property
    def last_layer(self) -> str:
        return "net.linear2.*"

    def grid(self, method: type[Method], point: PointSetting) -> Sequence[Method]:
        return grid(method, point)

    def build(self, x: Tensor, seed: int, *, dropout: float | None = None) -> nn.Sequential:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = nn.Sequential(nets.Standardize(x.mean(), x.std()), nn.Unflatten(-2, (1, 28)), nn.AvgPool2d(2))
            net.conv1, net.tanh1, net.pool1 = nn.Conv2d(1, 6, 3), nn.Tanh(), nn.AvgPool2d(2)
            net.conv2, net.tanh2, net.pool2 = nn.Conv2d(6, 12, 3), nn.Tanh(), nn.AvgPool2d(2)
            net.flatten, net.linear1, net.tanh3 = nn.Flatten(), nn.Linear(48, 32), nn.Tanh()
            if dropout is not None:
                net.dropout = nets.MCDropout(dropout)
            net.linear2 = nn.Linear(32, 10)
        return net


def load(root: Path | None, *, is_validation: bool, num_train: int, num_test: int | None) -> Pictures:
    """Digits, and garments as unknown images; in a validation, other training images replace the test images."""
    images = load_images("mnist", root=root)
    order = torch.randperm(len(images.x_train), generator=torch.Generator().manual_seed(0))
    kept, aside = order[:num_train], order[num_train:][:NUM_ASIDE]
    test = (images.x_train[aside], images.y_train[aside]) if is_validation else (images.x_test, images.y_test)
    unknown = None if is_validation else load_images("fashion-mnist", root=root).x_test[:num_test]
    x, y = images.x_train[kept], images.y_train[kept]
    return Pictures(x, y, test[0][:num_test], test[1][:num_test], unknown, num_corrupted=0)


# --- the chains ---


@dataclass(frozen=True)
class Lengths:
    """Lengths of the chains. A longer run continues a shorter one with the same other numbers."""

    num_chains: int = 4
    num_warmup: int = 30
    num_samples: int = 70
    max_steps: int = 220  # with the step size that warm-up finds, 0.0036, the length is pi / 2 times the prior scale


def sampled(problem: Problem, lengths: Lengths, folder: Path) -> tuple[pb.BayesianModel, pb.MCMCPosterior, float]:
    """Draw by HMC, or continue earlier chains of the folder; returns model, draws and CPU seconds."""
    model, file, note = problem.model(problem.prior), folder / "chains.pt", folder / "chains.json"
    task = {name: value for name, value in asdict(lengths).items() if name != "num_samples"}
    record = read_record(note, {**task, "prior": problem.network.prior, "num_data": len(problem.x)})
    begin = processor_seconds()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ConvergenceWarning)  # the page has R-hat
            posterior = pb.fit_mcmc(
                model,
                problem.data,
                sampler=pb.HMC(lengths.max_steps),
                num_samples=lengths.num_samples,
                num_warmup=lengths.num_warmup,
                num_chains=lengths.num_chains,
                dtype=torch.float32,
                compile="auto",
                checkpoint=pb.Checkpoint(file, minutes=2),
                resume=file if file.exists() else None,
                seed=problem.seed,
            )
    finally:
        record["cpu_seconds"] = record.get("cpu_seconds", 0.0) + processor_seconds() - begin
        write_json(note, record)
    return model, posterior, record["cpu_seconds"]


def later(posterior: pb.MCMCPosterior, num_dropped: int) -> pb.MCMCPosterior:
    """The chains without their first draws."""
    lead = (posterior.num_chains, posterior.num_stored // posterior.num_chains)
    fields = {
        name: value[:, num_dropped:] if isinstance(value, Tensor) and value.shape == lead else value
        for name, value in vars(posterior.statistics).items()
    }
    draws = {name: values[:, num_dropped:] for name, values in posterior.chains.items()}
    statistics, path = ChainStatistics(**fields), posterior.path
    return pb.MCMCPosterior(draws, statistics, posterior.status, sampler=posterior.sampler, path=path)


def of_chain(posterior: pb.MCMCPosterior, chain: int) -> pb.StoredPosterior:
    """The draws of one chain."""
    draws = {name: values[chain] for name, values in posterior.chains.items()}
    return pb.StoredPosterior(draws, method=posterior.method, status=posterior.status)


# --- the methods ---


class Patient(Method):
    """A method that needs four times as many epochs as one network."""

    def fit(self, problem: Problem, points: Points) -> Fit:
        network = replace(problem.network, epochs=4 * problem.network.epochs)
        return super().fit(replace(problem, network=network), points)  # type: ignore[safe-super]


class MeanField(Patient, posteriors.MeanField):
    """A Gaussian for every weight."""


class MeanFieldLocal(Patient, posteriors.MeanFieldLocal):
    """The same with local reparameterisation."""


class Natural(Patient, posteriors.Natural):
    """The same by natural gradients."""


class Sghmc(Patient, posteriors.Sghmc):
    """One chain with stochastic gradients."""


@dataclass(frozen=True)
class Chains(Method):
    """The sampler of `fit`, microcanonical Langevin Monte Carlo, with chains that are longer than those of `fit`."""

    name: ClassVar[str] = "mclmc"
    num_chains: int = 8
    num_descent: int = 500  # steps of Adam before the warm-up
    num_steps: int = 1000  # steps of the warm-up, and steps after it

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        return [cls()]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin, per_draw = processor_seconds(), 20
        model = problem.model(problem.prior)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ConvergenceWarning)  # the page compares the chains with HMC
            posterior = pb.fit_mcmc(
                model,
                problem.data,
                sampler=pb.MCLMC(per_draw, energy_error=0.005),
                init=Descent(num_steps=self.num_descent),
                num_chains=self.num_chains,
                num_warmup=self.num_steps // per_draw,
                num_samples=self.num_steps // per_draw,
                dtype=torch.float32,
                compile="auto",
                seed=problem.seed,
            )
        return Fit(model, posterior, problem.network.draws, processor_seconds() - begin)


def grid(method: type[Method], point: PointSetting) -> Sequence[Method]:
    """The settings of a method to search, all with the prior and the temperature of the chains."""
    settings: dict[type[Method], Sequence[Method]] = {
        listed.Deterministic: [listed.Deterministic(PRIOR_SCALE, lr) for lr in (1e-2, 3e-2)],
        listed.MCDropout: [listed.MCDropout(PRIOR_SCALE, point.lr, p) for p in (0.05, 0.2)],
        posteriors.Swag: [posteriors.Swag(lr, PRIOR_SCALE) for lr in (0.03, 0.1)],
        # the better of two rates in trial runs with as many epochs as one network
        MeanField: [MeanField(1.0, 0.03)],
        MeanFieldLocal: [MeanFieldLocal(1.0, 0.03)],
        Natural: [Natural(1.0, 0.1)],
        Sghmc: [Sghmc(0.1, 1.0)],
        Chains: [Chains()],
    }
    near_a_point = {
        method: [method(PRIOR_SCALE, point.lr)]
        for method in (listed.SmallEnsemble, posteriors.LastLayerLaplace, posteriors.KroneckerLaplace)
    }
    return (settings | near_a_point)[method]


METHODS: tuple[type[Method], ...] = (
    listed.Deterministic,
    listed.Ensemble,
    listed.LargeEnsemble,
    listed.MCDropout,
    MeanField,
    MeanFieldLocal,
    Natural,
    posteriors.Swag,
    Sghmc,
    Chains,
    posteriors.LastLayerLaplace,
    posteriors.KroneckerLaplace,
)
