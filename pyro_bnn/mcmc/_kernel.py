"""What every sampler of chains does, and what it hands over."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

ValueAndGrad = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From points, shape (K, P), to their potentials, (K,), and the gradients of those, (K, P)."""

DIVERGENCE = 1000.0
"""Energy error in nats that marks a trajectory as divergent; Stan's constant."""


@dataclass(frozen=True)
class Draws:
    """What the chains that have `finished` a draw have to say; every field has one row per chain."""

    finished: Tensor  # (K,)
    z: Tensor  # (K, P)
    log_density: Tensor  # (K,)
    energy: Tensor
    accept: Tensor
    diverging: Tensor
    num_steps: Tensor


class Kernel(ABC):
    """A sampler of many chains, one per row, all of which share one evaluation of the potential.

    Args:
        value_and_grad: The potential.
        z: First points, shape (K, P).
    """

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor) -> None:
        self.value_and_grad = value_and_grad
        self.step_size = z.new_ones(len(z))  # (K,)
        self.inverse_mass = torch.ones_like(z)  # (K, P): the variances of z, as far as they are known

    @abstractmethod
    def draws(self) -> Iterator[Draws]:
        """Run for ever; whenever chains finish a draw, yields. Step size and mass may then be set."""

    def find_step(self, z: Tensor, inverse_mass: Tensor) -> float:
        """A first step size for one chain: doubled or halved until one step is accepted half of the time.

        Args:
            z: Its point, shape (P,).
            inverse_mass: Shape (P,).

        References:
            Hoffman and Gelman (2014), https://arxiv.org/abs/1111.4246, algorithm 4.
        """
        rows = z.expand_as(self.inverse_mass)  # a compiled potential takes the number of rows that it was made for
        potential, gradient = self.value_and_grad(rows)
        r = torch.randn_like(z) * inverse_mass.rsqrt()
        start = potential[0] + 0.5 * torch.dot(r, r * inverse_mass)

        def accepts(step: float) -> bool:
            end = leapfrog(self.value_and_grad, rows, r, gradient, step, step * inverse_mass)
            lost = end[3][0] + 0.5 * torch.dot(end[1][0], end[1][0] * inverse_mass) - start
            return bool(lost < math.log(2))

        step = 1.0
        grows = accepts(step)
        factor = 2.0 if grows else 0.5
        for _ in range(60):  # a power of two that float32 still holds
            step *= factor
            if accepts(step) != grows:
                break
        return step


def leapfrog(
    value_and_grad: ValueAndGrad, z: Tensor, r: Tensor, gradient: Tensor, step: Tensor | float, drift: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step of size `step`, with `drift` the step times the inverse mass; returns z, r, gradient, potential."""
    r = r - (0.5 * step) * gradient
    z = torch.addcmul(z, r, drift)
    potential, gradient = value_and_grad(z)
    return z, r - (0.5 * step) * gradient, gradient, potential
