"""Posteriors, the results of inference: draws of the latent variables, and a status that says what to do next."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._inputs import Inputs, as_inputs
from ._scope import EXCLUSIVE, Stream
from ._summary import Shown, Summary, counted, in_time, shape_row
from .inference_data import check_data, inference_data
from .model import SITE_PREFIX, BayesianModel
from .priors import PosteriorPrior, Prior

__all__ = ["EnsemblePosterior", "Posterior", "Status"]

Draw = dict[str, Tensor]

MOMENT_DRAWS = 1000
"""Number of draws for means and standard deviations, whose error is then some 3 % of a standard deviation."""

ARVIZ_DRAWS = 1000
"""Number of draws for ArviZ from a posterior that can make any number of them."""


@dataclass(frozen=True)
class Status:
    """How inference ended.

    Args:
        ok: Whether inference shows no sign of trouble.
        message: Text that says what happened and, unless there is a `remedy`, what to try.
        detail: How it was computed, as at the end of the message; a function that writes a message of its own for the
            same fit adds it.
        remedy: Sentence that says what to try, in the arguments of the function that was called. A caller with
            arguments of its own, such as an estimator, puts its own here.
    """

    ok: bool
    message: str
    detail: str = field(default="", compare=False, repr=False)
    remedy: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()


class Posterior(Shown, ABC):
    """Draws of a model's latent variables, from any inference method.

    A subclass sets `status` and implements :meth:`draws`.
    """

    status: Status

    @property
    def method(self) -> str:
        """Name of the inference method, such as "NUTS"."""
        return type(self).__name__

    @property
    def shapes(self) -> dict[str, torch.Size] | None:
        """Shape of each latent variable, ``{site: event shape}``; None if only draws can tell."""
        return None

    def _summary(self) -> Summary:
        shapes = self.shapes
        title = f"{type(self).__name__}: {self.method}"
        if shapes is not None:
            total = sum(shape.numel() for shape in shapes.values())
            title += f", {counted(total, 'number')} in {counted(len(shapes), 'site')}"
        title += "" if self.num_stored is None else f", {counted(self.num_stored, 'draw')}"
        title += "" if self.seconds is None else f", {in_time(self.seconds)}"
        status = f"{'ok' if self.status else 'NOT OK'}: {self.status}"
        return Summary(title, [status], [shape_row(name, shape) for name, shape in (shapes or {}).items()])

    @property
    def carried(self) -> tuple[str, ...]:
        """Learned parameters and buffers of the network, ``net.PATH``, of which draws hold values of their own."""
        return ()

    @property
    def num_stored(self) -> int | None:
        """Number of draws in a posterior that stores them; None for one that can make any number of them."""
        return None

    @property
    def seconds(self) -> float | None:
        """Wall time of the inference; None if unknown."""
        return None

    @property
    def constants(self) -> Draw:
        """Weights that are the same in all draws, ``{site: value}``; :func:`~pyro_bnn.predict` uses them only once."""
        return {}

    @property
    def is_linearised(self) -> bool:
        """Whether :func:`~pyro_bnn.predict` takes the network as linear in its weights unless told otherwise."""
        return False

    def median(self) -> Draw:
        """The median of every latent variable, ``{site: shape (*event)}``: of a Gaussian its mean.

        Raises:
            ValueError: If the posterior has no closed-form median, as a set of draws or an ensemble.
        """
        raise ValueError(f"a posterior of {self.method} has no `median()`; use `sample` instead.")

    def centers(self, *, everywhere: bool = False) -> list[Draw | None]:
        """Points around which the network is made linear in its weights for predictions: one for each draw, in turn.

        None stands for a draw that is predicted by the network as it is.

        Args:
            everywhere: Whether there must be a point also where :attr:`is_linearised` does not ask for it.

        Raises:
            ValueError: If there is none, since the posterior has no median.
        """
        return [self.median() if everywhere or self.is_linearised else None]

    @abstractmethod
    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Draws one after the other, each ``{site: value of shape (*event)}``, from torch's global generator.

        A draw has tensors of its own: those of the draws before it may still be in use.

        Args:
            num_samples: Number of draws.
            *args: Arguments of the model, for guides that use them.
        """

    def sample(self, num_samples: int, *, seed: int | None = None) -> Draw:
        """All draws at once, ``{site: value of shape (S, *event)}``.

        Memory grows with `num_samples`; :func:`~pyro_bnn.predict` uses draws without storing them.

        Args:
            num_samples: Number S of draws.
            seed: Seed of the draws, which makes them repeatable and leaves torch's generator as it was.
        """
        _checks.at_least("num_samples", num_samples, 1)
        unit = EXCLUSIVE if seed is None else Stream(seed)
        source, draws = self.draws(num_samples), []
        for _ in range(num_samples):
            with unit, torch.no_grad():
                draws.append(next(source))
        return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}

    def to_arviz(
        self,
        *,
        num_samples: int | None = None,
        model: BayesianModel | None = None,
        x: Inputs | None = None,
        y: Tensor | None = None,
        seed: int = 0,
    ) -> Any:
        """The posterior as ArviZ's `InferenceData`: draws as one chain and, given a model, predictions.

        The group ``posterior`` has the attributes ``method``, ``status``, ``status_ok`` (0 or 1), ``sampling_time`` (in
        seconds, if known) and ``inference_library``. Independent draws have no chains to compare: R-hat and effective
        sample sizes of them say nothing about the quality of the posterior.

        Args:
            num_samples: Number of draws; None is 1000, or all of a posterior that stores fewer.
            model: The model; with x it gives the group ``posterior_predictive``.
            x: Inputs, shape (N, ...).
            y: Targets; with them the groups ``log_likelihood`` and ``observed_data``.
            seed: Seed of the draws, which leaves torch's generators as they were.

        Raises:
            ImportError: If ArviZ is not installed.
            ValueError: If x or y is given without a model.
        """
        check_data(model, x, y)
        if self.carried and model is not None:
            raise ValueError("`model` must be left out: these draws carry values of parameters and buffers; predict.")
        if num_samples is None:
            num_samples = min(ARVIZ_DRAWS, self.num_stored or ARVIZ_DRAWS)
        _checks.at_least("num_samples", num_samples, 1)
        stream = Stream(_checks.seed(seed))
        arguments = () if model is None or x is None else (as_inputs("x", x, model.like),)
        source, draws = self.draws(num_samples, *arguments), []
        for _ in range(num_samples):
            with stream, torch.no_grad():
                draws.append(next(source))
        samples = {name: torch.stack([draw[name] for draw in draws])[None] for name in draws[0]}
        return inference_data(samples, {}, self.attributes(), model=model, x=x, y=y, stream=stream)

    def as_prior(
        self, *, otherwise: Prior | None = None, num_samples: int | None = None, seed: int | None = None
    ) -> PosteriorPrior:
        """The weights' marginal means and standard deviations as the prior of another model, estimated from draws.

        Variables that are no weights, such as a noise scale, are left out: their priors belong to the likelihood.

        Args:
            otherwise: Prior of parameters that this posterior does not have; None raises an error for them.
            num_samples: Number of draws; None is 1000, or all of a posterior that stores fewer.
            seed: Seed of the draws, which leaves torch's generators as they were.

        Returns:
            A prior for models whose sites have the same names and shapes.

        Raises:
            ValueError: If a weight has the same value in all draws.
        """
        if num_samples is None:
            num_samples = min(MOMENT_DRAWS, self.num_stored or MOMENT_DRAWS)
        samples = self.sample(_checks.at_least("num_samples", num_samples, 2), seed=seed)
        names = {name for name in samples if name.startswith(f"{SITE_PREFIX}.")} - {*self.carried}
        weights = {name: draws for name, draws in samples.items() if name in names}
        locations = {name: draws.mean(0) for name, draws in weights.items()}
        differs = {name: (draws != draws[0]).any(0) for name, draws in weights.items()}  # else rounding gives a width
        scales = {name: draws.std(0) * differs[name] for name, draws in weights.items()}
        return PosteriorPrior(locations, scales, otherwise)

    def attributes(self) -> dict[str, object]:
        """Method, status and wall time, as they are written beside the draws; None where unknown."""
        return {
            "method": self.method,
            "status": str(self.status),
            "status_ok": int(self.status.ok),
            "sampling_time": self.seconds,
        }


def spaced(samples: Mapping[str, Tensor], num_samples: int, *, remedy: str) -> Iterator[Draw]:
    """Evenly spaced rows of stored draws, ``{site: shape (S, *event)}``, each at most once.

    Args:
        samples: The draws.
        num_samples: Number of them.
        remedy: What to do if more are asked for than there are.

    Raises:
        ValueError: If there are fewer.
    """
    num_samples, stored = _checks.at_least("num_samples", num_samples, 1), len(next(iter(samples.values())))
    if num_samples > stored:
        raise ValueError(
            f"`num_samples` is {num_samples} but only {stored} draws are stored; ask for at most that, or {remedy}."
        )
    for index in range(num_samples):
        row = (2 * index + 1) * stored // (2 * num_samples)
        yield {name: value[row] for name, value in samples.items()}


class EnsemblePosterior(Posterior):
    r"""The mixture of several posteriors with equal weights.

    .. math:: q(w) = \tfrac1M \sum_m q_m(w).

    Fits of :func:`~pyro_bnn.auto_delta` from different starts make a deep ensemble; other guides work too. Draws take
    the members in turn, so if the number of draws is a multiple of M, all members have exactly the same weight;
    otherwise some have one draw more.

    The members must come from models of one architecture. A draw holds latent variables only; learned parameters and
    buffers are those of the model given to `predict`. So each member of networks with batch normalisation, or with
    parameters that are not random, should be a :class:`~pyro_bnn.PinnedPosterior`. A learned noise scale is always that
    of the model: noise should be fixed, latent, or an output of the network
    (:class:`~pyro_bnn.HeteroscedasticGaussianLikelihood`).

    Args:
        members: M posteriors over the same sites.

    Raises:
        ValueError: If there is no member or one is not a posterior; in :meth:`draws`, if their sites or shapes differ.

    References:
        Lakshminarayanan, Pritzel and Blundell (2017), Deep Ensembles, https://arxiv.org/abs/1612.01474.
    """

    def __init__(self, members: Sequence[Posterior]) -> None:
        self.members: tuple[Posterior, ...] = tuple(_checks.items("members", members, "a list of posteriors"))
        if not self.members:
            raise ValueError("`members` must name at least one posterior, got none.")
        for member in self.members:
            _checks.kind("members", member, Posterior, "posteriors; wrap a guide in `GuidePosterior`")
        self.status = _combined([member.status for member in self.members])

    @property
    def method(self) -> str:
        """Number of members, and the method of the first."""
        return f"ensemble of {len(self.members)} ({self.members[0].method})"

    @property
    def shapes(self) -> dict[str, torch.Size] | None:
        """Shapes of the first member's latent variables; see :attr:`Posterior.shapes`."""
        return self.members[0].shapes

    @property
    def carried(self) -> tuple[str, ...]:
        """What the draws of the first member carry; those of the others must carry the same."""
        return self.members[0].carried

    @property
    def num_stored(self) -> int | None:
        """M times the smallest store of a member, since members are drawn from in turn; None if there is no store."""
        stored = [member.num_stored for member in self.members if member.num_stored is not None]
        return len(self.members) * min(stored) if stored else None

    @property
    def seconds(self) -> float | None:
        """Wall time of the inference of all members together; None if that of one is unknown."""
        seconds = [member.seconds for member in self.members]
        return None if None in seconds else sum(value for value in seconds if value is not None)

    @property
    def is_linearised(self) -> bool:
        """Whether some member's predictions are; see :attr:`Posterior.is_linearised`."""
        return any(member.is_linearised for member in self.members)

    def centers(self, *, everywhere: bool = False) -> list[Draw | None]:
        """Those of the members, in the order in which members are drawn from; see :meth:`Posterior.centers`."""
        each = [member.centers(everywhere=everywhere) for member in self.members]
        rounds = math.lcm(*(len(centers) for centers in each))
        return [centers[turn % len(centers)] for turn in range(rounds) for centers in each]

    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Draws from each member in turn; see :meth:`Posterior.draws`."""
        num_members, num_samples = len(self.members), _checks.at_least("num_samples", num_samples, 1)
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
    bad = [f"member {index}: {status.message}" for index, status in enumerate(statuses) if not status]
    if bad:
        remedies = dict.fromkeys(status.remedy for status in statuses if not status and status.remedy)
        message = f"{len(bad)} of {len(statuses)} members did not end well. {' '.join(bad)}"
        return Status(False, message, remedy=" ".join(remedies))
    return Status(True, f"all {len(statuses)} members ended well; the first: {statuses[0]}")


def _check_same_sites(draw: Draw, first: Draw, index: int) -> None:
    shapes, expected = ({name: tuple(value.shape) for name, value in d.items()} for d in (draw, first))
    if shapes != expected:
        raise ValueError(
            f"member {index} of the ensemble has sites {shapes}, but the first has {expected}: build all members from "
            "models of the same architecture."
        )
