"""Results of a comparison: numbers with their errors, as text, CSV and JSON."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from ..._core.inputs import Inputs
from ..._core.summary import Number, Shown, Summary, counted
from ...scores.uncertainty import Prediction

LARGEST_WRITTEN_OUT, MOST_DIGITS = 1e6, 7
"""Larger numbers, and numbers that need more digits after the point, are shown in scientific notation."""


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error.

    Args:
        value: The estimate.
        standard_error: Standard error of the value. For a pair of methods, this is the Monte Carlo error of the draws.
            For a single method, this is the standard error of a mean over independent points. If the points are a
            grid, this number only shows how much the score varies between points.
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
            method that predicts classes: ``entropy`` (in nats), and with targets also ``nll`` and ``accuracy``.
            For a pair that predicts numbers: ``rms mean difference`` (root mean
            square over points), ``epistemic sd ratio`` and ``total sd ratio`` (method over reference, geometric means;
            the first is 0 if the method is a point estimate, and infinite if the reference is one), ``wasserstein``
            (first Wasserstein distance between predictive distributions, in the units of y, mean over points; two sets
            of draws from one posterior have a positive distance, which shrinks with the number of draws). For a
            pair that predicts classes: ``agreement`` (fraction of points with the same most probable class), ``total
            variation`` (half the summed absolute difference of probabilities, mean over points).
        reference: Name of the method with which `method` is compared; "" for a single method.
        seconds: Wall time of the inference; None if unknown, and for a pair.
    """

    method: str
    region: str
    scores: dict[str, Estimate]
    reference: str = ""
    seconds: float | None = None

    @property
    def cells(self) -> dict[str, str]:
        """The seconds, if they are known, and the scores as text, by name."""
        seconds = {} if self.seconds is None else {"seconds": f"{self.seconds:.1f}"}
        return seconds | {name: str(estimate) for name, estimate in self.scores.items()}


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Result of :func:`compare`: tables, and the predictions behind them.

    `print` shows all methods, and the pairs that include the first method; :meth:`rows`, :meth:`to_csv` and
    :meth:`to_json` have all pairs. The prompt shows the pairs that include the first method. A notebook shows these
    pairs and the scores of all methods.

    Args:
        methods: Scores of the methods, one row per region and method.
        pairs: Scores of the pairs, one row per region and pair of methods.
        predictions: The prediction of each method at x.
        x: The inputs, shape (N, ...).
    """

    methods: list[Scores]
    pairs: list[Scores]
    predictions: dict[str, Prediction]
    x: Inputs

    @property
    def _first(self) -> str:
        """The name of the method with which the other methods are compared."""
        return self.pairs[0].reference

    def _title(self) -> str:
        return f"Comparison: {counted(len(self.predictions), 'method')}, compared with {self._first}"

    def _summary(self) -> Summary:
        names = list(self.pairs[0].scores)
        rows = [
            (row.region, row.method, *(Number(row.scores[name]) for name in names))
            for row in self.pairs
            if row.reference == self._first
        ]
        return Summary(self._title(), rows=rows, header=("region", "method", *names))

    def _repr_html_(self) -> str:
        """Return a table of all scores as HTML. The scores of the pairs are empty for the first method."""
        pairs = {(row.region, row.method): row.scores for row in self.pairs if row.reference == self._first}
        names, distances = list(self.methods[0].scores), list(self.pairs[0].scores)
        rows = []
        for row in self.methods:
            scores = row.scores | pairs.get((row.region, row.method), {})
            cells = (Number(scores[name]) if name in scores else None for name in (*names, *distances))
            rows.append((row.region, row.method, *cells))
        return Summary(self._title(), rows=rows, header=("region", "method", *names, *distances)).html()

    def __str__(self) -> str:
        blocks = []
        first = self._first  # all pairs would be a long table; `rows` has them
        for region in dict.fromkeys(row.region for row in self.pairs):
            pairs = [row for row in self.pairs if row.reference == first and row.region == region]
            blocks.append(f"{region}:\n{_table([row for row in self.methods if row.region == region])}")
            blocks.append(f"{region}, compared with {first}:\n{_table(pairs)}")
        return "\n\n".join(blocks)

    def rows(self) -> list[dict[str, object]]:
        """Return one row per number, with the keys reference, method, region, score, value and standard_error.

        A row with a score of a single method has the reference "".
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


def _table(rows: list[Scores]) -> str:
    import pandas  # imported late: importing takes long

    return pandas.DataFrame([row.cells for row in rows], index=[row.method for row in rows]).fillna("").to_string()
