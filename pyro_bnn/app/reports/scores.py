"""Scores of predictions, tables of predictions of new rows, and the report on a run with the user's own data."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..._core.summary import counted
from ...modelling.likelihoods import PoissonLikelihood
from ...modelling.model import BayesianModel
from ...results import units
from ...results.prediction import predict
from ...scores import metrics
from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from ..config import LEVEL
from ..folders import Folder
from ..numbers import SMALL, number, percent
from ..own.targets import Target
from ..runs import RunCalibration, RunPosterior, is_chains
from ..sources import Sample
from .calibrated import BeforeAndAfter, before_and_after, interval_of, promised_by, sets_of
from .trained import Alone, Trained

FILES = ("metrics.json", "loss.png", "reliability.png", "predicted.png")  # all that may be written
MUCH_WORSE = 10.0  # heuristic: nats per row by which an NLL of single draws needs an explanation
LEVELS = (0.5, 0.9, 0.95)  # of the intervals whose coverage is measured and judged
COLUMNS = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "rmse": "RMSE",
    "crps": "CRPS",
    **{f"coverage_{100 * level:.0f}": f"in {percent(level, 0)}" for level in LEVELS},
}
"""Heading of each score in tables. The last headings are for the share of the targets inside an interval."""


@dataclass(frozen=True)
class OwnDataScores:
    """Results of an evaluation on the user's own data."""

    target: str
    num_test: int
    rows: Sequence[Mapping[str, Any]]  # name and scores of each prediction; baselines come last
    is_class: bool
    calibration: BeforeAndAfter | None = None  # coverage before and after, if rows were held out
    promised: float | None = None  # share of the targets that 90 % intervals of counts should hold; else None

    def __str__(self) -> str:
        names = [name for name in COLUMNS if any(name in row["scores"] for row in self.rows)]
        if self.calibration is not None:  # which compares the shares in intervals
            names = [name for name in names if not name.startswith("coverage")]
        head = f"{self.target} of {counted(self.num_test, 'test row')}"
        shown = [row["name"].removeprefix("baseline: ") for row in self.rows]
        width = max(len(head), *map(len, shown)) + 2
        lines = [f"{head:{width}s}" + "".join(f"{COLUMNS[name]:>11s}" for name in names)]
        for row, label in zip(self.rows, shown, strict=True):
            cells = [shown_score(name, row["scores"].get(name)) for name in names]
            lines.append(f"{label:{width}s}" + "".join(f"{cell:>11s}" for cell in cells))
        compared = [] if self.calibration is None else [str(self.calibration), ""]
        notes = [] if self.promised is None else [of_counts(self.promised)]
        nll = [row["scores"].get("nll", 0.0) for row in self.rows[:2]]  # of single draws, and of their mean
        if nll[0] > nll[-1] + MUCH_WORSE:
            notes.append("The NLL of single draws is large since each is too sure; only the mean of draws predicts.")
        return "\n".join([*compared, *lines, *(["", *notes] if notes else [])])


def of_counts(promised: float) -> str:
    """Say which share of the targets should lie in 90 % intervals of counts."""
    return (
        f"Intervals of counts end at whole numbers, so they promise more: {percent(LEVEL, 0)} intervals should hold "
        f"{percent(promised)} of the targets."
    )


def shown_name(name: str) -> str:
    """Return the heading of a score's column in tables, such as RMSE for rmse, or "in 68.3 %" for coverage_68.3."""
    return COLUMNS.get(name) or f"in {name.removeprefix('coverage_')} %"


def shown_score(name: str, value: float | None) -> str:
    """Return the text for a score: a share in per cent, any other number with four digits, and "-" for None."""
    if value is None:
        return "-"
    if name == "ece" and value < SMALL / 2:  # an error of rounding, such as 1e-16
        return "0.0000"
    return percent(value) if name == "accuracy" or name.startswith("coverage") else number(value)


def report_scores(run: Trained, folder: Folder) -> OwnDataScores:
    """Score the predictions of a run for its test rows, and write `metrics.json` and pictures."""
    from ...results import plotting  # imported late: `pyro-bnn predict` needs no pictures
    from .pictures import observed_against_predicted, save_picture

    target = run.rows.facts.target
    ensemble = run.ensemble
    name, single = run.single
    ways = {name: single, f"mean of {run.num_samples} draws": ensemble}
    ways |= {f"baseline: {name}": way for name, way in run.baselines.items()}
    rows = [{"name": name, "scores": scores_of(prediction, target)} for name, prediction in ways.items()]
    own: RegressionPrediction | ClassificationPrediction
    if isinstance(ensemble, ClassificationPrediction):
        own, y = ensemble, run.test[1]
    else:
        own = in_units(ensemble.as_kind(RegressionPrediction), target)
        assert own.targets is not None
        y = own.targets.to(own.mean)
    compared, promised = None, None
    is_count = isinstance(run.model.likelihood, PoissonLikelihood)
    if is_count and not isinstance(own, ClassificationPrediction):
        low, high = interval_of(own, LEVEL)
        promised = promised_by(own, low, high, LEVEL, is_count=True)
    if run.calibration is not None:
        compared = before_and_after(own, y, run.calibration, is_count=is_count)
    report = OwnDataScores(target.name, len(run.rows.x_test), rows, target.is_class, compared, promised)
    folder.write_json("metrics.json", asdict(report))  # before the pictures, so that a failing one does not cost it
    if isinstance(own, ClassificationPrediction):
        pictures = {"reliability.png": plotting.reliability_diagram(own.probs, y)[0]}
    else:
        # Of several targets, the picture shows the first.
        parts = (part[:, 0] for part in (own.mean, y, *interval_of(own, LEVEL, run.calibration)))
        pictures = {"predicted.png": observed_against_predicted(*parts, name=target.name, level=LEVEL)[0]}
    if not is_chains(run.posterior):
        pictures["loss.png"] = plotting.loss_curves(run.rows.facts.in_units(run.posterior.history))[0]
    for name, ax in pictures.items():
        save_picture(folder, name, ax)
    return report


def scores_of(
    prediction: Prediction | Alone[Any],
    target: Target,
    calibration: RunCalibration | None = None,
    *,
    levels: Sequence[float] = LEVELS,
) -> dict[str, float]:
    """Score a prediction with targets, in units of the target. A given `calibration` corrects intervals and sets."""
    if isinstance(prediction, Alone):
        return prediction.mean(lambda draw: scores_of(draw, target, calibration, levels=levels))
    if isinstance(prediction, ClassificationPrediction):
        scores = prediction.score()
        if calibration is not None and prediction.targets is not None:
            for level in levels:
                held = sets_of(prediction, level, calibration).gather(1, prediction.targets[:, None])
                scores[f"coverage_{100 * level:g}"] = float(held.double().mean())
        return scores
    own = in_units(prediction.as_kind(RegressionPrediction), target)
    assert own.targets is not None
    scores = own.score()
    if own.components is not None:
        for level in levels:
            low, high = interval_of(own, level, calibration)
            scores[f"coverage_{100 * level:g}"] = metrics.interval_coverage(low, high, own.targets.to(low))
    return scores


def in_units(prediction: RegressionPrediction, target: Target) -> RegressionPrediction:
    """Convert a prediction of standardised targets z to the units of the target, y = mean + scale * z, in float64."""
    are_own = all(mean == 0 for mean in target.mean) and all(scale == 1 for scale in target.scale)
    if are_own or prediction.mean.dim() != 2:
        return prediction
    mean, scale = (prediction.mean.new_tensor(part, dtype=torch.double) for part in (target.mean, target.scale))
    return replace(
        units.in_units(prediction, mean, scale),
        log_density=None if prediction.log_density is None else prediction.log_density.double() - scale.log().sum(),
        targets=None if prediction.targets is None else mean + scale * prediction.targets.double(),
    )


CHUNK = 2000  # rows that are predicted together; all chunks have the same draws of the weights
COPIED = " (input)"  # suffix of a copied column that has the name of a predicted column
DIGITS, DECIMALS = 3, 4  # significant digits of sds and probabilities, and least number of decimals of probabilities


def as_csv(table: pd.DataFrame) -> str:
    """Return a table of predictions, which are rounded, as CSV. The first line has the names of the columns."""
    return table.to_csv(index=False, float_format="%.12g", na_rep="nan", lineterminator="\n")


def table_of_predictions(
    model: BayesianModel,
    posterior: RunPosterior,
    sample: Sample,
    target: Target,
    *,
    levels: Sequence[float] = (LEVEL,),
    num_samples: int = 100,
    seed: int = 0,
    calibration: RunCalibration | None = None,
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Predict rows. Return a table with a line for each row, and mean scores over the rows with known targets."""
    tables = []
    scores: list[tuple[int, dict[str, float]]] = []  # number of scored rows and their scores, by chunk
    for start in range(0, len(sample.x), CHUNK):
        part = slice(start, start + CHUNK)
        prediction = predict(
            model,
            posterior,
            sample.x[part].to(model.device),
            y=None if sample.y is None else sample.y[part].to(model.device),
            num_samples=num_samples,
            keep_draws=not target.is_class,
            seed=seed,
        )
        columns = _columns(prediction, target, levels, calibration)
        columns |= {} if sample.outside is None else {"outside": sample.outside[part]}
        names = _kept_names(sample.kept, {"row", *columns})
        kept = {name: cells[part] for name, cells in zip(names, sample.kept.values(), strict=True)}
        tables.append(pd.DataFrame({"row": sample.rows[part], **kept, **columns}))
        scored = prediction[sample.has_target[part]]
        if len(scored):
            scores.append((len(scored), scores_of(scored, target, calibration, levels=levels)))
    return pd.concat(tables, ignore_index=True), _averaged(scores)


def note_on_unlike_rows(table: pd.DataFrame, target: Target) -> list[str]:
    """Return a list with a note if some predicted sds are far larger than the sd of the training targets; else []."""
    if target.is_class:
        return []
    names = [f"sd_{output}" for output in range(target.size)] if target.size > 1 else ["sd"]
    note = units.note_on_unlike_rows(table[names].to_numpy(), target.scale, [*table["row"]])
    return [note] if note else []


def _kept_names(names: Collection[str], own: set[str]) -> list[str]:
    found = []
    for name in names:
        new = name
        while new in own or (new != name and new in names):
            new += COPIED
        found.append(new)
    return found


def _averaged(parts: Sequence[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Average the scores of chunks of rows, without the ECE. For the RMSE, the squares are averaged."""
    means = {}
    for name in [name for name in parts[0][1] if name != "ece"] if parts else []:
        power = 2 if name == "rmse" else 1
        values, sizes = [part[name] ** power for _, part in parts], [size for size, _ in parts]
        means[name] = float(np.average(values, weights=sizes)) ** (1 / power)
    return means


def _columns(
    prediction: Prediction, target: Target, levels: Sequence[float], calibration: RunCalibration | None
) -> dict[str, Any]:
    if isinstance(prediction, ClassificationPrediction):
        probs = {f"p({name})": prediction.probs[:, index] for index, name in enumerate(target.classes)}
        parts = {"entropy": prediction.total, "aleatoric": prediction.aleatoric, "epistemic": prediction.epistemic}
        labels = [target.classes[label] for label in prediction.labels.tolist()]
        sets: dict[str, Any] = {}
        for level in levels if calibration is not None else ():
            inside = sets_of(prediction, level, calibration).int().cpu().numpy()
            sets |= {f"set_{100 * level:g}({name})": inside[:, index] for index, name in enumerate(target.classes)}
        shown = {name: _rounded(value, value, least=DECIMALS) for name, value in (probs | parts).items()}
        return {"class": labels, **shown, **sets}
    own = in_units(prediction.as_kind(RegressionPrediction), target)
    sds = {"sd": own.total.sqrt(), "aleatoric_sd": own.aleatoric.sqrt(), "epistemic_sd": own.epistemic.sqrt()}
    values = {"mean": own.mean, **sds}
    for level in levels:
        low, high = interval_of(own, level, calibration)
        values |= {f"lower_{100 * level:g}": low, f"upper_{100 * level:g}": high}
    num_outputs = own.mean.shape[1]
    return {
        f"{name}_{output}" if num_outputs > 1 else name: _rounded(value[:, output], sds.get(name, sds["sd"])[:, output])
        for output in range(num_outputs)
        for name, value in values.items()
    }


def _rounded(values: Tensor, sizes: Tensor, *, least: int = 0) -> np.ndarray:
    """Round each value to as many decimals as show `DIGITS` digits of its size, but to at least `least` decimals."""
    exponents = [math.floor(math.log10(size)) if 0 < size < math.inf else 0 for size in sizes.tolist()]
    places = [max(DIGITS - 1 - exponent, least) for exponent in exponents]
    return np.array([round(value, place) for value, place in zip(values.tolist(), places, strict=True)])
