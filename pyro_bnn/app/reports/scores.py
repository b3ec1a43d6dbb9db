"""The report on a run with data of one's own: scores on its test rows, in the target's units, beside baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.distributions import Normal

from ... import metrics, plotting
from ...guides import GuidePosterior
from ...model import BayesianModel
from ...prediction import predict, predict_point
from ...uncertainty import ClassificationPrediction, Prediction, RegressionPrediction
from ..datasets import Dataset
from ..folders import Folder
from ..own.targets import Target
from ..own.units import in_units
from .pictures import save_picture

__all__ = ["FILES", "LEVELS", "ScoreRow", "Scores", "report_scores", "scores_of"]

FILES = ("metrics.json", "loss.png", "reliability.png")
"""Files that the report may write."""

LEVELS = (0.5, 0.9, 0.95)
"""Probabilities of the intervals whose coverage is measured."""

COLUMNS = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "rmse": "RMSE",
    "log_likelihood": "log-lik.",
    "crps": "CRPS",
    **{f"coverage_{level:.0%}".rstrip("%"): f"in {level:.0%}" for level in LEVELS},
}
"""Heading of each score."""

ENSEMBLE = "mean weights: one network; ensemble: the Bayesian prediction, a mean over weight draws."
LEGENDS = {
    False: "RMSE and CRPS are in the units of the target, and log-lik. is the mean log-density in nats per row; less, "
    "less and more is better. in 90%: share of targets in the 90 % interval, which should be 90 %.",
    True: "NLL (nats per row), ECE (calibration error) and Brier score: less is better.",
}


@dataclass(frozen=True)
class ScoreRow:
    """Scores of one way to predict.

    Args:
        name: The way, such as ``ensemble of 100``.
        scores: Each score by its name.
    """

    name: str
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Scores:
    """Everything that an evaluation on data of one's own measures.

    Args:
        target: Name of the target.
        num_test: Number of test rows.
        rows: Scores of each way to predict; those of baselines are last.
        is_class: Whether the target is a class.
    """

    target: str
    num_test: int
    rows: Sequence[ScoreRow]
    is_class: bool

    def __str__(self) -> str:
        names = [name for name in COLUMNS if any(name in row.scores for row in self.rows)]
        head = f"{self.target} of {self.num_test} test rows"
        width = max(len(head), *(len(row.name) for row in self.rows)) + 2
        lines = [f"{head:{width}s}" + "".join(f"{COLUMNS[name]:>11s}" for name in names)]
        for row in self.rows:
            cells = (_shown(name, row.scores.get(name)) for name in names)
            lines.append(f"{row.name:{width}s}" + "".join(f"{cell:>11s}" for cell in cells))
        return "\n".join([*lines, "", ENSEMBLE, LEGENDS[self.is_class]])


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if name == "accuracy" or name.startswith("coverage") else f"{value:.4g}"


def report_scores(
    model: BayesianModel,
    posterior: GuidePosterior,
    data: Dataset,
    folder: Folder,
    *,
    num_samples: int = 100,
    seed: int = 0,
    picture_format: str = "png",
) -> Scores:
    """Measure a trained run on its test rows, and write `metrics.json` and pictures.

    Args:
        model: The model.
        posterior: Its fitted guide.
        data: The run's data.
        folder: Folder that the results are written to.
        num_samples: Number of weight draws.
        seed: Seed of the draws.
        picture_format: Format of the pictures, such as ``pdf``.

    Raises:
        ValueError: If no rows were set aside.
    """
    target = data.facts.target
    if not len(data.x_test):
        raise ValueError(
            "all rows were trained on (--test-fraction 0), so there are none to measure on; see scores on new rows by "
            "`pyro-bnn predict`."
        )
    x, y = data.x_test.to(model.device), data.y_test.to(model.device)
    one = predict_point(model, posterior.median(), x, y=y)
    ensemble = predict(model, posterior, x, y=y, num_samples=num_samples, keep_draws=not target.is_class, seed=seed)
    rows = [
        ScoreRow("mean weights", scores_of(one, target)),
        ScoreRow(f"ensemble of {num_samples}", scores_of(ensemble, target)),
        *(ScoreRow(f"baseline: {name}", scores_of(p, target)) for name, p in _baselines(data).items()),
    ]
    report = Scores(target.name, len(x), rows, target.is_class)
    folder.write_json("metrics.json", asdict(report))
    save_picture(folder, "loss.png", plotting.loss_curves(posterior.history)[0], picture_format)
    if target.is_class:
        probs = ensemble.as_classification().probs
        save_picture(folder, "reliability.png", plotting.reliability_diagram(probs, y)[0], picture_format)
    return report


def scores_of(prediction: Prediction, target: Target) -> dict[str, float]:
    """Scores of a prediction whose targets were given, in the target's units.

    Those that need the mixture's components (CRPS and coverage) are missing if it has not kept them.
    """
    if isinstance(prediction, ClassificationPrediction):
        return prediction.score()
    own = in_units(prediction.as_regression(), target)
    assert own.targets is not None
    scores = own.score()
    scores["log_likelihood"] = -scores.pop("nll")
    if own.components is not None:
        for level in LEVELS:
            low, high = own.quantile([(1 - level) / 2, (1 + level) / 2])
            name = f"coverage_{level:.0%}".rstrip("%")
            scores[name] = metrics.interval_coverage(low, high, own.targets.to(low))
    return scores


# --- baselines --------------------------------------------------------------------------------------------------------


def _baselines(data: Dataset) -> dict[str, Prediction]:
    """Predictions of simple methods on the test rows, in the form of those of a network."""
    x, x_test = (part.flatten(1).double().cpu().numpy() for part in (data.x_train, data.x_test))
    y, y_test = data.y_train.cpu(), data.y_test.cpu()
    if data.facts.target.is_class:
        from sklearn.linear_model import LogisticRegression  # late: it takes long

        shares = torch.bincount(y, minlength=len(data.classes)).double() / len(y)
        found: dict[str, Prediction] = {"shares of the classes": _classes(shares.expand(len(y_test), -1), y_test)}
        if len(y.unique()) == len(data.classes):
            fitted = LogisticRegression(max_iter=1000).fit(x, y.numpy())
            found["logistic regression"] = _classes(torch.from_numpy(fitted.predict_proba(x_test)), y_test)
        return found
    from sklearn.linear_model import BayesianRidge  # late: it takes long

    mean, scale = y.double().mean(0).expand_as(y_test), y.double().std(0).expand_as(y_test)
    parts = [BayesianRidge().fit(x, column.double().numpy()).predict(x_test, return_std=True) for column in y.T]
    ridge, error = (torch.stack([torch.from_numpy(part[i]) for part in parts], -1) for i in (0, 1))
    return {"mean of the targets": _normal(mean, scale, y_test), "Bayesian ridge": _normal(ridge, error, y_test)}


def _classes(probs: Tensor, y: Tensor) -> Prediction:
    chosen = probs.gather(-1, y[:, None])[:, 0]
    entropy = -torch.special.xlogy(probs, probs).sum(-1)
    return ClassificationPrediction(
        num_samples=1,
        log_density=chosen.log(),
        probs=probs,
        aleatoric=entropy,
        mutual_information=None,
        variance_of_logits=None,
        votes=torch.nn.functional.one_hot(probs.argmax(-1), probs.shape[-1]),
        logits=None,
        targets=y,
    )


def _normal(mean: Tensor, scale: Tensor, y: Tensor) -> Prediction:
    return RegressionPrediction(
        num_samples=1,
        log_density=None,
        mean=mean,
        aleatoric=scale.square(),
        variance_of_means=None,
        components=Normal(mean[None], scale.clamp_min(1e-12)[None], validate_args=False),
        targets=y.double(),
    )
