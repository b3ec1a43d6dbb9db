"""Intervals and sets of classes, and the shares of targets that they contain before and after calibration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import Tensor

from ...results.calibration import ConformalIntervals, ConformalSets
from ...scores.uncertainty import ClassificationPrediction, RegressionPrediction
from ..numbers import in_series, number, percent
from ..runs import RunCalibration

COMPARED = (0.9, 0.95)  # levels of the intervals and sets
ALSO_COMPARED = (0.5,)  # levels of the intervals alone
MUCH_WIDER = 1.5  # heuristic: a calibration harms if right intervals or sets become wider by this factor
CHANCE = 0.99  # probability of the range of chance; tests of several levels err in less than one in twenty
COARSE, COARSE_RATIO = 0.1, 0.5
"""Heuristic: test rows are too few to judge a share, such as that of the targets inside of intervals, if chance may
move it by more than `COARSE`. They are too few to judge standard deviations if chance may move RMSE / sd from 1 by more
than `COARSE_RATIO`. A test that only a gross fault can fail has no good result: its verdict says so."""

OWN = "network"  # name of the intervals and sets before calibration
PARTS = ("smallest", "middle", "largest")  # names of thirds of the rows by their predicted sd, or entropy


def interval_of(prediction: RegressionPrediction, level: float, calibration: RunCalibration | None = None) -> Tensor:
    """Return the ends of intervals with probability `level`, shape (2, N, O).

    The intervals are calibrated if `calibration` is given, and central otherwise.
    """
    if calibration is not None:  # valid in all units of the target, since conformal scores have none
        assert isinstance(calibration, ConformalIntervals)
        return calibration.interval(prediction, level)
    return prediction.quantile([(1 - level) / 2, (1 + level) / 2])


def promised_by(prediction: RegressionPrediction, low: Tensor, high: Tensor, level: float, *, is_count: bool) -> float:
    """Return the share of the targets that intervals without calibration promise: for counts, at least the level."""
    if not is_count:
        return level
    return min(1.0, float((prediction.cdf(high) - prediction.cdf(low - 1)).mean()))


def sets_of(prediction: ClassificationPrediction, level: float, calibration: RunCalibration | None = None) -> Tensor:
    """Return sets of classes with probability `level`, as a mask of shape (N, C).

    If a calibration is given, it makes the sets. Otherwise each set has the fewest classes whose total probability
    reaches `level`.
    """
    if calibration is not None:
        assert isinstance(calibration, ConformalSets)
        return calibration.sets(prediction, level)
    ordered, order = prediction.probs.double().sort(dim=1, descending=True)
    is_inside = ordered.cumsum(1) - ordered < level  # the probability of more probable classes
    return is_inside.new_zeros(is_inside.shape).scatter_(1, order, is_inside)


@dataclass(frozen=True)
class BeforeAndAfter:
    """The coverage of a network's intervals or sets before and after calibration, for each level."""

    num_calibration: int  # rows that calibrated
    num_test: int
    is_class: bool
    is_count: bool
    rows: Sequence[Mapping[str, Any]]  # `level`, `name`, `inside` (a share), `width` (or size) and `thirds` (shares)

    @property
    def noun(self) -> str:
        """The word for what was calibrated: "intervals" or "sets of classes"."""
        return "sets of classes" if self.is_class else "intervals"

    @property
    def spread(self) -> str:
        """The uncertainty by which test rows are sorted and divided into thirds: "sd" or "entropy"."""
        return "entropy" if self.is_class else "sd"

    @property
    def deviations(self) -> str:
        """A text that says by how much each calibrated share varies by chance, as an approximate standard deviation."""
        rows = 1 / self.num_test + 1 / self.num_calibration
        points = [
            f"{100 * math.sqrt(level * (1 - level) * rows):.1f} ({percent(level, 0)})" for level in self._compared
        ]
        return f"{in_series(points)} points"

    @property
    def conclusion(self) -> str:
        """A sentence which says whether the network's own intervals or sets needed the calibration."""
        own = [row for row in self.rows if row["name"] == OWN]
        shares = in_series([percent(row["inside"]) for row in own])
        said = f"Before calibration, the {self.noun} of {self.levels} held {shares} of the targets"
        if all(self._is_right(row) for row in own):
            if COMPARED[0] - self._limits(COMPARED[0])[0] / self.num_test > COARSE:
                return f"{said}. The rows are too few to tell whether calibration was needed."
            return f"{said}. This is right within chance, so calibration was not needed here."
        return f"{said}. At least one of these shares is wrong by more than chance, so calibration was needed."

    def _is_right(self, row: Mapping[str, Any]) -> bool:
        """Return whether chance explains the difference between a share and its level.

        For sets of classes and for intervals of counts, a share above its level is also accepted.
        """
        low, high = self._limits(row["level"])
        held = row["inside"] * self.num_test
        return bool(held >= low and (self.is_class or self.is_count or held <= high))

    def _limits(self, level: float) -> tuple[float, float]:
        """Return the numbers of rows between which the number of targets inside lies by chance."""
        from scipy.stats import binom  # imported late: importing takes long

        low, high = binom.interval(CHANCE, self.num_test, level)
        return float(low), float(high)

    @property
    def levels(self) -> str:
        """The compared levels in words."""
        return in_series([percent(level, 0) for level in self._compared])

    @property
    def _compared(self) -> list[float]:
        return [row["level"] for row in self.rows if row["name"] == OWN]

    @property
    def harm(self) -> str:
        """A text with a remedy if calibration made right intervals or sets wrong or much wider; otherwise empty."""
        worse = []
        for own, after in zip(self.rows[::2], self.rows[1::2], strict=True):
            if not self._is_right(own):
                continue
            level, times = percent(own["level"], 0), after["width"] / own["width"] if own["width"] else 1.0
            if not self._is_right(after):
                worse.append(f"{level}: {percent(own['inside'])} inside before and {percent(after['inside'])} after")
            elif times > MUCH_WIDER:
                worse.append(f"{level}: {times:.1f} times as {'large' if self.is_class else 'wide'}")
        if not worse:
            return ""
        return (
            f"Calibration made the {self.noun} worse ({'; '.join(worse)}). Train without --calibrate, or hold out more "
            f"rows than {self.num_calibration}."
        )

    @property
    def headings(self) -> list[str]:
        """The headings of the table's columns."""
        return ["inside", "mean size" if self.is_class else "mean width", *(f"{part} {self.spread}" for part in PARTS)]

    @staticmethod
    def name(row: Mapping[str, Any]) -> str:
        """Return the level and the name of a row in `rows`, such as "90 %, network"."""
        return f"{percent(row['level'], 0)}, {row['name']}"

    def cells(self, row: Mapping[str, Any]) -> list[str]:
        """Return the cells of a row in `rows`, in the order of the headings."""
        return [percent(row["inside"]), number(row["width"]), *(percent(share) for share in row["thirds"])]

    def __str__(self) -> str:
        lines = [f"{self.noun:30s}" + "".join(f"{name:>17s}" for name in self.headings)]
        lines += [f"{self.name(row):30s}" + "".join(f"{cell:>17s}" for cell in self.cells(row)) for row in self.rows]
        return "\n".join([*lines, "", f"{self.conclusion} {self.harm}".rstrip()])


def before_and_after(
    prediction: RegressionPrediction | ClassificationPrediction,
    y: Tensor,
    calibration: RunCalibration,
    *,
    is_count: bool,
) -> BeforeAndAfter:
    """Compare the coverage on test rows before and after calibration.

    A prediction of numbers must contain its `components`, from which the intervals are computed.
    """
    is_class = isinstance(prediction, ClassificationPrediction)
    order = prediction.total.flatten().argsort(stable=True)
    rows = []
    levels = COMPARED if is_class else (*ALSO_COMPARED, *COMPARED)
    for level, (name, used) in product(levels, ((OWN, None), ("calibrated", calibration))):
        if isinstance(prediction, ClassificationPrediction):
            found = sets_of(prediction, level, used)
            inside, width = found.gather(1, y[:, None]), found.sum(1)
        else:
            low, high = interval_of(prediction, level, used)
            inside, width = (low <= y) & (y <= high), high - low
        held = inside.double().flatten()
        thirds = [float(held[part].mean()) for part in order.tensor_split(len(PARTS)) if len(part)]
        shares = {"inside": float(held.mean()), "width": float(width.double().mean()), "thirds": thirds}
        rows.append({"level": level, "name": name, **shares})
    return BeforeAndAfter(calibration.num_rows, len(y), is_class, is_count, rows)
