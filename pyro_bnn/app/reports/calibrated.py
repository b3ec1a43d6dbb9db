"""Intervals and sets of classes, and the shares of targets that they contain before and after calibration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..._core.scope import seeded
from ...results.calibration import ConformalIntervals, ConformalSets, rank_of
from ...scores.uncertainty import ClassificationPrediction, RegressionPrediction
from ..numbers import in_series, number, percent
from ..runs import RunCalibration

COMPARED = (0.9, 0.95)  # levels of the intervals and sets
ALSO_COMPARED = (0.5,)  # levels of the intervals alone
MUCH_WIDER = 1.5  # heuristic: a calibration harms if right intervals or sets become wider by this factor
MOST_SHARE = 0.5  # heuristic: largest share of the training rows that a command suggests for calibration
CHANCE = 0.99  # probability of the range of chance; tests of several levels err in less than one in twenty
NUM_SIMULATIONS = 1000  # of all test rows, for limits of chance
COARSE, COARSE_RATIO = 0.1, 0.5
"""Heuristic: test rows are too few to judge a share, such as the share of the targets inside intervals, if chance may
change the share by more than `COARSE`. They are too few to judge standard deviations if chance may move RMSE / sd from
1 by more than `COARSE_RATIO`. The verdict then says that the rows are too few to tell, unless a fault is gross."""

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
    """Return the probability of intervals without calibration: `level`, or at least `level` for counts."""
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


def drawn_targets(prediction: RegressionPrediction, measure: Callable[[Tensor], Tensor], *, seed: int = 0) -> Tensor:
    """Measure targets that are drawn from the predictions, at least `NUM_SIMULATIONS` times, as in a posterior check.

    `measure` is called with several draws, shape (S, N, O). All rows of one draw are predicted by the same network, so
    that they share its error (Gelman, Meng and Stern 1996).
    """
    assert prediction.components is not None
    found = list[Tensor]()
    with seeded(seed, prediction.mean.device):
        while sum(map(len, found)) < NUM_SIMULATIONS:
            found.append(measure(prediction.components.sample()))
    return torch.cat(found)


def limits_by_draws(
    prediction: RegressionPrediction, intervals: Sequence[Tensor | tuple[Tensor, Tensor]], *, seed: int = 0
) -> list[tuple[float, float]]:
    """Return, for each of `intervals`, limits of the share inside: right predictions keep them with `CHANCE`."""

    def shares(y: Tensor) -> Tensor:
        inside = [((low <= y) & (y <= high)).double().flatten(1).mean(1) for low, high in intervals]
        return torch.stack(inside, 1).cpu()

    shown = drawn_targets(prediction, shares, seed=seed)
    low = shown.quantile((1 - CHANCE) / 2, dim=0, interpolation="lower").tolist()
    high = shown.quantile((1 + CHANCE) / 2, dim=0, interpolation="higher").tolist()
    return [*zip(low, high, strict=True)]


def limits_by_chance(level: float, num_calibration: int, num_test: int) -> tuple[float, float]:
    """Return limits between which the share of targets in calibrated intervals lies with probability `CHANCE`.

    Conformal theory promises the share whatever the predictions are, so that errors shared by the rows do not matter.
    One of the n calibration scores determines the width of the intervals. Let k be the rank of this score. If scores
    are continuous, the coverage has the distribution Beta(k, n + 1 - k), so the number of targets inside has a
    beta-binomial distribution (Vovk 2012, https://arxiv.org/abs/1209.2673).
    """
    from scipy.stats import betabinom  # imported late: importing takes long

    rank = rank_of(level, num_calibration)
    low, high = betabinom.interval(CHANCE, num_test, rank, num_calibration + 1 - rank)
    return float(low / num_test), float(high / num_test)


@dataclass(frozen=True)
class BeforeAndAfter:
    """The coverage of a network's intervals or sets before and after calibration, for each level."""

    num_calibration: int  # rows that calibrated
    num_test: int
    is_class: bool
    is_count: bool
    rows: Sequence[Mapping[str, Any]]  # `level`, `name`, `inside`, `limits` of this share, `width` (or size), `thirds`

    @property
    def noun(self) -> str:
        """The word for what was calibrated: "intervals" or "sets of classes"."""
        return "sets of classes" if self.is_class else "intervals"

    @property
    def spread(self) -> str:
        """The uncertainty by which test rows are sorted and divided into thirds: "sd" or "entropy"."""
        return "entropy" if self.is_class else "sd"

    @property
    def conclusion(self) -> str:
        """A sentence that says whether calibration was needed, whether it did harm, and what to do then."""
        needed, harm = self._needed, self._harm
        if harm and not needed:
            return f"Calibration made right {self.noun} worse ({harm}): train without --calibrate."
        if harm:
            differ = f"({harm}). Look whether test rows differ from those that calibrate."
            if "times as" not in harm and all(self._is_nearer(own, after) for own, after in self._pairs):
                return f"Calibration was needed for the {self.noun} of {needed}, but did not suffice {differ}"
            return f"Calibration made the {self.noun} worse, though those of {needed} were not right before {differ}"
        if needed:
            return f"Calibration was needed: before it, the {self.noun} of {needed} were wrong by more than chance."
        if self._is_coarse:
            return "The test rows are too few to tell whether calibration was needed."
        shares = "held at least the promised shares," if self.is_class or self.is_count else "were right"
        return f"Calibration was not needed: before it, the {self.noun} {shares} within chance."

    def changes(self, share: float) -> dict[str, float | None]:
        """If calibration did harm, return the setting to change: a larger share than `share`, or no calibration."""
        if not self._harm or (self._needed and share >= MOST_SHARE):
            return {}
        return {"calibrate": min(2 * share, MOST_SHARE) if self._needed else None}

    @property
    def is_wrong(self) -> bool:
        """Whether the share in some calibrated intervals or sets is wrong by more than chance."""
        return not all(self._is_right(after) for _, after in self._pairs)

    @property
    def large(self) -> str:
        """The word for the size of the intervals or sets."""
        return "large" if self.is_class else "wide"

    @property
    def _needed(self) -> str:
        """The levels at which the network's own intervals or sets are wrong by more than chance."""
        wrong = [own for own, after in self._pairs if not self._is_right(own) or self._is_too_large(own, after)]
        return in_series([percent(own["level"], 0) for own in wrong])

    def _is_too_large(self, own: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Return whether sets held more labels than promised, and calibrated sets, which are not empty, are smaller."""
        return self.is_class and own["inside"] > own["limits"][1] and 1 <= after["width"] < own["width"]

    @property
    def _harm(self) -> str:
        """The intervals or sets that were made wrong, or much wider without need, by calibration; "" for none."""
        worse = []
        for own, after in self._pairs:
            level, times = percent(own["level"], 0), after["width"] / own["width"] if own["width"] else 1.0
            if not self._is_right(after):
                worse.append(f"{level}: {percent(own['inside'])} inside before and {percent(after['inside'])} after")
            elif self._is_right(own) and times > MUCH_WIDER and not self._is_coarse:
                worse.append(f"{level}: {times:.1f} times as {self.large}")
        return "; ".join(worse)

    def _is_nearer(self, own: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Return whether a share is right after calibration, or at least nearer to its level than before."""
        before, now = (abs(row["inside"] - row["level"]) for row in (own, after))
        return self._is_right(after) or now < before

    def _is_right(self, row: Mapping[str, Any]) -> bool:
        """Return whether chance explains the difference between a share and its level.

        For sets of classes and for intervals of counts, a share above its level is also accepted.
        """
        low, high = row["limits"]
        return bool(row["inside"] >= low and (self.is_class or self.is_count or row["inside"] <= high))

    @property
    def _is_coarse(self) -> bool:
        """Whether the test rows are too few to judge the network's own intervals or sets."""
        own = next(own for own, _ in self._pairs if own["level"] == COMPARED[0])
        return own["level"] - own["limits"][0] > COARSE

    @property
    def _pairs(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """The rows of each level, before and after calibration."""
        return [*zip(self.rows[::2], self.rows[1::2], strict=True)]

    @property
    def levels(self) -> str:
        """The compared levels in words."""
        return in_series([percent(level, 0) for level in self._compared])

    @property
    def _compared(self) -> list[float]:
        return [own["level"] for own, _ in self._pairs]

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
        return "\n".join([*lines, "", self.conclusion])


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
    from scipy.stats import binom  # imported late: importing takes long

    is_class = isinstance(prediction, ClassificationPrediction)
    order = prediction.total.flatten().argsort(stable=True)
    rows = []
    levels = COMPARED if is_class else (*ALSO_COMPARED, *COMPARED)
    for level, (name, used) in product(levels, ((OWN, None), ("calibrated", calibration))):
        if isinstance(prediction, ClassificationPrediction):
            mask = sets_of(prediction, level, used)
            inside, width = mask.gather(1, y[:, None]), mask.sum(1)
            low, high = binom.interval(CHANCE, len(y), level)
            limits = float(low / len(y)), float(high / len(y))
        else:
            low, high = interval_of(prediction, level, used)
            inside, width = (low <= y) & (y <= high), high - low
            (limits,) = limits_by_draws(prediction, [torch.stack([low, high])]) if used is None else [(0.0, 1.0)]
        if used is not None:
            limits = limits_by_chance(level, used.num_rows, len(y))
        held = inside.double().flatten()
        thirds = [float(held[part].mean()) for part in order.tensor_split(len(PARTS)) if len(part)]
        shares = {
            "inside": float(held.mean()),
            "limits": limits,
            "width": float(width.double().mean()),
            "thirds": thirds,
        }
        rows.append({"level": level, "name": name, **shares})
    return BeforeAndAfter(calibration.num_rows, len(y), is_class, is_count, rows)
