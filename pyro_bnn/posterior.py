"""What every inference method returns: draws of the latent variables, and a status that says what to do next."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _checks
from ._scope import seeded

__all__ = ["EnsemblePosterior", "Posterior", "Status"]

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


class EnsemblePosterior(Posterior):
    r"""The mixture of several posteriors, each of the same weight.

    .. math:: q(w) = \tfrac1M \sum_m q_m(w).

    Members fitted from different starts to :func:`~pyro_bnn.auto_delta` make a deep ensemble; other guides work as
    well. Draws take the members in turn, so a number of draws that is a multiple of M weighs all of them exactly the
    same; otherwise some have one draw more.

    The members must come from models of one architecture. A draw holds latent variables only: all else that was
    learned, such as a noise scale that is a parameter, is that of the model given to `predict`. So let the noise be
    fixed, latent, or an output of the network (:class:`~pyro_bnn.HeteroscedasticGaussianLikelihood`).

    Args:
        members: M posteriors over the same sites.

    Raises:
        ValueError: If there is none, one is no posterior, or, when drawn from, their sites or shapes differ.

    References:
        Lakshminarayanan, Pritzel and Blundell (2017), Deep Ensembles, https://arxiv.org/abs/1612.01474.
    """

    def __init__(self, members: Sequence[Posterior]) -> None:
        self.members = tuple(members)
        if not self.members:
            raise ValueError("`members` must name at least one posterior, got none.")
        for member in self.members:
            _checks.kind("members", member, Posterior, "posteriors; wrap a guide in `GuidePosterior`")
        self.status = _combined([member.status for member in self.members])

    @property
    def num_stored(self) -> int | None:
        """What the shortest store allows, all members being drawn from equally; None if none is a store."""
        stored = [member.num_stored for member in self.members if member.num_stored is not None]
        return len(self.members) * min(stored) if stored else None

    @property
    def seconds(self) -> float | None:
        """Of all members together; None if one does not know."""
        seconds = [member.seconds for member in self.members]
        return None if None in seconds else sum(value for value in seconds if value is not None)

    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Draws from each member in turn; see :meth:`Posterior.draws`."""
        num_members = len(self.members)
        if num_samples < num_members:
            warnings.warn(
                f"{num_samples} draws leave out {num_members - num_samples} of the ensemble's {num_members} members; "
                f"draw a multiple of {num_members}.",
                stacklevel=2,
            )
        turns = [
            member.draws(len(range(index, num_samples, num_members)), *args)
            for index, member in enumerate(self.members[:num_samples])
        ]
        first: Draw = {}
        for index in range(num_samples):
            draw = next(turns[index % num_members])
            first = first or draw
            if index < num_members:
                _check_same_sites(draw, first, index)
            yield draw


def _combined(statuses: list[Status]) -> Status:
    bad = [f"member {index}: {status}" for index, status in enumerate(statuses) if not status]
    if bad:
        return Status(False, f"{len(bad)} of {len(statuses)} members did not end well. {' '.join(bad)}")
    return Status(True, f"all {len(statuses)} members ended well; the first: {statuses[0]}")


def _check_same_sites(draw: Draw, first: Draw, index: int) -> None:
    shapes, expected = ({name: tuple(value.shape) for name, value in d.items()} for d in (draw, first))
    if shapes != expected:
        raise ValueError(
            f"member {index} of the ensemble has sites {shapes}, but the first has {expected}: build all members from "
            "models of the same architecture."
        )
