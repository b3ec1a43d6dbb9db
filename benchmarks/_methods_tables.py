"""The tables and the picture of `benchmarks.methods`."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.ticker import ScalarFormatter

from pyro_bnn import plotting

from ._methods_scores import STRENGTHS
from ._names import MeanAndError, Names
from ._results import Row, cell_of, head_of, line_of, mean_and_error, page_style, save_small

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


def write(rows: Sequence[Row], searched: Sequence[Row], out: Path) -> str:
    """Write tables and picture to a folder; returns the tables."""
    text = report(rows, searched)
    (out / "tables.md").write_text(text)
    if rows:
        picture(rows, out / "cost.png")
    return text


def cell(rows: Sequence[Row], value: Value, digits: int) -> str:
    return cell_of([found for found in map(value, rows) if found is not None], digits)


TITLES = {
    "deterministic": "one network",
    "ensemble-3": "ensemble of three",
    "ensemble": "ensemble of five",
    "ensemble-10": "ensemble of ten",
    "narrow-ensemble": "ensemble of four, half width",
    "batch-ensemble": "batch ensemble of four",
    "mc-dropout": "MC dropout",
    "mean-field": "mean field",
    "mean-field-lrt": "mean field, local",
    "natural": "natural gradients",
    "multi-natural": "three natural gradients",
    "swag": "SWAG",
    "multi-swag": "three SWAGs",
    "sghmc": "SGHMC",
    "laplace-kronecker": "Laplace, Kronecker",
    "laplace-last-layer": "Laplace, last layer",
}
"""Methods in tables and pictures; "local" means local reparameterisation."""

MARKERS = "os^Dv<>pPXd*hH8+"
COLORS = (
    *plotting.PALETTE,
    *("#8C510A", "#7A3E9D", "#8A8A00", "#A50026", "#40A090", "#6A9A00", "#C2185B", "#556B2F"),
)
LOOKS = dict(zip(TITLES.values(), zip(MARKERS, COLORS, strict=True), strict=True))
"""A marker and a colour for each method, the same in all pictures, so that bars that touch can be told apart."""


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


def picture(rows: Sequence[Row], path: Path) -> None:
    """Error and NLL against the cost of training, one point for each method, with standard errors over seeds."""
    cost = relative_cost(rows)
    values = (cost, lambda row: 100 - 100 * row["scores"]["accuracy"], of_score("nll"))
    points: dict[str, list[MeanAndError]] = {}
    for name, every in by_method(rows).items():
        if some := [row for row in every if cost(row) is not None]:
            points[name] = [mean_and_error([float(value(row) or 0) for row in some]) for value in values]
    draw(points, path)


def draw(points: Mapping[str, Sequence[MeanAndError]], path: Path) -> None:
    """A point for each method, with its name beside it; `points` has means and errors of cost, error and NLL."""
    with page_style():
        axes = plotting.new_axes(1, 2, size=("page", 3.6))[0]
        for ax, column, label in zip(axes, (1, 2), ("test error, %", "NLL, nats"), strict=True):
            for name, (marker, color) in LOOKS.items():
                if name in points:
                    x, y = points[name][0], points[name][column]
                    look = {"linestyle": "none", "marker": marker, "ms": 4.5, "elinewidth": 0.8, "capsize": 0}
                    ax.errorbar(x[0], y[0], xerr=x[1], yerr=y[1], color=color, **look)
            ax.set(xscale="log", xlabel="training time / that of one network", ylabel=label)
            ax.set_title("lower left is better", fontsize=8)
            ax.margins(x=0.22, y=0.08)
            ax.xaxis.set_major_formatter(ScalarFormatter())
            ax.set_xticks([1, 2, 5], minor=False)
            ax.minorticks_off()
        axes[0].figure.draw_without_rendering()  # sizes are known from here on,
        axes[0].figure.set_layout_engine("none")  # and the names do not change them
        for ax, column in zip(axes, (1, 2), strict=True):
            Names(ax, {name: (row[0], row[column]) for name, row in points.items()}).place()
        save_small(axes[0], path)
