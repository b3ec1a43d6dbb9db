"""Pictures with a line for each method and a panel for each number, so that names never cover points."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from pyro_bnn import plotting

from ._results import page_style, save_small

GREY = "0.5"
MeanAndError = tuple[float, float | None]


@dataclass(frozen=True)
class Panel:
    """Title of a panel, its axis, and a dashed line for comparison with its name, which is above the line."""

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
    table: Iterable[str] = (),
) -> None:
    """Draw the points with their error bars; `points` has, by method, a mean and an error for each panel.

    The methods are in the order of the first panel. Each panel is wide enough for all of its bars. The points of the
    method `reference` are grey, and so is a band of one standard error on both sides of its means. A line below the
    panels says so, and that smaller is better.
    """
    names = sorted(points, key=lambda name: points[name][0][0])
    places = range(len(names))
    with page_style():
        axes = plotting.new_axes(1, len(panels), size=("page", 0.9 + 0.19 * len(names)))[0]
        for number, (ax, panel) in enumerate(zip(axes, panels, strict=True)):
            means, errors = zip(*(points[name][number] for name in names), strict=True)
            bars = [error or 0.0 for error in errors]
            for name, mean, place, bar in zip(names, means, places, bars, strict=True):
                color = GREY if name == reference else plotting.PALETTE[0]
                shown = bar or None  # the caps of a small bar are higher than the dot; a single run has none
                ax.errorbar(mean, place, xerr=shown, fmt="o", color=color, markersize=3.5, elinewidth=1.2, capsize=2.8)
                if name == reference:
                    ax.axvspan(mean - bar, mean + bar, color="0.9", linewidth=0, zorder=0.5)
            ends = [mean + sign * bar for mean, bar in zip(means, bars, strict=True) for sign in (-1, 1)]
            ends += [panel.line[1]] if panel.line else []
            low, high = min(ends), max(ends)
            if panel.ticks:
                ax.set_xscale("log")
                ax.set_xticks(panel.ticks)
                ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                ax.minorticks_off()
                margin = (high / low) ** 0.07 if high > low else 1.05  # a single point has no range
                ax.set_xlim(low / margin, high * margin)
            else:
                margin = 0.05 * (high - low) or 0.05
                start, end = 0 if panel.from_zero else low - margin, high + margin
                ax.set_xlim(start, end)
                ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(start, end)
                ax.set_xticks([tick for tick in ticks if start <= tick <= end - margin / 2])  # numbers within the axis
            ax.set(ylim=(len(names) - 0.5, -0.5), xlabel=panel.title)
            ax.set_yticks(places, labels=names if number == 0 else [""] * len(names))
            ax.tick_params(axis="y", length=0)
            if panel.line is not None:
                text, value = panel.line
                ax.axvline(value, color=GREY, linestyle="--", linewidth=0.9, zorder=1.8)
                part = ax.transAxes.inverted().transform(ax.transData.transform((value, 0)))[0]
                side = "left" if part < 0.3 else "right" if part > 0.7 else "center"  # within the axis
                ax.text(value, 1.01, text, transform=ax.get_xaxis_transform(), ha=side, va="bottom", color="0.3")
        figure = axes[0].figure
        figure.suptitle(title, fontsize=8)
        note = "smaller is better; bars: one standard error"
        if reference in points:
            is_dashed = any(panel.line and not panel.line[0] for panel in panels)
            kinds = "band and dashed line" if is_dashed else "band"
            note = f"smaller is better; bars and band: one standard error; {kinds}: {reference}"
        figure.supxlabel(note, fontsize=7, color="0.3")
        figure.get_layout_engine().set(wspace=0.06)  # so that numbers of neighbours do not look like one row
        save_small(axes[0], path, table)
