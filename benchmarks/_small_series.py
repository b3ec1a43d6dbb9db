"""The convolutional network of `benchmarks.small_networks` for an hourly series, its windows, and its scores."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import metrics

from ._methods import Fit, Method, Network, PointSetting
from ._methods_list import Deterministic, Ensemble, SmallEnsemble
from ._methods_posteriors import KroneckerLaplace, LastLayerLaplace, MeanFieldLocal, Natural, Sghmc, Swag
from ._results import Row

METHODS: tuple[type[Method], ...] = (
    Deterministic,
    Ensemble,
    Natural,
    MeanFieldLocal,
    Swag,
    LastLayerLaplace,
    KroneckerLaplace,
    Sghmc,
)

WINDOW, WEEK = 48, 168
"""Hours that the network sees, and hours of a week."""

TEST, ASIDE = 0.2, 0.1
"""Parts of all hours: the last hours are for the test, and those before them choose the settings."""

NUM_FORECASTS = 1024
"""Number of counts that are drawn for each hour, for means, intervals and scores."""


class SeriesNetwork(Network):
    """Three one-dimensional convolutions and two dense layers, with a mean and a log variance as outputs."""

    natural_batch_size: ClassVar[int] = 128

    def build(self, x: Tensor, seed: int, *, dropout: float | None = None) -> nn.Module:
        """The network for windows like x, shape (N, C, 48); the same seed gives the same start."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width = self.units
            layers: list[nn.Module] = []
            for num_in in (x.shape[1], width, width):
                layers += [nn.Conv1d(num_in, width, 5, stride=2, padding=2), nn.ReLU()]
            length = WINDOW // 8
            return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * length, 48), nn.ReLU(), nn.Linear(48, 2))

    def likelihood(self) -> pb.Likelihood:
        return pb.HeteroscedasticGaussianLikelihood()

    @property
    def last_layer(self) -> str:
        return "net.9.*"

    def grid(self, method: type[Method], point: PointSetting) -> Sequence[Method]:
        same = (point.prior_scale, point.lr)
        precisions = ("evidence", None) if point.prior_scale else ("evidence",)
        settings: dict[type[Method], Sequence[Method]] = {
            Deterministic: [Deterministic(scale, 3e-3) for scale in (None, 0.3, 0.1, 0.05)],
            SmallEnsemble: [SmallEnsemble(*same)],
            Natural: [Natural(0.3, 0.02), Natural(0.1, 0.02), Natural(0.1, 0.05)],
            MeanFieldLocal: [MeanFieldLocal(kl_weight, 3e-3) for kl_weight in (0.1, 0.03)],
            Swag: [Swag(lr, point.prior_scale) for lr in (0.003, 0.01)],
            LastLayerLaplace: [LastLayerLaplace(*same, precision) for precision in precisions],
            KroneckerLaplace: [KroneckerLaplace(*same, precision) for precision in precisions],
            Sghmc: [Sghmc(*s) for s in ((0.01, 0.1), (0.03, 0.1))],
        }
        return settings[method]


NETWORK = SeriesNetwork("series", epochs=10, prior="normal:0.2", draws=32, units=32)


@dataclass(frozen=True)
class Windows:
    """Windows of shape (N, C, 48) before an hour, and the logarithm of 1 + count of this hour, shape (N, 1).

    Inputs and targets are in units of the training hours. Channel 0 has the counts, channel 1 those of a week before
    the next hour.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    mean: float  # of the targets of training, before they were put into units of these
    scale: float
    hours: Tensor  # hour of the day of each target of training
    hours_test: Tensor
    week_ago: Tensor  # value a week before each target of training, in its units, shape (N,)
    week_ago_test: Tensor

    @property
    def counts(self) -> Tensor:
        """The counts to forecast, shape (N,)."""
        return (self.y_test[:, 0] * self.scale + self.mean).double().expm1()


def load(root: Path | None, is_validation: bool, num_train: int | None, num_test: int | None) -> Windows:
    """Hours in their order; the last ones are for the test, or, for validation, those before them.

    `num_train` keeps the last hours of training, and `num_test` the first hours of the test.
    """
    table = read((root or Path(os.environ.get("PYRO_BNN_DATA", "data"))) / "tables" / "bikesharing.csv")
    count = np.log1p(table["cnt"].to_numpy())
    hour, day = table.index.hour.to_numpy(), table.index.day_of_week.to_numpy()
    angles = (2 * np.pi * hour / 24, 2 * np.pi * (24 * day + hour) / WEEK)
    calendar = [f(angle) for angle in angles for f in (np.sin, np.cos)] + [table["workingday"].to_numpy()]
    next_hour = [np.roll(values, -1) for values in (*calendar, np.roll(count, WEEK))]
    weather = [table[name].to_numpy() for name in ("temp", "hum", "windspeed", "weathersit")]
    channels = torch.tensor(np.stack([count, next_hour[-1], *weather, *next_hour[:-1]]), dtype=torch.float32)
    targets = torch.tensor(count, dtype=torch.float32)
    places = torch.tensor(np.flatnonzero(table["is_measured"].to_numpy()))
    places = places[places >= WEEK + WINDOW]
    end = int(len(places) * (1 - TEST))
    begin = end - int(len(places) * ASIDE) if is_validation else end
    train, test = places[:begin][-(num_train or begin) :], places[begin : end if is_validation else None][:num_test]
    known = channels[:, WEEK : train[-1]]  # the hours before the last target; the first week has none before it
    channels = (channels - known.mean(1, keepdim=True)) / known.std(1, keepdim=True)
    mean, scale = targets[train].mean(), targets[train].std()
    windows = channels.unfold(1, WINDOW, 1).transpose(0, 1)  # window t begins at hour t
    x, x_test = (windows[some - WINDOW].contiguous() for some in (train, test))
    y, y_test = (((targets[some] - mean) / scale)[:, None] for some in (train, test))
    hours, week_ago = torch.tensor(hour), (targets - mean) / scale
    others = (hours[train], hours[test], week_ago[train - WEEK], week_ago[test - WEEK])
    return Windows(x, y, x_test, y_test, float(mean), float(scale), *others)


def read(path: Path) -> pd.DataFrame:
    """One row for each hour; in the 165 hours that the file leaves out, nobody hired a bicycle."""
    table = pd.read_csv(path)
    table.index = pd.to_datetime(table["dteday"]) + pd.to_timedelta(table["hr"], unit="h")
    every = pd.date_range(table.index[0], table.index[-1], freq="h")
    full = table.reindex(every)
    full["is_measured"] = full["cnt"].notna()
    full["cnt"] = full["cnt"].fillna(0)
    return full.ffill()


def evaluate(fit: Fit, windows: Windows, key: Row) -> dict[str, Any]:
    """Scores of a posterior: each draw of the weights gives a Gaussian."""
    begin = time.process_time()
    prediction = pb.predict(
        fit.model, fit.posterior, windows.x_test, num_samples=fit.num_samples, keep_draws=True, seed=key["seed"]
    )
    seconds = (time.process_time() - begin) * 10_000 / len(windows.x_test)
    loc, scale = prediction.components.loc[..., 0], prediction.components.scale[..., 0]
    return {**scores(loc, scale, windows, key["seed"]), "predict_seconds": seconds, "num_draws": fit.num_samples}


def scores(loc: Tensor, scale: Tensor, windows: Windows, seed: int) -> dict[str, float]:
    """Scores of mixtures of Gaussians, each of shape (S, N), in the units of the targets.

    Those of the later half of the hours have names that end in ``_late``.
    """
    loc, scale = loc.double(), scale.double()
    log_density = torch.distributions.Normal(loc, scale).log_prob(windows.y_test[:, 0].double())
    nll = math.log(windows.scale) + math.log(len(loc)) - log_density.logsumexp(0)
    generator = torch.Generator().manual_seed(seed)
    chosen = loc.repeat(NUM_FORECASTS // len(loc), 1), scale.repeat(NUM_FORECASTS // len(loc), 1)
    drawn = chosen[0] + chosen[1] * torch.randn(chosen[0].shape, generator=generator, dtype=torch.float64)
    counts = (drawn * windows.scale + windows.mean).expm1()  # (S', N)
    low, high = counts.quantile(torch.tensor([0.05, 0.95]).double(), 0)
    found = {}
    for ending, part in (("", slice(None)), ("_late", slice(len(nll) // 2, None))):
        y = windows.counts[part]
        found |= {
            f"rmse{ending}": metrics.root_mean_squared_error(counts.mean(0)[part], y),
            f"nll{ending}": float(nll[part].mean()),
            f"crps{ending}": metrics.crps_from_draws(counts[:, part], y),
            f"coverage{ending}": metrics.interval_coverage(low[part], high[part], y),
            f"width{ending}": float((high - low)[part].mean()),
        }
    return found
