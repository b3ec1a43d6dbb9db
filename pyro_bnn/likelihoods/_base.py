"""What a likelihood is."""

from abc import ABCMeta, abstractmethod
from dataclasses import dataclass

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Distribution

from .. import _checks
from .._reflection import move_distribution
from ..uncertainty import Accumulator


class _AbstractPyroModule(type(PyroModule), ABCMeta):  # type: ignore[misc]
    """PyroModule has a metaclass of its own, so that `ABC` alone does not mix in."""


@dataclass(frozen=True)
class MovedPrior:
    """What a `PyroSample` of a likelihood calls: a fixed prior, on the device and in the dtype of its buffer `like`."""

    prior: Distribution

    def __call__(self, likelihood: PyroModule) -> TorchDistributionMixin:
        moved = move_distribution(self.prior, likelihood.get_buffer("like"))
        assert isinstance(moved, TorchDistributionMixin)
        return moved


class Likelihood(PyroModule, metaclass=_AbstractPyroModule):  # type: ignore[metaclass]
    """Maps the output of a network to the distribution of an observation.

    A subclass says which distribution, which targets are allowed, and how draws of it become a prediction. It may own
    a learnable parameter or a latent variable (a `PyroSample`).
    """

    @abstractmethod
    def forward(self, output: Tensor) -> TorchDistributionMixin:
        """The observation distribution, elementwise.

        Args:
            output: Network output of shape ``(..., N, *rest)``, the leading axes being weight draws.

        Returns:
            A distribution whose batch shape is that of the targets, with the same leading axes.

        Raises:
            ValueError: If the output's shape makes no sense for this likelihood.
        """

    @abstractmethod
    def check_values(self, output: Tensor, y: Tensor) -> None:
        """Raise if a target has a dtype or value that cannot be observed; shapes are checked by the model."""

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """The targets as the log-density wants them, given the dtype of the network's output."""
        return y

    def draw_shape(self) -> torch.Size:
        """Leading axes of vectorised draws that the likelihood's own latent variables have; none by default."""
        return torch.Size()

    @property
    def has_fixed_priors(self) -> bool:
        """Whether no prior of the likelihood's own latent variables depends on other variables."""
        return all(isinstance(prior, (Distribution, MovedPrior)) for prior in self._pyro_samples.values())

    @abstractmethod
    def accumulator(self) -> Accumulator:
        """A fresh sum over weight draws, which ends in a prediction."""


def require_counts(name: str, y: Tensor) -> None:
    """Raise unless every target is a whole number of at least 0."""
    if bool((y < 0).any()) or (y.is_floating_point() and bool((y != y.floor()).any())):
        raise ValueError(f"targets of {name} must be whole numbers of at least 0, got values down to {float(y.min())}.")


def require_real(name: str, y: Tensor) -> None:
    """Raise unless the targets are finite floating-point numbers."""
    if not y.is_floating_point():
        raise ValueError(f"targets of {name} must be floating point, got {y.dtype}; convert with `y.float()`.")
    _checks.finite("y", y)


def require_output_dims(name: str, output: Tensor, minimum: int, axes: str) -> None:
    """Raise unless the output has the axes that the likelihood reads."""
    if output.dim() < minimum:
        raise ValueError(f"{name} needs a network output of shape {axes}, got {_checks.shape(output)}.")


def lift(value: Tensor, event_dim: int, output: Tensor) -> Tensor:
    """Line up a latent of shape (*draws, *event) with an output of shape (*draws, N, *event)."""
    num_lead = value.dim() - event_dim
    if num_lead == 0:
        return value
    missing = output.dim() - value.dim()
    return value.reshape(value.shape[:num_lead] + (1,) * missing + value.shape[num_lead:]) if missing > 0 else value


def split_last(name: str, output: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Split the last axis into equal parts."""
    require_multiple(name, output, parts)
    return torch.chunk(output, parts, dim=-1)


def require_multiple(name: str, output: Tensor, parts: int) -> None:
    """Raise unless there is a last axis that can be split into equal parts."""
    size = output.shape[-1] if output.dim() else 0
    if output.dim() < 2 or size % parts:
        raise ValueError(
            f"{name} needs a network output of shape (N, {parts} * O), got {_checks.shape(output)}; "
            f"give the last layer {parts} outputs per target."
        )
