"""Results of a comparison: numbers with their errors, as text, CSV and JSON."""

import csv
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..._core.inputs import Inputs
from ...scores.uncertainty import Prediction


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error.

    Args:
        value: The estimate.
        standard_error: Standard error of the value. For a pair of methods it is the Monte Carlo error of the draws. For
            a single method it is the error of a mean over points; on a grid it only shows how much the score varies.
    """

    value: float
    standard_error: float

    def __str__(self) -> str:
        if not (math.isfinite(self.standard_error) and self.standard_error > 0):
            return f"{self.value:.3g}"
        digits = max(0, 1 - math.floor(math.log10(self.standard_error)))  # two digits of the error
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f}"


@dataclass(frozen=True)
class MethodScore:
    """Scores of one method, averaged over the points of a region.

    Args:
        method: Name of the method.
        region: Name of the region.
        seconds: Wall time of the inference; None if unknown.
        scores: Scores by name. With targets: ``log_likelihood`` (mean per point, in nats), ``coverage 50%`` and so on,
            or ``accuracy``. Always: ``epistemic sd`` and ``total sd`` (means over points) or ``entropy`` (in nats).
    """

    method: str
    region: str
    seconds: float | None
    scores: dict[str, Estimate]


@dataclass(frozen=True)
class PairScore:
    """Differences between two methods, averaged over the points of a region.

    Args:
        reference: Name of the first method.
        method: Name of the second method.
        region: Name of the region.
        scores: Scores by name. For numbers: ``rms mean difference`` (root mean square over points), ``epistemic sd
            ratio`` and ``total sd ratio`` (method over reference, geometric means; the first is 0 if the method is a
            point estimate, and infinite if the reference is one), ``wasserstein`` (first Wasserstein distance between
            predictive distributions, in the units of y, mean over points). For classes: ``agreement`` (fraction of
            points with the same most probable class), ``total variation`` (half the summed absolute difference of
            probabilities, mean over points).
    """

    reference: str
    method: str
    region: str
    scores: dict[str, Estimate]


@dataclass(frozen=True)
class Comparison:
    """Result of :func:`compare`: tables, and the predictions from which they were made.

    `print` shows all methods, and the pairs that include the first method; :meth:`rows`, :meth:`to_csv` and
    :meth:`to_json` have all pairs.

    Args:
        methods: Scores of the methods, one row per region and method.
        pairs: Scores of the pairs, one row per region and pair of methods.
        predictions: The prediction of each method at x.
        x: The inputs, shape (N, ...).
    """

    methods: list[MethodScore]
    pairs: list[PairScore]
    predictions: dict[str, Prediction] = field(repr=False)
    x: Inputs = field(repr=False)

    def __str__(self) -> str:
        blocks = []
        for region in dict.fromkeys(row.region for row in self.pairs):
            methods = [_method_cells(row) for row in self.methods if row.region == region]
            reference = self.pairs[0].reference  # all pairs would be a long table; `rows` has them
            pairs = [_pair_cells(row) for row in self.pairs if (row.region, row.reference) == (region, reference)]
            blocks += [f"{region}:\n{_table(['method', 'seconds'], methods)}", _table(["reference", "method"], pairs)]
        return "\n\n".join(blocks)

    def rows(self) -> list[dict[str, object]]:
        """One flat row per number: reference ("" for a single method), method, region, score, value, standard_error."""
        rows = []
        every: list[MethodScore | PairScore] = [*self.methods, *self.pairs]
        for row in every:
            reference = row.reference if isinstance(row, PairScore) else ""
            named = {"reference": reference, "method": row.method, "region": row.region}
            scores = dict(row.scores)
            if isinstance(row, MethodScore) and row.seconds is not None:
                scores["seconds"] = Estimate(row.seconds, math.nan)
            for score, estimate in scores.items():
                numbers = {"value": estimate.value, "standard_error": estimate.standard_error}
                rows.append({**named, "score": score, **numbers})
        return rows

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`rows` as CSV.

        Args:
            path: The file.
        """
        rows = self.rows()
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def to_json(self, path: str | Path) -> None:
        """Write methods and pairs as JSON, with null for numbers that are not finite.

        Args:
            path: The file.
        """
        content = {"methods": [asdict(row) for row in self.methods], "pairs": [asdict(row) for row in self.pairs]}
        for row in (*content["methods"], *content["pairs"]):
            for estimate in row["scores"].values():
                estimate.update({key: None for key, value in estimate.items() if not math.isfinite(value)})
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text, encoding="utf-8")


def _method_cells(row: MethodScore) -> dict[str, str]:
    seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
    return {"method": row.method, "seconds": seconds, **{name: str(value) for name, value in row.scores.items()}}


def _pair_cells(row: PairScore) -> dict[str, str]:
    return {"reference": row.reference, "method": row.method, **{name: str(v) for name, v in row.scores.items()}}


def _table(first: list[str], rows: list[dict[str, str]]) -> str:
    columns = [*first, *dict.fromkeys(name for row in rows for name in row if name not in first)]
    lines = [{name: name for name in columns}, *rows]
    widths = {name: max(len(line.get(name, "")) for line in lines) for name in columns}

    def cell(line: dict[str, str], name: str) -> str:
        return f"{line.get(name, ''):{'<' if name in first else '>'}{widths[name]}}"

    return "\n".join("  ".join(cell(line, name) for name in columns) for line in lines)
