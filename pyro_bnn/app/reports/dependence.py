"""Computes how predictions depend on a column: partial dependence, with intervals over draws of the weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pandas import Timestamp
from torch import Tensor

from ...results.prediction import predict
from ...scores.uncertainty import ClassificationPrediction, RegressionPrediction
from ..config import LEVEL
from ..numbers import six_digits
from ..own.encoding import Feature
from .trained import Trained

MOST_ROWS = 200  # training rows that are predicted for each value of a column, chosen at random
MOST_DRAWS = 200  # of the weights, so that wide tables fit into memory
MOST_VALUES, MOST_CATEGORIES = 15, 8  # of a column


@dataclass(frozen=True)
class Dependence:
    """The mean prediction if a column has the same value in all rows, with intervals over draws of the weights."""

    name: str  # of the column
    kind: str  # number, date or category
    output: str  # what is predicted
    values: Sequence[float]  # of the column, (G,); dates are days since 1970, and categories are numbered
    words: Sequence[str]  # the values as text
    means: Sequence[float]  # (G,)
    lows: Sequence[float]  # (G,)
    highs: Sequence[float]  # (G,)
    rows: Sequence[float]  # numbers or dates in the predicted rows; for categories, their shares of training rows, (G,)
    num_rows: int  # that were predicted for each value


def dependence_of(run: Trained, name: str, part: slice) -> Dependence | None:
    """Compute the partial dependence on the column whose inputs are in `part`.

    Return None for a column of texts, or with a single value. Only values of training rows are used. Friedman (2001),
    https://doi.org/10.1214/aos/1013203451.
    """
    table, x = run.rows.facts.table, run.rows.x_train
    feature = None if table is None else table.features[table.names.index(name)]
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(run.seed))[:MOST_ROWS]
    if feature is not None and feature.kind == "category":
        words, cells, rows = _categories(feature, x[:, part].cpu())
        values = [float(i) for i in range(len(words))]
    elif feature is not None and (feature.kind == "text" or not feature.parts):
        return None
    else:
        numbers = _numbers(run, feature, part)
        cells, rows = _grid(numbers), [each for each in numbers[chosen].tolist() if each == each]
        values = numbers[cells].tolist()
        is_date = feature is not None and feature.kind == "date"
        words = [str(Timestamp(each, unit="D").round("h").date()) if is_date else six_digits(each) for each in values]
    if len(values) < 2:
        return None
    output, draws = _predicted(run, x[chosen], x[cells, part], part)
    limits = draws.quantile(draws.new_tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2]), 0)
    means, lows, highs = (each.tolist() for each in (draws.mean(0), *limits))
    kind = "number" if feature is None else feature.kind
    return Dependence(name, kind, output, values, words, means, lows, highs, rows, len(chosen))


def _categories(feature: Feature, inputs: Tensor) -> tuple[list[str], Tensor, list[float]]:
    """Return the most frequent categories, for each the number of a row that has it, and its share of the rows."""
    labels = inputs.argmax(1)  # the last input marks missing cells
    counts = labels.bincount()
    often = [i for i in counts.argsort(descending=True, stable=True).tolist() if counts[i]][:MOST_CATEGORIES]
    cells = torch.stack([(labels == i).nonzero()[0, 0] for i in often])
    names = [*feature.categories, "missing"]
    return [names[i] for i in often], cells, [float(counts[i]) / len(labels) for i in often]


def _numbers(run: Trained, feature: Feature | None, part: slice) -> Tensor:
    """Return the numbers of a column in its units; NaN if missing."""
    inputs, arrays = run.rows.x_train[:, part].cpu().double(), run.rows.facts.arrays
    numbers = inputs[:, 0]
    if feature is not None:
        numbers = feature.mean[0] + feature.scale[0] * numbers
        return numbers.where(inputs[:, -1] == 0, torch.nan) if feature.has_missing else numbers
    if arrays is None or not arrays.mean:
        return numbers
    mean, scale = (each[min(part.start, len(each) - 1)] for each in (arrays.mean, arrays.scale))  # one may be for all
    return mean + scale * numbers


def _grid(numbers: Tensor) -> Tensor:
    """Return rows with all numbers of a column if they are few, or else with evenly spaced ones of the middle 90 %."""
    wanted = numbers[~numbers.isnan()].unique()
    if len(wanted) > MOST_VALUES:
        low, high = np.nanquantile(numbers.numpy(), [0.05, 0.95])  # torch limits the size
        wanted = torch.linspace(low, high, MOST_VALUES, dtype=numbers.dtype)
    distances = (numbers - wanted[:, None]).abs().nan_to_num(torch.inf)  # (G, N)
    return distances.argmin(1).unique_consecutive()


def _predicted(run: Trained, x: Tensor, inputs: Tensor, part: slice) -> tuple[str, Tensor]:
    """Return what is predicted, and its mean over the rows `x` for each draw and each of the inputs, shape (S, G).

    Of two classes, the rarer one is predicted. Of several classes or outputs, the one that changes most is.
    """
    copies = x.repeat(len(inputs), 1)
    copies[:, part] = inputs.repeat_interleave(len(x), 0)
    count, target = min(run.num_samples, MOST_DRAWS), run.rows.facts.target
    found = predict(  # all rows get the same draws
        run.model, run.posterior, copies.to(run.model.device), num_samples=count, keep_draws=True, seed=run.seed
    )
    if isinstance(found, ClassificationPrediction):
        assert found.logits is not None
        parts = found.logits.exp()
    else:
        components = found.as_kind(RegressionPrediction).components
        assert components is not None
        parts = components.mean
    draws = parts.cpu().double().unflatten(1, (len(inputs), len(x))).mean(2)  # (S, G, outputs or classes)
    shown = int((draws.mean(0).amax(0) - draws.mean(0).amin(0)).argmax())
    if len(target.classes) == 2:
        shown = int(run.rows.y_train.bincount(minlength=2).argmin())
    if target.is_class:
        return f"probability of {target.classes[shown]}", draws[..., shown]
    name = target.name if target.size == 1 else f"{target.name} {shown + 1}"
    return name, target.mean[shown] + target.scale[shown] * draws[..., shown]
