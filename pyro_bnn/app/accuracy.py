"""The accuracy of a classifier by epoch."""

import csv
from dataclasses import asdict, dataclass
from io import StringIO

from .validation import STRICT

__all__ = ["AccuracyCurve"]


@dataclass(frozen=True)
class AccuracyCurve:
    """Accuracy at mean weights after each epoch.

    Args:
        train: Accuracy on training data, one fraction per epoch.
        test: Accuracy on test data (or on a validation set), one fraction per epoch.
    """

    __pydantic_config__ = STRICT

    train: tuple[float, ...]
    test: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.train) != len(self.test):
            raise ValueError(f"`train` and `test` must be of one length, got {len(self.train)} and {len(self.test)}.")

    def to_dict(self) -> dict[str, object]:
        """Plain lists, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, list[float]]) -> "AccuracyCurve":
        """A curve from the result of :meth:`to_dict`."""
        return cls(tuple(values["train"]), tuple(values["test"]))

    def to_csv(self) -> str:
        """CSV text: a header, then one line per epoch, counted from 1."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["epoch", "train", "test"])
        writer.writerows((epoch, *pair) for epoch, pair in enumerate(zip(self.train, self.test, strict=True), 1))
        return text.getvalue()

    def table(self) -> str:
        """A table with one line per epoch.

        Example:
            >>> print(AccuracyCurve((0.9,), (0.8,)).table())
            accuracy at mean weights        train      test
            epoch  1                       90.00%    80.00%
        """
        rows = enumerate(zip(self.train, self.test, strict=True), 1)
        lines = [f"{f'epoch {epoch:2d}':26s} {train:10.2%}{test:10.2%}" for epoch, (train, test) in rows]
        return "\n".join([f"{'accuracy at mean weights':26s} {'train':>10s}{'test':>10s}", *lines])
