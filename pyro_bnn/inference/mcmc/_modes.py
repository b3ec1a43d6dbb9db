"""Chains that each explore a mode of their own: how well they do, and how far the modes are apart."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._diagnostics import convergence

LARGEST_WITHIN = 1.1
"""R-hat of a chain's halves up to which it counts as having explored its mode; heuristic."""


@dataclass(frozen=True)
class Modes:
    """Agreement of chains with themselves and with each other, in scalar quantities such as predictions.

    Args:
        within: Largest R-hat between the halves of one chain, of each chain, shape (K,).
        between: Largest R-hat between the chains.
        share: Share of the variance of the quantities that lies between the chains' means, from 0 to 1.
    """

    within: Tensor
    between: float
    share: float

    @property
    def problems(self) -> list[str]:
        """The problems found, each with a remedy; empty if every chain has explored its mode."""
        bad = int((self.within > LARGEST_WITHIN).sum())
        if not bad:
            return []
        worst = f"R-hat of a chain's halves up to {self.within.max():.2f}, above {LARGEST_WITHIN}"
        return [f"{bad} of {len(self.within)} chains have not explored their modes ({worst}): warm up longer."]

    def __str__(self) -> str:
        return (
            f"{len(self.within)} modes with equal weights, which are not their posterior weights; R-hat within chains "
            f"up to {self.within.max():.2f}, between them {self.between:.2f}; {self.share:.0%} of the variance of "
            "predictions lies between modes"
        )


def modes(values: Tensor) -> Modes:
    """Whether chains have explored their modes.

    Args:
        values: M quantities at each of S draws of K chains, shape (K, S, M); S is at least 8.
    """
    values = values.detach().double().cpu()
    half = values.shape[1] // 2
    halves = torch.stack([values[:, :half], values[:, -half:]])  # (2, K, S / 2, M)
    columns = halves.permute(0, 2, 1, 3).flatten(2)  # the quantities of every chain side by side
    within = convergence(columns).r_hat.unflatten(0, (len(values), -1)).nan_to_num(1.0).amax(-1)
    means, total = values.mean(1), values.flatten(0, 1).var(0, correction=0)
    share = means.var(0, correction=0).sum() / total.sum().clamp_min(torch.finfo(torch.float64).tiny)
    return Modes(within, convergence(values).worst_r_hat, float(share))
