"""The interface of all posteriors."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.inputs import Inputs, as_inputs
from ..._core.scope import EXCLUSIVE, Stream
from ..._core.summary import Shown, Summary, counted, in_time, shape_row
from ...modelling.model import SITE_PREFIX, BayesianModel
from ...modelling.priors import PosteriorPrior, Prior
from ..history import History
from ..inference_data import check_data, inference_data
from ._destination import Destination
from ._draws import Draw
from ._status import Status

MOST_DRAWS = 1000
"""Default number of draws for ArviZ and for moments; the error of moments is then some 3 % of their scale."""


class Moments(NamedTuple):
    """Means and standard deviations of latent variables, each ``{site: shape (*event)}``."""

    mean: Draw
    scale: Draw


class Posterior(Shown, ABC):
    """Draws of a model's latent variables, from any inference method.

    All posteriors share this interface; the page "What a posterior can answer" has a table. A subclass sets `status`,
    implements :meth:`draws`, and overrides other members if its method allows.
    """

    status: Status
    """How the inference ended, and what to try if it did not end well."""

    history: History | None = None
    """Record of the fit, epoch by epoch; None for a method without epochs."""

    log_evidence: float | None = None
    """Estimate of the log evidence, in nats; None for a method without one."""

    @property
    def method(self) -> str:
        """Name of the inference method, such as "NUTS"."""
        return type(self).__name__

    @property
    def shapes(self) -> dict[str, torch.Size] | None:
        """Shape of each latent variable, ``{site: event shape}``; None if it is known only after drawing."""
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
        """Learned parameters and buffers of the network, ``net.PATH``, for which draws hold their own values."""
        return ()

    @property
    def num_stored(self) -> int | None:
        """Number of stored draws; None for a posterior that can make any number of them."""
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
        """Whether :func:`~pyro_bnn.predict` linearises the network in its weights unless told otherwise."""
        return False

    def median(self) -> Draw:
        """The median of every latent variable, ``{site: shape (*event)}``; for a Gaussian the mean.

        Raises:
            ValueError: If the posterior has no closed-form median, such as a set of draws or an ensemble.
        """
        raise ValueError(f"a posterior of {self.method} has no `median()`; use `sample` instead.")

    def centers(self, *, everywhere: bool = False) -> list[Draw | None]:
        """Points around which predictions linearise the network: one for each draw, in turn.

        Where a point is None, the network itself predicts that draw, without linearisation.

        Args:
            everywhere: Whether to return a point for every draw, even where :attr:`is_linearised` is false.

        Raises:
            ValueError: If the posterior has no median, and therefore no such point.
        """
        return [self.median() if _checks.flag("everywhere", everywhere) or self.is_linearised else None]

    @abstractmethod
    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Draws one after the other, each ``{site: value of shape (*event)}``, from torch's global generator.

        Each draw has its own tensors, since earlier draws may still be in use.

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
        count = _checks.at_least("num_samples", num_samples, 1)
        return self._stacked(count, EXCLUSIVE if seed is None else Stream(seed))

    def _stacked(self, num_samples: int | None, unit: AbstractContextManager, *args: object, least: int = 1) -> Draw:
        """Draws one after the other, each inside a context; None is 1000, or all of a posterior that stores fewer."""
        if num_samples is None:
            num_samples = min(MOST_DRAWS, self.num_stored or MOST_DRAWS)
        num_samples = _checks.at_least("num_samples", num_samples, least)
        source, draws = self.draws(num_samples, *args), []
        for _ in range(num_samples):
            with unit, torch.no_grad():
                draws.append(next(source))
            if len(draws) == 1:
                _checks.in_memory("num_samples", num_samples, sum(value.nbytes for value in draws[0].values()))
        return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}

    def marginals(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Mean and standard deviation of each latent variable that has them in closed form, by site."""
        return {}

    def moments(self, *, num_samples: int | None = None, seed: int | None = None) -> Moments:
        """Mean and standard deviation of every latent variable: in closed form where there is one, else from draws.

        Args:
            num_samples: Number of draws; None is 1000, or all of a posterior that stores fewer.
            seed: Seed of the draws; torch's generators are left as they were.
        """
        return self._moments("", num_samples, seed)

    def _moments(self, prefix: str, num_samples: int | None, seed: int | None) -> Moments:
        """The moments of the variables whose names begin with a prefix."""
        found, shapes = self.marginals(), self.shapes
        if shapes is None or not all(name in found for name in shapes if name.startswith(prefix)):
            samples = self._stacked(num_samples, EXCLUSIVE if seed is None else Stream(seed), least=2)
            for name in samples.keys() - found.keys() - {*self.carried}:
                draws = samples[name]
                differs = (draws != draws[0]).any(0)  # otherwise rounding gives a width above 0
                found[name] = draws.mean(0), draws.std(0) * differs
        names = [name for name in shapes or sorted(found) if name.startswith(prefix)]
        return Moments({name: found[name][0] for name in names}, {name: found[name][1] for name in names})

    def diagnose(self, model: BayesianModel | None = None) -> Any:
        """Diagnostics of the result, to print; None for a method whose `status` says all.

        Args:
            model: The model.
        """
        return None

    def to_arviz(
        self,
        *,
        num_samples: int | None = None,
        model: BayesianModel | None = None,
        x: Inputs | None = None,
        y: Tensor | None = None,
        seed: int | None = None,
    ) -> Any:
        """The posterior as ArviZ's `InferenceData`: draws as one chain and, given a model, predictions.

        The group ``posterior`` has the attributes ``method``, ``status``, ``status_ok`` (0 or 1), ``sampling_time`` (in
        seconds, if known) and ``inference_library``. Independent draws form no chains to compare: their R-hat and
        effective sample sizes say nothing about the quality of the posterior.

        Args:
            num_samples: Number of draws; None is 1000, or all of a posterior that stores fewer. For Markov chains, None
                is all draws, as K chains, with the sampler's statistics in ``sample_stats``.
            model: The model; with x it gives the group ``posterior_predictive``.
            x: Inputs, shape (N, ...).
            y: Targets; with them the groups ``log_likelihood`` and ``observed_data``.
            seed: Seed of the draws; torch's generators are left as they were. None draws a seed.

        Raises:
            ImportError: If ArviZ is not installed.
            ValueError: If x or y is given without a model.
        """
        check_data(model, x, y)
        if self.carried and model is not None:
            raise ValueError("`model` must be left out: these draws carry values of parameters and buffers; predict.")
        arguments = () if model is None or x is None else (as_inputs("x", x, model.like),)
        stream = Stream(None if seed is None else _checks.seed(seed))
        samples, statistics = self._chains(num_samples, arguments, stream)
        return inference_data(samples, statistics, self.attributes(), model=model, x=x, y=y, stream=stream)

    def _chains(
        self, num_samples: int | None, arguments: tuple[Inputs, ...], stream: Stream
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Draws for ArviZ, ``{site: shape (K, S, *event)}``, and a sampler's statistics, by ArviZ's names."""
        return {name: value[None] for name, value in self._stacked(num_samples, stream, *arguments).items()}, {}

    def as_prior(
        self, *, otherwise: Prior | None = None, num_samples: int | None = None, seed: int | None = None
    ) -> PosteriorPrior:
        """The weights' marginal means and standard deviations, see :meth:`moments`, as the prior of another model.

        Variables other than weights, such as a noise scale, are left out: their priors belong to the likelihood.

        Args:
            otherwise: Prior of parameters that this posterior does not have; None raises an error for them.
            num_samples: Number of draws where they are needed; None is 1000, or all of a posterior that stores fewer.
            seed: Seed of the draws; torch's generators are left as they were.

        Returns:
            A prior for models whose sites have the same names and shapes.

        Raises:
            ValueError: If a weight has the same value in all draws.
        """
        return PosteriorPrior(*self._moments(f"{SITE_PREFIX}.", num_samples, seed), otherwise)

    def attributes(self) -> dict[str, object]:
        """Method, status and wall time, as stored with the draws; None where unknown."""
        return {
            "method": self.method,
            "status": str(self.status),
            "status_ok": int(self.status.ok),
            "sampling_time": self.seconds,
        }

    # --- files: see `save_posterior` ---

    @property
    def guides(self) -> tuple[nn.Module, ...]:
        """The guides behind the draws that are modules, in the order of the members."""
        return ()

    @property
    def pruned_sites(self) -> frozenset[str]:
        """Sites with removed weights, which are 0 in all draws."""
        return frozenset()

    def to_record(self) -> dict[str, Any]:
        """Plain data for a file: None, numbers, texts, tensors, and lists, tuples and dictionaries of these.

        Raises:
            ValueError: If the posterior cannot be saved.
        """
        raise ValueError(
            f"a posterior of type {type(self).__name__} cannot be saved; save draws of it, "
            "`StoredPosterior.of(posterior, num_samples)`, or give the class `to_record` and `from_record`."
        )

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> "Posterior":
        """The posterior in a file, after checking all its content; the file may be forged.

        Args:
            values: What :meth:`to_record` returned.
            destination: The destination into which the posterior is loaded; nothing else may change.

        Raises:
            ValueError: If the values are damaged or do not fit the destination; the message names what is wrong.
        """
        raise ValueError(f"a posterior of type {cls.__name__} cannot be loaded; give the class `from_record`.")
