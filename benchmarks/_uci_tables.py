"""Tables of what `uci` found: a row for each method, a column for each data set."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

from pyro_bnn.data import UCI_SETS

from ._regression import Method, Setting
from ._results import by_cell, cell_of, head_of, line_of, with_error

Row = Mapping[str, object]

NAMES = ("yacht", "energy", "concrete", "wine-quality-red", "kin8nm", "power-plant")
"""The data sets, from few rows to many."""

NUM_SPLITS = 20

LARGEST_R_HAT = 1.01
"""Chains with a larger R-hat of a prediction disagree."""

PUBLISHED = {
    "MC dropout, published": {
        "concrete": {"rmse": (4.827, 0.165), "nll": (2.937, 0.026)},
        "energy": {"rmse": (0.539, 0.014), "nll": (1.212, 0.006)},
        "kin8nm": {"rmse": (0.0789, 0.0006), "nll": (-1.136, 0.007)},
        "power-plant": {"rmse": (4.014, 0.038), "nll": (2.808, 0.009)},
        "wine-quality-red": {"rmse": (0.622, 0.008), "nll": (0.928, 0.013)},
        "yacht": {"rmse": (0.666, 0.050), "nll": (1.250, 0.016)},
    },
    "mean field, published": {
        "concrete": {"rmse": (5.81, None), "nll": (3.29, None)},
        "energy": {"rmse": (1.12, None), "nll": (1.58, None)},
        "kin8nm": {"rmse": (0.086, None), "nll": (-0.965, None)},
        "power-plant": {"rmse": (4.16, None), "nll": (2.92, None)},
        "wine-quality-red": {"rmse": (0.637, None), "nll": (0.970, None)},
        "yacht": {"rmse": (1.32, None), "nll": (1.62, None)},
    },
}
"""Published means and standard errors; an NLL is minus the published log-likelihood. MC dropout: tuned, one hidden
layer of 50, from the files of each split in
https://github.com/yaringal/DropoutUncertaintyExps; mean field: one hidden layer of 50, by SVI in Pyro, whose standard
errors are not known."""

TITLES = {
    "rmse": "Test RMSE; less is better",
    "nll": "Test NLL, in nats; less is better",
    "coverage": "Part of the test targets in their 95 % intervals",
}
MEDIANS = {
    "noise": "Scale of the noise as the method sees it, in the target's unit; median of the splits",
    "seconds": "CPU seconds of a split, median",
}


def report(rows: Iterable[Row], searched: Iterable[Row], methods: Sequence[Method]) -> str:
    """All tables, with the chosen settings and the time."""
    rows, searched = list(rows), list(searched)
    parts = [f"{title}:\n\n{table(rows, metric, methods)}" for metric, title in TITLES.items()]
    parts += [f"{title}:\n\n{medians(rows, metric, methods)}" for metric, title in MEDIANS.items()]
    parts.append(f"Settings chosen on validation rows:\n\n{setting_lines(rows, methods)}")
    hours = sum(float(row["seconds"]) for row in [*rows, *searched]) / 3600
    failed = sum(row["log_likelihood"] is None for row in rows)
    parts.append(f"{len(rows)} fits, {failed} of them failed; {hours:.2f} CPU hours with {len(searched)} of searches.")
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row], metric: str, methods: Sequence[Method]) -> str:
    """Means over the splits with their standard errors, and the number of splits if it is not 20.

    The best method is bold if it is better than each other method by more than the standard error of the differences,
    and if its chains, if any, agree on every split. A star marks methods whose chains disagree.
    """
    values = {key: {row["split"]: value(row, metric) for row in some} for key, some in by_cell(rows).items()}
    starred = disagreeing(rows)
    bold = {(name, leader(values, name, metric)) for name in NAMES} - starred

    def text(name: str, method: str) -> str:
        shown = cell(list(values.get((name, method), {}).values()), digits(name, metric))
        return f"**{shown}**" if (name, method) in bold else f"{shown}\\*" if (name, method) in starred else shown

    published = [
        [title, *(with_error(*numbers[name][metric], digits(name, metric)) for name in NAMES)]
        for title, numbers in PUBLISHED.items()
        if metric in numbers["yacht"]
    ]
    return markdown(text, methods, published)


def value(row: Row, metric: str) -> float:
    """A score of a row, which has the log-likelihood in place of the NLL."""
    return -float(row["log_likelihood"]) if metric == "nll" else float(row[metric])


def leader(values: Mapping[tuple[object, object], Mapping[object, float]], name: str, metric: str) -> object:
    """The best method of a data set; None unless it leads every other method on the splits that both ran."""
    if metric not in ("rmse", "nll"):
        return None
    ours = {method: some for (dataset, method), some in values.items() if dataset == name}
    if len(ours) < 2:
        return None
    best = min(ours, key=lambda method: statistics.fmean(ours[method].values()))
    return best if all(leads(ours[best], ours[m]) for m in ours if m != best) else None


def disagreeing(rows: Iterable[Row]) -> set[tuple[object, object]]:
    """Cells whose chains disagree: their R-hat is above the limit on a split."""
    return {key for key, some in by_cell(rows).items() if any((row["r_hat"] or 1.0) > LARGEST_R_HAT for row in some)}


def leads(best: Mapping[object, float], other: Mapping[object, float]) -> bool:
    """Whether the first values are smaller, in the mean by more than the standard error of the differences."""
    differences = [other[split] - best[split] for split in best if split in other]
    if len(differences) < 2:
        return False
    return statistics.fmean(differences) > statistics.stdev(differences) / math.sqrt(len(differences))


def medians(rows: Sequence[Row], metric: str, methods: Sequence[Method]) -> str:
    cells = by_cell(rows)

    def text(name: str, method: str) -> str:
        some = [row[metric] for row in cells.get((name, method), ())]
        return f"{statistics.median(some):.3g}" if some else ""

    return markdown(text, methods)


def setting_lines(rows: Sequence[Row], methods: Sequence[Method]) -> str:
    """The chosen settings of all methods that have several."""
    cells = by_cell(rows)
    lines = []
    for method in methods:
        found = {name: cells[name, method.name][0]["setting"] for name in NAMES if (name, method.name) in cells}
        if len(method.grid) > 1 and found:
            said = "; ".join(f"{name} {in_words(Setting(**setting), method.grid)}" for name, setting in found.items())
            lines.append(f"- {method.name}: {said}")
    return "\n".join(lines)


def in_words(setting: Setting, grid: Sequence[Setting]) -> str:
    """The numbers of a setting that vary in the grid."""
    values = asdict(setting)
    varied = [name for name in values if len({asdict(one)[name] for one in grid}) > 1]
    return ", ".join(f"{name.replace('_', ' ')} {values[name]:g}" for name in varied)


def markdown(text: Callable[[str, str], str], methods: Sequence[Method], more: Sequence[list[str]] = ()) -> str:
    """A table of `text(data set, method)`, without methods whose texts are all empty, and with `more` lines."""
    lines = [[method.name, *(text(name, method.name) for name in NAMES)] for method in methods]
    lines = [line for line in lines if any(line[1:])]
    return "\n".join([*head_of(["method", *NAMES]), *map(line_of, [*lines, *more])])


def digits(name: str, metric: str) -> int:
    return 4 if (name, metric) == ("kin8nm", "rmse") else 3


def cell(values: Sequence[float], places: int) -> str:
    text = cell_of(values, places)
    return text if len(values) in (0, NUM_SPLITS) else f"{text} ({len(values)})"


assert set(NAMES) == set(UCI_SETS)
