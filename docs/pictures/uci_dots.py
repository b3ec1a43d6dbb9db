"""The picture of docs/results/uci.md, from the table below it."""

import re
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import AutoMinorLocator, MultipleLocator

from drawing import save_small
from pyro_bnn import plotting
from results import table

LIMITS = {
    "yacht": (-1.3, 2),
    "energy": (-0.05, 1.7),
    "concrete": (2.2, 3.45),
    "red wine": (0.83, 1.02),
    "kin8nm": (-1.56, -0.9),
    "power-plant": (2.57, 2.97),
}
"""Ends of the axes, so that a few far values do not press the others together."""

STEPS = {"yacht": 1, "energy": 1, "concrete": 0.5, "red wine": 0.1, "kin8nm": 0.3, "power-plant": 0.2}
"""Distances of the ticks with numbers; there is one without a number in the middle."""

BLUE, VERMILION, *_ = plotting.PALETTE
GREY = "0.5"
DEFAULT, OTHER, PLAIN = "BNNRegressor()", "other methods", "plain network (MAP)"
LOOKS = {
    DEFAULT: {"marker": "D", "color": VERMILION},
    OTHER: {"marker": "o", "color": BLUE},
    "NUTS": {"marker": "o", "color": BLUE, "markerfacecolor": "white"},
    PLAIN: {"marker": "o", "color": GREY},
}
COPIES = ("Gaussian process", "red wine")
"""A value with a dagger, since many of the test rows are copies of training rows."""

NOT_DRAWN = (
    "mean field, Adam",
    "low rank",
    "Laplace (Hessian, drawn weights)",
    "Laplace (Kronecker)",
    "Laplace (last layer)",
    "SWAG",
    "SGHMC",
    "BNNRegressor, svi",
    "Bayesian ridge",
    "MC dropout, published",
    "mean field, published",
)
"""Methods of the table that the picture leaves out: most are close to the plain network, or were measured on
other splits."""


def numbers(cell: str) -> list[float]:
    """The mean of a cell, and its standard error if it has one."""
    return [float(part) for part in re.findall(r"-?[\d.]+", cell.replace("\N{MINUS SIGN}", "-"))]


def draw_cell(ax: Axes, place: int, method: str, cell: str, *, note: str = "") -> None:
    """A mean with its standard error; a mean beyond the axis is a triangle at its end, with the number and a note."""
    look = {"linestyle": "", "markersize": 4, **LOOKS.get(method, LOOKS[OTHER])}
    mean, *error = numbers(cell)
    low, high = ax.get_xlim()
    if low <= mean <= high:
        ax.errorbar(mean, place, xerr=sum(error) or None, elinewidth=1.1, capsize=0, **look)
        return
    is_left, where = mean < low, {"transform": ax.get_yaxis_transform()}
    ax.plot(0.05 if is_left else 0.95, place, **look | {"marker": "<" if is_left else ">"}, **where)
    text, side = f"{mean:.2f}{note}".replace("-", "\N{MINUS SIGN}"), "left" if is_left else "right"
    ground = {"facecolor": "0.94" if method == DEFAULT else "white", "edgecolor": "none", "pad": 0.8}  # over lines
    start = 0.12 if is_left else 0.88
    ax.text(start, place, text, **where, ha=side, va="center_baseline", bbox=ground, color="0.3")


def uci(out: Path, _quick: bool) -> None:
    """The first table of the page, a panel for each data set; methods are in the order of their mean ranks."""
    lines = table("uci", "method | yacht")
    (_, *names), _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    cells = {method: some for method, *some in rows}
    ranks: dict[str, list[float]] = {method: [] for method in cells}
    for column in range(len(names)):
        known = sorted((numbers(some[column])[0], method) for method, some in cells.items() if some[column])
        for rank, (_, method) in enumerate(known):
            ranks[method].append(rank / len(known))
    order = sorted(cells.keys() - {*NOT_DRAWN}, key=lambda method: fmean(ranks[method]))
    axes = plotting.new_axes(1, len(names), size=("page", 2.8))[0]
    for column, (ax, name) in enumerate(zip(axes, names, strict=True)):
        ax.set(title=name, xlim=LIMITS[name], ylim=(len(order) - 0.5, -0.5))
        ax.axvline(numbers(cells[PLAIN][column])[0], color=GREY, linestyle="--", linewidth=0.9, zorder=1.5)
        ax.axhspan(order.index(DEFAULT) - 0.5, order.index(DEFAULT) + 0.5, color="0.94", linewidth=0, zorder=0)
        shown = {method: cells[method][column] for method in order if cells[method][column]}
        for method, cell in shown.items():
            note = " \N{DAGGER}" if (method, name) == COPIES else ""
            draw_cell(ax, order.index(method), method, cell, note=note)
        ax.set_yticks(range(len(order)), labels=order if column == 0 else [""] * len(order))
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_locator(MultipleLocator(STEPS[name]))
        ax.xaxis.set_minor_locator(AutoMinorLocator(2))
    handles = [Line2D([], [], linestyle="", markersize=4, label=label, **look) for label, look in LOOKS.items()]
    handles[2].set(label="NUTS (5 splits)")
    handles[-1].set(linestyle="--", linewidth=0.9)  # the line, too
    axes[0].figure.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=1.6, handletextpad=0.4)
    title = "test NLL, nats (smaller is better, scales differ); bars: one standard error"
    title += "; \N{DAGGER}: copied test rows"
    axes[0].figure.supxlabel(title, fontsize=8)
    save_small(axes[0], out / "uci.png", lines, num_colors=32)
