"""The tables of `benchmarks.small_networks`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ._methods_tables import TITLES, Value, cell, of_score
from ._results import Row, head_of, line_of

NAMES = {**TITLES, "seasonal-naive": "same hour of the last week", "boosting": "gradient boosting"}

Columns = Mapping[str, tuple[Value, int]]
"""Value and number of digits of each column, by title."""

SECONDS: Columns = {
    "training, CPU s": (lambda row: row["train_seconds"], 0),
    "prediction, CPU s": (of_score("predict_seconds"), 1),
}

VISION: Columns = {
    "accuracy, %": (of_score("accuracy", 100.0), 2),
    "NLL": (of_score("nll"), 4),
    "ECE": (of_score("ece"), 4),
    "AUROC entropy": (of_score("auroc_entropy"), 3),
    "AUROC mutual inf.": (of_score("auroc_mutual_information"), 3),
    **SECONDS,
}


def _of_hours(ending: str) -> Columns:
    return {
        "RMSE": (of_score(f"rmse{ending}"), 1),
        "CRPS": (of_score(f"crps{ending}"), 2),
        "NLL": (of_score(f"nll{ending}"), 3),
        "in 90 % intervals, %": (of_score(f"coverage{ending}", 100.0), 1),
        "width": (of_score(f"width{ending}"), 0),
    }


SERIES: Columns = {**_of_hours(""), **SECONDS}
LATE: Columns = _of_hours("_late")


def vision(rows: Sequence[Row], searched: Sequence[Row], out: Path) -> str:
    """Write the tables of the images to a folder; returns them."""
    return _written(out, _table(rows, VISION), _search(searched, VISION))


def series(rows: Sequence[Row], searched: Sequence[Row], out: Path) -> str:
    """Write the tables of the series to a folder; returns them."""
    late = f"Later half of the test hours:\n\n{_table(rows, LATE)}"
    return _written(out, _table(rows, SERIES), late, _search(searched, SERIES))


def _written(out: Path, *parts: str) -> str:
    text = "\n\n".join(parts) + "\n"
    (out / "tables.md").write_text(text)
    return text


def _by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found = {title: [row for row in rows if row["method"] == name] for name, title in NAMES.items()}
    return {title: some for title, some in found.items() if some}


def _table(rows: Sequence[Row], columns: Columns) -> str:
    """One line for each method: means over seeds, with standard errors."""
    lines = head_of(["method", "seeds", *columns], 2)
    for title, some in _by_name(rows).items():
        seeds = ", ".join(str(row["seed"]) for row in some)
        lines.append(line_of([title, seeds, *(cell(some, value, digits) for value, digits in columns.values())]))
    return "\n".join(lines)


def _search(rows: Sequence[Row], columns: Columns) -> str:
    """The settings that were tried on validation data; the smallest NLL of each method is bold."""
    shown = {title: how for title, how in columns.items() if title not in SECONDS and "AUROC" not in title}
    lines = ["Settings on validation data:\n", *head_of(["method", "setting", *shown], 2)]
    nll: Callable[[Row], float] = lambda row: row["scores"]["nll"]  # noqa: E731
    for title, some in _by_name(rows).items():
        best = min(map(nll, some))
        for row in some:
            said = ", ".join(f"{key} {value}" for key, value in row["setting"].items())
            cells = {name: cell([row], value, digits) for name, (value, digits) in shown.items()}
            if nll(row) == best:
                cells["NLL"] = f"**{cells['NLL']}**"
            lines.append(line_of([title, said, *cells.values()]))
    return "\n".join(lines)
