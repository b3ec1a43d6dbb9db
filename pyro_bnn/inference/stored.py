"""A posterior that consists of a fixed set of stored draws."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._core import checks as _checks
from .._core.records import check_tensors, plain, record
from ..modelling.model import network_values
from .guides import as_posterior
from .posterior import Destination, Draw, Posterior, Status, spaced


@dataclass(frozen=True)
class StoredRecord:
    """Record of a :class:`StoredPosterior` in a file."""

    samples: dict[str, Tensor]
    values: dict[str, Tensor]
    method: str
    status: Status
    seconds: float | None


class StoredPosterior(Posterior):
    """A fixed set of draws, which may have their own values of the network's learned parameters and buffers.

    :meth:`of` makes one from another posterior. All predictions use the same draws. This saves time if each new draw is
    expensive, as with a :class:`~pyro_bnn.RefreshedPosterior`. A file of this posterior contains no training data.

    Args:
        samples: The draws of the latent variables, ``{site: shape (S, *event)}``.
        values: The values of parameters and buffers in each draw, ``{"net.PATH": shape (S, ...)}``; see
            :attr:`Posterior.carried`.
        method: Name of the inference method.
        status: Result of the inference.
        seconds: Wall time of the inference, if known.

    Raises:
        ValueError: If `samples` is empty, or the first axes of the tensors have different lengths.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=64
        ... )
        >>> stored = pb.StoredPosterior.of(pb.MeanFieldGuide(model), 20, seed=0)
        >>> first, second = (pb.predict(model, stored, torch.zeros(3, 1)) for _ in "ab")
        >>> stored.num_stored, bool((first.mean == second.mean).all())
        (20, True)
    """

    def __init__(
        self,
        samples: Mapping[str, Tensor],
        values: Mapping[str, Tensor] | None = None,
        *,
        method: str,
        status: Status,
        seconds: float | None = None,
    ) -> None:
        _checks.kind("samples", samples, Mapping, "a dict of draws, {site: shape (S, *event)}")
        _checks.kind("status", status, Status, "a Status")
        self.samples, self.values = dict(samples), dict(values or {})
        """The draws, ``{site: shape (S, *event)}``, and the values of parameters and buffers in each draw."""
        counts = {name: len(_checks.rows(name, tensor)) for name, tensor in {**self.samples, **self.values}.items()}
        if not self.samples or len({*counts.values()}) > 1:
            raise ValueError(f"`samples` and `values` must hold the same number of draws of each site, got {counts}.")
        self.status, self._method, self.seconds = status, method, seconds

    @classmethod
    def of(
        cls, posterior: Posterior | Callable[..., object], num_samples: int, *, seed: int | None = None
    ) -> "StoredPosterior":
        """Draw from a posterior, and store the draws.

        Args:
            posterior: The posterior, or any Pyro guide.
            num_samples: Number of draws S.
            seed: Seed of the draws; with ``None``, torch's generator is used.

        Raises:
            ValueError: If predictions with the posterior are linearised, since linearisation needs a median, which
                stored draws do not have.
        """
        source = as_posterior(posterior)
        if source.is_linearised:
            raise ValueError(
                f"`posterior` must not be one of {source.method}: its predictions are linearised around its median, "
                "but stored draws have no median; save the posterior itself."
            )
        drawn = source.sample(num_samples, seed=seed)
        values = {name: drawn.pop(name) for name in source.carried}
        stored = cls(drawn, values, method=source.method, status=source.status, seconds=source.seconds)
        stored.learned = source.learned
        return stored

    @property
    def method(self) -> str:
        return self._method

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: value.shape[1:] for name, value in self.samples.items()}

    @property
    def carried(self) -> tuple[str, ...]:
        return tuple(self.values)

    @property
    def num_stored(self) -> int:
        return len(next(iter(self.samples.values())))

    @property
    def constants(self) -> Draw:
        return {name: value[0] for name, value in self.samples.items() if _is_same(value)}

    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        """Yield `num_samples` of the stored draws, evenly spaced and each at most once."""
        yield from spaced({**self.samples, **self.values}, num_samples, remedy="store more of them")

    def to_record(self) -> dict[str, Any]:
        return plain(StoredRecord(self.samples, self.values, self.method, self.status, self.seconds))

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> "StoredPosterior":
        saved = record(StoredRecord, values, "posterior")
        destination.check_samples({name: value[None] for name, value in saved.samples.items()})
        own = {} if destination.model is None else network_values(destination.model)
        if destination.model is None and saved.values:
            raise ValueError(
                "draws that have values of a network's parameters and buffers need the model of this network; pass "
                "`model`."
            )
        count = len(next(iter(saved.samples.values())))
        expected = {name: own[name].expand(count, *own[name].shape) for name in saved.values if name in own}
        check_tensors("the network", saved.values, expected)
        samples, carried = ({n: v.to(destination.device) for n, v in d.items()} for d in (saved.samples, saved.values))
        return cls(samples, carried, method=saved.method, status=saved.status, seconds=saved.seconds)


def _is_same(value: Tensor) -> bool:
    """Whether all rows are equal."""
    return torch.equal(value[0], value[-1]) and bool((value == value[:1]).all())
