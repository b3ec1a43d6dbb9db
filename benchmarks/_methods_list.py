"""The methods of `benchmarks.methods`: what each trains, how, and the settings that validation images compare."""

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Literal

import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch.optim.lr_scheduler import LambdaLR

import pyro_bnn as pb
from pyro_bnn.inference.estimators import Estimator

from ._images import cosine
from ._methods import (
    Fit,
    Method,
    NarrowNetwork,
    Network,
    Points,
    PointSetting,
    Problem,
    adam,
    fit_as_point,
    fit_point,
)

NUM_MEMBERS = 5
NUM_SMALL_MEMBERS = 4
"""Number of members of ensembles that cost about as much as one network."""

INIT = pb.NetworkInit(prior_fraction=0.1)
"""Start of mean-field guides, as in the default recipe."""


@dataclass(frozen=True)
class Deterministic(PointSetting, Method):
    """One network by Adam."""

    name: ClassVar[str] = "deterministic"

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        others = [cls(scale, lr) for scale in (0.3, 0.1) for lr in (3e-4, 3e-3)]
        return [*(cls(scale) for scale in (None, 0.3, 0.1, 0.05)), *others]

    def fit(self, problem: Problem, points: Points) -> Fit:
        return points.point(problem, self)


def _rates(point: PointSetting) -> list[float]:
    """Learning rates for networks like a chosen deterministic one: that network's rate, and the default rate."""
    return list(dict.fromkeys((point.lr, PointSetting.lr)))


@dataclass(frozen=True)
class Ensemble(PointSetting, Method):
    """Five networks by Adam, each with its own initial weights and its own order of images."""

    name: ClassVar[str] = "ensemble"
    num_members: ClassVar[int] = NUM_MEMBERS

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        scale = point.prior_scale
        wider = [] if scale is None else [round(3 * scale, 6)]  # members may overfit more than one network
        return [cls(s, lr) for lr in _rates(point) for s in (scale, *wider)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        members = [points.point(problem, self, member) for member in range(self.num_members)]
        posterior = pb.EnsemblePosterior([member.posterior for member in members])
        return Fit(members[0].model, posterior, self.num_members, sum(member.cpu_seconds for member in members))


@dataclass(frozen=True)
class NarrowEnsemble(PointSetting, Method):
    """Four networks of half the width by Adam, each with its own initial weights and its own order of images.

    These are packed ensembles (Laurent et al. 2023, https://arxiv.org/abs/2210.09184) whose members are trained apart.
    """

    name: ClassVar[str] = "narrow-ensemble"

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        return [cls(point.prior_scale, lr) for lr in dict.fromkeys((*_rates(point), 3e-3))]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        narrow = replace(problem, network=NarrowNetwork(**asdict(problem.network)))
        fitted = [fit_point(narrow, self, 1000 * problem.seed + member) for member in range(NUM_SMALL_MEMBERS)]
        posterior = pb.EnsemblePosterior([member for _, member in fitted])
        return Fit(fitted[0][0], posterior, NUM_SMALL_MEMBERS, time.process_time() - begin)


@dataclass(frozen=True)
class BatchEnsemble(PointSetting, Method):
    """Four members that share weight matrices, up to factors of rank one."""

    name: ClassVar[str] = "batch-ensemble"
    factor_scale: float | None = None  # standard deviation of the initial factors around 1; None is random signs

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        rates = dict.fromkeys((*_rates(point), 3e-3))  # each member sees a quarter of the batches
        return [cls(point.prior_scale, lr, factor_scale) for lr in rates for factor_scale in (None, 0.5)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        model = problem.model(pb.NormalPrior(self.prior_scale or 1.0))
        guide = pb.BatchEnsembleGuide(model, num_members=NUM_SMALL_MEMBERS, factor_scale=self.factor_scale)
        posterior = fit_as_point(problem, self, model, guide, problem.seed)
        return Fit(model, posterior, NUM_SMALL_MEMBERS, time.process_time() - begin)


@dataclass(frozen=True)
class MCDropout(PointSetting, Method):
    """A network with dropout that stays on after hidden linear layers."""

    name: ClassVar[str] = "mc-dropout"
    dropout: float = 0.5  # probability that a unit is dropped

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        scales = dict.fromkeys((None, point.prior_scale))
        return [cls(scale, lr, p) for lr in _rates(point) for p in (0.2, 0.5) for scale in scales]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        fitted = fit_point(problem, self, problem.seed, dropout=self.dropout)
        return Fit(*fitted, problem.network.draws, time.process_time() - begin)


@dataclass(frozen=True)
class MeanField(Method):
    """A Gaussian for every weight, by Adam with one draw of the weights in each step."""

    name: ClassVar[str] = "mean-field"
    estimator: ClassVar[Callable[[], Estimator] | None] = None
    kl_weight: float  # weight of the KL term; below 1 the posterior is cold
    lr: float  # initial learning rate; it falls to 0 along a cosine

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        return [cls(0.4, 1e-3), cls(0.1, 1e-3), cls(0.03, 1e-3), cls(0.1, 3e-3)]

    def fit(self, problem: Problem, points: Points) -> Fit:
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
            estimator=self.estimator and self.estimator(),
            kl_weight=self.kl_weight,
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
        return [cls(0.4, 1e-3), cls(0.1, 1e-3), cls(0.03, 1e-3), cls(0.01, 1e-3), cls(0.1, 3e-3)]


@dataclass(frozen=True)
class Natural(Method):
    """A Gaussian for every weight by natural gradients."""

    name: ClassVar[str] = "natural"
    kl_weight: float  # as for `MeanField`
    lr: float  # learning rate of the means; the first epoch uses a tenth of it, and then it falls to 0 along a cosine

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
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
            optimizer=pb.optim.scheduled(
                pb.optim.natural_gradient(self.lr, hessian_decay=0.999, clip=1.0),
                functools.partial(cosine, num_epochs=epochs, is_warm=True),
            ),
            num_epochs=epochs,
            batch_size=256,
            elbo=Trace_ELBO(),
            kl_weight=self.kl_weight,
            seed=problem.seed,
        )
        return Fit(model, posterior, problem.network.draws, time.process_time() - begin)


@dataclass(frozen=True)
class Swag(Method):
    """The Gaussian along the path of SGD with momentum, whose learning rate is constant in the second half."""

    name: ClassVar[str] = "swag"
    lr: float  # learning rate of the second half, for the mean loss; the first half begins at twice this rate
    prior_scale: float | None  # as for `PointSetting`

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        return [cls(lr, point.prior_scale) for lr in (0.01, 0.02, 0.05, 0.1)]

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
            guide,
            problem.data,
            optimizer=pb.optim.scheduled(
                functools.partial(torch.optim.SGD, lr=self.lr / len(problem.x), momentum=0.9, fused=True), falling
            ),
            num_epochs=epochs,
            batch_size=128,
            kl_weight=0.0 if self.prior_scale is None else 1.0,
            callbacks=[swag],
            seed=seed,
        )
        return Fit(model, swag.posterior(model), problem.network.draws, time.process_time() - begin)


@dataclass(frozen=True)
class MultiSwag(Swag):
    """The mixture of five such Gaussians, each around another network."""

    name: ClassVar[str] = "multi-swag"

    def fit(self, problem: Problem, points: Points) -> Fit:
        members = [self._fit(problem, 1000 * problem.seed + member) for member in range(NUM_MEMBERS)]
        posterior = pb.EnsemblePosterior([member.posterior for member in members])
        num_samples = NUM_MEMBERS * max(problem.network.draws // NUM_MEMBERS, 1)  # as many draws of each member
        return Fit(members[0].model, posterior, num_samples, sum(member.cpu_seconds for member in members))


@dataclass(frozen=True)
class Sghmc(Method):
    """One chain of cyclical stochastic-gradient Hamiltonian Monte Carlo, with draws from all cycles."""

    name: ClassVar[str] = "sghmc"
    lr: float  # initial step size of a cycle, for the mean loss
    temperature: float  # temperature of the posterior; below 1 the posterior is cold
    num_cycles: int = 4

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        settings = ((0.01, 1.0), (0.01, 0.1), (0.01, 0.01), (0.03, 0.1), (0.1, 0.1), (0.03, 1.0))
        return [cls(lr, temperature) for lr, temperature in settings]

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


@dataclass(frozen=True)
class KroneckerLaplace(PointSetting, Method):
    """Laplace's method around the deterministic network, with Kronecker factors of the Gauss-Newton matrix."""

    name: ClassVar[str] = "laplace-kronecker"
    # precisions of the prior: "evidence" chooses one for each layer, None takes those of the prior with which the
    # network was trained
    prior_precision: Literal["evidence"] | None = None

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        precisions: tuple[Literal["evidence"] | None, ...] = ("evidence", None)
        count = 1 if point.prior_scale is None else 2
        return [cls(point.prior_scale, point.lr, precision) for precision in precisions[:count]]

    def fit(self, problem: Problem, points: Points) -> Fit:
        return self._fit(problem, points, "kronecker", "**")

    def _fit(self, problem: Problem, points: Points, structure: Literal["kronecker", "full"], where: str) -> Fit:
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


METHODS: tuple[type[Method], ...] = (
    Deterministic,
    Ensemble,
    NarrowEnsemble,
    BatchEnsemble,
    MCDropout,
    MeanField,
    MeanFieldLocal,
    Natural,
    Swag,
    MultiSwag,
    LastLayerLaplace,
    KroneckerLaplace,
    Sghmc,
)
