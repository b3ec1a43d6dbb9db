"""Finds the columns on which the predictions depend most, and columns that give the target by a linear formula."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

import numpy as np
import torch
from sklearn.linear_model import LinearRegression
from torch import Tensor

from ...results.prediction import predict
from ...scores.uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from ..numbers import in_series
from ..own.arrays import input_name
from .dependence import Dependence, dependence_of
from .scores import scores_of
from .trained import LINEAR, SMALLEST, Trained

MOST_ROWS = 500  # largest number of test rows to predict, chosen at random
MOST_COLUMNS = 50  # with more columns, the table would take long and be hard to read
NUM_PERMUTATIONS = 5
MOST_CURVES = 3  # columns with a picture of the dependence on their values


@dataclass(frozen=True)
class Driver:
    """Scores of predictions for the test rows, after the values of one column are shuffled among these rows."""

    name: str  # of the column
    score: float  # the RMSE; for classes, the NLL
    epistemic: float  # mean epistemic sd; for classes, mean mutual information
    moved: float  # change of the predictions: of their means, divided by the target's scale, or of their probabilities
    error: float = 0.0  # standard error of the rise of the score, over test rows and permutations
    varies: bool = True  # False if the column has one value in the test rows, so that shuffling changes nothing


@dataclass(frozen=True)
class Drivers:
    """The effects of shuffling each column, the most important column first. RMSE and sd are in the target's units."""

    score: float  # before any column is shuffled
    epistemic: float
    columns: Sequence[Driver]
    num_rows: int = MOST_ROWS  # test rows whose values are shuffled
    curves: Sequence[Dependence] = ()  # for the first columns


def columns_of(run: Trained) -> dict[str, slice]:
    """Return the positions of each column's inputs. The dictionary is empty if rows are not vectors."""
    facts = run.rows.facts
    if facts.table is not None:
        return facts.table.slices
    if len(facts.input_shape) != 1 or facts.arrays is None:
        return {}
    return {input_name(i): slice(i, i + 1) for i in range(facts.input_shape[0])}


def drivers_of(run: Trained) -> Drivers | None:
    """Measure how much the predictions of the test rows depend on each column; None if there are too many columns.

    Each column is permuted while all others stay as they are (Breiman 2001, https://doi.org/10.1023/A:1010933404324).
    """
    columns = columns_of(run)
    if not 0 < len(columns) <= MOST_COLUMNS or len(run.rows.x_test) < 2:
        return None
    generator = torch.Generator().manual_seed(run.seed)
    chosen = torch.randperm(len(run.rows.x_test), generator=generator)[:MOST_ROWS]
    x, y = run.rows.x_test[chosen], run.rows.y_test[chosen].to(run.model.device)

    def predicted(inputs: Tensor) -> Prediction:
        return predict(
            run.model, run.posterior, inputs.to(run.model.device), num_samples=run.num_samples, seed=run.seed
        )

    before, scale = predicted(x), run.rows.facts.target.scale
    losses, epistemic = _measured(before, y, scale)
    is_class, drivers = run.rows.facts.target.is_class, []
    for name, inputs in columns.items():
        found = []
        for _ in range(NUM_PERMUTATIONS):
            permuted = x.clone()
            permuted[:, inputs] = x[torch.randperm(len(x), generator=generator), inputs]
            after = predicted(permuted)
            found.append((*_measured(after, y, scale), _change(before, after)))
        varies = bool((x[:, inputs] != x[0, inputs]).any())
        shuffled = torch.stack([each for each, _, _ in found]).mean(0)  # (N,)
        score = _score(shuffled, is_class=is_class)
        error = _error_of_rise(losses, shuffled, is_class=is_class)
        doubt, moved = (fmean(effects) for effects in zip(*(each[1:] for each in found), strict=True))
        drivers.append(Driver(name, score, doubt, moved, error, varies))
    drivers.sort(key=lambda driver: (-driver.score, -driver.moved))
    curves = (dependence_of(run, driver.name, columns[driver.name]) for driver in drivers if driver.varies)
    shown = [*islice(filter(None, curves), MOST_CURVES)]
    return Drivers(_score(losses, is_class=is_class), epistemic, drivers, len(x), shown)


def _score(losses: Tensor, *, is_class: bool) -> float:
    return float(losses.mean() if is_class else losses.mean().sqrt())


def _error_of_rise(before: Tensor, after: Tensor, *, is_class: bool) -> float:
    """Return the standard error of the rise of the score, given the losses of the rows before and after, (N,)."""
    if not is_class:  # the score is the root of a mean
        before, after = (losses / (2 * _score(losses, is_class=False) or 1.0) for losses in (before, after))
    return float((after - before).std()) / len(before) ** 0.5


def _measured(prediction: Prediction, y: Tensor, scale: Sequence[float]) -> tuple[Tensor, float]:
    """Return each row's squared error, shape (N,), and the mean epistemic sd.

    For classes, return each row's NLL, shape (N,), and the mean mutual information.
    """
    if isinstance(prediction, ClassificationPrediction):
        probs = prediction.probs.double().gather(-1, y[:, None])[:, 0]
        return -probs.clamp_min(SMALLEST).log(), float(prediction.epistemic.mean())
    found = prediction.as_kind(RegressionPrediction)
    unit = found.mean.new_tensor(scale)
    errors = (found.mean - y.reshape(found.mean.shape)) * unit
    return errors.double().square().mean(-1), float((found.epistemic.sqrt() * unit).mean())


def _change(before: Prediction, after: Prediction) -> float:
    if isinstance(before, ClassificationPrediction) and isinstance(after, ClassificationPrediction):
        return float((before.probs - after.probs).abs().mean())
    first, second = (prediction.as_kind(RegressionPrediction).mean for prediction in (before, after))
    return float(torch.dist(first, second))


EXACT = 1e-3  # heuristic: a formula is almost exact up to this share of the RMSE of the mean of the targets
MOST_FITTED = 20_000  # heuristic: training rows to which a formula is fitted, in a second or less
MOST_NAMED = 5  # largest number of columns of a formula


@dataclass(frozen=True)
class Leak:
    """The columns from which a linear formula computes the target."""

    columns: tuple[str, ...]
    is_sum: bool  # whether the numbers in the columns add up to the target


def leak_of(run: Trained) -> Leak | None:
    """Find the columns from which a linear formula computes the target almost exactly.

    Return None if there are no such columns, or more than `MOST_NAMED`, or if the target is not a single number.
    """
    columns, x, y = columns_of(run), run.rows.x_train[:MOST_FITTED].cpu().double(), run.rows.y_train[:MOST_FITTED].cpu()
    if not columns or y.dim() != 2 or y.shape[1] != 1:
        return None
    y = y[:, 0].double()
    limit = float(EXACT * y.std())
    formula = LinearRegression().fit(x, y)
    used = {name: part for name, part in columns.items() if _spread(x[:, part], formula.coef_[part]) > limit}
    inputs = [i for part in used.values() for i in range(part.start, part.stop)]
    if not 0 < len(used) <= MOST_NAMED:
        return None
    formula.fit(x[:, inputs], y)
    if float((y.numpy() - formula.predict(x[:, inputs])).std()) > limit:
        return None
    return Leak((*used,), _is_sum(run, used, torch.from_numpy(formula.coef_)))


def is_exact(linear: float, guess: float) -> bool:
    """Return whether linear regression is almost exact, given its RMSE and the RMSE of the mean of the targets."""
    return linear <= EXACT * guess


def leak_in_words(leak: Leak | None, ignored: Sequence[str]) -> tuple[str, str]:
    """Return a clause on the columns of a `Leak`, and the option to train without these columns and `ignored`."""
    if leak is None:
        return "a column, or a sum of columns, probably contains the target", "--ignore"
    names, is_one = in_series(leak.columns), len(leak.columns) == 1
    kind = f"{'gives' if is_one else 'give'} the target by a linear formula"
    if leak.is_sum:
        kind = "equals the target" if is_one else "add up to the target"
    remedy = f"--ignore {shlex.quote(','.join([*ignored, *leak.columns]))}"
    return f"column{'' if is_one else 's'} {names} {kind}", remedy


def hint_of_leak(run: Trained, ignored: Sequence[str]) -> str:
    """Return a hint for `train` if linear regression is almost exact, or else an empty text."""
    if LINEAR not in run.baselines:
        return ""
    ways = (run.baselines[name] for name in (LINEAR, "mean of the targets"))
    if not is_exact(*(scores_of(way, run.rows.facts.target)["rmse"] for way in ways)):
        return ""
    finding, remedy = leak_in_words(leak_of(run), ignored)
    return (
        f"Linear regression is almost exact: {finding}. If these columns are unknown when you predict, train without "
        f"them ({remedy})."
    )


def _spread(x: Tensor, slopes: np.ndarray) -> float:
    return float((x * torch.from_numpy(slopes)).sum(1).std())


def _is_sum(run: Trained, used: dict[str, slice], slopes: Tensor) -> bool:
    """Return whether the columns in `used` add up to the target: each slope is 1 in the units of the table."""
    table, target = run.rows.facts.table, run.rows.facts.target
    if table is None:
        return False
    features = {feature.name: feature for feature in table.features}
    if any(features[name].kind != "number" or features[name].width != 1 for name in used):
        return False
    scales = torch.tensor([features[name].scale[0] for name in used], dtype=torch.double)
    return bool(((slopes * target.scale[0] / scales - 1).abs() < EXACT).all())
