"""Compares a run's posterior with chains of NUTS for the same network and data."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..inference.mcmc import NUTS, fit_nuts, seconds_of_step
from ..inference.posterior import Status
from ..results.comparison import Comparison, Estimate, Scores, cells_of, compare
from ..scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from .chains import CLOSE_CLASSES, CLOSE_NUMBERS
from .config import RunConfig
from .datasets import Dataset
from .numbers import number, percent
from .own.targets import Target
from .reports.scores import COLUMNS, in_units
from .runs import is_chains, load_run

MAX_TREE_DEPTH = 8  # heuristic: at most 255 steps a draw, in which few trajectories in networks make a U-turn
NUM_CHAINS = 4  # of NUTS
MOST_POINTS = 1000  # heuristic: largest number of rows to predict, since all draws are kept in memory
UNKNOWN = "not known"  # text of a cell if chains have not converged, so that its number is not known
REASON = (
    f"{UNKNOWN}: the standard error of a standard deviation (sd) is more than half of it, because the chains of NUTS "
    "differ much. Both the ratio of the total sds and the Wasserstein distance (wasserstein) need the total sd."
)
"""Why a cell has the text `UNKNOWN`."""

RANGE = " 10-90 %"  # name of the row with the range of a ratio
LENGTHS = ("epistemic sd", "total sd", "rms mean difference", "wasserstein")  # scores in the unit of the target

CLOSE_SD = 0.1
"""Heuristic. For each row, take the ratio of the standard deviations of two methods. The methods agree if the mean and
the outer quantiles of these ratios differ from 1 by at most `CLOSE_SD`."""

FAR = 3  # heuristic: this multiple of the largest difference between chains of NUTS is beyond doubt


def compare_with_chains(
    run: Path,
    config: RunConfig,
    rows: Dataset,
    *,
    num_samples: int,
    seed: int = 0,
    expect: Callable[[float], None],
    report: Callable[[str, Status], None],
) -> Comparison:
    """Draw four chains of NUTS for a run's network, and compare their predictions with the run's.

    Before the first draw, `expect` is called with the largest number of seconds that the chains can take. After the
    last draw, `report` is called once for the chains and once for the run, with a name and a status.
    """
    model, posterior = load_run(run, rows)
    model.requires_grad_(False)  # parameters without a posterior, such as a noise scale, keep what the run learned
    data = (rows.x_train, rows.y_train)
    seconds = seconds_of_step(model, data, NUTS(MAX_TREE_DEPTH), num_chains=NUM_CHAINS)
    expect(2 * NUM_CHAINS * num_samples * (2**MAX_TREE_DEPTH - 1) * seconds)
    chains = fit_nuts(
        model,
        data,
        max_tree_depth=MAX_TREE_DEPTH,
        num_samples=num_samples,
        num_chains=NUM_CHAINS,
        num_warmup=num_samples,
        progress=True,
        seed=seed,
    )
    entries = {"nuts": chains, "mclmc" if is_chains(posterior) else config.guide: posterior}
    for name, entry in entries.items():
        report(name, entry.status)
    kind, x, y = ("test rows", rows.x_test, rows.y_test) if len(rows.x_test) else ("rows", rows.x_train, rows.y_train)
    x, y = x[:MOST_POINTS], y[:MOST_POINTS]
    regions = {kind: torch.ones(len(x), dtype=torch.bool)}
    result = compare(model, entries, x, y=y, regions=regions, num_samples=NUM_CHAINS * num_samples, seed=seed)
    return _in_units(result, rows.facts.target)


def units_of(target: Target) -> str:
    """Return sentences that name the units of the numbers in a comparison."""
    if target.is_class:
        return "NLL and entropy are in nats per row."
    averages = f"Standard deviations (sd) are root mean squares over rows;{RANGE}: quantiles of the ratio over rows."
    if len(target.scale) == 1:
        return f"NLL is in nats per row; sd and distances are in the units of {target.name!r}. {averages}"
    return (
        "NLL is in nats per row. All targets are standardised: the unit is their standard deviation in training. "
        f"{averages}"
    )


def _in_units(result: Comparison, target: Target) -> Comparison:
    """Convert a comparison of standardised predictions to the target's units, if the target is a single number."""
    if len(target.scale) != 1:
        return result
    scale = target.scale[0]
    predictions: dict[str, Prediction] = {
        name: in_units(prediction.as_kind(RegressionPrediction), target)
        for name, prediction in result.predictions.items()
    }
    return replace(_with_rows(result, lambda row: _scaled(row, scale)), predictions=predictions)


def _with_rows(result: Comparison, change: Callable[[Scores], Scores]) -> Comparison:
    """Return a comparison with `change` applied to each row of scores."""
    return replace(result, methods=[*map(change, result.methods)], pairs=[*map(change, result.pairs)])


def _scaled(row: Scores, scale: float) -> Scores:
    scores = dict(row.scores)
    for name in LENGTHS:
        if name in scores:
            scores[name] = Estimate(scale * scores[name].value, scale * scores[name].standard_error)
    if "nll" in scores:
        scores["nll"] = replace(scores["nll"], value=scores["nll"].value + math.log(scale))
    return replace(row, scores=scores)


def side_by_side(result: Comparison) -> str:
    """Return a caption and a narrow table of two methods, with a row for each score and a column for each method."""
    import pandas  # imported late: importing takes long

    known, unsure = in_plain_names(without_unknown_errors(result)), in_plain_names(result).methods
    texts, pair = cells_of(known.methods), known.pairs[0]
    columns = {
        row.method: {name: cells[i] for name, cells in texts.items()} | _unknown(row) for i, row in enumerate(unsure)
    }
    compared = {name: text for name, (text,) in cells_of([pair]).items()} | _unknown(result.pairs[0])
    if columns[pair.reference].get("total sd") == UNKNOWN:
        compared |= dict.fromkeys(("total sd ratio", "wasserstein"), UNKNOWN)
    for name, text in compared.items():
        span = pair.scores[name].range
        columns[pair.method] |= {name: text} | ({f"{name}{RANGE}": span} if span and text != UNKNOWN else {})
    table = pandas.DataFrame(columns).fillna("")
    table = table.rename(index=lambda name: RANGE if name.endswith(RANGE) else COLUMNS.get(name, name))
    num_last = len(table) - len(texts)
    equal = "an agreement of 1, and distances of 0" if "agreement" in pair.scores else "ratios of 1, and distances of 0"
    caption = (
        f"NUTS and the run predict the same {pair.region}. NUTS draws from the exact posterior if it runs long enough, "
        f"so the run is the better, the nearer its numbers are to those of NUTS. The last {num_last} rows measure it: "
        f"equal predictions have {equal}. The smaller NLL is better."
    )
    heading = f"{pair.region}; the last {num_last} rows compare with {pair.reference}:"
    text = f"{caption}\n\n{heading}\n{table.to_string()}"
    return f"{text}\n\n{REASON}" if UNKNOWN in table.to_numpy() else text


def without_unknown_errors(result: Comparison) -> Comparison:
    """If NUTS has not converged, replace its standard errors by NaN, since these errors are then far too small."""
    if result.status:
        return result
    nuts = result.pairs[0].reference

    def without_errors(row: Scores) -> Scores:
        if nuts not in (row.method, row.reference):
            return row
        scores = {name: replace(score, standard_error=math.nan) for name, score in row.scores.items()}
        return replace(row, scores=scores)

    return _with_rows(result, without_errors)


def in_plain_names(result: Comparison) -> Comparison:
    """Return a copy of a comparison in which the two methods have the names "NUTS" and "the run"."""
    names = {result.pairs[0].reference: "NUTS", result.pairs[0].method: "the run", "": ""}
    return _with_rows(result, lambda row: replace(row, method=names[row.method], reference=names[row.reference]))


def _unknown(row: Scores) -> dict[str, str]:
    """Return the text `UNKNOWN` for each standard deviation that is less than twice its standard error."""
    return {
        name: UNKNOWN
        for name, score in row.scores.items()
        if " sd" in name and score.standard_error > 0.5 * abs(score.value)
    }


def agreement(result: Comparison, num_chains: int) -> str:
    """Say whether the second method of a comparison predicts like the first method, NUTS.

    The first line of the text is the judgement. If there are other lines, they give the differences and the thresholds,
    and warn if NUTS has not converged.
    """
    pair, nuts = result.pairs[0], next(iter(result.predictions.values()))
    name, distance, close, limits = _distance(pair, nuts)
    between = _between_chains(nuts, num_chains)
    total, epistemic = (pair.scores.get(f"{part} sd ratio") for part in ("total", "epistemic"))
    ratios = () if total is None else (total.value, total.quantile_10, total.quantile_90)
    is_close = distance <= close and all(abs(ratio - 1) <= CLOSE_SD for ratio in ratios)
    chains = f"each chain of NUTS differs from the others by at most {number(between)}"
    if not result.status and not is_close and distance <= FAR * between:
        return (
            f"Not decided: the {name} between the run and NUTS is {number(distance)}, and a chain of NUTS differs from "
            f"the others by up to {number(between)}. So the chains of NUTS are too short to compare with."
        )
    but = ""
    if is_close and epistemic is not None and abs(epistemic.value - 1) > CLOSE_SD:
        size = "larger" if epistemic.value > 1 else "smaller"
        but = f", but its epistemic sd is {percent(abs(epistemic.value - 1), 0)} {size}"
    if is_close and (result.status or between <= close):
        said = f"The run predicts like NUTS{but}."
    elif is_close:
        said = f"The run predicts like all chains of NUTS together{but}, but these chains do not agree yet."
    else:
        said = "The run does not predict like NUTS."
    doubt = [] if result.status else [f"NUTS has not converged, but {chains} ({name})."]
    differences = in_plain_names(result).differences
    return "\n".join([said, f"{differences[0].upper()}{differences[1:]}", limits, *doubt])


def _distance(pair: Scores, nuts: Prediction) -> tuple[str, float, float, str]:
    """Return the name, value and threshold of the distance from NUTS, and a sentence that explains "like NUTS"."""
    if "total variation" in pair.scores:
        limits = f'"Like NUTS" means a total variation of at most {CLOSE_CLASSES}.'
        return "total variation", pair.scores["total variation"].value, CLOSE_CLASSES, limits
    close = CLOSE_NUMBERS * math.sqrt(float(nuts.as_kind(RegressionPrediction).total.mean()))
    limits = (
        f'"Like NUTS" means that the total sds differ by at most {percent(CLOSE_SD, 0)}, on average and at 80 % of the '
        f"points, and the means by at most {number(close)}, which is {CLOSE_NUMBERS} of the total sd of NUTS."
    )
    return "root mean square difference of means", pair.scores["rms mean difference"].value, close, limits


def _between_chains(nuts: Prediction, num_chains: int) -> float:
    """Return the largest distance between one chain's mean prediction and the mean prediction of all other chains."""
    if isinstance(nuts, ClassificationPrediction):
        assert nuts.logits is not None
        gaps = _gaps(nuts.logits.double().softmax(-1), num_chains)
        return float(max(0.5 * gap.abs().sum(-1).mean() for gap in gaps))
    components = nuts.as_kind(RegressionPrediction).components
    assert components is not None
    return float(max(gap.square().mean().sqrt() for gap in _gaps(components.mean.double(), num_chains)))


def _gaps(draws: Tensor, num_chains: int) -> Tensor:
    """Return the mean of each chain minus the mean of all other chains, shape (K, N, ...)."""
    means = draws.unflatten(0, (num_chains, -1)).mean(1)
    return (means - means.mean(0)) * num_chains / (num_chains - 1)
