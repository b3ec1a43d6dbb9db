"""Finds the columns from which a linear formula computes the target almost exactly."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LinearRegression
from torch import Tensor

from .drivers import columns_of
from .trained import Trained

EXACT = 1e-3  # heuristic: a formula is almost exact up to this share of the RMSE of the mean of the targets
MOST_ROWS = 20_000  # heuristic: training rows to which a formula is fitted, in a second or less
MOST_NAMED = 5  # largest number of columns of a formula


@dataclass(frozen=True)
class Leak:
    """The columns from which a linear formula computes the target."""

    columns: tuple[str, ...]
    is_sum: bool  # whether the numbers in the columns add up to the target


def leak_of(run: Trained) -> Leak | None:
    """Find the columns, at most `MOST_NAMED`, from which a linear formula computes a single target almost exactly."""
    columns, x, y = columns_of(run), run.rows.x_train[:MOST_ROWS].cpu().double(), run.rows.y_train[:MOST_ROWS].cpu()
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


def _spread(x: Tensor, slopes: np.ndarray) -> float:
    """Return the standard deviation of the part of a linear formula that some columns contribute."""
    return float((x * torch.from_numpy(slopes)).sum(1).std())


def _is_sum(run: Trained, used: dict[str, slice], slopes: Tensor) -> bool:
    """Return whether each slope is 1 in the units of the table."""
    table, target = run.rows.facts.table, run.rows.facts.target
    if table is None:
        return False
    features = {feature.name: feature for feature in table.features}
    if any(features[name].kind != "number" or features[name].width != 1 for name in used):
        return False
    scales = torch.tensor([features[name].scale[0] for name in used], dtype=torch.double)
    return bool(((slopes * target.scale[0] / scales - 1).abs() < EXACT).all())
