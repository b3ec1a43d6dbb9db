"""Makes a table of predictions of new rows, with the aleatoric and the epistemic uncertainty."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ...modelling.model import BayesianModel
from ...results.prediction import predict
from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from ..own.targets import Target
from ..runs import RunCalibration, RunPosterior
from ..sources import Sample
from .calibrated import interval_of, sets_of
from .scores import in_units, scores_of

CHUNK = 2000  # rows that are predicted together; all chunks have the same weight draws
COPIED = " (input)"  # suffix of a copied column that has the name of a predicted column
EVERY_DIGIT = "%.9g"  # format of numbers in CSV, which distinguishes all of single precision


def as_csv(table: pd.DataFrame) -> str:
    """Return a table of predictions as CSV. The first line has the names of the columns."""
    return table.to_csv(index=False, float_format=EVERY_DIGIT, na_rep="nan", lineterminator="\n")


def table_of_predictions(
    model: BayesianModel,
    posterior: RunPosterior,
    sample: Sample,
    target: Target,
    *,
    levels: Sequence[float] = (0.95,),
    num_samples: int = 100,
    seed: int = 0,
    calibration: RunCalibration | None = None,
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Predict rows, and return a table with a line for each row, and mean scores over the rows with known targets.

    The columns are those of `pyro-bnn predict`. The squares of ``aleatoric_sd`` and ``epistemic_sd`` add up to that of
    ``sd``. With several targets, each name ends with the number of the target, from 0.
    """
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
        names = _kept_names(sample.kept, {"row", *columns})
        kept = {name: cells[part] for name, cells in zip(names, sample.kept.values(), strict=True)}
        tables.append(pd.DataFrame({"row": sample.rows[part], **kept, **columns}))
        scored = prediction[sample.has_target[part]]
        if len(scored):
            scores.append((len(scored), scores_of(scored, target, calibration, levels=levels)))
    return pd.concat(tables, ignore_index=True), _averaged(scores)


def _kept_names(names: Collection[str], own: set[str]) -> list[str]:
    """Return the names of the copied columns, which differ from those of computed columns."""
    found = []
    for name in names:
        new = name
        while new in own or (new != name and new in names):
            new += COPIED
        found.append(new)
    return found


def _averaged(parts: Sequence[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Return the mean scores over chunks of rows, without the ECE. The RMSE is averaged by its square."""
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
        return {"class": labels, **{name: _array(value) for name, value in (probs | parts).items()}, **sets}
    own = in_units(prediction.as_kind(RegressionPrediction), target)
    values = {
        "mean": own.mean,
        "sd": own.total.sqrt(),
        "aleatoric_sd": own.aleatoric.sqrt(),
        "epistemic_sd": own.epistemic.sqrt(),
    }
    for level in levels:
        low, high = interval_of(own, level, calibration)
        values |= {f"lower_{100 * level:g}": low, f"upper_{100 * level:g}": high}
    num_outputs = own.mean.shape[1]
    return {
        f"{name}_{output}" if num_outputs > 1 else name: _array(value[:, output])
        for output in range(num_outputs)
        for name, value in values.items()
    }


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
