"""The interface of likelihoods, and their common checks."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Distribution, constraints

from ..._core import checks as _checks
from ..._core.reflection import move_distribution
from ..._core.scope import AbstractPyroModule, without_pyro
from ...scores.uncertainty import Accumulator, MomentAccumulator, P_co, RegressionPrediction

L = TypeVar("L", bound="Likelihood[Any]")


class Weighted(TorchDistribution):
    """The distribution `base` with its log-densities multiplied by weights. Draws are those of `base`."""

    arg_constraints = {}  # noqa: RUF012  # torch's own convention

    def __init__(self, base: TorchDistributionMixin, weights: Tensor) -> None:
        self.base, self.weights = base, weights  # weights broadcast to the batch shape
        super().__init__(base.batch_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return self.base.support

    def expand(self, batch_shape: Sequence[int], _instance: Distribution | None = None) -> "Weighted":
        return Weighted(self.base.expand(batch_shape), self.weights)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        return self.base.sample(torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.base.log_prob(value) * self.weights


@dataclass(frozen=True)
class MovedPrior:
    """A function for `PyroSample` that returns a fixed prior, on the device and in the dtype of the likelihood."""

    prior: Distribution

    def __call__(self, likelihood: PyroModule) -> TorchDistributionMixin:
        moved = move_distribution(self.prior, likelihood.get_buffer("like"))
        assert isinstance(moved, TorchDistributionMixin)
        return moved


class Likelihood(PyroModule, Generic[P_co], metaclass=AbstractPyroModule):  # type: ignore[metaclass]
    r"""Maps the output of a network to the distribution of an observation.

    A subclass defines the distribution, the allowed targets, and the prediction from many draws of the network's
    weights. A likelihood may own learnable parameters or latent variables (`PyroSample`). Its type parameter, as in
    ``Likelihood[RegressionPrediction]``, tells type checkers what `predict` returns.

    A fit may weight the targets (:meth:`with_row_weights`, and `class_weights` of classifiers). With target weights w,
    the likelihood is :math:`\prod_n p(y_n \mid x_n)^{w_n}`, so a row of weight 2 counts twice, and the data count as
    :math:`\sum_n w_n` rows. A mean weight above 1 makes the posterior narrower, and one below 1 makes it wider. Target
    weights change the ELBO and the log-likelihood of a fit, but no predictions, scores or draws of observations.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> likelihood = pb.GaussianLikelihood(0.1).with_row_weights()
        >>> y, weights = torch.zeros(50, 1), torch.ones(50)
        >>> likelihood.join_weights(y, weights).shape  # the targets of a fit
        torch.Size([50, 1, 2])
    """

    has_row_weights: bool = False
    """Whether the last axis of the targets holds a value and its weight."""

    def __init__(self) -> None:
        super().__init__()  # without the argument `name` of `PyroModule`

    def keep_exact(self, name: str, value: Tensor | None) -> None:
        """Register a buffer whose value in double precision survives a move to single precision and back."""
        self.register_buffer(name, value)
        if value is not None:
            vars(self).setdefault("_exact", {})[name] = value.clone()

    def _apply(self: L, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> L:
        kept: dict[str, Tensor] = vars(self).get("_exact", {})
        before = {name: self.get_buffer(name) for name in kept}
        super()._apply(fn, recurse)
        for name, exact in kept.items():
            old, new = before[name], self.get_buffer(name)
            if old.is_meta or new.is_meta or not torch.equal(exact.to(old), old):  # a loaded file has changed it
                continue
            new.copy_(exact)
            if not bool((torch.isfinite(new) & ((new > 0) == (exact > 0))).all()):
                raise ValueError(f"`{name}` {exact.tolist()} is out of range in {new.dtype}; use a model in float64.")
        return self

    @abstractmethod
    def forward(self, output: Tensor) -> TorchDistributionMixin:
        """Return the elementwise distribution of the observations.

        Args:
            output: Network output, shape ``(*draws, N, *rest)``.

        Returns:
            A distribution whose batch shape is ``draws`` followed by the shape of the targets.
        """

    def check_output(self, output: Tensor) -> None:
        """Warn or raise if an output is of a wrong kind, such as probabilities instead of logits."""

    @abstractmethod
    def check_values(self, output: Tensor, y: Tensor) -> None:
        """Raise a `ValueError` if a target has a wrong dtype or an impossible value.

        Args:
            output: Network output for at least one row.
            y: Targets without weights, of the right shape (N, ...).
        """

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the targets without weights, as `log_prob` accepts them. `dtype` is the dtype of the output."""
        return y[..., 0] if self.has_row_weights else y

    def with_row_weights(self: L) -> L:
        """Return a copy for targets with weights, as :meth:`join_weights` returns them.

        Predictions also accept such targets, but ignore their weights.
        """
        weighted = copy.deepcopy(self)
        weighted.has_row_weights = True
        return weighted

    @staticmethod
    def join_weights(y: Tensor, weights: object = 1.0) -> Tensor:
        """Join targets and weights for a likelihood with row weights.

        Args:
            y: Targets, shape ``(N, *O)``.
            weights: A number, or a tensor, array or list of shape (N,) or ``(N, *O)``, at least 0. A weight of 0 leaves
                a target out of the fit. For a missing target, put a finite number into `y`, and give it the weight 0.

        Returns:
            The values and weights, as floating-point numbers of shape ``(N, *O, 2)``.

        Raises:
            ValueError: If a shape is wrong, if a target or weight is not finite, or if a weight is negative.
        """
        _checks.kind("y", y, Tensor, "a tensor of targets")
        dtype = y.dtype if y.is_floating_point() else torch.get_default_dtype()
        try:
            factors = torch.as_tensor(weights, dtype=dtype, device=y.device)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"`weights` must be numbers, got {type(weights).__name__}.") from None
        if factors.shape == y.shape[:1]:
            factors = factors.reshape(-1, *[1] * (y.dim() - 1)).expand(y.shape)
        if factors.dim() and factors.shape != y.shape:
            raise ValueError(
                f"`weights` must be a number, or have the shape {_checks.shape(y)[:1]} or {_checks.shape(y)}, got "
                f"{_checks.shape(factors)}."
            )
        joined = torch.stack([y.to(dtype), factors.expand(y.shape)], -1)
        _check_joined(joined)
        return joined

    def num_outputs(self, num_targets: int) -> int:
        """Return how many outputs the last layer of a network needs.

        Args:
            num_targets: Number of targets per row; for :class:`CategoricalLikelihood`, number of classes.
        """
        return num_targets

    def target_shape(self, observed: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the argument y, weights included, for observed values of shape `observed`."""
        return (*observed, 2) if self.has_row_weights else tuple(observed)

    def check_targets(self, output: Tensor, y: Tensor) -> None:
        """Raise if a target or its weight is impossible; see :meth:`check_values`."""
        if self.has_row_weights:
            _check_joined(y)
            y = y[..., 0]
        self.check_values(output, y)

    def fit_weights(self, y: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the weights of the targets in a fit, shape ``(N, *O)``; None without weights."""
        return y[..., 1].to(dtype) if self.has_row_weights else None

    def weighted(self, observation: TorchDistributionMixin, y: Tensor, dtype: torch.dtype) -> TorchDistributionMixin:
        """Return `observation` with its log-densities multiplied by the weights of the targets, if they have any."""
        weights = self.fit_weights(y, dtype)
        return observation if weights is None else Weighted(observation, weights)

    def given(self, values: Mapping[str, Tensor]) -> "Likelihood":
        """Return a copy with fixed values of the latent variables, which shares the parameters and does not use Pyro.

        Args:
            values: ``{name of the attribute: shape (*draws, *event)}``, for all latent variables.
        """
        return without_pyro(self, values)

    def prior_given(self, name: str, values: Mapping[str, Tensor]) -> TorchDistributionMixin | Tensor:
        """Return the prior of a latent variable, given the `values` of other variables; no Pyro statement runs.

        If the variable is computed from other variables, return its value.
        """
        statement: Any = self._pyro_samples[name]
        prior: Any = statement if isinstance(statement, Distribution) else statement(self.given(values))
        assert isinstance(prior, (TorchDistributionMixin, Tensor))
        return prior

    def drawn(self) -> "Likelihood":
        """Return the likelihood with latent variables drawn from their prior."""
        values: dict[str, Tensor] = {}
        for name in self._pyro_samples:
            prior = self.prior_given(name, values)
            values[name] = prior if isinstance(prior, Tensor) else prior.sample()
        return self.given(values)

    def draw_shape(self) -> torch.Size:
        """Return the draw axes of the latent variables' current values, ``(*draws,)``; empty without such variables."""
        return torch.Size()

    @property
    def has_fixed_priors(self) -> bool:
        """Whether the prior of each latent variable depends on no other variable."""
        return all(isinstance(prior, (Distribution, MovedPrior)) for prior in self._pyro_samples.values())

    @abstractmethod
    def accumulator(self) -> Accumulator[P_co]:
        """Return a new accumulator, which makes a prediction from draws of the network's weights."""


class NumberLikelihood(Likelihood[RegressionPrediction]):
    """A likelihood for regression or counts. Targets must be floating-point, unless a subclass allows other dtypes."""

    def check_values(self, output: Tensor, y: Tensor) -> None:
        require_real(type(self).__name__, y)

    def accumulator(self) -> Accumulator[RegressionPrediction]:
        return MomentAccumulator()


def _check_joined(y: Tensor) -> None:
    if not y.is_floating_point():
        raise ValueError(f"targets with weights must be floating point, got {y.dtype}; make them with `join_weights`.")
    _checks.finite("y", y)
    if bool((y[..., 1] < 0).any()):
        raise ValueError(f"weights of targets must be at least 0, got values down to {float(y[..., 1].min()):.3g}.")


def require_real(name: str, y: Tensor) -> None:
    if not y.is_floating_point():
        raise ValueError(f"targets of {name} must be floating point, got {y.dtype}; convert with `y.float()`.")
    _checks.finite("y", y)


def require_output_dims(name: str, output: Tensor, minimum: int, axes: str) -> None:
    """Raise unless the output is dense and floating-point, and has at least `minimum` axes."""
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.layout != torch.strided:
        _checks.kind("output", output, Tensor, f"a tensor for {name}")
        raise ValueError(
            f"{name} needs a dense network output in floating point, got {output.dtype} of layout {output.layout}; "
            "convert the last layer's output with `.float()` or `.to_dense()`."
        )
    if output.dim() < minimum:
        raise ValueError(f"{name} needs a network output of shape {axes}, got {_checks.shape(output)}.")


def require_one_output(name: str, output: Tensor) -> None:
    require_output_dims(name, output, 2, "(N, 1)")
    if output.shape[-1] != 1:
        raise ValueError(
            f"{name} needs a network output of shape (N, 1), got {_checks.shape(output)}; give the last layer one "
            "output."
        )


def require_multiple(name: str, output: Tensor, parts: int) -> None:
    require_output_dims(name, output, 0, "")
    size = output.shape[-1] if output.dim() else 0
    if output.dim() < 2 or size % parts:
        raise ValueError(
            f"{name} needs a network output of shape (N, {parts} * O), got {_checks.shape(output)}; "
            f"give the last layer {parts} outputs per target."
        )
