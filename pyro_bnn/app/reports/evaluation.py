"""The report on a trained classifier: accuracy, calibration, and detection of unknown images."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...modelling.model import BayesianModel
from ...results import plotting
from ...results.prediction import predict, predict_point
from ...scores import metrics
from ...scores.uncertainty import ClassificationPrediction
from .. import images, runs, sources
from ..config import RunConfig
from ..datasets import Dataset
from ..folders import Folder
from .pictures import save_picture

FILES = ("metrics.json", "loss.png", "reliability.png", "votes.png", "ood.png")
"""Files that the report may write."""

SCORES: dict[str, Callable[[ClassificationPrediction], Tensor]] = {
    "entropy": lambda prediction: prediction.total,
    "mutual information": lambda prediction: prediction.epistemic,
    "maximum probability": lambda prediction: 1 - prediction.max_probability,
    "logit variance": lambda prediction: prediction.logit_variance,
}
"""Out-of-domain scores; a larger score means less known."""

NUM_COMPONENTS = 10
"""Number of draws in the small ensemble, whose members are also scored one by one."""

LEGEND = [
    "component: one weight draw; ensemble: mean probability of several. NLL (nats), ECE (calibration error) and Brier",
    "score: lower is better. AUROC: chance that an unknown image scores above a known one, 0.5 is a guess. FPR95:",
    "known images taken for unknown when 95 % of the unknown are found. Which score works best depends on the data.",
]


@dataclass(frozen=True)
class ClassifierScores:
    """Scores of single draws, mean weights and ensembles, and how well each score detects unknown images."""

    rows: list[dict[str, Any]]  # name, accuracy, nll (nats), ece (15 bins) and brier (summed over classes) of each way
    ood: dict[str, metrics.OODScores]  # by name of the score
    num_test: int
    num_unknown: int

    def __str__(self) -> str:
        header = f"on {self.num_test} test images"
        lines = [f"{header:30s} {'accuracy':>9s} {'NLL':>8s} {'ECE':>8s} {'Brier':>8s}"]
        row = "{name:30s} {accuracy:9.2%} {nll:8.4f} {ece:8.4f} {brier:8.4f}"
        lines += [row.format(**scores) for scores in self.rows]
        if self.ood:
            header = f"against {self.num_unknown} unknown images"
            lines += ["", f"{header:30s} {'AUROC':>9s} {'AUPR':>8s} {'FPR95':>8s}"]
            lines += [f"{name:30s} {s.auroc:9.4f} {s.aupr:8.4f} {s.fpr95:8.4f}" for name, s in self.ood.items()]
        lines += ["", *LEGEND]
        return "\n".join(lines)


@dataclass(frozen=True)
class Evaluation:
    """A report, and the predictions behind it."""

    report: ClassifierScores
    ensemble: ClassificationPrediction  # test images, by the large ensemble
    single: tuple[str, ClassificationPrediction]  # test images, by a single network, and its name
    foreign: ClassificationPrediction | None  # out-of-domain images, if there are any
    scores: dict[str, tuple[Tensor, Tensor]]  # test and out-of-domain images, by name of the score


def load_measured(
    run: Path, config: RunConfig, ood: str | None, *, data: Path | None, download: bool, device: str
) -> tuple[Dataset, Tensor | None, str, BayesianModel, runs.RunPosterior]:
    """A run's rows, its unknown images and their description (None for other data), its model and posterior."""
    rows: Dataset
    unknown, name = None, ""
    if config.kind == "images":
        rows, unknown, name = images.load_with_unknown(config, ood, root=data, download=download)
    elif ood is not None or download:
        raise ValueError("--ood and --download are for image sets; leave them out.")
    else:
        rows = sources.load(config, root=data, facts=runs.read_facts(run))
        if not len(rows.x_test):
            raise ValueError(
                "all rows were trained on (--test-fraction 0), so there are none to report on; see scores on new rows "
                "by `pyro-bnn predict`."
            )
    return rows, unknown, name, *runs.load_run(run, rows, device=device)


def evaluate_classifier(
    model: BayesianModel,
    posterior: runs.RunPosterior,
    data: Dataset,
    unknown: Tensor | None,
    *,
    num_samples: int = 100,
    seed: int = 0,
) -> Evaluation:
    """Measure a trained classifier on its test rows, and on unknown images if there are any."""
    x, y = data.x_test.to(model.device), data.y_test.to(model.device)
    few = predict(model, posterior, x, y=y, num_samples=NUM_COMPONENTS, keep_draws=True, seed=seed).as_kind(
        ClassificationPrediction
    )
    ensemble = predict(model, posterior, x, y=y, num_samples=num_samples, seed=seed).as_kind(ClassificationPrediction)
    name, values = runs.single_network(posterior)
    single = name, predict_point(model, values, x, y=y).as_kind(ClassificationPrediction)
    assert few.logits is not None
    ways = {f"component {i}": replace(few, probs=logits.exp()) for i, logits in enumerate(few.logits)}
    ways |= dict([single])
    ways |= {f"ensemble of {NUM_COMPONENTS}": few, f"ensemble of {num_samples}": ensemble}
    rows = [{"name": name, **way.score()} for name, way in ways.items()]
    foreign, scores = None, {}
    if unknown is not None and len(unknown):
        far = predict(model, posterior, unknown.to(model.device), num_samples=num_samples, seed=seed)
        foreign = far.as_kind(ClassificationPrediction)
        scores = {name: (score(ensemble), score(foreign)) for name, score in SCORES.items()}
    ood = {name: metrics.ood_scores(*pair) for name, pair in scores.items()}
    report = ClassifierScores(rows, ood, len(x), 0 if unknown is None else len(unknown))
    return Evaluation(report, ensemble, single, foreign, scores)


def report_evaluation(
    model: BayesianModel,
    posterior: runs.RunPosterior,
    data: Dataset,
    unknown: Tensor | None,
    folder: Folder,
    *,
    num_samples: int = 100,
    seed: int = 0,
) -> ClassifierScores:
    """Measure a trained classifier of images as :func:`evaluate_classifier` does; write `metrics.json` and pictures."""
    found = evaluate_classifier(model, posterior, data, unknown, num_samples=num_samples, seed=seed)
    folder.write_json("metrics.json", asdict(found.report))
    known, y = found.ensemble, data.y_test.to(model.device)
    pictures = {"reliability.png": plotting.reliability_diagram(known.probs, y)[0]}
    if not runs.is_chains(posterior):
        pictures["loss.png"] = plotting.loss_curves(posterior.history)[0]
    if found.foreign is not None and unknown is not None:
        shown = 5
        pictures["votes.png"] = plotting.vote_histograms(
            torch.cat([data.x_test[:shown], unknown[:shown].cpu()]),
            torch.cat([known.votes[:shown], found.foreign.votes[:shown]]).cpu(),
            data.classes,
            titles=[f"known: {data.classes[label]}" for label in y[:shown].tolist()] + ["unknown"] * shown,
        )[0, 0]
        pictures["ood.png"] = plotting.detection_curves(known, found.foreign)[0]
    for name, ax in pictures.items():
        save_picture(folder, name, ax)
    return found.report
