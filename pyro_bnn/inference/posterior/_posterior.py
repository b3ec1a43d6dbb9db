"""The base class of all posteriors."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.inputs import Inputs, as_inputs
from ..._core.remedies import Advised
from ..._core.scope import EXCLUSIVE, Stream
from ..._core.signatures import explained
from ..._core.summary import SITE_COLUMNS, Shown, Summary, counted, in_time, shape_row
from ...modelling.model import SITE_PREFIX, BayesianModel
from ...modelling.priors import PosteriorPrior, Prior
from ..history import History
from ..inference_data import check_data, inference_data
from ..joint import Draw
from ._destination import Destination
from ._status import Status

MOST_DRAWS = 1000  # default for ArviZ and moments; the standard error of the mean is 3 % of the standard deviation


class Moments(NamedTuple):
    """Means and standard deviations of latent variables, each ``{site: shape (*event)}``.

    Example:
        >>> import torch
        >>> from pyro_bnn.inference.posterior import Moments
        >>> moments = Moments({"net.bias": torch.zeros(2)}, {"net.bias": torch.ones(2)})
        >>> moments.scale["net.bias"]
        tensor([1., 1.])
    """

    mean: Draw
    scale: Draw


def spaced(samples: Mapping[str, Tensor], num_samples: int, *, remedy: str) -> Iterator[Draw]:
    """Yield `num_samples` evenly spaced draws from `samples`, ``{site: shape (S, *event)}``."""
    num_samples, stored = _checks.at_least("num_samples", num_samples, 1), len(next(iter(samples.values())))
    if num_samples > stored:
        raise ValueError(
            f"`num_samples` is {num_samples} but only {stored} draws are stored; request at most {stored}, or {remedy}."
        )
    for index in range(num_samples):
        row = (2 * index + 1) * stored // (2 * num_samples)
        yield {name: value[row] for name, value in samples.items()}


class Posterior(Advised, Shown, ABC):
    """Draws of a model's latent variables, from any inference method.

    The page :doc:`/understand/posteriors` shows which posteriors have which methods and attributes. A subclass sets
    `status`, implements :meth:`draws`, and overrides the other methods and attributes that it supports.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> posterior = pb.fit_laplace(model, (x, 2 * x))
        >>> posterior.sample(100, seed=0)["net.weight"].shape
        torch.Size([100, 1, 1])
        >>> posterior.median()["net.weight"].round(decimals=1)
        tensor([[2.]])
    """

    status: Status
    """How the inference ended, and what to try if it ended badly."""

    history: History | None = None
    """Record of the fit, for methods with epochs."""

    seconds: float | None = None
    """Wall time of the inference, if known."""

    log_evidence: float | None = None
    """Estimate of the log evidence, in nats, if the method makes one."""

    learned: Mapping[str, Tensor] = MappingProxyType({})
    """The model's learned parameters at the end of the fit, by their names in the model."""

    @property
    def method(self) -> str:
        """Name of the inference method, such as "NUTS"."""
        return type(self).__name__

    @property
    def shapes(self) -> dict[str, torch.Size] | None:
        """Shape of each latent variable, ``{site: event shape}``; None if unknown before the first draw."""
        return None

    def _summary(self) -> Summary:
        shapes = self.shapes
        title = f"{type(self).__name__}: {self.method}"
        if shapes is not None:
            total = sum(shape.numel() for shape in shapes.values())
            title += f", {counted(total, 'number')} in {counted(len(shapes), 'tensor')}"
        title += "" if self.num_stored is None else f", {counted(self.num_stored, 'draw')}"
        title += "" if self.seconds is None else f", {in_time(self.seconds)}"
        status = f"{self.status.label}: {self.status}"
        rows = [shape_row(name, shape) for name, shape in (shapes or {}).items()]
        return Summary(title, [status], rows, columns=SITE_COLUMNS)

    @property
    def carried(self) -> tuple[str, ...]:
        """Names, such as ``net.PATH``, of the learned parameters and buffers of which each draw has its own values."""
        return ()

    @property
    def num_stored(self) -> int | None:
        """Number of stored draws; None if the posterior can make any number of draws."""
        return None

    @property
    def num_points(self) -> int | None:
        """Number of points if the posterior consists of points, such as members of a deep ensemble; else None."""
        return None

    @property
    def constants(self) -> Draw:
        """Weights that are the same in all draws, ``{site: value}``; they save time in :func:`~pyro_bnn.predict`."""
        return {}

    @property
    def is_linearised(self) -> bool:
        """Whether :func:`~pyro_bnn.predict` linearises the network in its weights by default."""
        return False

    def median(self) -> Draw:
        """Return the median of every latent variable, ``{site: shape (*event)}``.

        Raises:
            ValueError: If the median has no closed form, as for a set of draws or an ensemble.
        """
        raise ValueError(f"a posterior of {self.method} has no `median()`; use `sample` instead.")

    def centers(self, *, everywhere: bool = False) -> list[Draw | None]:
        """Return the points around which predictions linearise the network. The draws use these points in turn.

        If the point of a draw is None, the prediction with this draw is not linearised.

        Args:
            everywhere: Whether to return the points even for a posterior whose :attr:`is_linearised` is false.

        Raises:
            ValueError: If the posterior has no median.
        """
        return [self.median() if _checks.flag("everywhere", everywhere) or self.is_linearised else None]

    @abstractmethod
    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Yield draws, ``{site: value of shape (*event)}``, with torch's global random generator.

        Each draw must have its own tensors, since earlier draws may still be in use.

        Args:
            num_samples: Number of draws.
            *args: Arguments of the model, for guides that use them.
        """

    @explained("posterior.sample(100)")
    def sample(self, num_samples: int, *, seed: int | None = None) -> Draw:
        """Return all draws at once, ``{site: value of shape (S, *event)}``. Memory grows with `num_samples`.

        Args:
            num_samples: Number S of draws.
            seed: Seed of the draws; with ``None``, torch's generator is used.
        """
        count = _checks.at_least("num_samples", num_samples, 1)
        return self._stacked(count, EXCLUSIVE if seed is None else Stream(seed))

    def _stacked(self, num_samples: int | None, unit: AbstractContextManager, *args: object, least: int = 1) -> Draw:
        """Return draws as one tensor for each site."""
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
        """Return the mean and standard deviation of each site for which they have a closed form."""
        return {}

    def moments(self, *, num_samples: int | None = None, seed: int | None = None) -> Moments:
        """Return the mean and standard deviation of every latent variable.

        Draws are used only if there is no closed form.

        Args:
            num_samples: Number of draws; by default 1000, or all stored draws if the posterior stores fewer.
            seed: Seed of the draws.
        """
        return self._moments("", num_samples, None if seed is None else _checks.seed(seed))

    def _moments(self, prefix: str, num_samples: int | None, seed: int | None) -> Moments:
        found, shapes = self.marginals(), self.shapes
        if shapes is None or not all(name in found for name in shapes if name.startswith(prefix)):
            samples = self._stacked(num_samples, EXCLUSIVE if seed is None else Stream(seed), least=2)
            for name in samples.keys() - found.keys() - {*self.carried}:
                draws = samples[name]
                differs = (draws != draws[0]).any(0)  # rounding can give equal draws a deviation above 0
                found[name] = draws.mean(0), draws.std(0) * differs
        names = [name for name in shapes or sorted(found) if name.startswith(prefix)]
        return Moments({name: found[name][0] for name in names}, {name: found[name][1] for name in names})

    def diagnose(self, model: BayesianModel | None = None) -> Any:
        """Return diagnostics that can be printed; None if there are none besides the `status`."""
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
        """Return draws of the posterior as ArviZ's `InferenceData` with one chain.

        The group ``posterior`` has the attributes ``method``, ``status``, ``status_ok`` (0 or 1, if known),
        ``sampling_time`` (in seconds, if known) and ``inference_library``. For independent draws, R-hat and effective
        sample sizes say nothing about the quality of the posterior.

        Args:
            num_samples: Number of draws; by default 1000, or all stored draws if the posterior stores fewer. For Markov
                chains, the default is all K chains with all draws, with the sampler's statistics in the group
                ``sample_stats``.
            model: The posterior's model, for the group ``posterior_predictive`` with predictions at x.
            x: Inputs, shape (N, ...).
            y: Targets, for the groups ``log_likelihood`` and ``observed_data``.
            seed: Seed of the draws.

        Raises:
            ImportError: If ArviZ is not installed.
            ValueError: If only one of model and x is given, or if y is given without them.
        """
        check_data(model, x, y)
        if self.carried and model is not None:
            raise ValueError(
                "`model` must be left out, since each draw has its own values of parameters and buffers; use `predict`."
            )
        arguments = () if model is None or x is None else (as_inputs("x", x, model.like),)
        stream = Stream(None if seed is None else _checks.seed(seed))
        samples, statistics = self._chains(num_samples, arguments, stream)
        return inference_data(samples, statistics, self.attributes(), model=model, x=x, y=y, stream=stream)

    def _chains(
        self, num_samples: int | None, arguments: tuple[Inputs, ...], stream: Stream
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return draws, ``{site: shape (K, S, *event)}``, and statistics under ArviZ's names."""
        return {name: value[None] for name, value in self._stacked(num_samples, stream, *arguments).items()}, {}

    def as_prior(
        self, *, otherwise: Prior | None = None, num_samples: int | None = None, seed: int | None = None
    ) -> PosteriorPrior:
        """Return a prior for another model: independent Gaussians with the moments of the weights; see :meth:`moments`.

        Variables other than weights, such as a noise scale, are left out, because their priors belong to the
        likelihood. The sites of the other model must have the same names and shapes.

        Args:
            otherwise: Prior of parameters that this posterior does not have; with None, such parameters raise an error.
            num_samples: Number of draws if draws are needed.
            seed: Seed of the draws.

        Raises:
            ValueError: If a weight has the same value in all draws.
        """
        return PosteriorPrior(*self._moments(f"{SITE_PREFIX}.", num_samples, seed), otherwise)

    def attributes(self) -> dict[str, object]:
        """Return method, status and wall time, which ArviZ stores with the draws; unknown values are None."""
        return {
            "method": self.method,
            "status": str(self.status),
            "status_ok": None if self.status.ok is None else int(self.status.ok),
            "sampling_time": self.seconds,
        }

    # --- files: see `save_posterior` ---

    @property
    def guides(self) -> tuple[nn.Module, ...]:
        """The posterior's guides that are modules. The guides of an ensemble are in the order of its members."""
        return ()

    @property
    def pruned_sites(self) -> frozenset[str]:
        """The sites with removed weights, which are 0 in all draws."""
        return frozenset()

    def to_record(self) -> dict[str, Any]:
        """Return plain data for a file: None, numbers, texts, tensors, lists, tuples and dictionaries.

        Raises:
            ValueError: If the posterior cannot be saved.
        """
        raise ValueError(
            f"a posterior of type {type(self).__name__} cannot be saved; save draws, by "
            "`StoredPosterior.of(posterior, num_samples)`, or implement `to_record` and `from_record`."
        )

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> "Posterior":
        """Make the posterior from the content of a file, which must be checked, since it may be forged.

        Args:
            values: The result of :meth:`to_record`.
            destination: The model and guides for the posterior; only `destination.pending` may change.

        Raises:
            ValueError: If the values are damaged or do not match the destination.
        """
        raise ValueError(f"a posterior of type {cls.__name__} cannot be loaded; implement `from_record`.")
