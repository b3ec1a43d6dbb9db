"""The interface of samplers: a class with settings, and the kernel that it makes for one potential."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..._core.summary import Shown, Summary, counted
from ._adaptation import Adaptation, AnyAdaptation

ValueAndGrad = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function that returns the potentials, shape (K,), and their gradients, shape (K, P), at points of shape (K, P)."""

Compile = bool | Literal["auto"]
"""Whether to draw in C; see :func:`~pyro_bnn.fit_mcmc`."""

DIVERGENCE = 1000.0  # largest energy error in nats, as in Stan; with MCLMC, its square over P


@dataclass(frozen=True)
class Draws:
    """The draws that the chains of a kernel have just finished. Shapes are (K,) unless stated otherwise.

    :class:`ChainStatistics` describes the fields not listed here. A field that the sampler does not report is None.

    Args:
        finished: Which chains have finished a draw. In the other fields, the rows of unfinished chains have no
            meaning.
        z: Positions, shape (K, P).
        diverging: Whether the energy error exceeded `DIVERGENCE`, or was not finite.
        energy_errors: Energy error of each of T steps, in nats, shape (K, T); NaN for a step that was not taken.
    """

    finished: Tensor
    z: Tensor
    log_density: Tensor
    energy: Tensor | None
    accept: Tensor | None
    diverging: Tensor
    num_steps: Tensor
    energy_errors: Tensor | None = None

    @property
    def energy_error(self) -> Tensor | None:
        """The mean squared energy error of the steps, divided by P; shape (K,)."""
        errors = self.energy_errors
        return None if errors is None else errors.square().nanmean(-1).nan_to_num(0.0) / self.z.shape[1]


MOST_DIVERGING = 0.01  # heuristic: largest share of draws with divergent steps if each chain explores one mode


@dataclass(frozen=True, repr=False)
class ChainStatistics(Shown):
    """Statistics of each draw, from the sampler.

    Shapes are (K, S) unless stated otherwise. A statistic that the sampler does not report is None.

    Args:
        log_density: Log joint density in unconstrained space, in nats.
        energy: Hamiltonian of the draw, in nats.
        accept: Mean acceptance probability along the trajectory.
        diverging: Whether the trajectory diverged, because its steps were too long.
        num_steps: Number of steps.
        step_size: Step size after warm-up, shape (K,).
        inverse_mass: Diagonal of the inverse mass matrix after warm-up, shape (K, P).
        seconds: Wall time of warm-up and sampling together.
        energy_error: Squared energy error of a step, in squared nats, averaged over the steps of a draw and divided by
            the number P of latent values. Only samplers whose warm-up uses energy errors report it.
    """

    log_density: Tensor | None = None
    energy: Tensor | None = None
    accept: Tensor | None = None
    diverging: Tensor | None = None
    num_steps: Tensor | None = None
    step_size: Tensor | None = None
    inverse_mass: Tensor | None = None
    seconds: float | None = None
    energy_error: Tensor | None = None

    @property
    def num_diverging(self) -> int | None:
        """Number of divergent draws of all chains."""
        return None if self.diverging is None else int(self.diverging.sum())

    @property
    def share_diverging(self) -> float | None:
        """Share of divergent draws of all chains."""
        return None if self.diverging is None else float(self.diverging.double().mean())

    @property
    def has_many_diverging(self) -> bool:
        """Whether more than 1 % of the draws are divergent, which is too many even if each chain explores one mode."""
        return (self.share_diverging or 0.0) > MOST_DIVERGING

    def _summary(self) -> Summary:
        known = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        rows = [(name, str(tuple(value.shape)), float(value.double().mean())) for name, value in known.items()]
        return Summary("ChainStatistics", rows=rows, header=("statistic", "shape", "mean"))


def in_short(samples: Mapping[str, Tensor], statistics: ChainStatistics, sampler: str) -> str:
    num_chains, num_draws = next(iter(samples.values())).shape[:2]
    count = statistics.num_diverging
    seconds = "" if statistics.seconds is None else f" in {statistics.seconds:.0f} s"
    divergences = "divergences not reported" if count is None else counted(count, "divergence")
    return f"{sampler}: {counted(num_chains, 'chain')} of {num_draws} draws{seconds}, {divergences}"


class Kernel(ABC):
    """A sampler applied to one potential, for K chains. Row k of every tensor belongs to chain k.

    Args:
        value_and_grad: The potential.
        z: First positions of the chains, shape (K, P).
    """

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor) -> None:
        self.value_and_grad = value_and_grad
        self.step_size = z.new_ones(len(z))
        """The step size of each chain, shape (K,), which warm-up sets."""
        self.inverse_mass = torch.ones_like(z)
        """The diagonal of each chain's inverse mass matrix, shape (K, P): estimated variances of z."""
        self.is_needed = [True] * len(z)
        """Which chains still need draws. A kernel may skip the other chains."""
        self.path = ""
        """How draws are computed, and why not in a faster way; see :attr:`~pyro_bnn.MCMCPosterior.path`."""

    @abstractmethod
    def draw(self) -> Draws:
        """Run until at least one chain finishes a draw. Step size and inverse mass may change between two calls."""

    def at(self, z: Tensor) -> "Kernel | None":
        """Return a kernel of the same potential for chains at z, shape (K, P); None if the sampler must make it."""
        return None

    def state(self) -> dict[str, Any]:
        """Return the state of the chains between two draws, as numbers, tensors, lists and dictionaries.

        This state determines the next draws, together with the step sizes, the inverse masses and torch's generators.
        """
        raise self._stateless()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a result of :meth:`state`, with tensors on any device."""
        raise self._stateless()

    def require_own(self, state: Mapping[str, Any], name: str) -> None:
        """Raise a `ValueError` if a state lacks the entry `name`, because another class of kernels has saved it."""
        if name not in state:
            raise ValueError(
                "`resume` must be a file of the same sampler, but one of the two runs draws in C and the other in "
                "torch; resume with the same `compile`, and with a C compiler if the first run had one."
            )

    def _stateless(self) -> ValueError:
        return ValueError(
            f"`checkpoint` and `resume` need a sampler that can save its state, but {type(self).__name__} does not "
            "define both `state` and `restore`; define them, or leave these arguments out."
        )

    def momentum(self, chain: int) -> Tensor:
        """Draw standard normal numbers, shape (P,), for a chain's first momentum."""
        return torch.randn_like(self.inverse_mass[chain])

    def find_step(self, chain: int, z: Tensor, inverse_mass: Tensor) -> float:
        """Find a chain's initial step size at z, shape (P,): double or halve it until the acceptance crosses 1/2.

        References:
            Hoffman and Gelman (2014), https://arxiv.org/abs/1111.4246, algorithm 4.
        """
        rows = z.expand_as(self.inverse_mass)  # a recorded potential takes only this number of rows
        potential, gradient = self.value_and_grad(rows)
        r = self.momentum(chain) * inverse_mass.rsqrt()
        start = potential[0] + 0.5 * torch.dot(r, r * inverse_mass)

        def accepts(step: float) -> bool:
            end = leapfrog(self.value_and_grad, rows, r, gradient, step, step * inverse_mass)
            lost = end[3][0] + 0.5 * torch.dot(end[1][0], end[1][0] * inverse_mass) - start
            return bool(lost < math.log(2))

        step = 1.0
        grows = accepts(step)
        factor = 2.0 if grows else 0.5
        for _ in range(60):  # float32 can represent 2 ** 60
            step *= factor
            if accepts(step) != grows:
                break
        return step


class NotInCError(ValueError):
    """Raised for ``compile=True`` if C cannot compute the draws; `reason` says why."""

    def __init__(self, reason: str, *, is_of_compiler: bool) -> None:
        super().__init__(reason)
        self.reason, self.is_of_compiler = reason, is_of_compiler

    def __str__(self) -> str:
        return f'`compile=True` draws in C, but {self.reason}; use `compile="auto"` or `compile=False`.'


def leapfrog(
    value_and_grad: ValueAndGrad, z: Tensor, r: Tensor, gradient: Tensor, step: Tensor | float, drift: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Take a leapfrog step, and return z, r, gradient and potential. `drift` is the step size times the inverse mass.

    Example:
        >>> import torch
        >>> from pyro_bnn.inference.mcmc import leapfrog
        >>> normal = lambda z: (z.square().sum(-1) / 2, z)  # potential and gradient
        >>> z, r = torch.ones(1, 1), torch.zeros(1, 1)
        >>> leapfrog(normal, z, r, z, 0.1, torch.tensor(0.1))[:2]
        (tensor([[0.9950]]), tensor([[-0.0997]]))
    """
    r = r - (0.5 * step) * gradient
    z = torch.addcmul(z, r, drift)
    potential, gradient = value_and_grad(z)
    return z, r - (0.5 * step) * gradient, gradient, potential


class Sampler(ABC):
    """An MCMC algorithm with its settings, for :func:`~pyro_bnn.fit_mcmc`.

    Subclasses are frozen dataclasses. The code that runs and judges chains is the same for all samplers.
    """

    @property
    def name(self) -> str:
        """The name of the algorithm in messages."""
        return type(self).__name__

    def adaptation(self, num_warmup: int, target_accept: float, start: Tensor) -> AnyAdaptation:
        """Return the object that adapts one chain during warm-up. The chain begins at `start`, shape (P,).

        By default, the object learns a mass matrix, and a step size for the acceptance rate `target_accept`.
        """
        return Adaptation(num_warmup, target_accept, start)

    @abstractmethod
    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: Compile = False) -> Kernel:
        """Make the kernel for one potential and K chains that begin at the positions z, shape (K, P).

        If C is not possible, this method raises a `NotInCError` for ``compile=True``. For ``compile="auto"``, it
        returns a kernel that draws in torch.
        """
