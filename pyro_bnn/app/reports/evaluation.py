"""The report on a trained classifier: accuracy, calibration, and detection of unknown images."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ...inference.guides import GuidePosterior
from ...inference.history import History
from ...modelling.model import BayesianModel
from ...results import plotting
from ...results.prediction import predict, predict_point
from ...scores import metrics
from ...scores.uncertainty import ClassificationPrediction
from ..datasets import Dataset
from ..folders import Folder
from .pictures import save_picture

__all__ = ["FILES", "SCORES", "Evaluation", "Report", "Row", "evaluate_classifier", "report_evaluation"]

FILES = ("metrics.json", "loss.png", "reliability.png", "votes.png", "ood.png")
"""Files that the report may write."""

SCORES = ("entropy", "mutual information", "maximum probability", "logit variance")
"""Out-of-domain scores; a larger score counts as less known. For the third that is one minus the probability."""


LEGEND = [
    "component: one weight draw; ensemble: mean probability of several. NLL (nats), ECE (calibration error) and Brier",
    "score: lower is better. AUROC: chance that an unknown image scores above a known one, 0.5 is a guess. FPR95:",
    "known images taken for unknown when 95 % of the unknown are found. Which score works best depends on the data.",
]


@dataclass(frozen=True)
class Row:
    """Scores of one way to predict.

    Args:
        name: The way, such as ``ensemble of 100``.
        accuracy: Fraction of test images classified correctly.
        nll: Mean negative log-likelihood, in nats.
        ece: Expected calibration error with 15 bins.
        brier: Brier score, summed over classes.
    """

    name: str
    accuracy: float
    nll: float
    ece: float
    brier: float


@dataclass(frozen=True)
class Report:
    """Everything that an evaluation measures.

    Args:
        rows: Scores of single draws, of the mean weights and of ensembles.
        ood: How well each score tells out-of-domain images from known ones, by name of the score.
        num_test: Number of test images.
        num_unknown: Number of out-of-domain images.
    """

    rows: list[Row]
    ood: dict[str, metrics.OODScores]
    num_test: int
    num_unknown: int

    def __str__(self) -> str:
        header = f"on {self.num_test} test images"
        lines = [f"{header:30s} {'accuracy':>9s} {'NLL':>8s} {'ECE':>8s} {'Brier':>8s}"]
        lines += [f"{r.name:30s} {r.accuracy:9.2%} {r.nll:8.4f} {r.ece:8.4f} {r.brier:8.4f}" for r in self.rows]
        if self.ood:
            header = f"against {self.num_unknown} unknown images"
            lines += ["", f"{header:30s} {'AUROC':>9s} {'AUPR':>8s} {'FPR95':>8s}"]
            lines += [f"{name:30s} {s.auroc:9.4f} {s.aupr:8.4f} {s.fpr95:8.4f}" for name, s in self.ood.items()]
        lines += ["", *LEGEND]
        return "\n".join(lines)


@dataclass(frozen=True)
class Evaluation:
    """A report, and the predictions that it was made of.

    Args:
        report: The report.
        ensemble: Prediction of the test images by the large ensemble.
        mean_weights: Prediction of the test images at the mean weights.
        foreign: Prediction of the out-of-domain images by the large ensemble; None without such images.
        scores: Scores of test images and of out-of-domain images, by name of the score; empty without the latter.
    """

    report: Report
    ensemble: ClassificationPrediction
    mean_weights: ClassificationPrediction
    foreign: ClassificationPrediction | None
    scores: dict[str, tuple[Tensor, Tensor]]


def evaluate_classifier(
    model: BayesianModel,
    posterior: GuidePosterior,
    images: Dataset,
    unknown: Tensor | None,
    *,
    num_samples: int = 100,
    num_components: int = 10,
    seed: int = 0,
) -> Evaluation:
    """Measure a trained classifier.

    Args:
        model: The model.
        posterior: Its fitted guide.
        images: The run's images, of which the test part is used.
        unknown: Out-of-domain images, shape (M, H, W); with None, their detection is not measured.
        num_samples: Number of draws in the large ensemble.
        num_components: Number of draws in the small ensemble, whose members are also scored one by one.
        seed: Seed of the draws.
    """
    device = model.device
    x, y = images.x_test.to(device), images.y_test.to(device)
    components = predict(model, posterior, x, num_samples=num_components, keep_draws=True, seed=seed).as_kind(
        ClassificationPrediction
    )
    ensemble = predict(model, posterior, x, y=y, num_samples=num_samples, seed=seed).as_kind(ClassificationPrediction)
    mean_weights = predict_point(model, posterior.median(), x, y=y).as_kind(ClassificationPrediction)
    assert components.logits is not None
    rows = [_row(f"component {i}", logits.exp(), y) for i, logits in enumerate(components.logits)]
    rows.append(_row("mean weights", mean_weights.probs, y))
    if num_components != num_samples:
        rows.append(_row(f"ensemble of {num_components}", components.probs, y))
    rows.append(_row(f"ensemble of {num_samples}", ensemble.probs, y))
    foreign, scores = None, {}
    if unknown is not None and len(unknown):
        foreign = predict(model, posterior, unknown.to(device), num_samples=num_samples, seed=seed).as_kind(
            ClassificationPrediction
        )
        scores = _scores(ensemble, foreign)
    ood = {name: metrics.ood_scores(*pair) for name, pair in scores.items()}
    report = Report(rows, ood, len(x), 0 if unknown is None else len(unknown))
    return Evaluation(report, ensemble, mean_weights, foreign, scores)


def report_evaluation(
    model: BayesianModel,
    posterior: GuidePosterior,
    images: Dataset,
    unknown: Tensor | None,
    folder: Folder,
    *,
    num_samples: int = 100,
    num_components: int = 10,
    seed: int = 0,
    picture_format: str = "png",
) -> Report:
    """Measure a trained classifier, and write `metrics.json` and pictures.

    Args:
        model: The model.
        posterior: Its fitted guide.
        images: The run's images, of which the test part is used.
        unknown: Out-of-domain images, shape (M, H, W); with None, their detection is not measured.
        folder: Folder that the results are written to.
        num_samples: Number of draws in the large ensemble.
        num_components: Number of draws in the small ensemble, whose members are also scored one by one.
        seed: Seed of the draws.
        picture_format: Format of the pictures: ``png``, ``pdf`` or ``svg``.
    """
    found = evaluate_classifier(
        model, posterior, images, unknown, num_samples=num_samples, num_components=num_components, seed=seed
    )
    folder.write_json("metrics.json", asdict(found.report))
    y = images.y_test.to(model.device)
    _draw(posterior.history, found.ensemble, y, images, found.foreign, unknown, folder, picture_format)
    return found.report


def _row(name: str, probs: Tensor, y: Tensor) -> Row:
    return Row(
        name,
        metrics.accuracy(probs, y),
        metrics.negative_log_likelihood(probs, y),
        metrics.expected_calibration_error(probs, y),
        metrics.brier_score(probs, y),
    )


def _scores(known: ClassificationPrediction, unknown: ClassificationPrediction) -> dict[str, tuple[Tensor, Tensor]]:
    def of(p: ClassificationPrediction) -> tuple[Tensor, ...]:
        return p.total, p.epistemic, 1 - p.max_probability, p.logit_variance

    return dict(zip(SCORES, zip(of(known), of(unknown), strict=True), strict=True))


def _draw(
    history: History,
    known: ClassificationPrediction,
    y: Tensor,
    images: Dataset,
    foreign: ClassificationPrediction | None,
    unknown: Tensor | None,
    folder: Folder,
    picture_format: str,
) -> None:
    save_picture(folder, "loss.png", plotting.loss_curves(history)[0], picture_format)
    save_picture(folder, "reliability.png", plotting.reliability_diagram(known.probs, y)[0], picture_format)
    if foreign is None or unknown is None:
        return

    shown = 5
    votes = plotting.vote_histograms(
        torch.cat([images.x_test[:shown], unknown[:shown].cpu()]),
        torch.cat([known.votes[:shown], foreign.votes[:shown]]).cpu(),
        images.classes,
        titles=[f"known: {images.classes[label]}" for label in y[:shown].tolist()] + ["unknown"] * shown,
    )
    save_picture(folder, "votes.png", votes[0, 0], picture_format)

    save_picture(folder, "ood.png", plotting.detection_curves(known, foreign)[0], picture_format)
