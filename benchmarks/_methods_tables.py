"""The tables and the picture of `benchmarks.methods`."""

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ._dots import MeanAndError, Panel, draw
from ._methods_scores import STRENGTHS
from ._results import Row, cell_of, head_of, line_of, mean_and_error

Value = Callable[[Row], float | None]

QUALITY = {"accuracy, %": ("accuracy", 100.0, 2), "NLL": ("nll", 1.0, 4), "ECE": ("ece", 1.0, 4)}
"""Title, key, factor and digits."""

ONE = {title: QUALITY[title] for title in ("accuracy, %", "NLL")}
"""The same for predictions of each image as it is, where the others are means over the image and its mirror image."""


def report(rows: Sequence[Row], searched: Sequence[Row]) -> str:
    """All tables of one network in Markdown: scores, corrupted images, and how settings were chosen."""
    parts = []
    if rows:
        parts += [scores(rows), *(corrupted(rows, *column) for column in QUALITY.items())]
    if searched:
        parts.append(search(searched))
    return "\n\n".join(parts) + "\n"


def write(rows: Sequence[Row], searched: Sequence[Row], out: Path, title: str = "") -> str:
    """Write tables and picture to a folder; returns the tables. `title` names network and data in the picture."""
    text = report(rows, searched)
    (out / "tables.md").write_text(text)
    if rows:
        picture(rows, title, out / "cost.png")
    return text


def cell(rows: Sequence[Row], value: Value, digits: int) -> str:
    return cell_of([found for found in map(value, rows) if found is not None], digits)


TITLES = {
    "deterministic": "plain network (MAP)",
    "ensemble-3": "ensemble of three",
    "ensemble": "ensemble of five",
    "ensemble-10": "ensemble of ten",
    "narrow-ensemble": "four of half width",
    "batch-ensemble": "batch ensemble of four",
    "mc-dropout": "MC dropout",
    "multi-dropout": "three with MC dropout",
    "mean-field": "mean field",
    "mean-field-lrt": "mean field, local",
    "natural": "natural gradients",
    "multi-natural": "three with natural gradients",
    "swag": "SWAG",
    "multi-swag": "three with SWAG",
    "sghmc": "SGHMC",
    "mclmc": "chains (MCLMC)",
    "laplace-kronecker": "Laplace (Kronecker)",
    "laplace-last-layer": "Laplace (last layer)",
}
"""Methods in tables and pictures; "local" means local reparameterisation."""


def several(names: Iterable[str]) -> set[str]:
    """Those of some methods that start several times."""
    return {name for name in names if re.match("(batch )?ensemble|three|four|chains", name)}


def by_method(rows: Sequence[Row], titles: Mapping[str, str] = TITLES) -> dict[str, list[Row]]:
    """The rows of each method by its title, in the order of the titles."""
    found = {title: [row for row in rows if row["method"] == name] for name, title in titles.items()}
    return {name: some for name, some in found.items() if some}


def relative_cost(rows: Sequence[Row]) -> Value:
    """Training time, divided by that of the deterministic network with the same seed."""
    plain = {row["seed"]: row["train_seconds"] for row in rows if row["method"] == "deterministic"}

    def cost(row: Row) -> float | None:
        return row["train_seconds"] / plain[row["seed"]] if row["seed"] in plain else None

    return cost


def of_score(name: str, factor: float = 1.0, part: str | None = None) -> Value:
    def value(row: Row) -> float | None:
        found = row["scores"] if part is None else row["scores"].get(part, {})
        return factor * found[name] if name in found else None

    return value


def scores(rows: Sequence[Row]) -> str:
    """One row for each method: means over seeds, with standard errors."""
    columns: dict[str, tuple[Value, int]] = {
        **{title: (of_score(key, factor), digits) for title, (key, factor, digits) in QUALITY.items()},
        "Brier": (of_score("brier"), 4),
        "AUROC entropy": (of_score("auroc_entropy"), 3),
        "AUROC mutual inf.": (of_score("auroc_mutual_information"), 3),
        "training": (relative_cost(rows), 2),
        "prediction, s": (of_score("predict_seconds"), 1),
    }
    if any("one_view" in row["scores"] for row in rows):  # the other columns are means over two views
        alone = {
            f"{title}, one view": (of_score(key, factor, "one_view"), n) for title, (key, factor, n) in ONE.items()
        }
        columns |= alone
    lines = head_of(["method", "seeds", *columns, "draws"], 2)
    for name, some in by_method(rows).items():
        seeds = ", ".join(str(row["seed"]) for row in some)
        cells = [cell(some, value, digits) for value, digits in columns.values()]
        lines.append(line_of([name, seeds, *cells, str(some[0]["scores"]["num_draws"])]))
    return "\n".join(lines)


def corrupted(rows: Sequence[Row], title: str, column: tuple[str, float, int]) -> str:
    """A score at each strength of corruption, averaged over the kinds of corruption."""
    key, factor, digits = column

    def at(strength: int) -> Value:
        def value(row: Row) -> float | None:
            kinds = row["scores"]["corrupted"].values()
            return factor * statistics.fmean(kind[strength - 1][key] for kind in kinds)

        return value

    head = head_of(["method", *(f"strength {strength}" for strength in STRENGTHS)])
    lines = [f"{title}, mean over noise, blur and contrast:\n", *head]
    for name, some in by_method(rows).items():
        lines.append(line_of([name, *(cell(some, at(strength), digits) for strength in STRENGTHS)]))
    return "\n".join(lines)


def search(rows: Sequence[Row], titles: Mapping[str, str] = TITLES) -> str:
    """The settings that were tried on validation images; the smallest NLL of each method is bold."""
    lines = ["Settings on training images set aside:\n", *head_of(["method", "setting", *QUALITY], 2)]
    for name, some in by_method(rows, titles).items():
        best = min(row["scores"]["nll"] for row in some)
        for row in some:
            said = ", ".join(f"{key} {value}" for key, value in row["setting"].items())
            cells = [f"{factor * row['scores'][key]:.{digits}f}" for key, factor, digits in QUALITY.values()]
            if row["scores"]["nll"] == best:
                cells[1] = f"**{cells[1]}**"
            lines.append(line_of([name, said, *cells]))
    return "\n".join(lines)


def picture(rows: Sequence[Row], title: str, path: Path) -> None:
    """NLL, error and cost of training, with standard errors over seeds. Dashed lines: the plain network."""
    values = (of_score("nll"), lambda row: 100 - 100 * row["scores"]["accuracy"], relative_cost(rows))
    points: dict[str, list[MeanAndError]] = {}
    for name, every in by_method(rows).items():
        if some := [row for row in every if values[-1](row) is not None]:
            points[name] = [mean_and_error([float(value(row) or 0) for row in some]) for value in values]
    draw(points, panels(), path, title=title, reference=TITLES["deterministic"], several=several(points))


def panels() -> list[Panel]:
    """The three panels of a picture of costs."""
    time = Panel("time / plain network's (log)", ticks=(0.5, 0.7, 1, 2, 5, 10))
    return [Panel("NLL, nats"), Panel("test error, %"), time]
