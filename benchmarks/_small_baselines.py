"""Two forecasts of the series of `benchmarks.small_networks` without a network."""

import itertools
import time
from collections.abc import Callable

import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

from ._results import Row
from ._small_series import Windows, scores

RATES, TREES = (0.03, 0.1), (150, 500)


def seasonal_naive(windows: Windows) -> tuple[Tensor, Tensor]:
    """The value of the same hour a week ago; scales are those of the errors in training, by hour of the day."""
    scale = _by_hour(windows.y[:, 0] - windows.week_ago, windows.hours, windows.hours_test)
    return windows.week_ago_test, scale


def boosting(windows: Windows) -> tuple[Tensor, Tensor]:
    """Gradient boosting of trees; the last eighth of training chooses its size and the scales, by hour of the day."""
    x, x_test, y = _columns(windows.x), _columns(windows.x_test), windows.y[:, 0]
    kept = len(x) * 7 // 8
    tried: list[tuple[float, tuple[float, int], Tensor]] = []
    for size in itertools.product(RATES, TREES):
        errors = y[kept:] - torch.from_numpy(_trees(x[:kept], y[:kept], *size).predict(x[kept:].numpy()))
        tried.append((float(errors.square().mean()), size, errors))
    _, size, errors = min(tried, key=lambda one: one[0])
    loc = torch.from_numpy(_trees(x, y, *size).predict(x_test.numpy()))
    return loc, _by_hour(errors, windows.hours[kept:], windows.hours_test)


def _trees(x: Tensor, y: Tensor, rate: float, num_trees: int) -> HistGradientBoostingRegressor:
    model = HistGradientBoostingRegressor(learning_rate=rate, max_iter=num_trees, early_stopping=False, random_state=0)
    return model.fit(x.numpy(), y.numpy())


BASELINES: dict[str, Callable[[Windows], tuple[Tensor, Tensor]]] = {
    "seasonal-naive": seasonal_naive,
    "boosting": boosting,
}
"""Each returns means and standard deviations of the test targets, of shape (N,)."""


def measure(name: str, windows: Windows) -> Row:
    """The row of results of a baseline."""
    begin = time.process_time()
    loc, scale = BASELINES[name](windows)
    seconds = time.process_time() - begin
    found = scores(loc[None], scale[None], windows, seed=0)
    return {"method": name, "seed": 0, "setting": {}, "train_seconds": seconds, "scores": {**found, "num_draws": 1}}


def _columns(x: Tensor) -> Tensor:
    """The counts of all hours of a window, and the other channels of its last hour."""
    return torch.cat([x[:, 0], x[:, 1], x[:, 2:, -1]], 1)


def _by_hour(errors: Tensor, hours: Tensor, hours_test: Tensor) -> Tensor:
    """Root mean squares of the errors at each hour of the day, as scales for test hours."""
    scales = torch.stack([errors[hours == hour].double().square().mean().sqrt() for hour in range(24)])
    return scales[hours_test]
