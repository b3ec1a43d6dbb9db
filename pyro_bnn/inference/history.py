"""The record of a fit, step by step and epoch by epoch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import fsum
from typing import Any

from .._core.records import record
from .._core.summary import Shown, Summary, counted, in_time


@dataclass(frozen=True)
class EpochRecord:
    """Means over one epoch, with the same weight for all rows of the data.

    Args:
        epoch: Number of the epoch, from 0.
        elbo: Evidence lower bound of the whole data set, in nats.
        expected_log_likelihood: Expected log-likelihood of the whole data set, in nats.
        kl: KL divergence of the posterior from the prior, in nats.
        kl_weight: Weight of the KL term in the objective.
        learning_rate: Learning rate of the first parameter group at the end of the epoch.
        seconds: Wall time of the epoch.
    """

    epoch: int
    elbo: float
    expected_log_likelihood: float
    kl: float
    kl_weight: float
    learning_rate: float
    seconds: float


@dataclass(repr=False)
class History(Shown):
    """The record of a fit.

    Args:
        num_data: Number of data points, if the model defines it.
        path: How gradients were computed: ``"direct"`` (without effect handlers), or ``"pyro: "`` followed by the
            reason why the direct path could not be used.
        elbo: Estimate of the evidence lower bound of the whole data set at each step, in nats.
        expected_log_likelihood: Estimate of the expected log-likelihood of the whole data set at each step, in nats.
        kl: KL divergence of the posterior from the prior at each step, exact or estimated, in nats.
        kl_weight: Weight of the KL term in the objective at each step.
        epochs: One record per epoch.
    """

    num_data: int | None = None
    path: str = ""
    elbo: list[float] = field(default_factory=list)
    expected_log_likelihood: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    kl_weight: list[float] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)

    def _summary(self) -> Summary:
        seconds = sum(record.seconds for record in self.epochs)
        sizes = [counted(len(self.epochs), "epoch"), counted(len(self.elbo), "step")]
        sizes += [] if self.num_data is None else [counted(self.num_data, "data point")]
        rows = [(r.epoch, r.elbo, r.expected_log_likelihood, r.kl, r.kl_weight, r.learning_rate) for r in self.epochs]
        return Summary(
            f"History: {', '.join(sizes)}, {in_time(seconds)}" if self.elbo else "History: empty",
            [f"gradients: {self.path}"] if self.path else [],
            rows,
            ("epoch", "ELBO in nats", "log-likelihood", "KL", "KL weight", "learning rate"),
        )

    @property
    def loss(self) -> list[float]:
        """The minimised objective at each step, in nats: KL weight times KL, minus the expected log-likelihood."""
        terms = zip(self.kl_weight, self.kl, self.expected_log_likelihood, strict=True)
        return [weight * kl - log_likelihood for weight, kl, log_likelihood in terms]

    def add_step(self, expected_log_likelihood: float, kl: float, kl_weight: float) -> None:
        """Record one optimisation step."""
        self.elbo.append(expected_log_likelihood - kl)
        self.expected_log_likelihood.append(expected_log_likelihood)
        self.kl.append(kl)
        self.kl_weight.append(kl_weight)

    def end_epoch(self, batch_sizes: list[int], learning_rate: float, seconds: float) -> EpochRecord:
        """Record the last steps as an epoch, given the batch size of each step.

        In the means of the epoch, the weight of each step is its batch size.
        """

        def mean(column: list[float]) -> float:
            steps = zip(column[-len(batch_sizes) :], batch_sizes, strict=True)
            return fsum(value * size for value, size in steps) / sum(batch_sizes)

        columns = (self.elbo, self.expected_log_likelihood, self.kl, self.kl_weight)
        elbo, log_likelihood, kl, kl_weight = map(mean, columns)
        record = EpochRecord(len(self.epochs), elbo, log_likelihood, kl, kl_weight, learning_rate, seconds)
        self.epochs.append(record)
        return record

    def to_dict(self) -> dict[str, object]:
        """Return the record as plain lists and numbers, for JSON."""
        return {**vars(self), "epochs": [asdict(record) for record in self.epochs]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "History":
        """Make a history from the result of :meth:`to_dict`.

        Raises:
            ValueError: If a field is missing or unknown, is not finite, or has a wrong type or length.
        """
        found = record(cls, values, "history")
        if found.num_data is not None and found.num_data < 1:
            raise ValueError(f"`history.num_data` must be at least 1, got {found.num_data}.")
        for name in ("expected_log_likelihood", "kl", "kl_weight"):
            if len(getattr(found, name)) != len(found.elbo):
                raise ValueError(
                    f"`history.{name}` must have a value for each of the {len(found.elbo)} steps of `elbo`, got "
                    f"{len(getattr(found, name))}."
                )
        return found
