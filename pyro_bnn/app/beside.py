"""Comparison of a run's posterior with chains of NUTS for the same network and data."""

from collections.abc import Callable
from pathlib import Path

import torch

from ..inference.mcmc import fit_nuts
from ..results.comparison import Comparison, compare
from .config import RunConfig
from .datasets import Dataset
from .reports.scores import COLUMNS
from .runs import is_chains, load_run

MAX_TREE_DEPTH = 8
"""Heuristic: with this depth, a draw takes at most 255 steps.

For posteriors of networks, few trajectories of NUTS make a U-turn within 255 steps.
"""

MOST_POINTS = 1000
"""Heuristic: at most this many rows are predicted, since the predictions of all draws are kept in memory."""


def compare_with_chains(
    run: Path,
    config: RunConfig,
    rows: Dataset,
    *,
    num_samples: int,
    seed: int = 0,
    report: Callable[[str], None] = print,
) -> Comparison:
    """Draw four chains from the exact posterior of a run, and compare their predictions with the run's.

    Numbers that the run learned, such as the scale of the noise, keep their values. The test rows are predicted, or the
    training rows if there are no test rows.
    """
    model, posterior = load_run(run, rows)
    model.requires_grad_(False)
    chains = fit_nuts(
        model,
        (rows.x_train, rows.y_train),
        max_tree_depth=MAX_TREE_DEPTH,
        num_samples=num_samples,
        num_warmup=num_samples,
        compile="auto",
        progress=True,
        seed=seed,
    )
    entries = {"nuts": chains, "mclmc" if is_chains(posterior) else config.guide: posterior}
    for name, entry in entries.items():
        report(f"{name}: {entry.status}")
    kind, x, y = ("test rows", rows.x_test, rows.y_test) if len(rows.x_test) else ("rows", rows.x_train, rows.y_train)
    x, y = x[:MOST_POINTS], y[:MOST_POINTS]
    regions = {kind: torch.ones(len(x), dtype=torch.bool)}
    return compare(model, entries, x, y=y, regions=regions, num_samples=4 * num_samples, seed=seed)


def side_by_side(result: Comparison) -> str:
    """Return a narrow table of a comparison of two methods, with a row for each score and a column for each method."""
    import pandas  # imported late: importing takes long

    columns, pair = {row.method: row.cells for row in result.methods}, result.pairs[0]
    columns[pair.method] |= pair.cells
    table = pandas.DataFrame(columns).fillna("").rename(index=COLUMNS)
    return f"{pair.region}; the last {len(pair.scores)} rows compare with {pair.reference}:\n{table.to_string()}"
