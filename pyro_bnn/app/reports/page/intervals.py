"""Whether intervals around predicted numbers hold what they promise, and whether uncertainty points at errors."""

import math

import torch
from torch import Tensor

from .... import metrics, plotting
from .html import figure, figures, panel, paragraph, table
from .numbers import count, interval, percent
from .section import Section, Tile, Verdict
from .subject import Regressed, Subject

__all__ = ["coverage_verdict", "intervals_section"]

LEVELS = (0.5, 0.8, 0.9, 0.95)
HEADLINE = 0.9
"""The interval of the verdict, chosen before seeing the data."""

NOTICEABLE = 2.0
"""A coverage within so many standard errors of what is promised is called right."""

SMALL_MISS = 0.05
"""Heuristic: a coverage that misses what is promised by less is called slightly off."""

GROUPS = 4
"""Number of groups of rows by their predicted uncertainty."""


def intervals_section(subject: Subject) -> Section | None:
    """Coverage of intervals, and errors by predicted uncertainty."""
    found = subject.regressed
    if found is None:
        return None
    rows, coverages = [], {}
    for level in LEVELS:
        low, high = found.prediction.quantile([(1 - level) / 2, (1 + level) / 2])
        coverages[level] = metrics.interval_coverage(low, high, found.y)
        ends = interval(coverages[level], len(found.y))
        width = f"{float((high - low).mean()):.4g}"
        rows.append((percent(level, 0), percent(coverages[level]), f"{percent(ends[0])} to {percent(ends[1])}", width))
    header = ("interval", "inside", "95 % interval", "mean width")
    counts = " An interval of counts holds at least what it promises, as whole numbers are not cut." * found.is_count
    body = (
        paragraph(f"An interval of 90 % should hold 90 % of the targets: no fewer, and no more.{counts}")
        + figures(table(header, rows, caption="Share of the targets inside of intervals"), _by_uncertainty(found))
        + figures(_residuals(found))
    )
    verdict = coverage_verdict(coverages[HEADLINE], len(found.y), is_count=found.is_count)
    tile = Tile(f"In the {percent(HEADLINE, 0)} interval", percent(coverages[HEADLINE]), "of the test targets")
    return Section("Intervals", body, (verdict,), (tile,))


def coverage_verdict(coverage: float, num_rows: int, *, is_count: bool = False) -> Verdict:
    """Whether the 90 % interval holds 90 % of the targets.

    Args:
        coverage: The share that it holds.
        num_rows: Number of test rows.
        is_count: Whether the targets are counts, whose intervals may hold more.
    """
    error = math.sqrt(HEADLINE * (1 - HEADLINE) / num_rows)
    miss = coverage - HEADLINE
    text = (
        f"The {percent(HEADLINE, 0)} intervals hold {percent(coverage)} of {count(num_rows)} targets (by chance "
        f"± {100 * error:.1f} points)"
    )
    if abs(miss) <= NOTICEABLE * error or (is_count and miss > 0):
        return Verdict("good", f"{text}: they can be taken at their word.")
    kind = "too wide: the network is less sure than it could be" if miss > 0 else "too narrow: the network is too sure"
    if abs(miss) < SMALL_MISS:
        return Verdict("note", f"{text}: slightly {kind}.")
    return Verdict("problem", f"{text}: {kind}.")


def _by_uncertainty(found: Regressed) -> str:
    """Errors of rows in groups of rising predicted standard deviation."""
    scale = _standardised(found.prediction.total.sqrt(), found)
    epistemic = _standardised(found.prediction.epistemic.sqrt(), found)
    squared = _standardised(found.y - found.prediction.mean, found, squared=True)
    rows = []
    order = scale.argsort()
    for number, group in enumerate(torch.tensor_split(order, GROUPS), 1):
        if len(group):
            cells = (epistemic[group].mean(), scale[group].square().mean().sqrt(), squared[group].mean().sqrt())
            rows.append((f"{number} of {GROUPS}", count(len(group)), *(f"{float(cell):.4g}" for cell in cells)))
    header = ("group", "rows", "epistemic sd", "predicted sd", "RMSE")
    unit = "" if len(found.names) == 1 else ", in standard deviations of the training targets"
    words = paragraph(
        "Groups of equal size, from the surest rows to the least sure. If the uncertainty is right, the RMSE of each "
        "group is close to its predicted standard deviation."
    )
    return f"<div>{table(header, rows, caption=f'Errors by predicted uncertainty{unit}')}{words}</div>"


def _standardised(values: Tensor, found: Regressed, *, squared: bool = False) -> Tensor:
    """Mean over outputs; several outputs first get one unit, that of their spread in training."""
    if len(found.names) > 1:
        values = values / found.guess_scale
    return (values.square() if squared else values).mean(-1)


def _residuals(found: Regressed) -> str:
    """Residuals of the first output by their epistemic standard deviation."""
    name = found.names[0]
    epistemic = found.prediction.epistemic[:, 0].sqrt().cpu()
    residual = (found.y - found.prediction.mean)[:, 0].cpu()
    ax = panel()
    ax.plot(epistemic.numpy(), residual.numpy(), "o", markersize=3, color=plotting.PALETTE[0], alpha=0.6)
    ax.axhline(0, color="black", linewidth=1, linestyle="--")
    ax.set(xlabel=f"epistemic sd of {name}", ylabel=f"observed minus predicted {name}")
    if float(epistemic.max()) > 20 * float(epistemic.median()) > 0:
        ax.set_xscale("log")
    return figure(
        ax,
        alt=f"Residuals of {name} by epistemic standard deviation, which is {float(epistemic.median()):.3g} in the "
        f"median and {float(epistemic.max()):.3g} at most.",
        caption="Residuals by epistemic standard deviation: what the network does not know of the function. Noise adds "
        "to it.",
    )
