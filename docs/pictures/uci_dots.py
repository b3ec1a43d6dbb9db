"""The picture of docs/results/uci.md, from the table below it."""

import re
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from drawing import write
from pyro_bnn import plotting

PAGE = Path(__file__).parent.parent / "results" / "uci.md"
LIMITS = {
    "yacht": (-2.3, 1.3),
    "energy": (-1.75, 0.05),
    "concrete": (-3.45, -2.2),
    "wine": (-1.02, -0.83),
    "kin8nm": (0.88, 1.55),
    "power-plant": (-2.97, -2.57),
}
"""Ends of the axes, so that a few far values do not press the others together."""

BLUE, VERMILION, *_ = plotting.PALETTE
GREY = "0.5"
DEFAULT, FIXED, DISAGREE, OTHER = "BNNRegressor()", "fixed network", "chains disagree", "other model, or published"
LOOKS = {
    DEFAULT: {"marker": "D", "color": VERMILION},
    FIXED: {"marker": "o", "color": BLUE},
    DISAGREE: {"marker": "o", "color": BLUE, "markerfacecolor": "white"},
    OTHER: {"marker": "s", "color": GREY},
}
NO_NETWORKS = ("Gaussian process", "Bayesian ridge")


def numbers(cell: str) -> list[float]:
    """The mean of a cell, and its standard error if it has one."""
    return [float(part) for part in re.findall(r"-?[\d.]+", cell.replace("\N{MINUS SIGN}", "-"))]


def draw_cell(ax: Axes, place: int, method: str, cell: str) -> None:
    """A mean with its standard error; a mean beyond the axis is a triangle at its end, with the number."""
    kind = DISAGREE if "\\*" in cell else FIXED
    if method in NO_NETWORKS or method.endswith("published"):
        kind = OTHER
    look = {"linestyle": "", "markersize": 4, **LOOKS[DEFAULT if method == DEFAULT else kind]}
    mean, *error = numbers(cell)
    low, high = ax.get_xlim()
    if low <= mean <= high:
        ax.errorbar(mean, place, xerr=sum(error), elinewidth=1.1, capsize=0, **look)
        return
    end, side = (0.0, "left") if mean < low else (1.0, "right")
    where = {"transform": ax.get_yaxis_transform()}
    ax.plot(end, place, **look | {"marker": "<" if end == 0 else ">"}, **where, clip_on=False)
    look = {"color": "0.3", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5}}  # hides the line of MAP
    text = f"{mean:.2f}".replace("-", "\N{MINUS SIGN}")
    ax.text(end + (0.08 if end == 0 else -0.08), place, text, **where, ha=side, va="center_baseline", **look)


def uci(out: Path, _quick: bool) -> None:
    """The first table of the page, a panel for each data set; methods are in the order of their mean ranks."""
    lines = re.findall(r"^\|.*", PAGE.read_text().split("</details>")[0], re.MULTILINE)
    print(*lines, sep="\n")
    (_, *names), _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    cells = {method: some for method, *some in rows}
    ranks: dict[str, list[float]] = {method: [] for method in cells}
    for column in range(len(names)):
        known = sorted((-numbers(some[column])[0], method) for method, some in cells.items() if some[column])
        for rank, (_, method) in enumerate(known):
            ranks[method].append(rank / len(known))
    order = sorted(cells, key=lambda method: fmean(ranks[method]))
    axes = plotting.new_axes(1, len(names), size=("page", 4.2))[0]
    for column, (ax, name) in enumerate(zip(axes, names, strict=True)):
        ax.set(title=name, xlim=LIMITS[name], ylim=(len(order) - 0.5, -0.5))
        ax.axvline(numbers(cells["MAP"][column])[0], color=GREY, linestyle="--", linewidth=0.9, zorder=1.5)
        for place, method in enumerate(order):
            if cells[method][column]:
                draw_cell(ax, place, method, cells[method][column])
        ax.set_yticks(range(len(order)), labels=order if column == 0 else [""] * len(order))
        ax.tick_params(axis="y", length=0)
        ax.locator_params(axis="x", nbins=3)
    handles = [Line2D([], [], linestyle="", markersize=4, label=label, **look) for label, look in LOOKS.items()]
    handles.append(Line2D([], [], color=GREY, linestyle="--", linewidth=0.9, label="MAP"))
    axes[0].figure.legend(handles=handles, loc="outside upper center", ncols=5, columnspacing=1, handletextpad=0.2)
    axes[0].figure.supxlabel("mean test log-likelihood, nats (more is better)", fontsize=8)
    write(axes[0], out / "uci.png", table=lines)
