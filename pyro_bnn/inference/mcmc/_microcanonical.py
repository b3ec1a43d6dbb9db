r"""Microcanonical Langevin dynamics: chains that move at unit speed and are never rejected.

A point has a position z of P numbers and a direction u of length 1. With the potential U, the dynamics

.. math:: \dot z = u, \qquad \dot u = -(1 - u u^T)\, \nabla U(z) / (P - 1)

leave the density exp(-U) of z unchanged. So does the noise that is added to the direction after each step.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ._kernel import DIVERGENCE, Draws, ValueAndGrad
from ._replayed import TorchKernel

OUTER = 0.1931833275037836
"""Fraction of a step in the first and in the last turn of the direction; it minimises the error of the integrator."""


class MCLMCKernel(TorchKernel):
    """MCLMC on one potential, all chains in one batch; see :class:`~pyro_bnn.MCLMC`.

    Attributes:
        length: Distance over which each chain forgets its direction, shape (K,). Warm-up writes it.

    Args:
        value_and_grad: The potential.
        z: First points, shape (K, P).
        steps_per_draw: Number of steps from one draw to the next, T.
        not_in_c: The reason why it does not draw in C.
    """

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor, steps_per_draw: int, *, not_in_c: str) -> None:
        super().__init__(value_and_grad, z, not_in_c)
        self.length = torch.ones_like(self.step_size)
        self._steps_per_draw = steps_per_draw
        self._z, self._direction = z, torch.zeros_like(z)
        self._potential, self._gradient = self.value_and_grad(z)

    def draw(self) -> Draws:
        if not bool(self._direction.any()):  # before the first draw
            self._direction = normalize(torch.randn_like(self._z))
        errors = torch.stack([self._step() for _ in range(self._steps_per_draw)], -1)
        return Draws(
            finished=torch.ones_like(self.step_size, dtype=torch.bool),
            z=self._z,
            log_density=-self._potential,
            energy=None,
            accept=None,
            diverging=errors.isnan().any(-1),
            num_steps=torch.full_like(self.step_size, self._steps_per_draw, dtype=torch.long),
            energy_errors=errors,
        )

    def _step(self) -> Tensor:
        """Take one step of every chain; returns the energy errors, shape (K,), NaN for a step that was not taken."""
        z, step, num_weights = self._z, self.step_size[:, None], self._z.shape[1]
        direction, change = turned(self._direction, self._gradient, OUTER * step)
        z = torch.addcmul(z, direction, 0.5 * step)
        direction, middle = turned(direction, self.value_and_grad(z)[1], (1 - 2 * OUTER) * step)
        z = torch.addcmul(z, direction, 0.5 * step)
        potential, gradient = self.value_and_grad(z)
        direction, last = turned(direction, gradient, OUTER * step)
        error = change + middle + last + potential - self._potential
        is_taken = (error.square() <= DIVERGENCE * num_weights) & gradient.isfinite().all(-1)
        row = is_taken[:, None]
        self._z, self._gradient = torch.where(row, z, self._z), torch.where(row, gradient, self._gradient)
        self._potential = torch.where(is_taken, potential, self._potential)
        direction = torch.where(row, direction, self._direction)
        noise = refreshment(self.step_size, self.length, num_weights)[:, None] * torch.randn_like(z)
        self._direction = normalize(direction + noise)
        return torch.where(is_taken, error, torch.nan)

    def state(self) -> dict[str, Any]:
        return {
            "z": self._z,
            "direction": self._direction,
            "gradient": self._gradient,
            "potential": self._potential,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.require_own(state, "direction")
        names = ("z", "direction", "gradient", "potential")
        self._z, self._direction, self._gradient, self._potential = (
            state[name].to(self._z, copy=True) for name in names
        )


def turned(direction: Tensor, gradient: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    r"""Directions after turning for some time at a constant gradient, and the changes of kinetic energy.

    With :math:`e = -g / |g|`, :math:`\delta = t |g| / (P - 1)`, :math:`\zeta = e^{-\delta}` and
    :math:`a = u \cdot e`, the direction becomes :math:`e (1 - \zeta) (1 + \zeta + a (1 - \zeta)) + 2 \zeta u`, scaled
    to length 1, and the kinetic energy grows by
    :math:`(P - 1) (\delta - \log 2 + \log(1 + a + (1 - a) \zeta^2))`.

    Args:
        direction: Directions u, shape (K, P).
        gradient: Gradients g, shape (K, P).
        time: Times t, shape (K, 1).
    """
    norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    descent = -gradient / norm.clamp_min(torch.finfo(norm.dtype).tiny)
    free = gradient.shape[1] - 1
    delta = time * norm / free
    zeta, along = (-delta).exp(), (direction * descent).sum(-1, keepdim=True)
    new = descent * (1 - zeta) * (1 + zeta + along * (1 - zeta)) + 2 * zeta * direction
    change = free * (delta - math.log(2) + (1 + along + (1 - along) * zeta**2).log())
    return normalize(new), change.squeeze(-1)


def refreshment(step: Tensor, length: Tensor, num_weights: int) -> Tensor:
    """Standard deviation of the noise on each component of a direction, which is forgotten over a distance `length`."""
    return (torch.expm1(2 * step / length) / num_weights).sqrt()
