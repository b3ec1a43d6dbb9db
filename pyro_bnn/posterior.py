"""What every inference method returns: draws of the latent variables, and a status that says what to do next."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _checks
from ._scope import seeded

__all__ = ["Posterior", "Status"]

Draw = dict[str, Tensor]


@dataclass(frozen=True)
class Status:
    """How inference ended.

    Args:
        ok: Whether nothing looks wrong.
        message: What happened and, if something went wrong, what to try.
    """

    ok: bool
    message: str

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.message


class Posterior(ABC):
    """Draws of a model's latent variables, whichever method made them.

    A subclass sets `status` and implements :meth:`draws`.
    """

    status: Status

    @property
    def num_stored(self) -> int | None:
        """How many draws there are, for a posterior that is a store of them; None if they never end."""
        return None

    @property
    def seconds(self) -> float | None:
        """Wall time of the inference; None if unknown."""
        return None

    @abstractmethod
    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Draws one at a time, each ``{site: value of shape (*event)}``, from torch's global generator.

        Args:
            num_samples: How many.
            *args: What the model is called with, for guides that look at it.
        """

    def sample(self, num_samples: int, *, seed: int | None = None) -> Draw:
        """All draws at once, ``{site: value of shape (S, *event)}``.

        Memory grows with `num_samples`; :func:`~pyro_bnn.predict` needs no such store.

        Args:
            num_samples: How many, S.
            seed: Makes the draws repeatable and leaves torch's generator as it was.
        """
        _checks.at_least("num_samples", num_samples, 1)
        with seeded(seed), torch.no_grad():
            draws = list(self.draws(num_samples))
        return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
