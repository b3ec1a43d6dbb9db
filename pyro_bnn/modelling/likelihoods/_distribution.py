"""Likelihoods with any distribution, which a function makes from the network's output."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyro
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, constraints

from ..._core import checks as _checks
from ..._core.reflection import unvalidated, unwrap
from ..._core.scope import EXCLUSIVE, seeded
from ...scores.uncertainty import RegressionPrediction
from ._base import NumberLikelihood, require_multiple, require_output_dims
from ._made import MadeDistribution, Maker
from ._numbers import NumbersLikelihood

WORDS: dict[Any, tuple[str, str]] = {  # descriptions of supports, and advice for targets outside of them
    constraints.positive: ("above 0", "shift or rescale them"),
    constraints.nonnegative: ("at least 0", "shift or rescale them"),
    constraints.unit_interval: ("between 0 and 1", "rescale them"),
    constraints.nonnegative_integer: ("whole numbers of at least 0", "use a distribution of real numbers"),
}


class MadeLikelihood(NumbersLikelihood[RegressionPrediction], NumberLikelihood):
    """A likelihood whose distribution depends on the output and on numbers such as a noise scale.

    A subclass implements :meth:`distribution`, and registers the numbers in `__init__`.
    """

    num_parts = 1
    """Number of parts into which the last axis of the output is split."""

    @abstractmethod
    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        """Return the distribution of the targets, batch shape ``(*draws, N, ...)``.

        Each part of the output has the shape ``(*draws, N, O)``; if `num_parts` is 1, the part is the whole output.
        `numbers` holds the quantities that the network does not output, such as a noise scale, in shapes that broadcast
        with a part.
        """

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        name = type(self).__name__
        if self.num_parts > 1:
            require_multiple(name, output, self.num_parts)
        else:
            require_output_dims(name, output, 1, "(N,) or (N, O)")
        made = MadeDistribution(Maker(self._make, self._event_dims), output, self.present_numbers())
        if made.batch_shape[:1] != output.shape[:1]:
            raise ValueError(
                f"the distribution of {name} must have one element for each row, batch shape ({len(output)}, ...), "
                f"got {tuple(made.batch_shape)} for outputs of shape {_checks.shape(output)}; let it broadcast with "
                "the output."
            )
        if made.event_shape and self.has_row_weights:
            raise ValueError(
                f"row weights need a distribution of single numbers, got {type(made.inner).__name__} with event shape "
                f"{tuple(made.event_shape)}; leave the weights out."
            )
        return made

    def _make(self, output: Tensor, numbers: Mapping[str, Tensor]) -> Distribution:
        with EXCLUSIVE, pyro.validation_enabled(False):  # checks of arguments would stop a sampler or a compiler
            made: object = self.distribution(*self._parts(output), **numbers)
        if not isinstance(made, Distribution):
            raise ValueError(
                f"`make` must return a distribution, got {_checks.described(made)}; end it with one of "
                "`pyro.distributions`."
            )
        return unvalidated(unwrap(made))

    def _parts(self, output: Tensor) -> Sequence[Tensor]:
        return [output] if self.num_parts == 1 else output.unflatten(-1, (self.num_parts, -1)).unbind(-2)

    def num_outputs(self, num_targets: int) -> int:
        return self.num_parts * num_targets

    def check_values(self, output: Tensor, y: Tensor) -> None:
        name = type(self).__name__
        made = self.for_checks(output)(output[:1])
        if y.is_complex() or not (y.is_floating_point() or made.support.is_discrete):
            raise ValueError(f"targets of {name} must be floating point, got {y.dtype}; convert with `y.float()`.")
        _checks.finite("y", y)
        inside = made.support.check(y.to(output.dtype))
        if not bool(inside.all()):
            words, remedy = WORDS.get(made.support, (f"in {str(made.support)[:80]}", "use another distribution"))
            low, high = map(float, y.aminmax())
            raise ValueError(f"targets of {name} must be {words}, got values from {low:g} to {high:g}; {remedy}.")

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return super().as_targets(y, dtype).to(dtype)

    def for_checks(self, output: Tensor) -> "MadeLikelihood":
        """Return the likelihood with a draw of its latent variables, the same at each call."""
        if not self._pyro_samples:
            return self
        with seeded(0, output.device):
            likelihood = self.drawn()
        assert isinstance(likelihood, MadeLikelihood)
        return likelihood


class DistributionLikelihood(MadeLikelihood):
    """Any distribution that a function makes from the network's output.

    :doc:`/how_to/own_likelihood` says which parts of a prediction are exact, and which are estimates. Distributions of
    vectors, such as `MultivariateNormal`, are allowed; their event axis is the last axis of the targets. A file that
    `save_posterior` writes does not contain `make`, so load it into a model with the same `make`.

    Args:
        make: Function from the output, shape ``(*draws, N, *rest)``, to a distribution of batch shape ``(*draws, N)``
            or ``(*draws, N, O)``. Count axes from the end, as in ``out[..., 0]``, since axes of draws may come
            first. ``make`` must not draw random numbers.
        num_parts: Number of parts into which the last axis of the output is split. If there are several, ``make`` gets
            each as a tensor of shape ``(*draws, N, O)``, and the network needs `num_parts` outputs for each target.
        latent: Priors of latent variables, ``{name: prior}``, without batch shape. The variables are inferred together
            with the weights, at the sites ``likelihood.NAME``. ``make`` gets their values as keyword arguments, which
            broadcast with a part of the output.
        learned: Starting values of learned real numbers, ``{name: value}``, which ``make`` gets as keyword arguments.

    Raises:
        ValueError: If `make` is not a function, if a name is not allowed, or if a prior is not a distribution, is
            discrete, or has a batch shape.

    Example:
        >>> import pyro.distributions as dist
        >>> from pyro_bnn import likelihoods
        >>> likelihood = likelihoods.DistributionLikelihood(
        ...     lambda out, scale: dist.Laplace(out, scale),
        ...     latent={"scale": dist.LogNormal(0.0, 1.0)},
        ... )
        >>> likelihood
        DistributionLikelihood(<lambda>, latent scale)
    """

    def __init__(
        self,
        make: Callable[..., Distribution],
        *,
        num_parts: int = 1,
        latent: Mapping[str, TorchDistributionMixin] | None = None,
        learned: Mapping[str, float | Tensor] | None = None,
    ) -> None:
        super().__init__()
        example = "a function from the network's output to a distribution, such as `lambda out: dist.Laplace(out, 1.0)`"
        if isinstance(make, (type, torch.nn.Module, Distribution)):
            raise ValueError(f"`make` must be {example}, got {_checks.described(make)}.")
        _checks.function("make", make, example)
        self.make, self.num_parts = make, _checks.at_least("num_parts", num_parts, 1)
        for argument, given in (("latent", latent), ("learned", learned)):
            if given is not None:
                _checks.kind(argument, given, Mapping, 'a dict by name, such as {"scale": ...}')
            for name in given or {}:
                self._check_name(argument, name)
        for name, prior in (latent or {}).items():
            self.add_latent(name, _checked_prior(name, prior))
        for name, value in (learned or {}).items():
            self.add_learned(name, _checked_start(name, value), torch.Tensor.clone)

    def _check_name(self, argument: str, name: object) -> None:
        if not isinstance(name, str) or not name.isidentifier() or name in dir(self) or name in self._event_dims:
            raise ValueError(
                f"`{argument}` must have names that can be keywords and are not taken, such as 'scale', got {name!r}; "
                "choose another name."
            )

    def distribution(self, *parts: Tensor, **numbers: Tensor) -> Distribution:
        return self.make(*parts, **numbers)

    def check_output(self, output: Tensor) -> None:
        """Raise unless `make` returns an allowed distribution, for outputs with and without an axis of draws."""
        likelihood = self.for_checks(output)
        one = likelihood(output)
        values = {name: value.expand(2, *value.shape) for name, value in likelihood.present_numbers().items()}
        if isinstance(one.inner, (Categorical, Bernoulli)):
            raise ValueError(
                f"`make` must return a distribution of numbers, got {type(one.inner).__name__}; use "
                "CategoricalLikelihood, BernoulliLikelihood or likelihoods.Ordinal for classes."
            )
        self._check_arguments(output, likelihood)
        two = MadeDistribution(Maker(self._make, self._event_dims), torch.stack([output, output]), values)
        if two.batch_shape != (2, *one.batch_shape):
            raise ValueError(
                f"`make` must work with an axis of draws before the rows: it turns outputs of shape "
                f"{_checks.shape(output)} into a batch of {tuple(one.batch_shape)}, but {(2, *output.shape)} into "
                f"{tuple(two.batch_shape)}, not {(2, *one.batch_shape)}. Count axes from the end, as in `out[..., 0]`. "
                "The likelihood's own numbers must broadcast with the whole output, as in `out[..., :1]`. `num_parts` "
                "does both for you."
            )

    def _check_arguments(self, output: Tensor, likelihood: "MadeLikelihood") -> None:
        """Raise if torch refuses the arguments of the distribution that `make` returns."""
        try:
            with EXCLUSIVE, pyro.validation_enabled(True):
                self.make(*self._parts(output), **likelihood.present_numbers())
        except ValueError as error:
            problem = str(error).strip().split("\n")[0][:200]
            raise ValueError(
                f"`make` must return an allowed distribution for every output of the network, got: {problem} Map the "
                "output to the allowed range, as with `.exp()` for a positive number."
            ) from error

    def extra_repr(self) -> str:
        parts = [getattr(self.make, "__name__", type(self.make).__name__)]
        parts += [f"num_parts={self.num_parts}"] if self.num_parts > 1 else []
        return ", ".join([*parts, *filter(None, [super().extra_repr()])])


def _checked_prior(name: str, prior: object) -> TorchDistributionMixin:
    if not isinstance(prior, TorchDistributionMixin) or prior.batch_shape:
        got = f"batch shape {tuple(prior.batch_shape)}" if isinstance(prior, Distribution) else _checks.described(prior)
        raise ValueError(
            f"`latent[{name!r}]` must be one of `pyro.distributions` without batch shape, got {got}; for a vector use "
            "`.to_event()`."
        )
    if prior.support.is_discrete:
        raise ValueError(
            f"`latent[{name!r}]` must be a continuous distribution, got {type(prior).__name__}; sum it out in `make`."
        )
    return prior


def _checked_start(name: str, value: object) -> Tensor:
    start = value if isinstance(value, Tensor) else torch.tensor(_checks.number(f"learned[{name!r}]", value))  # type: ignore[arg-type]
    _checks.finite(f"learned[{name!r}]", _checks.real_tensor(f"learned[{name!r}]", start))
    return start.detach().double().clone()
