"""How much the predictions and their uncertainty depend on each column of a table, by permutation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...results.prediction import predict
from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from .trained import Trained

MOST_ROWS = 500
"""Most test rows that are predicted; if there are more, a random part."""

MOST_COLUMNS = 50
"""Most columns of a data set to measure; for more, the table would take long and be hard to read."""

NUM_PERMUTATIONS = 5

TINY = 1e-30
"""Smallest divisor, which avoids a division by 0 if all rows have the same prediction."""


@dataclass(frozen=True)
class Driver:
    """Changes of predictions if the values of a column are permuted among the test rows.

    Attributes:
        name: Name of the column.
        mean: Root mean square change of the predicted mean, divided by the standard deviation of the predicted means
            over the rows; for classes, mean change of the probabilities (total variation).
        epistemic: Mean absolute change of the epistemic standard deviation, or of the mutual information for classes,
            divided by its mean over the rows.
    """

    name: str
    mean: float
    epistemic: float


def columns_of(run: Trained) -> dict[str, slice]:
    """The inputs of each column, by its name; empty if rows are not vectors."""
    facts = run.rows.facts
    if facts.table is not None:
        return facts.table.slices
    if len(facts.input_shape) != 1 or facts.arrays is None:
        return {}
    return {f"input {i}": slice(i, i + 1) for i in range(facts.input_shape[0])}


def drivers_of(run: Trained) -> list[Driver]:
    """How much predictions of the test rows depend on each column, the most important first.

    All inputs of a column are permuted together, `NUM_PERMUTATIONS` times. After each permutation, the same weights
    predict the rows again. Breiman (2001, https://doi.org/10.1023/A:1010933404324) measures the change of the error;
    this function measures the change of the prediction. The list is empty for images, and for more than `MOST_COLUMNS`
    columns.
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
        drivers.append(Driver(name, *torch.tensor(changes).mean(0).tolist()))
    return sorted(drivers, key=lambda driver: -driver.mean)


def _changes(before: Prediction, after: Prediction) -> tuple[float, float]:
    """Changes of the mean and of the epistemic uncertainty, as `Driver` describes them."""
    if isinstance(before, ClassificationPrediction) and isinstance(after, ClassificationPrediction):
        moved = (before.probs - after.probs).abs().sum(-1).mean() / 2
        old, new = before.epistemic, after.epistemic
    else:
        first, second = before.as_kind(RegressionPrediction), after.as_kind(RegressionPrediction)
        moved = ((first.mean - second.mean).square().mean(0) / first.mean.var(0).clamp_min(TINY)).sqrt().mean()
        old, new = first.epistemic.sqrt(), second.epistemic.sqrt()
    return float(moved), float((new - old).abs().mean() / old.mean().clamp_min(TINY))
