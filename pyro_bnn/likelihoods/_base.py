"""The interface of likelihoods, and checks that they share."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Distribution

from .. import _checks
from .._reflection import move_distribution
from .._scope import AbstractPyroModule
from ..uncertainty import Accumulator


@dataclass(frozen=True)
class MovedPrior:
    """Function of a `PyroSample`: a fixed prior, on the device and in the dtype of the likelihood's buffer `like`."""

    prior: Distribution

    def __call__(self, likelihood: PyroModule) -> TorchDistributionMixin:
        moved = move_distribution(self.prior, likelihood.get_buffer("like"))
        assert isinstance(moved, TorchDistributionMixin)
        return moved


class Likelihood(PyroModule, metaclass=AbstractPyroModule):  # type: ignore[metaclass]
    """Maps the output of a network to the distribution of an observation.

    A subclass defines the distribution, the targets that are allowed, and the prediction from many weight draws. It may
    own a learnable parameter or a latent variable (a `PyroSample`).
    """

    @abstractmethod
    def forward(self, output: Tensor) -> TorchDistributionMixin:
        """The elementwise distribution of the observations.

        Args:
            output: Network output, shape ``(*draws, N, *rest)``.

        Returns:
            A distribution whose batch shape is ``draws`` followed by the shape of the targets.

        Raises:
            ValueError: If the output does not have the shape that this likelihood needs.
        """

    @abstractmethod
    def check_values(self, output: Tensor, y: Tensor) -> None:
        """Raise if a target has a wrong dtype or an impossible value; the model has checked the shape.

        Args:
            output: Network output, of at least one row.
            y: Targets, shape (N, ...).

        Raises:
            ValueError: If a target cannot be observed.
        """

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """The targets in the form that the log-density takes; `dtype` is that of the network's output."""
        return y

    def draw_shape(self) -> torch.Size:
        """Shape of the draw axes that the likelihood's own latent variables have in this call; empty by default."""
        return torch.Size()

    @property
    def has_fixed_priors(self) -> bool:
        """Whether the priors of the likelihood's own latent variables depend on no other variable."""
        return all(isinstance(prior, (Distribution, MovedPrior)) for prior in self._pyro_samples.values())

    @abstractmethod
    def accumulator(self) -> Accumulator:
        """An empty running sum over weight draws, which makes a prediction from them."""


def require_counts(name: str, y: Tensor) -> None:
    """Raise unless every target is a whole number of at least 0."""
    if y.is_complex():
        raise ValueError(f"targets of {name} must be whole numbers, got {y.dtype}; convert with `y.real`.")
    _checks.finite("y", y)
    if bool((y < 0).any()) or (y.is_floating_point() and bool((y != y.floor()).any())):
        raise ValueError(f"targets of {name} must be whole numbers of at least 0, got values down to {float(y.min())}.")


def require_real(name: str, y: Tensor) -> None:
    """Raise unless the targets are finite floating-point numbers."""
    if not y.is_floating_point():
        raise ValueError(f"targets of {name} must be floating point, got {y.dtype}; convert with `y.float()`.")
    _checks.finite("y", y)


def require_output_dims(name: str, output: Tensor, minimum: int, axes: str) -> None:
    """Raise unless the output has at least `minimum` axes; `axes` is the expected shape, for the message."""
    _require_numbers(name, output)
    if output.dim() < minimum:
        raise ValueError(f"{name} needs a network output of shape {axes}, got {_checks.shape(output)}.")


def _require_numbers(name: str, output: object) -> None:
    """Raise unless the output is a dense floating-point tensor; its values are not looked at."""
    _checks.kind("output", output, Tensor, f"a tensor for {name}")
    assert isinstance(output, Tensor)
    if not output.is_floating_point() or output.layout != torch.strided:
        raise ValueError(
            f"{name} needs a dense network output in floating point, got {output.dtype} of layout {output.layout}; "
            "convert the last layer's output with `.float()` or `.to_dense()`."
        )


def lift(value: Tensor, event_dim: int, output: Tensor) -> Tensor:
    """Insert axes into a latent of shape (*draws, *event) so that it broadcasts with an output (*draws, N, *event)."""
    num_lead = value.dim() - event_dim
    if num_lead == 0:
        return value
    missing = output.dim() - value.dim()
    return value.reshape(value.shape[:num_lead] + (1,) * missing + value.shape[num_lead:]) if missing > 0 else value


def split_last(name: str, output: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Split the last axis of the output into `parts` equal parts."""
    require_multiple(name, output, parts)
    return torch.chunk(output, parts, dim=-1)


def require_multiple(name: str, output: Tensor, parts: int) -> None:
    """Raise unless the output has a last axis that can be split into `parts` equal parts."""
    _require_numbers(name, output)
    size = output.shape[-1] if output.dim() else 0
    if output.dim() < 2 or size % parts:
        raise ValueError(
            f"{name} needs a network output of shape (N, {parts} * O), got {_checks.shape(output)}; "
            f"give the last layer {parts} outputs per target."
        )
