"""The result of a comparison: scores, the verdict, and tables as text, CSV and JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from ..._core import checks as _checks
from ..._core.inputs import Inputs
from ..._core.remedies import Advised
from ..._core.summary import WIDTH, Number, Shown, Summary, counted
from ...inference.posterior import Status
from ...scores.uncertainty import Prediction

if TYPE_CHECKING:
    import pandas

SD = (
    "Standard deviations (sd) are root mean squares over points. A ratio is that of two root mean squares; in brackets "
    "are the 10 % and 90 % quantiles of the ratio over points."
)

SMALL = "small differences are uncertain."  # said about a method whose chains are slightly too short
NO_VERDICT = "its numbers do not tell how good the method is."
LARGEST_WRITTEN_OUT, MOST_DIGITS = 1e6, 7  # numbers that are larger or need more decimals are in scientific notation


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error.

    Args:
        value: The estimate.
        standard_error: For a pair of methods, the Monte Carlo error due to the finite number of draws. For a single
            method, the standard error of a mean over independent points. If the points are a grid, this error only
            shows how much the score varies over the points.
        quantile_10: For a ratio of standard deviations, its 10 % quantile over points; otherwise NaN.
        quantile_90: The same for the 90 % quantile.
    """

    value: float
    standard_error: float
    quantile_10: float = math.nan
    quantile_90: float = math.nan

    @property
    def range(self) -> str:
        """The quantiles as text, such as "0.66 to 1.10"; "" if there are none."""
        low, high = self.quantile_10, self.quantile_90
        digits = max(2, 1 - math.floor(math.log10(low))) if 0 < low < math.inf else 2  # two digits of the lower end
        return "" if math.isnan(low) or math.isnan(high) else f"{low:.{digits}f} to {high:.{digits}f}"

    def __str__(self) -> str:
        return in_digits("", [self])[0]


def three_digits(value: float) -> str:
    """Return a number as text with three digits, such as "1.00", or with all digits before the point."""
    return f"{value:,.0f}" if 1000 <= abs(value) < LARGEST_WRITTEN_OUT else f"{value:#.3g}".rstrip(".")


def in_digits(name: str, estimates: Sequence[Estimate]) -> list[str]:
    """Return texts with equally many decimals, enough for one digit of each error. Shares are in per cent."""
    is_share = name in ("accuracy", "agreement") or name.startswith("coverage")
    factor, unit, fewest = (100, " %", 1) if is_share else (1, "", 0)
    numbers = [(factor * estimate.value, factor * estimate.standard_error) for estimate in estimates]
    errors = [error for _, error in numbers if math.isfinite(error) and error > 0]
    sizes = [-math.floor(math.log10(error)) for error in errors]
    digits = max(fewest, min(sizes) + 1, *sizes) if sizes else 0
    largest = max((abs(part) for pair in numbers for part in pair if math.isfinite(part)), default=0)
    is_short = bool(errors) and digits <= MOST_DIGITS and largest < LARGEST_WRITTEN_OUT
    decimals = f",.{digits}f"
    return [
        (format(value, decimals) if is_short else three_digits(value))
        + (f" ± {format(error, decimals if is_short else '.2g')}" if error in errors else "")
        + unit
        for value, error in numbers
    ]


@dataclass(frozen=True)
class Scores:
    """Scores of one method, or its distances from a reference method, over the points of a region.

    Args:
        method: Name of the method.
        region: Name of the region.
        scores: Scores by name. A single method has

            - in regression ``epistemic sd`` and ``total sd`` (root mean squares over points), and with targets ``nll``
              (mean per point, in nats), ``coverage_50`` and ``coverage_90``;
            - in classification ``entropy`` (in nats), and with targets ``nll`` and ``accuracy``.

            A pair of methods has

            - in regression ``rms mean difference`` (root mean square over points), ``epistemic sd ratio`` and ``total
              sd ratio`` (ratios of root mean squares, the method's over the reference's), and ``wasserstein`` (first
              Wasserstein distance of the predictive distributions, in the units of y, mean over points);
            - in classification ``agreement`` (share of points with the same most probable class) and ``total
              variation`` (half the summed absolute difference of probabilities, mean over points).

            An ``epistemic sd ratio`` is 0 if the method is a plain network, and infinite if the reference is one. Even
            two sets of draws from one posterior have a ``wasserstein`` above 0; more draws make it smaller.
        reference: Name of the reference method; "" for a single method.
        seconds: Wall time of the inference, if it is known; None for a pair.
    """

    method: str
    region: str
    scores: dict[str, Estimate]
    reference: str = ""
    seconds: float | None = None


def cells_of(rows: Sequence[Scores]) -> dict[str, list[str]]:
    """Return the texts of a table's cells, by column."""
    columns = {}
    if any(row.seconds is not None for row in rows):
        columns["seconds"] = ["" if row.seconds is None else f"{row.seconds:.1f}" for row in rows]
    return columns | {name: in_digits(name, [row.scores[name] for row in rows]) for name in rows[0].scores}


def in_words(pairs: Sequence[Scores]) -> str:
    """Say for each region how far the closest method is from the reference."""
    reference, methods = pairs[0].reference, {pair.method for pair in pairs}
    regions = list(dict.fromkeys(pair.region for pair in pairs))
    score, lines = "total variation" if "total variation" in pairs[0].scores else "wasserstein", []
    for region in regions:
        closest = min((p for p in pairs if p.region == region), key=lambda pair: pair.scores[score].value)
        text = _in_words(closest)
        if len(methods) > 1:
            distance = f"{score} {closest.scores[score]}"
            text = f"{closest.method} is the closest of {len(methods)} methods to {reference} ({distance}). {text}"
        lines.append(f"{region}: {text}" if len(regions) > 1 else text)
    return "\n".join(lines)


def _in_words(pair: Scores) -> str:
    """Say how far the predictions of a method are from the reference's."""
    method, reference = pair.method, pair.reference
    scores = {name: estimate.value for name, estimate in pair.scores.items()}
    if "agreement" in scores:
        return (
            f"{method} and {reference} agree on the most probable class of {100 * scores['agreement']:.1f} % of the "
            f"points. Their probabilities differ by {scores['total variation']:.3f} (mean total variation)."
        )
    total, epistemic = pair.scores["total sd ratio"], pair.scores["epistemic sd ratio"]
    part = f"its epistemic part {_times(epistemic)}"
    if math.isinf(epistemic.value):
        part = f"{reference} has no epistemic part"
    return (
        f"The standard deviation of the predictions of {method} is {_times(total, f' that of {reference}')}, and "
        f"{part}. Their means differ by {three_digits(scores['rms mean difference'])} (root mean square over points)."
    )


def _times(ratio: Estimate, noun: str = "") -> str:
    """Return a text such as "0.807 times that of nuts (0.66 to 1.10 times at 80 % of the points)"."""
    among = f" ({ratio.range} times at 80 % of the points)" if ratio.range else ""
    return f"{three_digits(ratio.value)} times{noun}{among}"


@dataclass(frozen=True, repr=False)
class Comparison(Advised, Shown):
    """Result of :func:`compare`: tables, and the predictions behind them.

    `print` shows all methods, the pairs with the first method, and :attr:`verdict`. Lines of the verdict about statuses
    are printed first. :meth:`rows`, :meth:`to_csv` and :meth:`to_json` have all pairs. The prompt shows only the pairs
    with the first method; a notebook adds the scores of all methods.

    Args:
        methods: Scores of each method in each region.
        pairs: Scores of each pair of methods in each region.
        predictions: The prediction of each method at x.
        x: The inputs, shape (N, ...).
        status: Status of the first method.
        others: Statuses of the other methods, ``{name of the method: status}``.
    """

    methods: list[Scores]
    pairs: list[Scores]
    predictions: dict[str, Prediction]
    x: Inputs
    status: Status
    others: Mapping[str, Status] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The result in words: a line for each method whose status is bad or unknown, then a line for each region.

        If several methods are compared with the first, a region's line is about the closest of them. If the status of
        the first method shows more than a slight problem, there are no lines about regions. `status` and `others` have
        the complete statuses.
        """
        return "\n".join([*self._doubts, *([self.differences] if self._is_told else [])])

    @property
    def _is_told(self) -> bool:
        """Whether the first method is good enough to judge others by. An unknown status counts as good enough."""
        return self.status.ok is not False or self.status.is_slight

    @property
    def _doubts(self) -> list[str]:
        doubts = {self._first: "these numbers do not tell how good the other methods are."}
        return [
            _problem(name, status, SMALL if status.is_slight else doubts.get(name, NO_VERDICT))
            for name, status in self._bad.items()
        ]

    @property
    def _bad(self) -> dict[str, Status]:
        """The statuses that are bad or unknown."""
        return {name: status for name, status in {self._first: self.status, **self.others}.items() if not status}

    @property
    def differences(self) -> str:
        """The lines of :attr:`verdict` about regions, whatever the status of the first method."""
        return in_words(self._from_first)

    @property
    def tables(self) -> str:
        """For each region two tables: scores of methods, and of pairs with the first method."""
        sd, spread = (" (sd: root mean square over points)", " (10-90 %: quantiles over points)")
        blocks = []
        for region, (methods, pairs) in self._regions.items():
            blocks.append(f"{region}{sd if self._has_sd else ''}:\n{_table(methods)}")
            blocks.append(f"{region}, compared with {self._first}{spread if self._has_sd else ''}:\n{_table(pairs)}")
        return "\n\n".join(blocks)

    @property
    def _has_sd(self) -> bool:
        """Whether the methods are compared in regression."""
        return "total sd ratio" in self.pairs[0].scores

    @property
    def _legend(self) -> str:
        """How to read the distances in :attr:`tables`."""
        if "agreement" in self.pairs[0].scores:
            return "Equal predictions have an agreement of 1 and a total variation of 0."
        return "Equal predictions have ratios of 1; the two other scores, in units of y, are 0."

    @property
    def _first(self) -> str:
        return self.pairs[0].reference

    @property
    def _from_first(self) -> list[Scores]:
        return [pair for pair in self.pairs if pair.reference == self._first]

    def _title(self) -> str:
        return f"Comparison: {counted(len(self.predictions), 'method')}, compared with {self._first}"

    @property
    def _regions(self) -> dict[str, tuple[list[Scores], list[Scores]]]:
        """For each region, the scores of the methods, and the pairs with the first method."""
        return {
            region: ([row for row in self.methods if row.region == region], pairs)
            for region in dict.fromkeys(row.region for row in self.pairs)
            if (pairs := [row for row in self._from_first if row.region == region])
        }

    def _summary(self) -> Summary:
        """Return what is wrong with each method in brief, and the pairs with the first method."""
        rows = [
            (region, pair.method, *map(Number, texts))
            for region, (_, pairs) in self._regions.items()
            for pair, *texts in zip(pairs, *cells_of(pairs).values(), strict=True)
        ]
        return Summary(
            self._title(),
            [_in_brief(*bad) for bad in self._bad.items()],
            rows,
            header=("region", "method", *self.pairs[0].scores),
        )

    def _notebook_summary(self) -> Summary:
        rows, names = [], dict[str, None]()
        for region, (methods, pairs) in self._regions.items():
            columns = cells_of(methods)
            for name, texts in cells_of(pairs).items():
                ranges = [f" ({span})" if (span := pair.scores[name].range) else "" for pair in pairs]
                columns[name] = ["", *map(str.__add__, texts, ranges)]  # the first method has no distance from itself
            names = dict.fromkeys(columns)
            rows += [(region, row.method, *map(Number, t)) for row, *t in zip(methods, *columns.values(), strict=True)]
        notes = [*self.verdict.splitlines(), *([SD] if self._has_sd else [])]
        return Summary(self._title(), notes, rows, ("region", "method", *names))

    def __str__(self) -> str:
        differences = self.differences.splitlines() if self._is_told else []
        parts = _wrapped(self._doubts), self.tables, self._legend, _wrapped(differences)
        return "\n\n".join(filter(None, parts))

    def rows(self) -> list[dict[str, object]]:
        """Return one row per number, with the keys reference, method, region, score, value and standard_error.

        For a single method, `reference` is "".
        """
        rows: list[dict[str, object]] = []
        for row in (*self.methods, *self.pairs):
            timed = {} if row.seconds is None else {"seconds": Estimate(row.seconds, math.nan)}
            for score, estimate in (row.scores | timed).items():
                named = {"reference": row.reference, "method": row.method, "region": row.region, "score": score}
                rows.append(named | asdict(estimate))
        return rows

    def to_frame(self) -> "pandas.DataFrame":
        """Return :meth:`rows` as a data frame."""
        import pandas  # imported late: importing takes long

        return pandas.DataFrame(self.rows())

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`rows` as CSV."""
        self.to_frame().to_csv(_checks.file_to_write("path", path), index=False, na_rep="nan")

    def to_json(self, path: str | Path) -> None:
        """Write the scores of methods and pairs as JSON, with null for numbers that are not finite."""
        content = {"methods": [asdict(row) for row in self.methods], "pairs": [asdict(row) for row in self.pairs]}
        for row in (*content["methods"], *content["pairs"]):
            for estimate in row["scores"].values():
                estimate.update({key: None for key, value in estimate.items() if not math.isfinite(value)})
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        _checks.file_to_write("path", path).write_text(text, encoding="utf-8")


def _problem(name: str, status: Status, doubt: str) -> str:
    until = "" if status.ok is None else f" Until then, {doubt}"
    return f"{_in_brief(name, status)} {status.remedy}".rstrip() + until


def _in_brief(name: str, status: Status) -> str:
    """Return the first problem; `status` has all."""
    return f"{status.label}: {name}: {status.finding.partition(' Also, ')[0]}"


def _wrapped(lines: Sequence[str]) -> str:
    return "\n".join(chain.from_iterable(wrap(line, WIDTH, break_on_hyphens=False) for line in lines))


def _table(rows: Sequence[Scores]) -> str:
    """Return a table as text. Below the row of a method with ratios, a line shows their ranges."""
    columns = cells_of(rows)
    lines = [["", *columns]]
    for row, *texts in zip(rows, *columns.values(), strict=True):
        lines.append([row.method, *texts])
        ranges = [row.scores[name].range if name in row.scores else "" for name in columns]  # none for the seconds
        if any(ranges):
            lines.append(["  10-90 %", *ranges])
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join("  ".join([line[0].ljust(first), *map(str.rjust, line[1:], widths)]).rstrip() for line in lines)
