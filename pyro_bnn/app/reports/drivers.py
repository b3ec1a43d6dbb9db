"""Measures how predictions and their uncertainty depend on each column, by permuting the column's values."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...results.prediction import predict
from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from ..own.arrays import input_name
from .trained import Trained

MOST_ROWS = 500  # largest number of test rows to predict, chosen at random
MOST_COLUMNS = 50  # with more columns, the table would take long and be hard to read
NUM_PERMUTATIONS = 5

TINY = 1e-30  # smallest divisor, if all rows have the same prediction


@dataclass(frozen=True)
class Driver:
    """The change of the predictions if the values of a column are permuted among the test rows."""

    name: str  # of the column
    mean: float  # rms change of the predicted means / their sd over the rows; for classes, the total variation
    epistemic: float  # mean absolute change of the epistemic sd / its mean; for classes, of the mutual information
    growth: float  # mean of the epistemic sd (or mutual information) after the permutation / the mean before
    varies: bool = True  # False if the column has one value in the test rows, so that a permutation changes nothing


def columns_of(run: Trained) -> dict[str, slice]:
    """Return for each column the positions of its inputs; the dictionary is empty if rows are not vectors."""
    facts = run.rows.facts
    if facts.table is not None:
        return facts.table.slices
    if len(facts.input_shape) != 1 or facts.arrays is None:
        return {}
    return {input_name(i): slice(i, i + 1) for i in range(facts.input_shape[0])}


def drivers_of(run: Trained) -> list[Driver]:
    """Measure how much the predictions of the test rows depend on each column, the most important column first.

    Breiman (2001, https://doi.org/10.1023/A:1010933404324) measures the change of the error instead. The list is empty
    for images, and for data sets with more than `MOST_COLUMNS` columns.
    """
    columns = columns_of(run)
    if not 0 < len(columns) <= MOST_COLUMNS or len(run.rows.x_test) < 2:
        return []
    generator = torch.Generator().manual_seed(run.seed)
    x = run.rows.x_test[torch.randperm(len(run.rows.x_test), generator=generator)[:MOST_ROWS]]

    def predicted(inputs: Tensor) -> Prediction:
        return predict(
            run.model, run.posterior, inputs.to(run.model.device), num_samples=run.num_samples, seed=run.seed
        )

    before = predicted(x)
    drivers = []
    for name, inputs in columns.items():
        changes = []
        for _ in range(NUM_PERMUTATIONS):
            permuted = x.clone()
            permuted[:, inputs] = x[torch.randperm(len(x), generator=generator), inputs]
            changes.append(_changes(before, predicted(permuted)))
        varies = bool((x[:, inputs] != x[0, inputs]).any())
        mean, epistemic, growth = torch.tensor(changes).mean(0).tolist()
        drivers.append(Driver(name, mean, epistemic, growth, varies))
    return sorted(drivers, key=lambda driver: -driver.mean)


def _changes(before: Prediction, after: Prediction) -> tuple[float, float, float]:
    """Return `mean`, `epistemic` and `growth` of a :class:`Driver`, from predictions before and after a permutation."""
    if isinstance(before, ClassificationPrediction) and isinstance(after, ClassificationPrediction):
        moved = (before.probs - after.probs).abs().sum(-1).mean() / 2
        old, new = before.epistemic, after.epistemic
    else:
        first, second = before.as_kind(RegressionPrediction), after.as_kind(RegressionPrediction)
        moved = ((first.mean - second.mean).square().mean(0) / first.mean.var(0).clamp_min(TINY)).sqrt().mean()
        old, new = first.epistemic.sqrt(), second.epistemic.sqrt()
    usual = old.mean().clamp_min(TINY)
    return float(moved), float((new - old).abs().mean() / usual), float(new.mean() / usual)
