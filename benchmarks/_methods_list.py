"""The methods of `benchmarks.methods`: what each trains, how, and the settings that validation images compare.

LeNet-5 has few settings, which were the best of more after ten epochs; they are on the page of its results.

- deterministic: the plain network (MAP) with Adam on a cosine. ensemble-N: N of them. narrow-ensemble: four of half the
  width. batch-ensemble: `BatchEnsembleGuide` with four members. mc-dropout: dropout after both hidden layers.
- mean-field, mean-field-lrt: a Gaussian for each weight with Adam, by draws of the weights or local reparameterisation.
  natural: the same with natural gradients; for LeNet-5 with Gauss-Newton estimates in every fourth step.
- swag: SGD with momentum, a point after each epoch of the second half. multi-...: three posteriors around different
  networks. laplace-...: the last layer, or Kronecker factors of all layers. sghmc: four cycles, 32 draws kept.

Each network trains for the same number of epochs, with batches of 128 (256 for natural gradients on the dense network).
Predictions use 32 draws, ensembles one for each member. Mean-field, natural and sghmc have prior standard deviations of
0.4 in the first layer of the dense network and 0.1 in the others, and of 0.2 in LeNet-5. Inputs are standardised.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import pyro_bnn as pb

from ._methods import (
    Fit,
    Method,
    NarrowNetwork,
    Network,
    Points,
    PointSetting,
    Problem,
    fit_as_point,
    fit_point,
)
from ._methods_posteriors import (
    KroneckerLaplace,
    LastLayerLaplace,
    MeanField,
    MeanFieldLocal,
    Natural,
    NaturalMixture,
    Sghmc,
    Swag,
    SwagMixture,
    mixture,
)

NUM_SMALL_MEMBERS = 4
"""Number of members of ensembles that cost about as much as one network."""


@dataclass(frozen=True)
class Deterministic(PointSetting, Method):
    """One network by Adam."""

    name: ClassVar[str] = "deterministic"

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        if network.is_mirrored:
            return [*(cls(scale, 3e-3) for scale in (0.4, 0.2, 0.1)), cls(0.4, 1.5e-3), cls(0.4, 6e-3)]
        if network.is_lenet:
            return [cls(0.2, 3e-3), cls(0.1, 3e-3), cls(0.1, 6e-3)]
        others = [cls(scale, lr) for scale in (0.3, 0.1) for lr in (3e-4, 3e-3)]
        return [*(cls(scale) for scale in (None, 0.3, 0.1, 0.05)), *others]

    def fit(self, problem: Problem, points: Points) -> Fit:
        return points.point(problem, self)


def _rates(point: PointSetting) -> list[float]:
    """Learning rates for networks like a chosen deterministic one: that network's rate, and the default rate."""
    return list(dict.fromkeys((point.lr, PointSetting.lr)))


@dataclass(frozen=True)
class SmallEnsemble(PointSetting, Method):
    """Three networks by Adam, each with its own initial weights and its own order of images."""

    name: ClassVar[str] = "ensemble-3"
    num_members: ClassVar[int] = 3

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        if network.is_mirrored:
            return [cls(0.4, lr) for lr in (1.5e-3, 3e-3, 6e-3)] + [cls(scale, 3e-3) for scale in (0.2, 0.8)]
        if network.is_lenet:
            return [cls(0.2, 3e-3), cls(0.1, 3e-3)]
        scale = point.prior_scale
        wider = [] if scale is None else [round(3 * scale, 6)]  # members may overfit more than one network
        return [cls(s, lr) for lr in _rates(point) for s in (scale, *wider)]

    def fit(self, problem: Problem, points: Points) -> Fit:
        members = [points.point(problem, self, member) for member in range(self.num_members)]
        posterior = pb.EnsemblePosterior([member.posterior for member in members])
        return Fit(members[0].model, posterior, len(members), sum(member.cpu_seconds for member in members))


class Ensemble(SmallEnsemble):
    """Five such networks, of which the first three are those of the small ensemble."""

    name: ClassVar[str] = "ensemble"
    num_members: ClassVar[int] = 5
    chosen_with: ClassVar[type[Method]] = SmallEnsemble


class LargeEnsemble(SmallEnsemble):
    """Ten such networks."""

    name: ClassVar[str] = "ensemble-10"
    num_members: ClassVar[int] = 10
    chosen_with: ClassVar[type[Method]] = SmallEnsemble


@dataclass(frozen=True)
class NarrowEnsemble(PointSetting, Method):
    """Four networks of half the width by Adam, each with its own initial weights and its own order of images.

    These are packed ensembles (Laurent et al. 2023, https://arxiv.org/abs/2210.09184) whose members are trained apart.
    """

    name: ClassVar[str] = "narrow-ensemble"

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        rates = (point.lr,) if network.is_lenet else dict.fromkeys((*_rates(point), 3e-3))
        wider = [cls(0.8, point.lr)] if network.is_mirrored else []  # as for `SmallEnsemble`
        return [*(cls(point.prior_scale, lr) for lr in rates), *wider]

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
    factor_scale: float | None = None  # standard deviation of the initial factors around 1; with None, random signs

    @classmethod
    def grid(cls, network: Network, point: PointSetting) -> Sequence[Method]:
        if network.is_lenet:
            return [cls(point.prior_scale, point.lr)]
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
        if network.is_mirrored:
            return [cls(point.prior_scale, point.lr, p) for p in (0.05, 0.1, 0.2)]
        if network.is_lenet:
            return [cls(point.prior_scale, point.lr, 0.2)]
        scales = dict.fromkeys((None, point.prior_scale))
        return [cls(scale, lr, p) for lr in _rates(point) for p in (0.2, 0.5) for scale in scales]

    def fit(self, problem: Problem, points: Points) -> Fit:
        begin = time.process_time()
        fitted = fit_point(problem, self, problem.seed, dropout=self.dropout)
        return Fit(*fitted, problem.network.draws, time.process_time() - begin)


class DropoutEnsemble(MCDropout):
    """Three networks with dropout, each with its own initial weights and its own order of images."""

    name: ClassVar[str] = "multi-dropout"
    num_members: ClassVar[int] = 3
    chosen_with: ClassVar[type[Method]] = MCDropout

    def fit(self, problem: Problem, points: Points) -> Fit:
        problems = [replace(problem, seed=1000 * problem.seed + member) for member in range(self.num_members)]
        return mixture([super(DropoutEnsemble, self).fit(each, points) for each in problems], problem)


METHODS: tuple[type[Method], ...] = (
    Deterministic,
    SmallEnsemble,
    Ensemble,
    LargeEnsemble,
    NarrowEnsemble,
    BatchEnsemble,
    MCDropout,
    DropoutEnsemble,
    MeanField,
    MeanFieldLocal,
    Natural,
    NaturalMixture,
    Swag,
    SwagMixture,
    LastLayerLaplace,
    KroneckerLaplace,
    Sghmc,
)
