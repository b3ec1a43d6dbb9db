"""Reports the accuracy and the calibration of a trained classifier, and how well it detects unknown images."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ...results import plotting
from ...results.prediction import predict
from ...scores import metrics
from ...scores.uncertainty import ClassificationPrediction
from ..folders import Folder
from ..numbers import percent
from ..runs import is_chains
from .pictures import save_picture
from .trained import Alone, Trained

FILES = ("metrics.json", "loss.png", "reliability.png", "votes.png", "ood.png")  # all that may be written
SCORES: dict[str, Callable[[ClassificationPrediction], Tensor]] = {
    "entropy": lambda prediction: prediction.total,
    "mutual information": lambda prediction: prediction.epistemic,
    "maximum probability": lambda prediction: 1 - prediction.max_probability,
    "logit variance": lambda prediction: prediction.logit_variance,
}
"""Scores of uncertainty, which should be larger for unknown images."""

NUM_COMPONENTS = 10  # draws of the weights in the small mean, each of which is also scored alone
LEGEND = [
    "mean of draws: the mean of their probabilities.",
    "NLL (nats), ECE (calibration error) and Brier score: smaller is better.",
    "AUROC: chance that an unknown image scores above a known one; 0.5 is a guess.",
    "FPR95: share of the known images that are flagged if 95 % of the unknown images are flagged.",
    "Which score works best depends on the data.",
]


@dataclass(frozen=True)
class ClassifierScores:
    """Scores of three kinds of predictions (draws, mean weights, means of draws), and scores for unknown images."""

    rows: list[dict[str, Any]]  # name, accuracy, nll (nats), ece (15 bins) and brier (sum over classes) of predictions
    ood: dict[str, metrics.OODScores]  # by name of the score
    num_test: int
    num_unknown: int

    def __str__(self) -> str:
        header = f"on {self.num_test} test images"
        lines = [f"{header:30s} {'accuracy':>9s} {'NLL':>8s} {'ECE':>8s} {'Brier':>8s}"]
        row = "{name:30s} {accuracy:>9s} {nll:8.4f} {ece:8.4f} {brier:8.4f}"
        draws = [scores for scores in self.rows if scores["name"].startswith("component")]
        shown = [scores for scores in self.rows if scores not in draws]
        if draws and not shown[0]["name"].startswith("one draw"):
            means = {name: fmean(d[name] for d in draws) for name in ("accuracy", "nll", "ece", "brier")}
            shown.insert(0, {"name": f"one draw (mean of {len(draws)})", **means})
        lines += [row.format(**{**scores, "accuracy": percent(scores["accuracy"], 2)}) for scores in shown]
        if self.ood:
            header = f"against {self.num_unknown} unknown images"
            lines += ["", f"{header:30s} {'AUROC':>9s} {'AUPR':>8s} {'FPR95':>8s}"]
            lines += [f"{name:30s} {s.auroc:9.3f} {s.aupr:8.3f} {s.fpr95:8.3f}" for name, s in self.ood.items()]
        lines += ["", *LEGEND]
        return "\n".join(lines)


@dataclass(frozen=True)
class Evaluation:
    """The scores of a classifier, and the predictions that were scored."""

    report: ClassifierScores
    ensemble: ClassificationPrediction  # of the test images, with many draws
    single: tuple[
        str, ClassificationPrediction | Alone[ClassificationPrediction]
    ]  # name, and what one network predicts
    foreign: ClassificationPrediction | None  # of the out-of-domain images; None without any
    scores: dict[str, tuple[Tensor, Tensor]]  # name -> values on test and on out-of-domain images


def evaluate_classifier(run: Trained) -> Evaluation:
    """Predict the test rows, and unknown images if there are any, and score the predictions of a classifier."""
    x, y = run.test
    found = predict(run.model, run.posterior, x, y=y, num_samples=NUM_COMPONENTS, keep_draws=True, seed=run.seed)
    few, ensemble = (way.as_kind(ClassificationPrediction) for way in (found, run.ensemble))
    name, one = run.single
    kind = ClassificationPrediction
    alone = Alone([draw.as_kind(kind) for draw in one.draws]) if isinstance(one, Alone) else one.as_kind(kind)
    assert few.logits is not None
    ways: dict[str, ClassificationPrediction | Alone[ClassificationPrediction]]
    ways = {
        f"component {i}": replace(few, probs=logits.exp(), log_density=logits.gather(1, y[:, None])[:, 0])
        for i, logits in enumerate(few.logits)
    }
    ways |= {name: alone, f"mean of {NUM_COMPONENTS} draws": few, f"mean of {run.num_samples} draws": ensemble}
    rows = [{"name": name, **way.score()} for name, way in ways.items()]
    foreign, scores = None, {}
    if run.unknown is not None and len(run.unknown):
        unknown = run.unknown.to(run.model.device)
        far = predict(run.model, run.posterior, unknown, num_samples=run.num_samples, seed=run.seed)
        foreign = far.as_kind(ClassificationPrediction)
        scores = {name: (score(ensemble), score(foreign)) for name, score in SCORES.items()}
    ood = {name: metrics.ood_scores(*pair) for name, pair in scores.items()}
    report = ClassifierScores(rows, ood, len(run.rows.x_test), 0 if run.unknown is None else len(run.unknown))
    return Evaluation(report, ensemble, (name, alone), foreign, scores)


def report_evaluation(run: Trained, folder: Folder) -> ClassifierScores:
    """Score a classifier of images by :func:`evaluate_classifier`, and write `metrics.json` and pictures."""
    found, rows = evaluate_classifier(run), run.rows
    folder.write_json("metrics.json", asdict(found.report))
    known, y = found.ensemble, run.test[1]
    pictures = {"reliability.png": plotting.reliability_diagram(known.probs, y)[0]}
    if not is_chains(run.posterior):
        pictures["loss.png"] = plotting.loss_curves(run.posterior.history)[0]
    if found.foreign is not None and run.unknown is not None:
        shown = 5
        pictures["votes.png"] = plotting.vote_histograms(
            torch.cat([rows.x_test[:shown], run.unknown[:shown].cpu()]),
            torch.cat([known.votes[:shown], found.foreign.votes[:shown]]).cpu(),
            rows.classes,
            titles=[
                *(f"known: {rows.classes[y[i]]}\nentropy {known.total[i]:.2f} nats" for i in range(len(y[:shown]))),
                *(f"unknown\nentropy {h:.2f} nats" for h in found.foreign.total[:shown]),
            ],
        )[0, 0]
        pictures["ood.png"] = plotting.detection_curves(known, found.foreign)[0]
    for name, ax in pictures.items():
        save_picture(folder, name, ax)
    return found.report
