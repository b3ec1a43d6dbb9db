"""Intervals and sets of a run, and how many targets they contain before and after calibration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...results.calibration import ConformalIntervals, ConformalSets
from ...scores.uncertainty import ClassificationPrediction, RegressionPrediction
from ..runs import RunCalibration

LEVEL = 0.9
"""Level of the intervals and sets that are compared."""

PARTS = ("smallest", "middle", "largest")
"""Thirds of the rows by predicted standard deviation, or by predicted entropy for classes."""


def interval_of(prediction: RegressionPrediction, level: float, calibration: RunCalibration | None = None) -> Tensor:
    """Lower and upper ends of intervals of the probability `level`, shape (2, N, O).

    Without a calibration, the intervals are the central ones of the prediction, which must have the components of its
    mixture. A calibration on standardised targets is also valid for a prediction in the target's units, since conformal
    scores have no unit.
    """
    if calibration is not None:
        assert isinstance(calibration, ConformalIntervals)
        return calibration.interval(prediction, level)
    return prediction.quantile([(1 - level) / 2, (1 + level) / 2])


def sets_of(prediction: ClassificationPrediction, level: float, calibration: RunCalibration | None = None) -> Tensor:
    """Whether each class is in the set of its row, shape (N, C).

    Without a calibration a set has the most probable classes: just enough for a total probability of `level`.
    """
    if calibration is not None:
        assert isinstance(calibration, ConformalSets)
        return calibration.sets(prediction, level)
    ordered, order = prediction.probs.double().sort(dim=1, descending=True)
    is_inside = ordered.cumsum(1) - ordered < level  # the probability of more probable classes
    return is_inside.new_zeros(is_inside.shape).scatter_(1, order, is_inside)


@dataclass(frozen=True)
class BeforeAndAfter:
    """Coverage of a network's own intervals or sets, and of the calibrated ones.

    `rows` has a row before and a row after calibration, each with `name`, `inside` (the share of targets inside),
    `width` (mean width, in the target's units, or mean number of classes) and `thirds` (the share inside, in the thirds
    of `PARTS`).
    """

    level: float
    num_calibration: int  # rows that calibrated
    num_test: int
    is_class: bool
    rows: Sequence[Mapping[str, Any]]

    @property
    def noun(self) -> str:
        """What the table compares: "intervals" or "sets of classes"."""
        return "sets of classes" if self.is_class else "intervals"

    @property
    def spread(self) -> str:
        """Name of the uncertainty that divides the rows into thirds: "sd" or "entropy"."""
        return "entropy" if self.is_class else "sd"

    @property
    def deviation(self) -> float:
        """Approximate standard deviation of the share of targets inside after calibration, by the choice of rows."""
        return math.sqrt(self.level * (1 - self.level) * (1 / self.num_test + 1 / self.num_calibration))

    @property
    def headings(self) -> list[str]:
        """Headings of the columns."""
        return ["inside", "mean size" if self.is_class else "mean width", *(f"{part} {self.spread}" for part in PARTS)]

    def cells(self, row: Mapping[str, Any]) -> list[str]:
        """The cells of a row of the table, in the order of the headings."""
        return [f"{row['inside']:.1%}", f"{row['width']:.4g}", *(f"{share:.1%}" for share in row["thirds"])]

    def __str__(self) -> str:
        head = f"{self.level:.0%} {self.noun}"
        lines = [f"{head:30s}" + "".join(f"{name:>17s}" for name in self.headings)]
        lines += [f"{row['name']:30s}" + "".join(f"{cell:>17s}" for cell in self.cells(row)) for row in self.rows]
        targets, place = ("labels", "set") if self.is_class else ("targets", "interval")
        note = (
            f"inside: share of the {targets} in their {place}. The calibration used {self.num_calibration} rows "
            f"outside of the fit. The calibrated share\nis right on average over all rows, not in each third by "
            f"predicted {self.spread}. By chance, it varies by about {100 * self.deviation:.1f} points."
        )
        return "\n".join([*lines, "", note])


def before_and_after(
    prediction: RegressionPrediction | ClassificationPrediction,
    y: Tensor,
    calibration: RunCalibration,
) -> BeforeAndAfter:
    """Coverage on test rows, by a prediction of numbers that has its components, or of classes."""
    rows = []
    for name, used in (("network", None), ("calibrated", calibration)):
        if isinstance(prediction, ClassificationPrediction):
            found = sets_of(prediction, LEVEL, used)
            inside, width = found.gather(1, y[:, None]), found.sum(1)
        else:
            low, high = interval_of(prediction, LEVEL, used)
            inside, width = (low <= y) & (y <= high), high - low
        held = inside.double().flatten()
        order = prediction.total.flatten().argsort(stable=True)
        thirds = [float(held[part].mean()) for part in order.tensor_split(len(PARTS)) if len(part)]
        shares = {"inside": float(held.mean()), "width": float(width.double().mean()), "thirds": thirds}
        rows.append({"name": name, **shares})
    is_class = isinstance(prediction, ClassificationPrediction)
    return BeforeAndAfter(LEVEL, calibration.num_rows, len(y), is_class, rows)
