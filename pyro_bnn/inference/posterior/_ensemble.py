"""The mixture of several posteriors."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..._core import checks as _checks
from ..._core.records import plain, record
from ..._core.scope import outer_stacklevel
from ..joint import Draw
from ._destination import Destination
from ._posterior import Posterior
from ._saving import Saved, restored, saved
from ._status import Status


@dataclass(frozen=True)
class EnsembleRecord:
    members: list[Saved]
    status: Status
    seconds: float | None


class EnsemblePosterior(Posterior):
    r"""The mixture of several posteriors with equal weights.

    .. math:: q(w) = \tfrac1M \sum_m q_m(w).

    ``fit(model, data, method="ensemble")`` makes a deep ensemble; this class makes an ensemble of any posteriors. Draws
    come from the members in turn, so all members have the same weight if the number of draws is a multiple of M. If the
    members are points, `predict` draws each once, and divides by M - 1 in the epistemic variance.

    Args:
        members: M posteriors over the same sites, from models of the same architecture.

    Raises:
        ValueError: If there is no member, or a member is not a posterior. :meth:`draws` raises this error if the
            members' sites or shapes differ.

    References:
        Lakshminarayanan, Pritzel and Blundell (2017), Deep Ensembles, https://arxiv.org/abs/1612.01474.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> posteriors = [pb.fit_laplace(model, (x, slope * x)) for slope in (1.0, 3.0)]
        >>> ensemble = pb.EnsemblePosterior(posteriors)
        >>> ensemble.sample(2, seed=0)["net.weight"].flatten().round()
        tensor([1., 3.])

    Notes:
        `predict` takes learned parameters and buffers from its model. So if the network has batch normalisation, or
        parameters that are not random, each member should be a :class:`~pyro_bnn.inference.batch_norm.PinnedPosterior`.
        All members predict with the model's learned noise scale. To give each member its own, make the noise scale
        latent, or an output of the network (:class:`~pyro_bnn.HeteroscedasticGaussianLikelihood`).
    """

    def __init__(self, members: Sequence[Posterior]) -> None:
        self.members: tuple[Posterior, ...] = tuple(_checks.items("members", members, "a list of posteriors"))
        if not self.members:
            raise ValueError("`members` must contain at least one posterior, got none.")
        for member in self.members:
            _checks.kind("members", member, Posterior, "posteriors; wrap a guide in `GuidePosterior`")
        self.status = _combined([member.status for member in self.members])
        seconds = [member.seconds for member in self.members if member.seconds is not None]
        self.seconds = sum(seconds) if len(seconds) == len(self.members) else None

    @property
    def method(self) -> str:
        """The number of members, and the method of the first."""
        return f"ensemble of {len(self.members)} ({self.members[0].method})"

    @property
    def shapes(self) -> dict[str, torch.Size] | None:
        return self.members[0].shapes

    @property
    def carried(self) -> tuple[str, ...]:
        return self.members[0].carried

    @property
    def num_stored(self) -> int | None:
        """Number of members, times the fewest draws that a member stores; None if no member stores draws."""
        stored = [member.num_stored for member in self.members if member.num_stored is not None]
        return len(self.members) * min(stored) if stored else None

    @property
    def num_points(self) -> int | None:
        """Number of members if each is a single point; otherwise None."""
        return len(self.members) if all(member.num_points == 1 for member in self.members) else None

    @property
    def is_linearised(self) -> bool:
        return any(member.is_linearised for member in self.members)

    def centers(self, *, everywhere: bool = False) -> list[Draw | None]:
        each = [member.centers(everywhere=everywhere) for member in self.members]
        rounds = math.lcm(*(len(centers) for centers in each))
        return [centers[turn % len(centers)] for turn in range(rounds) for centers in each]

    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        num_members, num_samples = len(self.members), _checks.at_least("num_samples", num_samples, 1)
        if num_samples < num_members:
            warnings.warn(
                f"{num_samples} draws do not use {num_members - num_samples} of the ensemble's {num_members} members; "
                f"draw a multiple of {num_members}.",
                stacklevel=outer_stacklevel(),
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
                shapes, expected = ({name: tuple(value.shape) for name, value in d.items()} for d in (draw, first))
                if shapes != expected:
                    raise ValueError(
                        f"member {index} of the ensemble has sites {shapes}, but the first has {expected}: build all "
                        "members from models of the same architecture."
                    )
            yield draw

    @property
    def guides(self) -> tuple[nn.Module, ...]:
        return tuple(guide for member in self.members for guide in member.guides)

    @property
    def pruned_sites(self) -> frozenset[str]:
        """The sites that have removed weights in every member."""
        return frozenset.intersection(*(member.pruned_sites for member in self.members))

    def to_record(self) -> dict[str, Any]:
        return plain(EnsembleRecord([saved(member) for member in self.members], self.status, self.seconds))

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> "EnsemblePosterior":
        found = record(EnsembleRecord, values, "posterior")
        ensemble = cls([restored(member, destination) for member in found.members])
        ensemble.status, ensemble.seconds = found.status, found.seconds
        return ensemble


OTHERS = "The others are in the `status` of each of the `members`."


def _combined(statuses: list[Status]) -> Status:
    for ok, ended in ((False, "did not end well"), (None, "were not judged")):
        found = {index: status for index, status in enumerate(statuses) if status.ok is ok}
        if found:
            verdict = f"{len(found)} of {len(statuses)} members {ended}."
            index, first = next(iter(found.items()))
            said = f"{verdict} member {index}: {first.message}{f' {OTHERS}' if len(found) > 1 else ''}"
            remedies = dict.fromkeys(status.remedy for status in found.values() if status.remedy)
            return Status(ok, said, remedy=" ".join(remedies), verdict=verdict)
    return Status(True, f"All {len(statuses)} members ended well; the first: {statuses[0]}")
