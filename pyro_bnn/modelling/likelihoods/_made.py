"""Distributions that a function makes from outputs, and cumulative distribution functions from SciPy."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro.distributions as dist
import scipy.special
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Beta, Binomial, Distribution, NegativeBinomial, Poisson, StudentT, constraints

from ..._core.devices import reads_wait
from ..._core.scope import seeded
from ...scores.uncertainty import RunningMoments, Sliced
from ._numbers import lifted

MOMENT_DRAWS = 1000  # heuristic: for moments without closed form; adds 1/1000 of the noise to the epistemic variance
MOST_NUMBERS = 2**22  # heuristic: largest number of drawn values in memory at one time (34 MB in double precision)


@dataclass(frozen=True)
class Maker:
    """A function that makes a distribution from an output and numbers of shape ``(*draws, *event)``."""

    make: Callable[[Tensor, Mapping[str, Tensor]], Distribution]
    event_dims: Mapping[str, int]  # number of event axes of each number, by name

    def __call__(self, output: Tensor, values: Mapping[str, Tensor]) -> Distribution:
        return self.make(output, {name: lifted(v, self.event_dims[name], output) for name, v in values.items()})


class MadeDistribution(TorchDistribution, Sliced):
    """The distribution that a `Maker` makes from outputs ``(*draws, N, *rest)`` and numbers ``(*draws, *event)``.

    To select or join draws or rows, it selects or joins the outputs and numbers, and makes a new distribution from the
    result. Moments without closed form are estimated from draws, always with the same seed.
    """

    arg_constraints = {}  # noqa: RUF012  # torch's own convention

    def __init__(self, maker: Maker, output: Tensor, values: Mapping[str, Tensor]) -> None:
        self._maker, self.output, self._names, self._values = maker, output, tuple(values), tuple(values.values())
        self.inner: Distribution = maker(output, values)
        self._drawn: tuple[Tensor, ...] = ()  # mean and variance, if they have no closed form
        super().__init__(self.inner.batch_shape, self.inner.event_shape, validate_args=False)

    @property
    def numbers(self) -> dict[str, Tensor]:
        return dict(zip(self._names, self._values, strict=True))

    @property
    def support(self) -> constraints.Constraint:
        return self.inner.support  # type: ignore[return-value]  # a property of most distributions

    def expand(self, batch_shape: Sequence[int], _instance: Distribution | None = None) -> Any:
        num_new = len(batch_shape) - len(self.batch_shape)
        if tuple(batch_shape)[max(num_new, 0) :] != tuple(self.batch_shape):
            return self.inner.expand(torch.Size(batch_shape))
        if not num_new:
            return self
        output = self.output.expand(*tuple(batch_shape)[:num_new], *self.output.shape)
        return MadeDistribution(self._maker, output, self.numbers)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        return self.inner.sample(torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.inner.log_prob(value)

    def cdf(self, value: Tensor) -> Tensor:
        return cdf(self.inner, value)

    def icdf(self, value: Tensor) -> Tensor:
        return self.inner.icdf(value)

    @property
    def mean(self) -> Tensor:
        return self._moment(0)

    @property
    def variance(self) -> Tensor:
        return self._moment(1)

    def _moment(self, index: int) -> Tensor:
        if self._drawn:
            return self._drawn[index]
        try:
            value = self.inner.variance if index else self.inner.mean
        except NotImplementedError:
            self._drawn = _moments_of_draws(self.inner)
            return self._drawn[index]
        is_checked = not (index or reads_wait(value.device) or torch.compiler.is_compiling())
        if is_checked and value.numel() and bool((value.isnan() & ~self.output.isnan().any()).all()):
            raise ValueError(
                f"a prediction needs the mean of an observation, but {type(self.inner).__name__} has none; use a "
                "distribution with a mean, such as a StudentT with more than 2 degrees of freedom."
            )
        return value

    def replaced(self, make: Callable[[Distribution], Distribution]) -> "MadeDistribution":
        """Return a copy whose `inner` is ``make(self.inner)``."""
        inner_make = self._maker.make
        maker = Maker(lambda output, values: make(inner_make(output, values)), self._maker.event_dims)
        return MadeDistribution(maker, self.output, self.numbers)

    def taken(self, index: Tensor, dim: int) -> "MadeDistribution":
        values = self.numbers
        if dim == 0:
            values = {name: v.index_select(0, index) if self._is_drawn(name, v) else v for name, v in values.items()}
        return MadeDistribution(self._maker, self.output.index_select(dim, index), values)

    def _is_drawn(self, name: str, value: Tensor) -> bool:
        """Return whether a number has a value of its own for each draw."""
        return value.dim() > self._maker.event_dims[name] and len(value) > 1

    def joined(self, others: Sequence["MadeDistribution"], dim: int) -> "MadeDistribution":
        output = torch.cat([other.output for other in others], dim)
        return MadeDistribution(self._maker, output, self._joined_numbers(others) if dim == 0 else self.numbers)

    def _joined_numbers(self, others: Sequence["MadeDistribution"]) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {name: [] for name in self._names}
        for other in others:
            for name, value in other.numbers.items():
                event = value.shape[value.dim() - self._maker.event_dims[name] :]
                parts[name].append(value.reshape(-1, *event).expand(len(other.output), *event))
        return {name: torch.cat(values) for name, values in parts.items()}


def _moments_of_draws(distribution: Distribution) -> tuple[Tensor, Tensor]:
    at_once = max(MOST_NUMBERS // max(math.prod(distribution.batch_shape), 1), 1)
    moments = RunningMoments()
    with torch.no_grad(), seeded(0):
        while moments.count < MOMENT_DRAWS:
            num_draws = min(at_once, MOMENT_DRAWS - moments.count)
            moments.add(distribution.sample(torch.Size([num_draws])).double())
    assert moments.variance is not None
    return moments.mean, moments.variance


def _binomial(of: Binomial, value: Tensor) -> Tensor:
    below = torch.minimum(value.floor(), of.total_count)
    return _by(scipy.special.bdtr, below.clamp_min(0), of.total_count, of.probs) * (value >= 0)


def _negative_binomial(of: NegativeBinomial, value: Tensor) -> Tensor:
    failure = torch.sigmoid(-of.logits)  # not 1 - probs, which loses digits
    count = value.floor()
    return _by(scipy.special.betainc, of.total_count, count.clamp_min(0) + 1, failure) * (count >= 0)


def _by(function: Callable[..., np.ndarray], *arguments: Tensor) -> Tensor:
    arrays = (argument.detach().double().cpu().numpy() for argument in arguments)
    dtype = torch.promote_types(arguments[0].dtype, torch.float32)
    return torch.as_tensor(function(*arrays)).to(arguments[0].device, dtype)


KNOWN: dict[type[Distribution], Callable[..., Tensor]] = {  # cumulative distribution functions
    StudentT: lambda of, y: _by(scipy.special.stdtr, of.df, (y - of.loc) / of.scale),
    Beta: lambda of, y: _by(scipy.special.betainc, of.concentration1, of.concentration0, y.clamp(0, 1)),
    Poisson: lambda of, y: _by(scipy.special.pdtr, y.floor().clamp_min(0), of.rate) * (y >= 0),
    Binomial: _binomial,
    NegativeBinomial: _negative_binomial,
    dist.ZeroInflatedDistribution: lambda of, y: (of.gate + (1 - of.gate) * cdf(of.base_dist, y)) * (y >= 0),
}


def cdf(distribution: Distribution, value: Tensor) -> Tensor:
    """Return the probability that a draw is at most `value`; without gradient for the classes in :data:`KNOWN`."""
    for kind, function in KNOWN.items():
        if isinstance(distribution, kind):
            return function(distribution, value)
    return distribution.cdf(value)
