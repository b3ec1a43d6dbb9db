"""What an optimisation step is: gradients of the two terms of the ELBO, a check, an update."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ._batches import Batch

REMEDY = "Try a lower learning rate, `clipped`, a smaller initial scale, or inputs of unit scale."


class NonFiniteError(RuntimeError):
    """A loss or gradient was not finite; the parameters are still those of the last finite step.

    Args:
        problem: What is not finite.
        where: At which step.
        more: What else is known.
    """

    def __init__(self, problem: str, where: str, more: str = "") -> None:
        super().__init__(
            f"the {problem} is not finite at {where}{more}. The parameters are those of the last finite step. {REMEDY}"
        )
        self.problem, self.where, self.more = problem, where, more

    def at(self, where: str) -> "NonFiniteError":
        """The same error with another name for the step."""
        return NonFiniteError(self.problem, where, self.more)


@dataclass(frozen=True)
class StepTerms:
    """The ELBO of a step, in nats and for the whole data set, on the model's device.

    Nothing here waits for a GPU; ``float(terms.elbo)`` does.

    Args:
        values: Expected log-likelihood, KL divergence, and 1 if the step was made, 0 if a loss or gradient was not
            finite, shape (3,).
    """

    values: Tensor

    @property
    def elbo(self) -> Tensor:
        """Expected log-likelihood minus KL divergence, whatever the weight of the KL."""
        return self.values[0] - self.values[1]

    @property
    def log_likelihood(self) -> Tensor:
        """The data term."""
        return self.values[0]

    @property
    def kl(self) -> Tensor:
        """The complexity term, unweighted."""
        return self.values[1]

    @property
    def is_finite(self) -> Tensor:
        """Whether loss and gradients were finite so far: a step where they are not, and all after it, do nothing."""
        return self.values[2].bool()


class Step(ABC):
    """An optimisation step, to be called with a batch."""

    model: nn.Module
    guide: nn.Module
    optimizer: Optimizer

    waits: bool
    """Whether a step looks at its loss, and so waits for a GPU."""

    @abstractmethod
    def __call__(self, batch: Batch, kl_weight: float) -> StepTerms:
        """Update the parameters.

        Args:
            batch: What model and guide are called with.
            kl_weight: Weight of the KL term in the objective.

        Raises:
            NonFiniteError: If loss or gradient is not finite; where a GPU is not waited for, the terms say so.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the parameters back."""


class GradientStep(Step):
    """A step that computes gradients, checks them, and lets an optimizer use them.

    Args:
        model: The model.
        guide: The guide.
        parameters: What is learned, all on one device.
        optimizer: Over these.
    """

    def __init__(
        self, model: nn.Module, guide: nn.Module, parameters: list[nn.Parameter], optimizer: Optimizer
    ) -> None:
        self.model, self.guide, self.optimizer = model, guide, optimizer
        self._learned, self._count = parameters, 0
        can_skip = getattr(optimizer, "_step_supports_amp_scaling", False) and optimizer.defaults.get("fused")
        self.waits = not (can_skip and parameters[0].is_cuda)
        self._is_finite = torch.ones((), dtype=torch.bool, device=parameters[0].device)

    @abstractmethod
    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        """Set the gradients; returns the loss, and expected log-likelihood and KL in nats, shape (2,)."""

    @abstractmethod
    def _bad_site(self) -> str | None:
        """The first site, in the last call of :meth:`_backward`, whose value or log-density is not finite."""

    def _gradients(self) -> list[Tensor]:
        """All gradients, as few tensors as possible."""
        return [parameter.grad for parameter in self._learned if parameter.grad is not None]

    def __call__(self, batch: Batch, kl_weight: float) -> StepTerms:
        """Update the parameters; see :meth:`Step.__call__`.

        A GPU would have to be waited for to know whether all is finite. Where the optimizer can be told on the device
        to do nothing, it is not waited for: after a step that is not finite no further one has an effect.
        """
        self._count += 1
        with torch.enable_grad():
            self.optimizer.zero_grad()
            loss, terms = self._backward(batch, kl_weight)
        checked = [loss, *(gradient.norm() for gradient in self._gradients())]
        is_finite = torch.isfinite(torch.stack([value.to(loss) for value in checked])).all()
        if self.waits and not bool(is_finite):
            self._fail(loss)
        self._is_finite &= is_finite
        with nullcontext() if self.waits else _skipping(self.optimizer, ~self._is_finite):
            self.optimizer.step()
        return StepTerms(torch.cat([terms, self._is_finite.to(terms).view(1)]))

    def _fail(self, loss: Tensor) -> NoReturn:
        if torch.isfinite(loss):
            problem, site = "gradient", self._bad_gradient() or "unknown"
        else:
            problem, site = "loss", self._bad_site() or "unknown (every site is finite by itself)"
        self.optimizer.zero_grad()
        raise NonFiniteError(problem, f"step {self._count - 1}", f"; the first bad site is {site}")

    def _bad_gradient(self) -> str | None:
        for owner in (self.guide, self.model):
            for name, parameter in owner.named_parameters():
                if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                    return f"`{name}`"
        return None


@contextmanager
def _skipping(optimizer: Any, flag: Tensor) -> Iterator[None]:
    """A context in which a fused optimizer does nothing if the flag is set, by the means of torch's `GradScaler`."""
    optimizer.grad_scale, optimizer.found_inf = None, flag.float()
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf
