"""Comparison of a run's posterior with chains of NUTS for the same network and data."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ..inference.mcmc import fit_nuts
from ..results.comparison import Comparison, Estimate, Scores, compare
from ..scores.uncertainty import RegressionPrediction
from .config import RunConfig
from .datasets import Dataset
from .own.targets import Target
from .reports.scores import COLUMNS, in_units
from .runs import is_chains, load_run

MAX_TREE_DEPTH = 8  # heuristic: at most 255 steps a draw, in which few trajectories in networks make a U-turn
NUM_CHAINS = 4  # of NUTS
MOST_POINTS = 1000  # heuristic: largest number of rows to predict, since all draws are kept in memory
UNKNOWN = "not known"  # cell of a number that chains which have not converged do not tell
REASON = (
    f"{UNKNOWN}: the standard error of a standard deviation (sd) is more than half of it, because the chains of NUTS "
    "differ much. The ratio of the total sds and the Wasserstein distance (wasserstein) need the total sd."
)
"""Why a cell has the text `UNKNOWN`."""

LENGTHS = ("epistemic sd", "total sd", "rms mean difference", "wasserstein")  # scores in the unit of the target


def compare_with_chains(
    run: Path,
    config: RunConfig,
    rows: Dataset,
    *,
    num_samples: int,
    seed: int = 0,
    report: Callable[[str], None] = print,
) -> Comparison:
    """Draw four chains from the exact posterior of a run, and compare the predictions of the chains and the run.

    In the chains, parameters without a posterior, such as a learned noise scale, keep the values that the run learned.
    """
    model, posterior = load_run(run, rows)
    model.requires_grad_(False)
    chains = fit_nuts(
        model,
        (rows.x_train, rows.y_train),
        max_tree_depth=MAX_TREE_DEPTH,
        num_samples=num_samples,
        num_chains=NUM_CHAINS,
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
    result = compare(model, entries, x, y=y, regions=regions, num_samples=NUM_CHAINS * num_samples, seed=seed)
    return _in_units(result, rows.facts.target)


def units_of(target: Target) -> str:
    """Return a sentence that names the units of a comparison."""
    if target.is_class:
        return "NLL and entropy are in nats per row."
    if len(target.scale) == 1:
        return f"NLL is in nats per row; standard deviations and distances are in the units of {target.name!r}."
    return "NLL is in nats per row. All targets are standardised: the unit is their standard deviation in training."


def _in_units(result: Comparison, target: Target) -> Comparison:
    """Convert a comparison of standardised predictions to the units of the target, if it is a single number."""
    if len(target.scale) != 1:
        return result
    scale = target.scale[0]
    return replace(
        result,
        methods=[_scaled(row, scale) for row in result.methods],
        pairs=[_scaled(row, scale) for row in result.pairs],
        predictions={
            name: in_units(prediction.as_kind(RegressionPrediction), target)
            for name, prediction in result.predictions.items()
        },
    )


def _scaled(row: Scores, scale: float) -> Scores:
    scores = dict(row.scores)
    for name in LENGTHS:
        if name in scores:
            scores[name] = Estimate(scale * scores[name].value, scale * scores[name].standard_error)
    if "nll" in scores:
        scores["nll"] = replace(scores["nll"], value=scores["nll"].value + math.log(scale))
    return replace(row, scores=scores)


def side_by_side(result: Comparison) -> str:
    """Return a narrow table of a comparison of two methods, with a row for each score and a column for each method."""
    import pandas  # imported late: importing takes long

    known = in_plain_names(without_unknown_errors(result))
    unsure = {row.method: _unknown(row) for row in in_plain_names(result).methods}
    columns, pair = {row.method: row.cells | unsure[row.method] for row in known.methods}, known.pairs[0]
    columns[pair.method] |= pair.cells | _unknown(result.pairs[0])
    if columns[pair.reference].get("total sd") == UNKNOWN:
        columns[pair.method] |= dict.fromkeys(("total sd ratio", "wasserstein"), UNKNOWN)
    table = pandas.DataFrame(columns).fillna("").rename(index=COLUMNS)
    text = f"{pair.region}; the last {len(pair.scores)} rows compare with {pair.reference}:\n{table.to_string()}"
    return f"{text}\n\n{REASON}" if UNKNOWN in table.to_numpy() else text


def without_unknown_errors(result: Comparison) -> Comparison:
    """Return a comparison in which the errors of numbers from NUTS are NaN if its chains have not converged.

    The errors are computed as if groups of successive draws were independent, so they would be far too small.
    """
    if result.status:
        return result
    nuts = result.pairs[0].reference
    methods, pairs = (
        [_without_errors(row) if nuts in (row.method, row.reference) else row for row in rows]
        for rows in (result.methods, result.pairs)
    )
    return replace(result, methods=methods, pairs=pairs)


def _without_errors(row: Scores) -> Scores:
    return replace(row, scores={name: replace(score, standard_error=math.nan) for name, score in row.scores.items()})


def in_plain_names(result: Comparison) -> Comparison:
    """Return a comparison of a run with NUTS in which the methods have the names "NUTS" and "the run"."""
    names = {result.pairs[0].reference: "NUTS", result.pairs[0].method: "the run", "": ""}
    methods, pairs = (
        [replace(row, method=names[row.method], reference=names[row.reference]) for row in rows]
        for rows in (result.methods, result.pairs)
    )
    return replace(result, methods=methods, pairs=pairs)


def _unknown(row: Scores) -> dict[str, str]:
    """Return a text for each standard deviation whose standard error is more than half of its value."""
    return {
        name: UNKNOWN
        for name, score in row.scores.items()
        if " sd" in name and score.standard_error > 0.5 * abs(score.value)
    }
