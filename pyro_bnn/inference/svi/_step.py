"""One optimisation step, with its options and its result."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import CheckpointError

from ..._core import checks as _checks
from ..._core.devices import reads_wait
from ..._core.inputs import Batch, num_rows
from ..._core.processes import Processes
from ..._core.summary import Shown, Summary, counted
from ...modelling.model import BayesianModel, random_paths
from ..joint import CHECKPOINTED
from ._optimizers import skipping, skips_on_flag

REMEDY = "Try a lower learning rate, `clipped`, a smaller initial scale, or inputs of unit scale."
LARGE = 1e3  # heuristic: error messages mention a KL weight above this number


@dataclass(frozen=True)
class Execution:
    """How the steps of a fit are computed.

    Args:
        cuda_graph: Whether to replay steps on a GPU as CUDA graphs, which is faster for small networks (see
            :doc:`/how_to/gpu`). The Python code of the network then runs only in the first four steps for each batch
            shape. Replays need an optimizer with ``fused=True``, or one made by `natural_gradient`. With ``None``,
            steps are recorded if that is possible, and if all modules of network and likelihood come from torch or this
            package.
        num_parts: Number of parts into which each batch is cut, to save memory. Batch normalisation computes separate
            statistics for each part.
        autocast: With ``torch.bfloat16``, the network uses bfloat16 where torch considers it safe. Likelihood, guide
            and prior keep the model's dtype.
        distributed: Whether the processes of a `torch.distributed` group, if there is one, share the fit. Each process
            takes its share of the rows and draws its own noise, and gradients are averaged.

    Raises:
        ValueError: If an option has a wrong value.

    Example:
        >>> import pyro_bnn as pb
        >>> pb.Execution(num_parts=4)  # a quarter of the memory
        Execution(cuda_graph=False, num_parts=4, autocast=None, distributed=True)
    """

    cuda_graph: bool | None = False
    num_parts: int = 1
    autocast: torch.dtype | None = None
    distributed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_parts", _checks.at_least("num_parts", self.num_parts, 1))
        _checks.flag("distributed", self.distributed)
        if self.cuda_graph is not None:
            _checks.flag("cuda_graph", self.cuda_graph)
        if self.autocast is torch.float16:
            raise ValueError(
                "`autocast` must be torch.bfloat16 or None, got torch.float16: its range ends at 65504, too small for "
                "gradients over a whole data set; use torch.bfloat16, which has float32's range."
            )
        if self.autocast not in (None, torch.bfloat16):
            raise ValueError(f"`autocast` must be torch.bfloat16 or None, got {_checks.got(self.autocast)}.")
        if self.cuda_graph and self.processes.are_many:
            raise ValueError("steps of several processes cannot be recorded; leave `cuda_graph` out.")

    @classmethod
    def given(cls, execution: "Execution | None") -> "Execution":
        """Return the given options after a check, or the defaults."""
        if execution is not None:
            _checks.kind("execution", execution, Execution, "an Execution, such as Execution(num_parts=4)")
        return cls() if execution is None else execution

    @property
    def processes(self) -> Processes:
        """The processes that share the fit."""
        return Processes.present() if self.distributed else Processes()

    @property
    def needs_direct_path(self) -> str | None:
        """Name of an option that is in use and needs the direct path; None if there is no such option."""
        if self.num_parts > 1:
            return "num_parts"
        return "cuda_graph" if self.cuda_graph else ("autocast" if self.autocast else None)


class NonFiniteError(RuntimeError):
    """Raised if a loss or gradient is not finite. The parameters keep the values of the last finite step."""

    def __init__(self, problem: str, where: str, more: str = "", kl_weight: float = 1.0) -> None:
        large = f" The KL weight is {kl_weight:g}: lower it; 1 gives the ELBO." if kl_weight > LARGE else ""
        super().__init__(
            f"the {problem} is not finite at {where}{more}. The parameters are those of the last finite step."
            f"{large} {REMEDY}"
        )
        self.problem, self.where, self.more, self.kl_weight = problem, where, more, kl_weight

    def at(self, where: str) -> "NonFiniteError":
        """Return the same error, with `where` as the description of the step."""
        return NonFiniteError(self.problem, where, self.more, self.kl_weight)


@dataclass(frozen=True, repr=False)
class StepTerms(Shown):
    """The ELBO of a step, and its two terms.

    The values are in nats, for the whole data set, on the model's device. Only a conversion, such as
    ``float(terms.elbo)``, waits for a GPU.

    Args:
        values: Expected log-likelihood, KL divergence, a flag, and number of rows, shape (4,). The flag is 1 if all
            losses and gradients so far were finite, else 0.
    """

    values: Tensor

    def _summary(self) -> Summary:
        log_likelihood, kl, is_finite, rows = self.values.tolist()
        terms = f"ELBO {log_likelihood - kl:.5g} nats = log-likelihood {log_likelihood:.5g} - KL {kl:.5g}"
        note = "" if is_finite else "; a loss or gradient was not finite"
        return Summary(f"StepTerms: {terms}, from {counted(int(rows), 'row')}{note}")

    @property
    def elbo(self) -> Tensor:
        """Expected log-likelihood minus KL divergence, without the KL weight."""
        return self.values[0] - self.values[1]

    @property
    def log_likelihood(self) -> Tensor:
        """Expected log-likelihood, the data term."""
        return self.values[0]

    @property
    def kl(self) -> Tensor:
        """KL divergence, without the KL weight."""
        return self.values[1]

    @property
    def is_finite(self) -> Tensor:
        """Whether all losses and gradients so far were finite. After a failure, steps change nothing."""
        return self.values[2].bool()

    @property
    def num_rows(self) -> Tensor:
        """Number of data rows in the step, summed over all processes."""
        return self.values[3]


class GradientStep(ABC):
    """A step that computes gradients, checks that they are finite, and updates the parameters."""

    waits: bool  # whether the program waits for the device in each step, to check that all numbers are finite

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        processes: Processes,
    ) -> None:
        self.model, self.guide, self.optimizer = model, guide, optimizer
        self._processes, self._are_many = processes, processes.are_many
        self._learned, self._count = parameters, 0
        self.waits = not (skips_on_flag(optimizer) and reads_wait(parameters[0].device))
        self._is_finite = torch.ones((), dtype=torch.bool, device=parameters[0].device)

    def close(self) -> None:  # noqa: B027 (steps with Pyro's ELBOs do not need it)
        """Give each parameter of the guide its own memory again."""

    @abstractmethod
    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        """Set the gradients. Return the loss, and a tensor of expected log-likelihood and KL in nats, shape (2,)."""

    @abstractmethod
    def _bad_site(self) -> str | None:
        """Return the first site whose value or log-density was not finite in the last step."""

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._learned if parameter.grad is not None]

    def __call__(self, batch: Batch, kl_weight: float) -> StepTerms:
        """Update the parameters with the gradients of one batch, or raise a `NonFiniteError`.

        If the optimizer can skip steps by a flag on the device, the program does not wait for a GPU, and raises no
        error. After the first loss or gradient that is not finite, :attr:`StepTerms.is_finite` is False, and further
        steps have no effect.
        """
        self._count += 1
        size = float(_num_rows(batch))
        with torch.enable_grad():
            self.optimizer.zero_grad()
            try:
                loss, terms = self._backward(batch, kl_weight)
            except CheckpointError:
                raise ValueError(CHECKPOINTED) from None
        rows = torch.full((1,), size, dtype=torch.float64, device=terms.device)
        if self._are_many:
            loss, terms, rows = self._averaged(loss, terms, rows)
        checked = [loss, *(torch.linalg.vector_norm(gradient) for gradient in self._gradients())]
        is_finite = torch.isfinite(torch.stack([value.to(loss) for value in checked])).all()
        if not self.waits:
            self._is_finite &= is_finite
        elif not bool(is_finite):
            self._fail(loss, kl_weight)
        with nullcontext() if self.waits else skipping(self.optimizer, ~self._is_finite):
            self.optimizer.step()
        if self._are_many:
            self._processes.broadcast_(running_statistics(self.model))
        return StepTerms(torch.cat([terms, self._is_finite.to(terms).view(1), rows]))

    def _averaged(self, loss: Tensor, terms: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Average gradients, loss and terms over the rows of all processes; return loss, terms and number of rows."""
        header = torch.cat([terms.double() * rows, loss.double().view(1) * rows, rows]).to(self._is_finite.device)
        self._processes.sum_([header])
        share = rows.to(header)[0] / header[3]
        for parameter in self._learned:
            if parameter.requires_grad and parameter.grad is None:  # another process may have a gradient
                parameter.grad = torch.zeros_like(parameter)
        gradients = self._gradients()
        for gradient in gradients:
            gradient.mul_(share.to(gradient.dtype))
        self._processes.sum_joined_(gradients)
        means = (header[:3] / header[3]).to(terms.device)
        return means[2], means[:2], header[3:].to(terms.device)

    def _fail(self, loss: Tensor, kl_weight: float) -> NoReturn:
        if torch.isfinite(loss):
            problem, site = "gradient", self._bad_gradient() or "unknown (its norm overflows)"
        else:
            problem, site = "loss", self._bad_site() or "unknown (every site is finite by itself)"
        self.optimizer.zero_grad()
        raise NonFiniteError(problem, f"step {self._count - 1}", f"; the first bad site is {site}", kl_weight)

    def _bad_gradient(self) -> str | None:
        for owner in (self.guide, self.model):
            for name, parameter in owner.named_parameters():
                if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                    return f"`{name}`"
        return None


def _num_rows(batch: Batch) -> int:
    """Return the number of rows of a batch, or 1 if the first argument of a user's model has none."""
    if not batch or not isinstance(batch[0], (Tensor, tuple, list, Mapping)):
        return 1
    try:
        return num_rows(batch[0])
    except (ValueError, AttributeError):
        return 1


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the buffers that a step may change."""
    if not isinstance(model, BayesianModel):
        return list(model.buffers())
    random = random_paths(model)
    return [buffer for path, buffer in model.network.named_buffers() if path not in random]
