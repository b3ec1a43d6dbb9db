"""What the methods of `benchmarks.methods` share: networks with budgets, the problem, and deterministic networks."""

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import pyro_bnn as pb
from pyro_bnn import nets
from pyro_bnn.app import specs

from ._images import Augmented, OnDevice
from ._results import read_record, write_json


@dataclass(frozen=True)
class Network:
    """A network, with its budget and its prior."""

    name: str  # ``mlp``, ``lenet`` or ``lenet-mirrored``
    epochs: int  # passes over the training images, the same for every method
    prior: str  # prior of the methods whose posterior is not a point, as for ``pyro-bnn train``
    draws: int = 32  # number of draws for a prediction
    units: int = 400  # number of units of each of the two hidden layers; LeNet-5 has its own

    hessian_decay: ClassVar[float] = 0.999
    """Decay of the averaged Hessian of natural gradients, for each step."""

    @property
    def is_lenet(self) -> bool:
        return self.name.startswith("lenet")

    @property
    def natural_batch_size(self) -> int:
        """Number of rows in a batch of natural gradients."""
        return 128 if self.is_lenet else 256

    @property
    def is_mirrored(self) -> bool:
        """Whether each training image is mirrored with probability 1/2, anew in each epoch."""
        return self.name.endswith("mirrored")

    @property
    def last_layer(self) -> str:
        """Glob of the weights of the last layer."""
        return "net.linear3.*" if self.is_lenet else "net.6.*"

    @property
    def factored(self) -> tuple[str, ...]:
        """Globs of the weights that get Kronecker factors."""
        return ("**",)

    def likelihood(self) -> pb.Likelihood:
        """The likelihood of the targets given the network's outputs."""
        return pb.CategoricalLikelihood()

    def grid(self, method: "type[Method]", point: "PointSetting") -> "Sequence[Method]":
        """The settings of a method that are compared on validation data; see `Method.grid`."""
        return method.grid(self, point)

    def build(self, x: Tensor, seed: int, *, dropout: float | None = None) -> nn.Module:
        """The network with its inputs in units of the training images x; the same seed gives the same start.

        `dropout` is the probability that a hidden unit of a linear layer is dropped.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.is_lenet:
                return nets.lenet5(first=[nets.Standardize(x.mean(), x.std())], dropout=dropout)
            first = [nn.Flatten(), *specs.make_inputs("standardized", x.flatten(1))]
            return nets.mlp([x[0].numel(), self.units, self.units, 10], first=first, dropout=dropout)


class NarrowNetwork(Network):
    """The same network with half as many units, or channels, in each hidden layer."""

    def build(self, x: Tensor, seed: int, *, dropout: float | None = None) -> nn.Sequential:
        if self.name == "mlp":
            return replace(Network(**asdict(self)), units=self.units // 2).build(x, seed, dropout=dropout)
        net = super().build(x, seed, dropout=dropout)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net.conv1, net.conv2 = nn.Conv2d(1, 3, 5, padding=2), nn.Conv2d(3, 8, 5)
            net.linear1, net.linear2, net.linear3 = nn.Linear(200, 60), nn.Linear(60, 42), nn.Linear(42, 10)
        return net


NETWORKS = {
    "mlp": Network("mlp", epochs=20, prior="net.2.*=normal:0.4;**=normal:0.1"),  # of the default recipe
    "lenet": Network("lenet", epochs=20, prior="normal:0.2"),
    "lenet-mirrored": Network("lenet-mirrored", epochs=20, prior="normal:0.2"),
}


@dataclass(frozen=True)
class Problem:
    """A network, its training inputs with N rows, such as images, their targets, and the seed of everything random."""

    network: Network
    x: Tensor
    y: Tensor
    seed: int

    def model(self, prior: pb.Prior, *, seed: int | None = None, dropout: float | None = None) -> pb.BayesianModel:
        net = self.network.build(self.x, self.seed if seed is None else seed, dropout=dropout).to(self.x.device)
        return pb.BayesianModel(net, prior=prior, likelihood=self.network.likelihood(), num_data=len(self.x))

    @property
    def prior(self) -> pb.Prior:
        return specs.make_prior(self.network.prior)

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        return self.x, self.y

    @property
    def execution(self) -> pb.Execution:
        """Steps on a GPU are recorded."""
        return pb.Execution(cuda_graph=self.x.is_cuda)

    def batches(self, batch_size: int, seed: int) -> dict[str, Any]:
        """The arguments of a fit with the training images in random order, mirrored or not."""
        if not self.network.is_mirrored:
            return {"data": self.data, "batch_size": batch_size}
        if self.x.is_cuda:
            return {"data": OnDevice(self.x, self.y, mirrored, batch_size=batch_size, seed=seed)}
        return {"data": Augmented(self.x, self.y, mirrored).batches(batch_size, seed)}


def mirrored(x: Tensor) -> Tensor:
    """Images, each mirrored with probability 1/2."""
    is_mirrored = torch.rand(len(x), device=x.device) < 0.5
    return torch.where(is_mirrored[:, None, None], x.flip(-1), x)


@dataclass(frozen=True)
class Fit:
    """A model, its posterior, the number of draws for a prediction, and the CPU time of the training."""

    model: pb.BayesianModel
    posterior: pb.Posterior
    num_samples: int
    cpu_seconds: float


@dataclass(frozen=True)
class PointSetting:
    """How a deterministic network is trained."""

    # standard deviation of the weights' prior, which acts like weight decay; with None, maximum likelihood
    prior_scale: float | None = None
    lr: float = 1e-3  # initial learning rate of Adam; it falls to 0 along a cosine


class Method(ABC):
    """An inference method; its fields are its settings."""

    name: ClassVar[str]
    chosen_with: ClassVar["type[Method] | None"] = None  # the method whose chosen setting this one uses

    @classmethod
    @abstractmethod
    def grid(cls, network: Network, point: "PointSetting") -> "Sequence[Method]":
        """Settings, of which the best on validation images is used; `point` is the best for a deterministic network."""

    @abstractmethod
    def fit(self, problem: Problem, points: "Points") -> Fit:
        """The posterior from the problem's training images; `points` has the deterministic networks."""


def fit_point(
    problem: Problem, setting: PointSetting, seed: int, *, dropout: float | None = None
) -> tuple[pb.BayesianModel, pb.GuidePosterior]:
    """One network by Adam: of maximum likelihood, or of largest posterior density under N(0, prior_scale^2)."""
    model = problem.model(pb.NormalPrior(setting.prior_scale or 1.0), seed=seed, dropout=dropout)
    return model, fit_as_point(problem, setting, model, pb.DeltaGuide(model), seed)


def fit_as_point(
    problem: Problem, setting: PointSetting, model: pb.BayesianModel, guide: nn.Module, seed: int
) -> pb.GuidePosterior:
    """Fit a guide as deterministic networks are trained."""
    return pb.fit_svi(
        model,
        guide=guide,
        **problem.batches(128, seed),
        optimizer=adam(setting.lr, problem.network.epochs),
        num_epochs=problem.network.epochs,
        kl_weight=0.0 if setting.prior_scale is None else 1.0,
        execution=problem.execution,
        seed=seed,
    )


def adam(lr: float, epochs: int) -> Callable:
    cosine = functools.partial(CosineAnnealingLR, T_max=epochs)
    return pb.optim.scheduled(functools.partial(torch.optim.Adam, lr=lr, fused=True), cosine)


class Points:
    """Deterministic networks in a folder, from which several methods start; each is trained once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def point(self, problem: Problem, setting: PointSetting, member: int = 0) -> Fit:
        """A network among those with the problem's seed; member 0 is the deterministic network of the table."""
        seed = 1000 * problem.seed + member
        begin = time.process_time()
        how = f"prior-{setting.prior_scale}-lr-{setting.lr}"
        name = f"{problem.network.name}-point-{how}-data-{len(problem.x)}-seed-{seed}"
        path, note = self._folder / f"{name}.pt", self._folder / f"{name}.json"
        settings = {"prior_scale": setting.prior_scale, "lr": setting.lr, "num_data": len(problem.x)}
        record = read_record(note, settings | asdict(problem.network))
        if note.exists():
            model = problem.model(pb.NormalPrior(setting.prior_scale or 1.0), seed=seed)
            loaded = pb.load_posterior(path, model, guide=pb.DeltaGuide(model))
            return Fit(model, loaded, 1, record["cpu_seconds"])
        model, posterior = fit_point(problem, setting, seed)
        seconds = time.process_time() - begin
        pb.save_posterior(posterior, path, model)
        write_json(note, {**record, "cpu_seconds": seconds})
        return Fit(model, posterior, 1, seconds)
