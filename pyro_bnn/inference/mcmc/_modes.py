"""How chains agree if each began at its own mode."""

from dataclasses import dataclass

from torch import Tensor

from ..._core.summary import Shown

LARGEST_WITHIN = 1.1
"""Heuristic: a chain has explored its mode if R-hat between its two halves is at most this."""


@dataclass(frozen=True, repr=False)
class Modes(Shown):
    """Agreement of scalar quantities, such as predictions, within and between chains.

    Args:
        within: Largest R-hat between the two halves of each chain, shape (K,); infinite for a chain that did not move.
        between: Largest R-hat between the chains.
        share: Share of the quantities' variance, from 0 to 1, that comes from differences between the chains' means.
    """

    within: Tensor
    between: float
    share: float

    @property
    def num_unexplored(self) -> int:
        """Number of chains that have not explored their modes."""
        return int((self.within > LARGEST_WITHIN).sum())

    @property
    def unexplored(self) -> str:
        """A clause without numbers of R-hat that says how many chains are too short to explore their modes."""
        verb = (
            "is too short to explore its mode" if self.num_unexplored == 1 else "are too short to explore their modes"
        )
        return f"{self.num_unexplored} of {len(self.within)} chains {verb}"

    @property
    def problems(self) -> list[str]:
        """The problems found, each with a remedy; empty if every chain has explored its mode."""
        return [f"{self.fault}: warm up longer."] if self.fault else []

    @property
    def fault(self) -> str:
        """A clause that says how many chains have not explored their modes; empty if all have."""
        bad = self.num_unexplored
        worst = f"R-hat of a chain's halves up to {self.within.max():.2f}, above {LARGEST_WITHIN}"
        return f"{bad} of {len(self.within)} chains have not explored their modes ({worst})" if bad else ""

    def __str__(self) -> str:
        count, places = len(self.within), "chains"
        if self.num_unexplored:
            number = self.unexplored
        elif self.between > LARGEST_WITHIN:
            number, places = f"{count} modes with equal weights, which are not their posterior weights", "modes"
        else:
            number = f"{count} chains whose predictions agree"
        return (
            f"{number}; R-hat within chains up to {self.within.max():.2f}, between them {self.between:.2f}; "
            f"{100 * self.share:.0f} % of the variance of predictions lies between {places}"
        )
