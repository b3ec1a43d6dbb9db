"""Predictions of new rows as a table: what is expected of each, how uncertain it is, and why."""

import csv
from collections.abc import Collection, Iterator, Sequence
from typing import TextIO

import torch

from ...inference.guides import GuidePosterior
from ...modelling.model import BayesianModel
from ...results.prediction import predict
from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from ..own.targets import Target
from ..own.units import in_units
from ..sources import Sample
from .scores import scores_of

__all__ = ["write_predictions"]

CHUNK = 2000
"""Rows that are predicted at once; all have the same weight draws."""

COPIED = " (input)"
"""Ending of a copied column whose name is that of a prediction."""

EVERY_DIGIT = ".9g"
"""Nine digits tell all single-precision numbers apart."""


def write_predictions(
    file: TextIO,
    model: BayesianModel,
    posterior: GuidePosterior,
    sample: Sample,
    target: Target,
    *,
    levels: Sequence[float] = (0.95,),
    num_samples: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """Write a line of CSV for each row, after a line of names.

    For numbers: ``mean``; ``sd`` of an observation and its parts ``aleatoric_sd`` (noise) and ``epistemic_sd`` (what
    is not known of the weights), whose squares add up; and the ends of the intervals. All are in the target's units.
    With several targets, each name ends with the target's number from 0. For classes: the most probable class, the
    probability of each, and ``entropy`` with its parts ``aleatoric`` and ``epistemic``, in nats. A copied column with
    one of these names gets the ending `` (input)``.

    Args:
        file: The file.
        model: The model.
        posterior: Its fitted guide.
        sample: The rows.
        target: The target.
        levels: Probabilities of the intervals, each strictly between 0 and 1.
        num_samples: Number of weight draws.
        seed: Seed of the draws.

    Returns:
        Mean scores over the rows whose targets are known; empty if there are none.
    """
    writer = csv.writer(file, lineterminator="\n")
    totals: dict[str, float] = {}
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
        columns = _columns(prediction, target, levels)
        if start == 0:
            writer.writerow(["row", *_kept_names(sample.kept, {"row", *columns}), *columns])
        numbers = sample.rows[part]
        kept = [cells[part] for cells in sample.kept.values()]
        writer.writerows(zip(numbers, *kept, *columns.values(), strict=True))
        scored = prediction if sample.has_target is None else prediction[sample.has_target[part]]
        if sample.y is not None and len(scored):
            for name, value in _additive(scores_of(scored, target)).items():
                totals[name] = totals.get(name, 0.0) + value * len(scored) / sample.num_scored
    if "mse" in totals:
        totals = {"rmse": totals.pop("mse") ** 0.5, **totals}
    return totals


def _kept_names(names: Collection[str], own: set[str]) -> list[str]:
    """Names of the copied columns, which are told from the program's own."""
    taken, found = {*own, *names}, []
    for name in names:
        new = name
        while new in own or (new != name and new in taken):
            new += COPIED
        taken.add(new)
        found.append(new)
    return found


def _additive(scores: dict[str, float]) -> dict[str, float]:
    """Those scores that are means over rows, or whose squares are."""
    found = {name: value for name, value in scores.items() if name not in ("rmse", "ece")}
    return {"mse": scores["rmse"] ** 2, **found} if "rmse" in scores else found


def _columns(prediction: Prediction, target: Target, levels: Sequence[float]) -> dict[str, list[str]]:
    """The columns of the table by name."""
    if isinstance(prediction, ClassificationPrediction):
        return dict(_class_columns(prediction, target))
    return dict(_number_columns(in_units(prediction.as_kind(RegressionPrediction), target), levels))


def _class_columns(prediction: ClassificationPrediction, target: Target) -> Iterator[tuple[str, list[str]]]:
    yield "class", [target.classes[label] for label in prediction.labels.tolist()]
    for index, name in enumerate(target.classes):
        yield f"p({name})", _written(prediction.probs[:, index])
    yield "entropy", _written(prediction.total)
    yield "aleatoric", _written(prediction.aleatoric)
    yield "epistemic", _written(prediction.epistemic)


def _number_columns(prediction: RegressionPrediction, levels: Sequence[float]) -> Iterator[tuple[str, list[str]]]:
    values = {
        "mean": prediction.mean,
        "sd": prediction.total.sqrt(),
        "aleatoric_sd": prediction.aleatoric.sqrt(),
        "epistemic_sd": prediction.epistemic.sqrt(),
    }
    for level in levels:
        low, high = prediction.quantile([(1 - level) / 2, (1 + level) / 2])
        values |= {f"lower_{100 * level:g}": low, f"upper_{100 * level:g}": high}
    for output in range(prediction.mean.shape[1]):
        ending = f"_{output}" if prediction.mean.shape[1] > 1 else ""
        for name, value in values.items():
            yield f"{name}{ending}", _written(value[:, output])


def _written(values: torch.Tensor) -> list[str]:
    return [format(value, EVERY_DIGIT) for value in values.double().tolist()]
