"""Posteriors that store statistics of batch normalisation, or parameters and buffers of the network."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._core import checks as _checks
from .._core.inputs import Inputs, as_inputs, has_shared, num_rows, shapes, take
from .._core.records import check_numbers, check_state, plain, record
from .._core.scope import EXCLUSIVE, Stream, eval_mode
from .._core.signatures import explained
from ..modelling.model import SITE_PREFIX, BayesianModel, network_values, require_bayesian
from .guides import as_posterior
from .posterior import Destination, Draw, Posterior, Saved, restored, saved

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm

STATISTICS = ("running_mean", "running_var")


@explained("refresh_batch_norm(model, posterior, x)")
def refresh_batch_norm(
    model: BayesianModel,
    posterior: Posterior | Callable[..., object] | Mapping[str, Tensor],
    x: Inputs,
    *,
    num_samples: int = 10,
    batch_size: int = 128,
    seed: int | None = None,
) -> None:
    r"""Recompute the running statistics of batch normalisation for a posterior, and store them in the model.

    After a fit, the running statistics are averages over steps in which the weights still changed. This function
    replaces them with averages over S draws and B batches

    .. math:: \mu = \tfrac1{S B} \sum_{s, b} \mu_{s b}, \qquad \sigma^2 = \tfrac1{S B} \sum_{s, b} \sigma^2_{s b}.

    Dropout is off. If the draws differ too much to share statistics, use a :class:`RefreshedPosterior`.

    Args:
        model: The model; its network is changed in place.
        posterior: A posterior from any method, or one value of each latent variable, such as ``posterior.median()``.
        x: Inputs, shape (N, ...): a few thousand training rows, preprocessed as for the fit.
        num_samples: Number of draws S.
        batch_size: Number of rows in a batch, ideally close to the batch size of the fit.
        seed: Seed of the draws.

    Raises:
        ValueError: If the network has no batch normalisation with running statistics, or if x does not match the
            network.

    References:
        Maddox et al. (2019), https://arxiv.org/abs/1902.02476, algorithm 1; `torch.optim.swa_utils.update_bn`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import pyro_bnn as pb
        >>> net = nn.Sequential(nn.Linear(1, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=64)
        >>> guide = pb.MeanFieldGuide(model)
        >>> pb.refresh_batch_norm(model, guide, 3 + torch.randn(64, 1), seed=0)
        >>> bool(model.network[1].running_mean.abs().max() > 0.1)
        True
    """
    batches = _batches(model, x, batch_size)
    if isinstance(posterior, Mapping):
        draws, num_samples = iter([dict(posterior)]), 1
    else:
        draws = as_posterior(posterior).draws(_checks.at_least("num_samples", num_samples, 1), batches[0])
    unit = EXCLUSIVE if seed is None else Stream(_checks.seed(seed), model.device)
    sums: dict[str, Tensor] = {}
    for _ in range(num_samples):
        with unit, torch.no_grad():
            found = _statistics(model, next(draws), batches)
        sums = {name: value + sums[name] if sums else value for name, value in found.items()}
    with EXCLUSIVE, torch.no_grad():
        for name, value in _running(model).items():
            value.copy_(sums[name] / num_samples)


def _of_inner(name: str) -> Any:
    return property(lambda self: getattr(self.inner, name))


class CarryingPosterior(Posterior):
    """Each draw consists of a draw from `inner`, and of values of the network's parameters and buffers."""

    def __init__(self, model: BayesianModel, posterior: Posterior | Callable[..., object]) -> None:
        require_bayesian(model)
        self.inner = as_posterior(posterior)
        self.status, self.history, self.log_evidence = self.inner.status, self.inner.history, self.inner.log_evidence
        self.learned = self.inner.learned
        if self.inner.carried:
            got = type(self.inner).__name__
            raise ValueError(
                f"`posterior` must have draws of latent variables only, got a {got}; pass its `inner` posterior."
            )

    shapes, num_stored, num_points, seconds = map(_of_inner, ("shapes", "num_stored", "num_points", "seconds"))
    constants, guides, pruned_sites = map(_of_inner, ("constants", "guides", "pruned_sites"))

    def marginals(self) -> dict[str, tuple[Tensor, Tensor]]:
        return self.inner.marginals()

    def diagnose(self, model: BayesianModel | None = None) -> Any:
        return self.inner.diagnose(model)

    @abstractmethod
    def _rest(self, draw: Draw) -> dict[str, Tensor]:
        """Return the values of parameters and buffers that belong to a draw, by name."""

    @torch.no_grad()
    def median(self) -> Draw:
        median = self.inner.median()
        return median | self._rest(median)

    @torch.no_grad()
    def centers(self, *, everywhere: bool = False) -> list[Draw | None]:
        inner = self.inner.centers(everywhere=everywhere)
        return [None if center is None else center | self._rest(center) for center in inner]

    @torch.no_grad()
    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        for draw in self.inner.draws(num_samples, *args):
            yield draw | self._rest(draw)


@dataclass(frozen=True)
class RefreshedRecord:
    """Record of a :class:`RefreshedPosterior` in a file."""

    inner: Saved
    x: Any
    batch_size: int


class RefreshedPosterior(CarryingPosterior):
    """Draws of a posterior, each with its own statistics of batch normalisation.

    For each draw, the network runs over x once, with batch normalisation in train mode. These runs add the time of a
    prediction at x to each call of :func:`~pyro_bnn.predict`. To compute the statistics only once, store the draws in a
    :class:`~pyro_bnn.StoredPosterior`. Predictions must use the same model, whose own statistics do not change.

    Args:
        model: The model.
        posterior: A posterior from any method.
        x: Inputs, shape (N, ...): a few thousand training rows, preprocessed as for the fit. A file of a
            :class:`RefreshedPosterior` contains x; a file of a :class:`~pyro_bnn.StoredPosterior` does not.
        batch_size: Number of rows in a batch, ideally close to the batch size of the fit.

    Raises:
        ValueError: If the network has no batch normalisation with running statistics, if x does not match the network,
            or if the posterior's predictions are linearised.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import pyro_bnn as pb
        >>> net = nn.Sequential(nn.Linear(1, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=64)
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> refreshed = pb.RefreshedPosterior(model, pb.MeanFieldGuide(model), x)
        >>> refreshed.carried
        ('net.1.running_mean', 'net.1.running_var')
        >>> pb.predict(model, refreshed, x, num_samples=8, seed=0).mean.shape
        torch.Size([64, 1])
    """

    def __init__(
        self, model: BayesianModel, posterior: Posterior | Callable[..., object], x: Inputs, *, batch_size: int = 128
    ) -> None:
        super().__init__(model, posterior)
        if self.inner.is_linearised:
            raise ValueError(
                f"`posterior` must not be one of {self.inner.method}, whose predictions are linearised around its "
                "median; compute the statistics at the median before the fit, with `refresh_batch_norm(model, values, "
                "x)`."
            )
        self._model, self._batches = model, _batches(model, x, batch_size)
        self._x, self._batch_size = as_inputs("x", x, model.like), int(batch_size)

    @property
    def method(self) -> str:
        return f"{self.inner.method}, batch normalisation refreshed"

    @property
    def carried(self) -> tuple[str, ...]:
        return tuple(_running(self._model))

    def _rest(self, draw: Draw) -> dict[str, Tensor]:
        return _statistics(self._model, draw, self._batches)

    def to_record(self) -> dict[str, Any]:
        if has_shared(self._x):
            raise ValueError(
                f"a file cannot hold the shared inputs of {shapes(self._x)}; save `StoredPosterior.of(posterior, "
                "num_samples)`, which needs no inputs."
            )
        return plain(RefreshedRecord(saved(self.inner), self._x, self._batch_size))

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> RefreshedPosterior:
        found, model = record(RefreshedRecord, values, "posterior"), destination.model_for("a RefreshedPosterior")
        return cls(model, restored(found.inner, destination), found.x, batch_size=found.batch_size)


@dataclass(frozen=True)
class PinnedRecord:
    """Record of a :class:`PinnedPosterior` in a file."""

    inner: Saved
    values: dict[str, Tensor]


class PinnedPosterior(CarryingPosterior):
    """A posterior together with a copy of the network's learned parameters and buffers.

    Later changes of the model do not affect the copy, so the members of an :class:`~pyro_bnn.EnsemblePosterior` can
    differ in their statistics of batch normalisation, and in their parameters that are not random.

    Args:
        model: The model of the posterior.
        posterior: A posterior from any method.
        values: Learned parameters and buffers, as in :attr:`values`; by default the current values of the network.

    Raises:
        ValueError: If `values` does not have exactly the names of the network's learned parameters and buffers.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> from pyro_bnn.inference.batch_norm import PinnedPosterior
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1))
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=prior, likelihood=noise, num_data=20, where="net.1.*"
        ... )
        >>> sorted(PinnedPosterior(model, pb.MeanFieldGuide(model)).values)
        ['net.0.bias', 'net.0.weight']
    """

    def __init__(
        self,
        model: BayesianModel,
        posterior: Posterior | Callable[..., object],
        *,
        values: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(model, posterior)
        own = network_values(model)
        given = own if values is None else {name: values[name] for name in own if name in values}
        if len(given) < len(own) or len(values or own) > len(own):
            raise ValueError(f"`values` must have the names {', '.join(own)}, got {', '.join(values or own)}.")
        self.values: dict[str, Tensor] = {name: value.clone() for name, value in given.items()}
        """Learned parameters and buffers, ``{"net.PATH": value}``."""

    @property
    def method(self) -> str:
        return self.inner.method

    @property
    def is_linearised(self) -> bool:
        return self.inner.is_linearised

    @property
    def carried(self) -> tuple[str, ...]:
        return tuple(self.values)

    def _rest(self, draw: Draw) -> dict[str, Tensor]:
        return self.values

    def to_record(self) -> dict[str, Any]:
        return plain(PinnedRecord(saved(self.inner), self.values))

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> PinnedPosterior:
        found, model = record(PinnedRecord, values, "posterior"), destination.model_for("a PinnedPosterior")
        own, owner = network_values(model), "the pinned network"
        check_state(owner, found.values, own)
        constants = {f"{SITE_PREFIX}.{name}" for name, _ in model.network.named_buffers()}
        check_numbers(owner, found.values, own, constants)
        pinned = {name: value.to(own[name].device) for name, value in found.values.items()}
        return cls(model, restored(found.inner, destination), values=pinned)


def _batches(model: BayesianModel, x: Inputs, batch_size: int) -> list[Inputs]:
    """Split x into batches of nearly equal size, close to `batch_size`, on the model's device."""
    require_bayesian(model)
    if not _norms(model):
        raise ValueError(
            "`model` must have a network with batch normalisation that stores running statistics, got one without; "
            "there is nothing to refresh."
        )
    x = as_inputs("x", x, model.like)
    count = num_rows(x)
    num_batches = max(1, round(count / _checks.at_least("batch_size", batch_size, 2)))
    ends = [round(count * index / num_batches) for index in range(num_batches + 1)]
    return [take(x, slice(start, end)) for start, end in itertools.pairwise(ends)]


def _norms(model: BayesianModel) -> dict[str, BatchNorm]:
    named = model.network.named_modules()
    return {path: layer for path, layer in named if isinstance(layer, BatchNorm) and layer.running_mean is not None}


def _running(model: BayesianModel) -> dict[str, Tensor]:
    """Return running statistics as ``{"net.PATH": value}``."""
    return {
        ".".join(filter(None, (SITE_PREFIX, path, name))): layer.get_buffer(name)
        for path, layer in _norms(model).items()
        for name in STATISTICS
    }


def _statistics(model: BayesianModel, draw: Draw, batches: list[Inputs]) -> dict[str, Tensor]:
    """Return the statistics for a draw, averaged over the batches."""
    with eval_mode(model), _recording(model):
        for batch in batches:
            model.output_given(draw, batch)
        return {name: value.clone() for name, value in _running(model).items()}


@contextmanager
def _recording(model: BayesianModel) -> Iterator[None]:
    """Let batch normalisation compute new statistics, and restore the old ones at the end."""
    layers = list(_norms(model).values())
    buffers = [{name: value.clone() for name, value in layer.named_buffers(recurse=False)} for layer in layers]
    before = [(layer.momentum, layer.training) for layer in layers]
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum, layer.training = None, True  # equal weights for all batches
        yield
    finally:
        for layer, (momentum, is_training), values in zip(layers, before, buffers, strict=True):
            layer.momentum, layer.training = momentum, is_training
            for name, value in values.items():
                layer.get_buffer(name).copy_(value)
