"""The methods of `benchmarks.methods`: what each trains, how, and the settings that compete on validation images."""

import functools
import json
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import pyro_bnn as pb
from pyro_bnn import nets
from pyro_bnn.app import specs
from pyro_bnn.app.files import write_json

NUM_MEMBERS = 5
INIT = pb.NetworkInit(prior_fraction=0.1)
"""Start of mean-field guides, as in the default recipe."""


@dataclass(frozen=True)
class Network:
    """A network, its budget, and what a prior means for it.

    Args:
        name: ``mlp`` or ``lenet``.
        epochs: Passes over the training images, the same for every method.
        prior: Prior of the methods whose posterior has a width, as for ``pyro-bnn train``.
        draws: Number of draws for a prediction.
    """

    name: str
    epochs: int
    prior: str
    draws: int = 32

    def build(self, x: Tensor, seed: int, *, dropout: float | None = None) -> nn.Sequential:
        """The network with its inputs in standard units; the same seed gives the same start.

        Args:
            x: Training images, shape (N, 28, 28).
            seed: Seed of the weights.
            dropout: Probability that a hidden unit of a linear layer is left out.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.name == "lenet":
                return nets.lenet5(first=[nets.Standardize(x.mean(), x.std())], dropout=dropout)
            first = [nn.Flatten(), *specs.make_inputs("standardized", x.flatten(1))]
            return nets.mlp([x[0].numel(), 400, 400, 10], first=first, dropout=dropout)


NETWORKS = {
    "mlp": Network("mlp", epochs=20, prior="net.2.*=normal:0.4;**=normal:0.1"),  # of the default recipe
    "lenet": Network("lenet", epochs=10, prior="normal:0.2"),
}


@dataclass(frozen=True)
class Problem:
    """What is fitted.

    Args:
        network: The network.
        x: Training images, shape (N, 28, 28).
        y: Their labels, shape (N,).
        seed: Seed of start, order and draws.
    """

    network: Network
    x: Tensor
    y: Tensor
    seed: int

    def model(self, prior: pb.Prior, *, seed: int | None = None, dropout: float | None = None) -> pb.BayesianModel:
        net = self.network.build(self.x, self.seed if seed is None else seed, dropout=dropout)
        return pb.BayesianModel(net, prior=prior, likelihood=pb.CategoricalLikelihood(), num_data=len(self.x))

    @property
    def prior(self) -> pb.Prior:
        return specs.make_prior(self.network.prior)

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        return self.x, self.y


@dataclass(frozen=True)
class Fit:
    """A model, its posterior, the number of its draws for a prediction, and the CPU time of its training."""

    model: pb.BayesianModel
    posterior: pb.Posterior
    num_samples: int
    cpu_seconds: float


class Method(ABC):
    """A way to infer, with its settings as fields."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def grid(cls, network: Network, prior_scale: float | None) -> "Sequence[Method]":
        """Settings of which the validation images choose one.

        Args:
            network: The network.
            prior_scale: The prior that was chosen for `Deterministic`, None before.
        """

    @abstractmethod
    def fit(self, problem: Problem, points: "Points") -> Fit:
        """The posterior from the problem's training images.

        Args:
            problem: What is fitted.
            points: The deterministic networks that are there already.
        """


def fit_point(
    problem: Problem, prior_scale: float | None, seed: int, *, dropout: float | None = None
) -> tuple[pb.BayesianModel, pb.GuidePosterior]:
    """One network by Adam: of maximum likelihood, or of largest posterior density under N(0, prior_scale^2)."""
    model = problem.model(pb.NormalPrior(prior_scale or 1.0), seed=seed, dropout=dropout)
    posterior = pb.fit_svi(
        model,
        pb.auto_delta(model),
        problem.data,
        optimizer=adam(1e-3, problem.network.epochs),
        num_epochs=problem.network.epochs,
        batch_size=128,
        kl_weight=0.0 if prior_scale is None else 1.0,
        seed=seed,
    )
    return model, posterior


def adam(lr: float, epochs: int) -> Callable:
    cosine = functools.partial(CosineAnnealingLR, T_max=epochs)
    return pb.scheduled(functools.partial(torch.optim.Adam, lr=lr, fused=True), cosine)


class Points:
    """Deterministic networks in a folder, which several methods stand on; each is trained once.

    Args:
        folder: The folder; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def point(self, problem: Problem, prior_scale: float | None, member: int = 0) -> Fit:
        """A network of a seed; member 0 is the one that stands for itself in the table.

        Args:
            problem: What is fitted.
            prior_scale: Prior of the network; see `Deterministic`.
            member: Number of the network among those of the problem's seed.
        """
        seed = 1000 * problem.seed + member
        begin = time.process_time()
        if self._folder is None:
            return Fit(*fit_point(problem, prior_scale, seed), 1, time.process_time() - begin)
        path = self._folder / f"{problem.network.name}-point-{seed}.pt"
        note = path.with_suffix(".json")
        task = {"prior_scale": prior_scale, "num_data": len(problem.x), **asdict(problem.network)}
        if note.exists():
            record = json.loads(note.read_text())
            if record["task"] != task:
                raise ValueError(f"{note} was made with other settings; choose another --out, or delete it.")
            model = problem.model(pb.NormalPrior(prior_scale or 1.0), seed=seed)
            loaded = pb.load_posterior(path, model, guide=pb.auto_delta(model))
            return Fit(model, loaded, 1, record["cpu_seconds"])
        model, posterior = fit_point(problem, prior_scale, seed)
        seconds = time.process_time() - begin
        pb.save_posterior(path, model, posterior)
        write_json(note, {"task": task, "cpu_seconds": seconds})
        return Fit(model, posterior, 1, seconds)


@dataclass(frozen=True)
class Deterministic(Method):
    """One network by Adam.

    Args:
        prior_scale: Standard deviation of the weights' prior, whose effect is that of weight decay; None is maximum
            likelihood.
    """

    name: ClassVar[str] = "deterministic"
    prior_scale: float | None = None

    @classmethod
    def grid(cls, network: Network, prior_scale: float | None) -> Sequence[Method]:
        return [cls(scale) for scale in (None, 0.3, 0.1, 0.05)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        return points.point(problem, self.prior_scale)


@dataclass(frozen=True)
class Ensemble(Method):
    """Five of those networks, each from its own start and in its own order; nothing is searched for.

    Args:
        prior_scale: That of `Deterministic`.
    """

    name: ClassVar[str] = "ensemble"
    prior_scale: float | None

    @classmethod
    def grid(cls, network: Network, prior_scale: float | None) -> Sequence[Method]:
        return [cls(prior_scale)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        members = [points.point(problem, self.prior_scale, member) for member in range(NUM_MEMBERS)]
        posterior = pb.EnsemblePosterior([member.posterior for member in members])
        return Fit(members[0].model, posterior, NUM_MEMBERS, sum(member.cpu_seconds for member in members))


@dataclass(frozen=True)
class MCDropout(Method):
    """A network with dropout that stays on after hidden linear layers.

    Args:
        dropout: Probability that a unit is left out.
        prior_scale: As for `Deterministic`.
    """

    name: ClassVar[str] = "mc-dropout"
    dropout: float
    prior_scale: float | None

    @classmethod
    def grid(cls, network: Network, prior_scale: float | None) -> Sequence[Method]:
        return [cls(p, scale) for p in (0.2, 0.5) for scale in dict.fromkeys((None, prior_scale))]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        fitted = fit_point(problem, self.prior_scale, problem.seed, dropout=self.dropout)
        return Fit(*fitted, problem.network.draws, time.process_time() - begin)


@dataclass(frozen=True)
class MeanField(Method):
    """A Gaussian for every weight by Adam, one draw of the weights a step.

    Args:
        kl_weight: Weight of the KL term; below 1 the posterior is a cold one.
        lr: First learning rate, which falls on a cosine.
    """

    name: ClassVar[str] = "mean-field"
    kl_weight: float
    lr: float = 1e-3

    @classmethod
    def grid(cls, network: Network, prior_scale: float | None) -> Sequence[Method]:
        return [cls(0.4), cls(0.1), cls(0.1, lr=3e-3)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        return self._fit(problem, None)

    def _fit(self, problem: Problem, estimator: pb.Estimator | None) -> Fit:
        begin = time.process_time()
        model = problem.model(problem.prior)
        posterior = pb.fit_svi(
            model,
            pb.MeanFieldGuide(model, init=INIT),
            problem.data,
            optimizer=adam(self.lr, problem.network.epochs),
            num_epochs=problem.network.epochs,
            batch_size=128,
            elbo=TraceMeanField_ELBO(),
            estimator=estimator,
            kl_weight=self.kl_weight,
            seed=problem.seed,
        )
        return Fit(model, posterior, problem.network.draws, time.process_time() - begin)


@dataclass(frozen=True)
class MeanFieldLocal(MeanField):
    """The same with local reparameterisation."""

    name: ClassVar[str] = "mean-field-lrt"

    def fit(self, problem: Problem, points: Points) -> Fit:
        return self._fit(problem, pb.LocalReparameterization())


@dataclass(frozen=True)
class Natural(Method):
    """A Gaussian for every weight by natural gradients.

    Args:
        kl_weight: As for `MeanField`.
        lr: Learning rate of the means; a tenth of it in the first epoch, then it falls on a cosine.
    """

    name: ClassVar[str] = "natural"
    kl_weight: float
    lr: float

    @classmethod
    def grid(cls, network: Network, prior_scale: float | None) -> Sequence[Method]:
        lr = 0.007 if network.name == "mlp" else 0.02
        return [cls(0.3, lr), cls(0.1, lr), cls(0.03, lr), cls(0.1, 2 * lr)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        model = problem.model(problem.prior)
        epochs = problem.network.epochs
        posterior = pb.fit_svi(
            model,
            pb.MeanFieldGuide(model, init=INIT, scale_map=pb.scale_maps.Precision()),
            problem.data,
            optimizer=pb.scheduled(
                pb.natural_gradient(self.lr, hessian_decay=0.999, clip=1.0), functools.partial(warm_cosine, epochs)
            ),
            num_epochs=epochs,
            batch_size=256,
            elbo=Trace_ELBO(),
            kl_weight=self.kl_weight,
            seed=problem.seed,
        )
        return Fit(model, posterior, problem.network.draws, time.process_time() - begin)


def warm_cosine(epochs: int, optimizer: Optimizer) -> LambdaLR:
    """A tenth of the learning rate for one epoch, then a cosine, as in the fast recipe."""

    def factor(epoch: int) -> float:
        done = torch.tensor((epoch - 1) / max(epochs - 1, 1))
        return 0.1 if epoch == 0 else float(0.5 * (1 + torch.cos(torch.pi * done)))

    return LambdaLR(optimizer, factor)


@dataclass(frozen=True)
class Swag(Method):
    """The Gaussian along the path of SGD with momentum, whose learning rate is constant in the second half.

    Args:
        lr: Learning rate of the second half, for the mean loss; the first half begins with twice of that.
        prior_scale: As for `Deterministic`.
    """

    name: ClassVar[str] = "swag"
    lr: float
    prior_scale: float | None

    @classmethod
    def grid(cls, network: Network, prior_scale: float | None) -> Sequence[Method]:
        return [cls(lr, prior_scale) for lr in (0.02, 0.05, 0.1)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        model = problem.model(pb.NormalPrior(self.prior_scale or 1.0))
        guide = pb.auto_delta(model)
        epochs = problem.network.epochs
        start = epochs // 2
        swag = pb.SWAG(guide, rank=max(epochs - start, 2), start=min(start, epochs - 2))
        falling = functools.partial(LambdaLR, lr_lambda=lambda epoch: 1 + max(1 - epoch / max(start, 1), 0))
        pb.fit_svi(
            model,
            guide,
            problem.data,
            optimizer=pb.scheduled(
                functools.partial(torch.optim.SGD, lr=self.lr / len(problem.x), momentum=0.9, fused=True), falling
            ),
            num_epochs=epochs,
            batch_size=128,
            kl_weight=0.0 if self.prior_scale is None else 1.0,
            callbacks=[swag],
            seed=problem.seed,
        )
        return Fit(model, swag.posterior(model), problem.network.draws, time.process_time() - begin)


@dataclass(frozen=True)
class Sghmc(Method):
    """One chain of cyclical stochastic-gradient Hamiltonian Monte Carlo, with draws of all of its cycles.

    Args:
        lr: First step size of a cycle, for the mean loss.
        temperature: Temperature of the posterior; below 1 it is a cold one.
        num_cycles: Number of cycles.
    """

    name: ClassVar[str] = "sghmc"
    lr: float
    temperature: float
    num_cycles: int = 4

    @classmethod
    def grid(cls, network: Network, prior_scale: float | None) -> Sequence[Method]:
        return [cls(0.01, 1.0), cls(0.01, 0.1), cls(0.01, 0.01), cls(0.03, 0.1)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        model = problem.model(problem.prior)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ConvergenceWarning)  # the row has the status
            posterior = pb.fit_sgmcmc(
                model,
                problem.data,
                sampler=pb.SGHMC(self.lr / len(problem.x), temperature=self.temperature),
                steps=pb.CyclicalSteps(self.num_cycles),
                num_epochs=problem.network.epochs,
                num_samples=problem.network.draws,
                batch_size=128,
                seed=problem.seed,
            )
        return Fit(model, posterior, problem.network.draws, time.process_time() - begin)


METHODS: tuple[type[Method], ...] = (
    Deterministic,
    Ensemble,
    MCDropout,
    MeanField,
    MeanFieldLocal,
    Natural,
    Swag,
    Sghmc,
)
