"""The printed results of `pyro-bnn prune`."""

from functools import partial

from ...results import pruning
from ..numbers import number, percent
from ..reports.weights import SMALL_LOSS, Change, PruningGains
from .output import aligned

NUM_ERRORS = 2.0  # standard errors by which a change must differ from the limit
SLOWER = 1.1  # heuristic: a sparse network is slower if it takes more than this multiple of a dense one's time


def conclusions_of(report: pruning.PruningReport, gains: PruningGains) -> str:
    """Return sentences that say which share of the weights can be removed, and whether this costs speed."""
    return " ".join([*_can_go(report, gains.change), *_is_slower(gains)])


def table_of(report: pruning.PruningReport, gains: PruningGains) -> str:
    """Return a table with the scores, the file size and the speed for each share of removed weights."""
    name, form = ("RMSE", number) if report.rows[0].accuracy is None else ("accuracy", partial(percent, digits=2))
    heads = [f"{name}, mean", "NLL, mean", f"{name}, draws", "NLL, draws"]
    cells = [["removed", "left", *heads, "file, MB", "speed"]]
    for row, gain in zip(report.rows, gains.rows, strict=True):
        mean, drawn = (row.mean_rmse, row.rmse) if row.accuracy is None else (row.mean_accuracy, row.accuracy)
        first, second = (form(score or 0.0) for score in (mean, drawn))  # neither is None
        scores = [first, f"{row.mean_nll:.4f}", second, f"{row.nll:.4f}"]
        costs = [f"{gain.file_bytes / 1e6:.3f}", f"{gain.dense_seconds / gain.sparse_seconds:.1f} x"]
        cells.append([f"{100 * row.fraction:.4g} %", f"{row.num_weights:,}", *scores, *costs])
    title = f"{report.num_weights:,} weights, {report.num_data:,} rows, means of {report.num_samples} draws:"
    return "\n".join([title, *aligned(cells, num_left=0)])


def _is_slower(gains: PruningGains) -> list[str]:
    """Return a sentence if the network is slower with sparse layers for at least half of the shares; else []."""
    pruned = [row for row in gains.rows if row.fraction]
    slower = [row for row in pruned if row.sparse_seconds > SLOWER * row.dense_seconds]
    if not pruned or 2 * len(slower) < len(pruned):
        return []
    return ["This network is so small that sparse layers make it slower."]


def _can_go(report: pruning.PruningReport, change: Change | None) -> list[str]:
    """Say which share of the weights can be removed without loss, or that there are too few rows to say so."""
    if change is None:
        return []
    share = f"{100 * change.fraction:.4g} % of the weights"
    mean = round(change.mean, 4) + 0.0  # no minus sign before 0
    size = f"the NLL changes by {mean:+.4f} ± {change.standard_error:.4f} nats per row."
    if not abs(change.mean - SMALL_LOSS) > NUM_ERRORS * change.standard_error:
        return [f"{report.num_data:,} rows are too few to say how many weights can be removed. Without {share}, {size}"]
    if change.mean <= SMALL_LOSS:
        return [f"{share} can be removed: {size}"]
    return [f"No share of the weights in the table can be removed. Without {share}, {size}"]
