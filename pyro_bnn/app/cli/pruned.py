"""The printed tables of `pyro-bnn prune`."""

import torch

from ..._core.summary import counted
from ...results import pruning
from ..numbers import percent
from ..reports.weights import SMALL_LOSS, Change, PruningGains
from .output import aligned

NUM_ERRORS = 2.0  # standard errors by which a change must differ from the limit
SLOWER = 1.1  # heuristic: a sparse network is slower if it takes more than this multiple of a dense one's time


def conclusions_of(report: pruning.PruningReport, gains: PruningGains) -> str:
    """Return sentences that say which share of the weights can be removed, and whether this costs speed."""
    return " ".join([*_can_go(report, gains.change), *_is_slower(gains)])


def tables_of(report: pruning.PruningReport, gains: PruningGains) -> str:
    """Return a table of scores and a table of savings, each with a note below, separated by empty lines."""
    first = report.rows[0]
    name, form = ("RMSE", ".4g") if first.accuracy is None else ("accuracy", ".2%")
    heads = [f"{name}, mean", "NLL, mean", f"{name}, draws", "NLL, draws"]
    cells = [["removed", "left", "ratio", *heads]]
    for row in report.rows:
        mean, drawn = (row.mean_rmse, row.rmse) if row.accuracy is None else (row.mean_accuracy, row.accuracy)
        scores = [format(mean, form), f"{row.mean_nll:.4f}", format(drawn, form), f"{row.nll:.4f}"]
        ratio = f"{row.threshold:.3g}" if row.threshold else "-"
        cells.append([f"{100 * row.fraction:.4g} %", f"{row.num_weights:,}", ratio, *scores])
    savings = [["removed", "file, MB", "smaller", "dense, ms", "sparse, ms", "speed"]]
    savings += [
        [
            f"{100 * row.fraction:.4g} %",
            f"{row.file_bytes / 1e6:.3f}",
            f"{gains.file_bytes / row.file_bytes:.1f} x",
            f"{1e3 * row.dense_seconds:.2f}",
            f"{1e3 * row.sparse_seconds:.2f}",
            f"{row.dense_seconds / row.sparse_seconds:.1f} x",
        ]
        for row in gains.rows
    ]
    times = (
        f"Times: mean weights, {gains.num_images} rows, {counted(torch.get_num_threads(), 'thread')}. Speed: dense / "
        f"sparse. A layer with more than {percent(pruning.MAX_DENSITY, 0)} of its weights left stays dense."
    )
    title = f"{report.num_weights:,} weights, {report.num_data:,} rows, means of {report.num_samples} draws:"
    notes = (
        "Left: number of weights. Ratio: the largest |mean| / sd of the removed weights. Mean: the network of mean "
        "weights. Draws: their mean."
    )
    tables = ["\n".join([title, *aligned(cells, num_left=0)]), notes, "\n".join(aligned(savings, num_left=0)), times]
    return "\n\n".join(tables)


def _is_slower(gains: PruningGains) -> list[str]:
    """Say whether the network is slower with sparse layers.

    The list contains one sentence if the network is slower for at least half of the shares of removed weights.
    Otherwise the list is empty.
    """
    pruned = [row for row in gains.rows if row.fraction]
    slower = [row for row in pruned if row.sparse_seconds > SLOWER * row.dense_seconds]
    if not pruned or 2 * len(slower) < len(pruned):
        return []
    shares = f"For {len(slower)} of {len(pruned)} shares of removed weights"
    return [
        f"{shares}, this network is slower with sparse layers: it is so small that they cost more time than they save."
    ]


def _can_go(report: pruning.PruningReport, change: Change | None) -> list[str]:
    """Say which share of the weights can be removed without loss, or that there are too few rows to say so."""
    if change is None:
        return []
    share = f"{100 * change.fraction:.4g} % of the weights"
    mean = round(change.mean, 4) + 0.0  # no minus sign before 0
    size = (
        f"the NLL changes by {mean:+.4f} ± {change.standard_error:.4f} nats per row (the limit is a rise by "
        f"{SMALL_LOSS:g}; ± is the standard error over {report.num_data:,} rows)."
    )
    if not abs(change.mean - SMALL_LOSS) > NUM_ERRORS * change.standard_error:
        return [f"{report.num_data:,} rows are too few to say how many weights can be removed. Without {share}, {size}"]
    if change.mean <= SMALL_LOSS:
        return [f"{share} can be removed: {size}"]
    return [f"No share of the weights in the table can be removed. Without {share}, {size}"]
