"""Methods of `benchmarks.methods` that fit a distribution of the weights, and the settings that they compare."""

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch.optim.lr_scheduler import LambdaLR

import pyro_bnn as pb
from pyro_bnn.inference.estimators import Estimator

from ._images import cosine
from ._methods import Fit, Method, Network, Points, PointSetting, Problem, adam

INIT = pb.NetworkInit(prior_fraction=0.1)
"""Start of mean-field guides, as in the default recipe."""

NUM_GAUSSIANS = 3
"""Number of members of mixtures of Gaussians, each around another network."""


def as_cold(kl_weight: float, point: PointSetting) -> float:
    """The prior scale with which a KL weight T makes the whole posterior cold: it is proportional to p(w | data)^(1/T).

    With the network's own prior scale, a small KL weight also weakens the pull of the prior on the means.
    """
    return round((point.prior_scale or 1.0) * kl_weight**0.5, 4)


def prior_of(scale: float | None, problem: Problem) -> pb.Prior:
    return problem.prior if scale is None else pb.NormalPrior(scale)


def mixture(members: Sequence[Fit], problem: Problem) -> Fit:
    """The mixture of several posteriors with equal weights, and about as many draws as for one."""
    posterior = pb.EnsemblePosterior([member.posterior for member in members])
    num_samples = len(members) * max(problem.network.draws // len(members), 1)  # as many draws of each member
    return Fit(members[0].model, posterior, num_samples, sum(member.cpu_seconds for member in members))


@dataclass(frozen=True)
class MeanField(Method):
    """A Gaussian for every weight, by Adam with one draw of the weights in each step."""

    name: ClassVar[str] = "mean-field"
    estimator: ClassVar[Callable[[], Estimator] | None] = None
    kl_weight: float  # weight of the KL term; below 1 the posterior is cold
    lr: float  # initial learning rate; it falls to 0 along a cosine
    prior_scale: float | None = None  # standard deviation of the weights' prior; with None, the network's prior

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        if network.is_mirrored:
            settings = [cls(0.03, 3e-3), cls(0.01, 3e-3), cls(0.003, 3e-3), cls(0.01, 1.5e-3), cls(0.01, 6e-3)]
            return [*settings, *(cls(weight, 3e-3, as_cold(weight, point)) for weight in (0.3, 0.1, 0.03))]
        if network.is_lenet:
            return [cls(0.1, 3e-3)]
        return [cls(0.4, 1e-3), cls(0.1, 1e-3), cls(0.03, 1e-3), cls(0.1, 3e-3)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        model = problem.model(prior_of(self.prior_scale, problem))
        posterior = pb.fit_svi(
            model,
            guide=pb.MeanFieldGuide(model, init=INIT),
            **problem.batches(128, problem.seed),
            optimizer=adam(self.lr, problem.network.epochs),
            num_epochs=problem.network.epochs,
            elbo=TraceMeanField_ELBO(),
            estimator=self.estimator and self.estimator(),
            kl_weight=self.kl_weight,
            execution=problem.execution,
            seed=problem.seed,
        )
        return Fit(model, posterior, problem.network.draws, time.process_time() - begin)


@dataclass(frozen=True)
class MeanFieldLocal(MeanField):
    """The same with local reparameterisation, which has the same objective but less noisy gradients."""

    name: ClassVar[str] = "mean-field-lrt"
    estimator: ClassVar[Callable[[], Estimator] | None] = pb.LocalReparameterization

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        if network.is_mirrored:
            return [*super().grid(network, point), cls(0.1, 3e-3), cls(0.3, 3e-3)]
        if network.is_lenet:
            return [cls(0.1, 3e-3)]
        return [cls(0.4, 1e-3), cls(0.1, 1e-3), cls(0.03, 1e-3), cls(0.01, 1e-3), cls(0.1, 3e-3)]


@dataclass(frozen=True)
class Natural(Method):
    """A Gaussian for every weight by natural gradients.

    The Hessian is estimated from the noise of the weights, or as the Gauss-Newton diagonal from simulated targets. For
    LeNet-5, estimates from the noise change the Hessian so slowly that it stays near its first value.
    """

    name: ClassVar[str] = "natural"
    kl_weight: float  # as for `MeanField`
    lr: float  # learning rate of the means, which falls to 0 along a cosine; the MLP's first epoch uses a tenth of it
    prior_scale: float | None = None  # as for `MeanField`
    initial_hessian: float = 0.03  # of LeNet-5: the first Hessian
    gauss_newton_every: int = 4  # of LeNet-5: steps between two Gauss-Newton estimates; 0 estimates from the noise

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        if network.is_mirrored:
            weights = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
            settings = [*(cls(weight, 0.02) for weight in weights), cls(0.01, 0.01), cls(0.01, 0.05)]
            cold = [cls(weight, 0.02, as_cold(weight, point)) for weight in (0.3, 0.1, 0.03, 0.01)]
            fixed = [(1.0, 0.1, 0.5), (1.0, 0.2, 0.5), (1.0, 0.02, 0.1), (1.0, 0.05, 0.1), (1.0, 0.01, 0.03)]
            fixed += [(0.3, 0.02, 0.1), (0.3, 0.05, 0.1)]
            return [
                *settings,
                *cold,
                *(cls(weight, lr, as_cold(weight, point), hessian, 0) for weight, lr, hessian in fixed),
            ]
        if network.is_lenet:
            return [cls(0.1, 0.02), cls(0.3, 0.02)]
        return [cls(0.3, 0.007), cls(0.1, 0.007), cls(0.03, 0.007), cls(0.1, 0.014)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        return self._fit(problem, problem.seed)

    def _fit(self, problem: Problem, seed: int) -> Fit:
        begin = time.process_time()
        model = problem.model(prior_of(self.prior_scale, problem), seed=seed)
        epochs, is_dense = problem.network.epochs, not problem.network.is_lenet
        if is_dense:
            optimizer = pb.optim.natural_gradient(self.lr, hessian_decay=problem.network.hessian_decay, clip=1.0)
        elif self.gauss_newton_every:
            optimizer = pb.optim.natural_gradient(
                self.lr,
                initial_hessian=self.initial_hessian,
                gauss_newton_every=self.gauss_newton_every,
                hessian_decay=0.98,
                clip=0.15,
                num_warmup=100,
            )
        else:
            optimizer = pb.optim.natural_gradient(
                self.lr, initial_hessian=self.initial_hessian, hessian_decay=1 - 1e-4, num_warmup=500
            )
        posterior = pb.fit_svi(
            model,
            guide=pb.MeanFieldGuide(model, init=INIT, scale_map=pb.scale_maps.Precision()),
            **problem.batches(problem.network.natural_batch_size, seed),
            optimizer=pb.optim.scheduled(optimizer, functools.partial(cosine, num_epochs=epochs, is_warm=is_dense)),
            num_epochs=epochs,
            elbo=Trace_ELBO(),
            kl_weight=self.kl_weight,
            execution=problem.execution,
            seed=seed,
        )
        return Fit(model, posterior, problem.network.draws, time.process_time() - begin)


class NaturalMixture(Natural):
    """The mixture of three such Gaussians, each around another network."""

    name: ClassVar[str] = "multi-natural"
    chosen_with: ClassVar[type[Method]] = Natural

    def fit(self, problem: Problem, points: Points) -> Fit:
        return mixture([self._fit(problem, 1000 * problem.seed + member) for member in range(NUM_GAUSSIANS)], problem)


@dataclass(frozen=True)
class Swag(Method):
    """The Gaussian along the path of SGD with momentum, whose learning rate is constant in the second half."""

    name: ClassVar[str] = "swag"
    lr: float  # learning rate of the second half, for the mean loss; the first half begins at twice this rate
    prior_scale: float | None  # as for `PointSetting`

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        rates = (0.005, 0.01, 0.02, 0.05) if network.is_mirrored else (0.01, 0.02, 0.05, 0.1)
        return [cls(lr, point.prior_scale) for lr in ((0.02,) if network.name == "lenet" else rates)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        return self._fit(problem, problem.seed)

    def _fit(self, problem: Problem, seed: int) -> Fit:
        begin = time.process_time()
        model = problem.model(pb.NormalPrior(self.prior_scale or 1.0), seed=seed)
        guide = pb.DeltaGuide(model)
        epochs = problem.network.epochs
        start = epochs // 2
        swag = pb.SWAG(guide, rank=max(epochs - start, 2), start=min(start, epochs - 2))
        falling = functools.partial(LambdaLR, lr_lambda=lambda epoch: 1 + max(1 - epoch / max(start, 1), 0))
        pb.fit_svi(
            model,
            guide=guide,
            **problem.batches(128, seed),
            optimizer=pb.optim.scheduled(
                functools.partial(torch.optim.SGD, lr=self.lr / len(problem.x), momentum=0.9, fused=True), falling
            ),
            num_epochs=epochs,
            kl_weight=0.0 if self.prior_scale is None else 1.0,
            callbacks=[swag],
            execution=problem.execution,
            seed=seed,
        )
        return Fit(model, swag.posterior(model), problem.network.draws, time.process_time() - begin)


class SwagMixture(Swag):
    """The mixture of three such Gaussians, each around another network (multi-SWAG)."""

    name: ClassVar[str] = "multi-swag"
    chosen_with: ClassVar[type[Method]] = Swag

    def fit(self, problem: Problem, points: Points) -> Fit:
        return mixture([self._fit(problem, 1000 * problem.seed + member) for member in range(NUM_GAUSSIANS)], problem)


@dataclass(frozen=True)
class Sghmc(Method):
    """One chain of cyclical stochastic-gradient Hamiltonian Monte Carlo, with draws from all cycles."""

    name: ClassVar[str] = "sghmc"
    lr: float  # initial step size of a cycle, for the mean loss
    temperature: float  # temperature of the posterior; below 1 the posterior is cold
    num_cycles: int = 4

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        if network.is_mirrored:
            colder = [cls(0.1, temperature) for temperature in (0.1, 0.01, 0.001, 0.0001)]
            return [*colder, cls(0.03, 0.01), cls(0.3, 0.01), cls(0.03, 0.001), cls(0.1, 0.001, num_cycles=2)]
        if network.is_lenet:
            return [cls(0.1, 0.1)]
        settings = ((0.01, 1.0), (0.01, 0.1), (0.01, 0.01), (0.03, 0.1), (0.1, 0.1), (0.03, 1.0))
        return [cls(lr, temperature) for lr, temperature in settings]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        model = problem.model(problem.prior)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pb.ConvergenceWarning)  # the row has the status
            posterior = pb.fit_sgmcmc(
                model,
                **problem.batches(128, problem.seed),
                sampler=pb.SGHMC(self.lr / len(problem.x), temperature=self.temperature),
                steps=pb.CyclicalSteps(self.num_cycles),
                num_epochs=problem.network.epochs,
                num_samples=problem.network.draws,
                seed=problem.seed,
            )
        return Fit(model, posterior, problem.network.draws, time.process_time() - begin)


@dataclass(frozen=True)
class KroneckerLaplace(PointSetting, Method):
    """Laplace's method around the deterministic network, with Kronecker factors of the Gauss-Newton matrix."""

    name: ClassVar[str] = "laplace-kronecker"
    # precisions of the prior: with "evidence", one is chosen for each layer; with None, those of the prior with
    # which the network was trained
    prior_precision: Literal["evidence"] | None = None

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        precisions: tuple[Literal["evidence"] | None, ...] = ("evidence", None)
        count = 1 if point.prior_scale is None or network.is_lenet else 2
        return [cls(point.prior_scale, point.lr, precision) for precision in precisions[:count]]

    def fit(self, problem: Problem, points: Points) -> Fit:
        return self._fit(problem, points, "kronecker", problem.network.factored)

    def _fit(
        self, problem: Problem, points: Points, structure: Literal["kronecker", "full"], where: str | Sequence[str]
    ) -> Fit:
        point = points.point(problem, self)
        begin = time.process_time()
        posterior = pb.fit_gauss_newton(
            point.model,
            problem.data,
            init=point.posterior,
            structure=structure,
            where=where,
            prior_precision=self.prior_precision,
        )
        seconds = point.cpu_seconds + time.process_time() - begin
        return Fit(point.model, posterior, problem.network.draws, seconds)


@dataclass(frozen=True)
class LastLayerLaplace(KroneckerLaplace):
    """The same for the last layer only, with the full matrix."""

    name: ClassVar[str] = "laplace-last-layer"

    def fit(self, problem: Problem, points: Points) -> Fit:
        return self._fit(problem, points, "full", problem.network.last_layer)
