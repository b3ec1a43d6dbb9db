"""The result of a comparison: scores with their errors, the verdict, and tables as text, CSV and JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from textwrap import wrap

from ..._core.inputs import Inputs
from ..._core.remedies import Advised
from ..._core.summary import NOT_OK, WIDTH, Number, Shown, Summary, counted
from ...inference.posterior import Status
from ...scores.uncertainty import Prediction

LARGEST_WRITTEN_OUT, MOST_DIGITS = 1e6, 7
"""Larger numbers, and numbers that need more digits after the point, are shown in scientific notation."""


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error.

    Args:
        value: The estimate.
        standard_error: Standard error of the value. For a pair of methods, the standard error is the Monte Carlo error
            that is due to the finite number of draws. For a single method, the value is a mean over points, and the
            standard error is right if the points are independent. If the points are a grid, the standard error only
            shows how much the score varies between points.
    """

    value: float
    standard_error: float

    def __str__(self) -> str:
        if not (math.isfinite(self.standard_error) and self.standard_error > 0):
            return f"{self.value:.3g}"
        digits = max(0, 1 - math.floor(math.log10(self.standard_error)))  # shows the error with two digits
        if max(abs(self.value), self.standard_error) >= LARGEST_WRITTEN_OUT or digits > MOST_DIGITS:
            return f"{self.value:.3g} ± {self.standard_error:.2g}"
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f}"


@dataclass(frozen=True)
class Scores:
    """Scores of one method, or its distances from a reference method, over the points of a region.

    Args:
        method: Name of the method.
        region: Name of the region.
        scores: Scores by name. For a method that predicts numbers: ``epistemic sd`` and ``total sd`` (means over
            points), and with targets also ``nll`` (mean per point, in nats), ``coverage_50`` and ``coverage_90``. For a
            method that predicts classes: ``entropy`` (in nats), and with targets also ``nll`` and ``accuracy``. For a
            method and a reference that predict numbers: ``rms mean difference`` (root mean square over points),
            ``epistemic sd ratio`` and ``total sd ratio`` (method over reference, geometric means over points), and
            ``wasserstein`` (first Wasserstein distance between predictive distributions, in the units of y, mean over
            points). The ``epistemic sd ratio`` is 0 if the method is a point estimate, and infinite if the reference is
            a point estimate. Two sets of draws from one posterior have a positive ``wasserstein``, which shrinks with
            the number of draws. For a pair that predicts classes: ``agreement`` (fraction of points with the same most
            probable class), ``total variation`` (half the summed absolute difference of probabilities, mean over
            points).
        reference: Name of the method with which `method` is compared; "" for a single method.
        seconds: Wall time of the inference; None for a pair, or if the time is unknown.
    """

    method: str
    region: str
    scores: dict[str, Estimate]
    reference: str = ""
    seconds: float | None = None

    @property
    def cells(self) -> dict[str, str]:
        """The scores as texts, by name; the wall time also has a text if it is known."""
        seconds = {} if self.seconds is None else {"seconds": f"{self.seconds:.1f}"}
        return seconds | {name: str(estimate) for name, estimate in self.scores.items()}


def in_words(pairs: Sequence[Scores]) -> str:
    """Return lines that say, for each region, how far the closest method is from the reference method."""
    reference, methods = pairs[0].reference, {pair.method for pair in pairs}
    regions = list(dict.fromkeys(pair.region for pair in pairs))
    lines = []
    for region in regions:
        score = "total variation" if "total variation" in pairs[0].scores else "wasserstein"
        closest = min((p for p in pairs if p.region == region), key=lambda pair: pair.scores[score].value)
        text = _in_words(closest)
        if len(methods) > 1:
            distance = f"{score} {closest.scores[score]}"
            text = f"{closest.method} is the closest of {len(methods)} methods to {reference} ({distance}). {text}"
        lines.append(f"{region}: {text}" if len(regions) > 1 else text)
    return "\n".join(lines)


def _in_words(pair: Scores) -> str:
    """Return a text which says how far the predictions of a method are from the predictions of the reference."""
    method, reference = pair.method, pair.reference
    scores = {name: estimate.value for name, estimate in pair.scores.items()}
    if "agreement" in scores:
        return (
            f"{method} and {reference} agree on the most probable class of {100 * scores['agreement']:.1f} % of the "
            f"points. Their probabilities differ by {scores['total variation']:.3f} (mean total variation)."
        )
    part = f"its epistemic part {scores['epistemic sd ratio']:.2f} times that of {reference}"
    if math.isinf(scores["epistemic sd ratio"]):
        part = f"{reference} has no epistemic part"
    return (
        f"The standard deviation of the predictions of {method} is {scores['total sd ratio']:.2f} times that of "
        f"{reference}, and {part}. Their means differ by {scores['rms mean difference']:.3g} (root mean square over "
        "points)."
    )


@dataclass(frozen=True, repr=False)
class Comparison(Advised, Shown):
    """Result of :func:`compare`: tables, and the predictions from which the tables were computed.

    `print` shows all methods, the pairs that include the first method, and :attr:`verdict`. If the verdict has lines
    that begin with "NOT OK", `print` shows these lines first. :meth:`rows`, :meth:`to_csv` and :meth:`to_json` have all
    pairs. The Python prompt shows only the pairs that include the first method. A notebook shows the pairs that include
    the first method, and the scores of all methods.

    Args:
        methods: Scores of the methods, one row per region and method.
        pairs: Scores of the pairs, one row per region and pair of methods.
        predictions: The prediction of each method at x.
        x: The inputs, shape (N, ...).
        status: Status of the first method, with which the other methods are compared.
        others: The status of each other method, by the name of the method.
    """

    methods: list[Scores]
    pairs: list[Scores]
    predictions: dict[str, Prediction]
    x: Inputs
    status: Status
    others: Mapping[str, Status] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The result in words: a line for each method whose status is not ok, and then a line for each region.

        A line about a status says what is wrong, and what to do. The whole statuses are in `status` and `others`. With
        more than two methods, the line for a region is about the method that is closest to the first method. If the
        status of the first method is not ok, there are no lines about regions.
        """
        return "\n".join([*self._doubts, *([self.differences] if self.status else [])])

    @property
    def _doubts(self) -> list[str]:
        doubts = [
            f"{_problem(name, status)} Until then, its numbers do not tell how good the method is."
            for name, status in self.others.items()
            if not status
        ]
        if self.status:
            return doubts
        doubt = "Until then, these numbers do not tell how good the other methods are."
        return [f"{_problem(self._first, self.status)} {doubt}", *doubts]

    @property
    def differences(self) -> str:
        """The lines of :attr:`verdict` about the regions. They do not depend on the status of the first method."""
        return in_words(self._from_first)

    @property
    def tables(self) -> str:
        """The scores of each method, and its distances from the first method, as text for each region."""
        blocks = []
        for region in dict.fromkeys(row.region for row in self.pairs):
            pairs = [row for row in self._from_first if row.region == region]  # `rows` has all pairs
            blocks.append(f"{region}:\n{_table([row for row in self.methods if row.region == region])}")
            note = "; ratios are geometric means over points" if "total sd ratio" in pairs[0].scores else ""
            blocks.append(f"{region}, compared with {self._first}{note}:\n{_table(pairs)}")
        return "\n\n".join(blocks)

    @property
    def _legend(self) -> str:
        """A line that says how to read the distances in :attr:`tables`."""
        if "agreement" in self.pairs[0].scores:
            return "Equal predictions have an agreement of 1 and a total variation of 0."
        return "Equal predictions have ratios of 1; the two other scores, in units of y, are 0."

    @property
    def _first(self) -> str:
        """The name of the first method."""
        return self.pairs[0].reference

    @property
    def _from_first(self) -> list[Scores]:
        """The pairs that include the first method."""
        return [pair for pair in self.pairs if pair.reference == self._first]

    def _title(self) -> str:
        return f"Comparison: {counted(len(self.predictions), 'method')}, compared with {self._first}"

    def _summary(self) -> Summary:
        names = list(self.pairs[0].scores)
        rows = [(row.region, row.method, *(Number(row.scores[name]) for name in names)) for row in self._from_first]
        return Summary(self._title(), rows=rows, header=("region", "method", *names))

    def _notebook_summary(self) -> Summary:
        """Return the verdict and a table of all scores.

        The table also has the distance of each method from the first.
        """
        pairs = {(row.region, row.method): row.scores for row in self._from_first}
        names, distances = list(self.methods[0].scores), list(self.pairs[0].scores)
        rows = []
        for row in self.methods:
            scores = row.scores | pairs.get((row.region, row.method), {})
            cells = (Number(scores[name]) if name in scores else None for name in (*names, *distances))
            rows.append((row.region, row.method, row.seconds, *cells))
        header = ("region", "method", "seconds", *names, *distances)
        return Summary(self._title(), self.verdict.splitlines(), rows, header)

    def __str__(self) -> str:
        differences = self.differences.splitlines() if self.status else []
        parts = _wrapped(self._doubts), self.tables, self._legend, _wrapped(differences)
        return "\n\n".join(filter(None, parts))

    def rows(self) -> list[dict[str, object]]:
        """Return one row per number, with the keys reference, method, region, score, value and standard_error.

        If a score describes a single method, its `reference` is "".
        """
        rows: list[dict[str, object]] = []
        for row in (*self.methods, *self.pairs):
            timed = {} if row.seconds is None else {"seconds": Estimate(row.seconds, math.nan)}
            for score, estimate in (row.scores | timed).items():
                named = {"reference": row.reference, "method": row.method, "region": row.region, "score": score}
                rows.append(named | asdict(estimate))
        return rows

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`rows` to a file, as CSV."""
        import pandas  # imported late: importing takes long

        pandas.DataFrame(self.rows()).to_csv(path, index=False, na_rep="nan")

    def to_json(self, path: str | Path) -> None:
        """Write methods and pairs to a file, as JSON with null for numbers that are not finite."""
        content = {"methods": [asdict(row) for row in self.methods], "pairs": [asdict(row) for row in self.pairs]}
        for row in (*content["methods"], *content["pairs"]):
            for estimate in row["scores"].values():
                estimate.update({key: None for key, value in estimate.items() if not math.isfinite(value)})
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text, encoding="utf-8")


def _problem(name: str, status: Status) -> str:
    return f"{NOT_OK}: {name}: {status.finding} {status.remedy}".rstrip()


def _wrapped(lines: Sequence[str]) -> str:
    return "\n".join(chain.from_iterable(wrap(line, WIDTH, break_on_hyphens=False) for line in lines))


def _table(rows: list[Scores]) -> str:
    import pandas  # imported late: importing takes long

    return pandas.DataFrame([row.cells for row in rows], index=[row.method for row in rows]).fillna("").to_string()
