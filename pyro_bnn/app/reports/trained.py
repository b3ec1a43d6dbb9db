"""A trained run with its test rows, and predictions of baselines without a network, for `evaluate` and `report`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal, Poisson

from ...modelling.likelihoods import PoissonLikelihood
from ...modelling.model import BayesianModel
from ...results.prediction import predict, predict_point
from ...scores.uncertainty import (
    Accumulator,
    ClassAccumulator,
    MomentAccumulator,
    Prediction,
    RegressionPrediction,
)
from .. import datasets, runs, sources
from ..chains import Choice
from ..config import RunConfig
from ..datasets import Dataset

P = TypeVar("P", bound=Prediction)
MOST_ALONE = 50  # heuristic: draws that are scored alone; the standard error of their mean is a seventh of their sd
TREES = "gradient-boosted trees"  # a baseline that is compared by its errors only
SHARES_OF_CLASSES = "shares of the classes"  # a baseline that ignores the inputs
LINEAR = "linear regression"  # the linear baseline for numbers
MOST_NUMBERS = 4_000_000  # heuristic: inputs (rows times columns) to which linear methods are fitted in about a second
MOST_COLUMNS = 2_000  # heuristic: for linear regression with standard deviations, which need a matrix of this size
MOST_HISTOGRAMS, MOST_TREE_NUMBERS = 100, 1_000_000
"""Heuristic: trees are fitted only if columns * outputs is at most `MOST_HISTOGRAMS`, and rows * columns * outputs is
at most `MOST_TREE_NUMBERS`. The fit then takes a second or two."""

FEWEST_FOR_TREES = 100  # training rows; each leaf needs 20, so with few rows trees hardly differ from a guess
SMALLEST = 1e-12  # probability, rate or sd of a baseline, so that its NLL is finite


def baselines_of(data: Dataset, *, is_count: bool = False) -> dict[str, Prediction]:
    """Predict the test rows by methods without a network, and compute the log-densities of the targets."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # late: takes long
    from sklearn.linear_model import BayesianRidge, LogisticRegression, PoissonRegressor

    chosen = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(0))
    chosen = chosen[: max(1, MOST_NUMBERS // data.x_train[0].numel())].sort().values
    x, x_test = (part.flatten(1).double().cpu().numpy() for part in (data.x_train[chosen], data.x_test))
    y, y_test = data.y_train[chosen].cpu(), data.y_test.cpu()
    num_outputs = max(len(data.classes) if len(data.classes) > 2 else 1, *y.shape[1:], 1)
    has_trees = len(x) >= FEWEST_FOR_TREES
    has_trees &= x.shape[1] * num_outputs <= MOST_HISTOGRAMS and x.size * num_outputs <= MOST_TREE_NUMBERS
    if data.facts.target.is_class:
        shares = torch.bincount(data.y_train.cpu(), minlength=len(data.classes)).double() / len(data.y_train)
        log_probs = {SHARES_OF_CLASSES: shares.log().expand(len(x_test), -1)}
        if len(y.unique()) == len(data.classes):
            fitted = LogisticRegression(max_iter=1000).fit(x, y.numpy())
            log_probs["logistic regression"] = torch.from_numpy(fitted.predict_proba(x_test)).clamp_min(SMALLEST).log()
            if has_trees and int(y.bincount().min()) > 1:  # of many rows, trees hold out some of each class
                trees = HistGradientBoostingClassifier(random_state=0).fit(x, y.numpy())
                log_probs[TREES] = torch.from_numpy(trees.predict_proba(x_test)).clamp_min(SMALLEST).log()
        return {name: _classes(each, y_test) for name, each in log_probs.items()}
    y, y_test, guess = y.double(), y_test.double(), "mean of the targets"
    mean, scale = (part.expand(len(x_test), -1) for part in (y.mean(0), y.std(0)))
    if is_count:
        rates = {guess: mean, "Poisson regression": _by_column(PoissonRegressor(max_iter=1000), x, y, x_test)}
        if has_trees:
            rates[TREES] = _by_column(HistGradientBoostingRegressor(loss="poisson", random_state=0), x, y, x_test)
        return {name: _counts(rate.clamp_min(SMALLEST), y_test) for name, rate in rates.items()}
    moments = {guess: (mean, scale)}
    if x.shape[1] <= MOST_COLUMNS:
        pairs = [BayesianRidge().fit(x, column).predict(x_test, return_std=True) for column in y.T.numpy()]
        means, deviations = torch.from_numpy(np.stack(pairs, -1))
        moments[LINEAR] = means, deviations
    found: dict[str, Prediction] = {name: _normal(m, s.clamp_min(SMALLEST), y_test) for name, (m, s) in moments.items()}
    if has_trees:
        found[TREES] = _mean_only(_by_column(HistGradientBoostingRegressor(random_state=0), x, y, x_test), y_test)
    return found


def _by_column(estimator: Any, x: np.ndarray, y: Tensor, x_test: np.ndarray) -> Tensor:
    """Fit an estimator of scikit-learn to each column of the targets, and predict the test rows, shape (M, O)."""
    return torch.from_numpy(np.stack([estimator.fit(x, column).predict(x_test) for column in y.T.numpy()], -1))


def _mean_only(mean: Tensor, y: Tensor) -> Prediction:
    """Make a prediction from means alone: its variance is unknown, so it has no log-density."""
    return RegressionPrediction(
        num_samples=1,
        log_density=None,
        targets=y,
        mean=mean,
        aleatoric=torch.full_like(mean, torch.nan),
        variance_of_means=None,
        components=None,
    )


def _classes(log_probs: Tensor, y: Tensor) -> Prediction:
    density = log_probs.gather(-1, y[:, None])
    return _predicted(ClassAccumulator(), Categorical(logits=log_probs, validate_args=False), density, y)


def _normal(mean: Tensor, scale: Tensor, y: Tensor) -> Prediction:
    from scipy.stats import norm  # imported late: importing takes long

    density = torch.from_numpy(norm.logpdf(y.numpy(), mean.numpy(), scale.numpy()))
    return _predicted(MomentAccumulator(), Normal(mean, scale, validate_args=False), density, y)


def _counts(rate: Tensor, y: Tensor) -> Prediction:
    from scipy.stats import poisson  # imported late: importing takes long

    density = torch.from_numpy(poisson.logpmf(y.numpy(), rate.numpy()))
    return _predicted(MomentAccumulator(), Poisson(rate, validate_args=False), density, y)


def _predicted(accumulator: Accumulator, observation: Distribution, density: Tensor, y: Tensor) -> Prediction:
    """Make a prediction, given the predictive distribution of each row and the log-density of each target."""
    accumulator.add(observation, keep=True)
    return replace(accumulator.prediction(density.sum(-1)), targets=y)


@dataclass(frozen=True)
class Alone(Generic[P]):
    """Predictions by single draws of the weights. Each score is the mean of the scores of the draws."""

    draws: Sequence[P]

    @property
    def name(self) -> str:
        """The name of these predictions in tables."""
        return f"one draw (mean of {len(self.draws)})"

    @property
    def log_density(self) -> Tensor:
        """The log-density of each target, averaged over the draws, shape (N,)."""
        return torch.stack([draw.log_density for draw in self.draws if draw.log_density is not None]).mean(0)

    def score(self) -> dict[str, float]:
        """Return the mean scores of the draws."""
        return self.mean(lambda draw: draw.score())

    def mean(self, measure: Callable[[P], dict[str, float]]) -> dict[str, float]:
        """Return the means of measured scores, by name."""
        found = [measure(draw) for draw in self.draws]
        return {name: fmean(scores[name] for scores in found) for name in found[0]}


@dataclass(frozen=True)
class Trained:
    """A trained run, its data, and settings of its predictions."""

    model: BayesianModel
    posterior: runs.RunPosterior
    rows: Dataset
    unknown: Tensor | None = None  # images unknown to the run, (M, H, W) with M >= 0; None for tables and arrays
    unknown_name: str = ""
    num_samples: int = 100  # draws of the weights in each prediction
    seed: int = 0  # of the draws of the weights
    calibration: runs.RunCalibration | None = None  # of its predictions, if rows were held out for it
    asked: Mapping[str, Any] = field(default_factory=dict)  # options that the user gave to `train`
    choice: Choice | None = None  # what was chosen for a run of chains

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the test rows, on the device of the model."""
        return self.rows.x_test.to(self.model.device), self.rows.y_test.to(self.model.device)

    @functools.cached_property
    def ensemble(self) -> Prediction:
        """Prediction of the test rows by a mean over draws."""
        x, y = self.test
        keep = not self.rows.facts.target.is_class  # intervals need the draws
        return predict(
            self.model, self.posterior, x, y=y, num_samples=self.num_samples, keep_draws=keep, seed=self.seed
        )

    @functools.cached_property
    def single(self) -> tuple[str, Prediction | Alone[Prediction]]:
        """What the report calls single networks (such as "one draw"), and their predictions."""
        x, y = self.test
        if runs.is_chains(self.posterior):  # the mean of several modes would predict poorly
            draws = [*self.posterior.draws(self.num_samples)]
            few = torch.linspace(0, self.num_samples - 1, min(MOST_ALONE, self.num_samples)).long().tolist()
            alone = Alone([predict_point(self.model, draws[number], x, y=y) for number in few])
            return alone.name, alone
        return "mean weights", predict_point(self.model, self.posterior.median(), x, y=y)

    @functools.cached_property
    def baselines(self) -> dict[str, Prediction]:
        """The name of each method without a network, and its prediction of the test rows."""
        return baselines_of(self.rows, is_count=isinstance(self.model.likelihood, PoissonLikelihood))


def load_trained(
    run: Path,
    config: RunConfig,
    ood: str | None,
    *,
    num_samples: int | None,
    seed: int,
    data: Path | None,
    download: bool,
    device: str,
) -> Trained:
    """Load a run and its rows. The arguments are the options of `pyro-bnn evaluate`."""
    rows: Dataset
    unknown, name = None, ""
    if config.kind == "images":
        rows, unknown, name = datasets.load_with_unknown(config, ood, root=data, download=download)
    elif ood is not None or download:
        raise ValueError("--ood and --download are for image sets; leave them out.")
    else:
        rows = sources.load(config, root=data, facts=runs.read_facts(run))
        if not len(rows.x_test):
            raise ValueError(
                "all rows were trained on (--test-fraction 0), so there are no test rows; for scores on new rows use "
                "`pyro-bnn predict`."
            )
    model, posterior = runs.load_run(run, rows, device=device)
    count, calibration = runs.num_draws(posterior, num_samples), runs.calibration_of(run, config)
    choice = runs.load_choice(run) if runs.is_chains(posterior) else None
    return Trained(model, posterior, rows, unknown, name, count, seed, calibration, runs.load_asked(run), choice)
