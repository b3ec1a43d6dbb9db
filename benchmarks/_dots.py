"""Pictures with a line for each method and a panel for each number, so that names never cover points."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from pyro_bnn import plotting

from ._results import save_small

GREY, LINE = "0.5", plotting.PALETTE[2]
ONE, SEVERAL = "from one start", "from several starts"
PLAIN = "plain network (dashed; band: one standard error)"
LOOKS = {ONE: {"marker": "o", "color": plotting.PALETTE[0]}, SEVERAL: {"marker": "D", "color": plotting.PALETTE[1]}}
MeanAndError = tuple[float, float | None]


@dataclass(frozen=True)
class Panel:
    """Title of a panel, its axis, and a dotted line for comparison with its name, which is above the line."""

    title: str
    ticks: Sequence[float] = ()  # of a logarithmic axis
    line: tuple[str, float] | None = None
    from_zero: bool = False


def draw(
    points: Mapping[str, Sequence[MeanAndError]],
    panels: Sequence[Panel],
    path: Path,
    *,
    title: str,
    reference: str = "",
    several: Container[str] = (),
    table: Iterable[str] = (),
) -> None:
    """Draw the points with their error bars; `points` has, by method, a mean and an error for each panel.

    The methods are in the order of the first panel. Each panel is wide enough for all of its bars. Methods of `several`
    starts are diamonds in another colour. The points of the method `reference` are grey, and so are dashed lines at
    its means, and a band of one standard error on both sides of them. In all panels, smaller is better.
    """
    names = sorted(points, key=lambda name: points[name][0][0])
    kinds = [SEVERAL if name in several else ONE for name in names]
    with plotting.style():
        axes = plotting.new_axes(1, len(panels), size=("page", 1.0 + 0.19 * len(names)))[0]
        for number, (ax, panel) in enumerate(zip(axes, panels, strict=True)):
            values = [(points[name][number][0], points[name][number][1] or 0.0) for name in names]
            for place, (name, kind, (mean, bar)) in enumerate(zip(names, kinds, values, strict=True)):
                look = LOOKS[kind] | ({"color": GREY} if name == reference else {})
                ax.errorbar(
                    mean, place, xerr=bar or None, linestyle="", markersize=4, elinewidth=1.2, capsize=0, **look
                )
                if name == reference:
                    ax.axvspan(mean - bar, mean + bar, color="0.9", linewidth=0, zorder=0.5)
                    ax.axvline(mean, color=GREY, linestyle="--", linewidth=0.9, zorder=1.8)
            ends = [mean + sign * bar for mean, bar in values for sign in (-1, 1)]
            _set_axis(ax, panel, min(ends), max(ends))
            ax.set(ylim=(len(names) - 0.5, -0.5), xlabel=panel.title)
            if panel.line is not None:
                _name_line(ax, *panel.line)
            ax.set_yticks(range(len(names)), labels=names if number == 0 else [""] * len(names))
            ax.tick_params(axis="y", length=0)
        figure = axes[0].figure
        options = {"alignment": "left", "labelspacing": 0.8, "handlelength": 1.8, "handletextpad": 0.4}
        options |= {"title": f"{title}; smaller is better", "ncols": 3, "columnspacing": 1.4}
        figure.legend(*_legend({*kinds}, has_reference=reference in names), loc="outside upper left", **options)
        figure.get_layout_engine().set(wspace=0.06)  # so that numbers of neighbours do not look like one row
        save_small(axes[0], path, table)


def _legend(kinds: Container[str], *, has_reference: bool) -> tuple[list[object], list[str]]:
    """Marks and labels of the kinds of methods, and of the reference."""
    marks: dict[str, object] = {
        kind: Line2D([], [], linestyle="", markersize=4, **look) for kind, look in LOOKS.items() if kind in kinds
    }
    if has_reference:
        look = {**LOOKS[ONE], "color": GREY, "linestyle": "--", "linewidth": 0.9, "markersize": 4}
        marks[PLAIN] = (Patch(facecolor="0.9", linewidth=0), Line2D([], [], **look))
    return [*marks.values()], [*marks]


def _name_line(ax: Axes, name: str, value: float) -> None:
    """Write the name of a dotted line above the panel, where it is not in a row of a method."""
    place, _ = ax.transAxes.inverted().transform(ax.transData.transform((value, 0)))
    side = "left" if place < 0.5 else "right"
    above = {"xytext": (0, 2), "textcoords": "offset points", "va": "bottom"}
    ax.annotate(name, (place, 1), xycoords="axes fraction", ha=side, color=LINE, **above)


def _set_axis(ax: Axes, panel: Panel, low: float, high: float) -> None:
    """Range and ticks of a panel, for bars from low to high, and its dotted line."""
    if panel.line is not None:
        _, value = panel.line
        low, high = min(low, value), max(high, value)
        ax.axvline(value, color=LINE, linestyle=":", linewidth=1.3, zorder=1.8)
    if panel.ticks:
        ax.set_xscale("log")
        ax.set_xticks(panel.ticks)
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.minorticks_off()
        margin = (high / low) ** 0.07 if high > low else 1.05  # a single point has no range
        ax.set_xlim(low / margin, high * margin)
        return
    margin = 0.05 * (high - low) or 0.05
    start, end = 0 if panel.from_zero else low - margin, high + margin
    ax.set_xlim(start, end)
    ticks = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(start, end)
    ax.set_xticks([tick for tick in ticks if start <= tick <= end - margin / 2])  # numbers within the axis
