"""The run that a report is on, with everything that the sections look at."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ....inference.guides import GuidePosterior
from ....modelling.likelihoods import PoissonLikelihood
from ....modelling.model import BayesianModel
from ....results.prediction import predict, predict_point
from ....scores.uncertainty import ClassificationPrediction, RegressionPrediction
from ... import images, runs, sources
from ...config import RunConfig
from ...datasets import Dataset
from ...own.units import in_units
from ..evaluation import Evaluation, evaluate_classifier
from ..scores import rivals_of
from .commands import training_command
from .numbers import count

__all__ = ["Classified", "Regressed", "Subject", "subject_of"]


@dataclass(frozen=True)
class Classified:
    """What was measured of a classifier.

    Args:
        y: Labels of the test rows, shape (N,).
        classes: Names of the classes.
        noun: What one row is, such as ``image``.
        test_name: What the test rows are, such as ``test images``.
        evaluation: The predictions and their scores.
        rivals: Predictions of simple methods, by name.
        images: The test rows as grey images, shape (N, H, W); None if they are something else.
        unknown: Out-of-domain images, shape (M, H, W); None without any.
        unknown_name: What these are.
    """

    y: Tensor
    classes: tuple[str, ...]
    noun: str
    test_name: str
    evaluation: Evaluation
    rivals: Mapping[str, ClassificationPrediction]
    images: Tensor | None = None
    unknown: Tensor | None = None
    unknown_name: str = ""


@dataclass(frozen=True)
class Regressed:
    """What was measured of a regression, in the target's units.

    Args:
        y: Targets of the test rows, shape (N, O).
        names: Name of each of the O outputs.
        prediction: Prediction of the test rows, of the same shape, with its components and the targets' log-density.
        mean_weights: Prediction at the mean weights.
        rivals: Predictions of simple methods, by name.
        train_mean: Mean of the training targets, shape (O,): what one would say without a network.
        train_scale: Standard deviation of the training targets, shape (O,).
        is_count: Whether the targets are counts.
    """

    y: Tensor
    names: tuple[str, ...]
    prediction: RegressionPrediction
    mean_weights: RegressionPrediction
    rivals: Mapping[str, RegressionPrediction]
    train_mean: Tensor
    train_scale: Tensor
    is_count: bool


@dataclass(frozen=True)
class Subject:
    """The run that a report is on.

    Args:
        run: Its folder.
        title: Its name, for the heading.
        settings: Its settings by name, in words.
        data: What it was trained and tested on, in words.
        command: The command that repeats it.
        num_samples: Number of weight draws in each prediction.
        seed: Seed of these draws.
        model: The model.
        posterior: The fitted guide.
        classified: What was measured, if the run is a classifier.
        regressed: What was measured, if the run is a regression.
    """

    run: Path
    title: str
    settings: dict[str, str]
    data: dict[str, str]
    command: str
    num_samples: int
    seed: int
    model: BayesianModel
    posterior: GuidePosterior
    classified: Classified | None = None
    regressed: Regressed | None = None


def subject_of(
    run: Path,
    ood: str | None = None,
    *,
    num_samples: int,
    seed: int,
    data: Path | None = None,
    download: bool = False,
    device: str = "cpu",
) -> Subject:
    """Measure a run.

    Args:
        run: Its folder.
        ood: Data set of the unknown images; None for that of the run.
        num_samples: Number of weight draws in each prediction.
        seed: Seed of these draws.
        data: Folder of the images, or file of the rows, if it is not where it was.
        download: Whether to fetch missing images.
        device: Where to compute.

    Raises:
        FileNotFoundError: If there is no such run, or its data are not there.
        ValueError: If the data are not those of the run, an option does not fit it, or no rows were set aside.
    """
    config = runs.load_config(run)
    classified, regressed = None, None
    if config.kind == "images":
        rows, unknown, unknown_name = _images(config, ood, data, download=download)
        model, posterior = runs.load_run(run, rows, device=device)
        evaluation = evaluate_classifier(model, posterior, rows, unknown, num_samples=num_samples, seed=seed)
        classified = Classified(
            rows.y_test,
            rows.classes,
            noun="image",
            test_name="validation images" if config.validation else "test images",
            evaluation=evaluation,
            rivals=_rival_classifiers(rows),
            images=rows.x_test,
            unknown=unknown,
            unknown_name=unknown_name,
        )
        title = f"A Bayesian classifier of {config.dataset}"
        about = {"unknown images": f"{count(len(unknown))} images of {unknown_name}" if len(unknown) else "none"}
    else:
        if ood is not None or download:
            raise ValueError("--ood and --download are for image sets; leave them out.")
        rows = sources.load(config, root=data, facts=runs.read_facts(run))
        model, posterior = runs.load_run(run, rows, device=device)
        target = rows.facts.target
        if not len(rows.x_test):
            raise ValueError(
                "all rows were trained on (--test-fraction 0), so there are none to report on; see scores on new rows "
                "by `pyro-bnn predict`."
            )
        if target.is_class:
            evaluation = evaluate_classifier(model, posterior, rows, None, num_samples=num_samples, seed=seed)
            classified = Classified(rows.y_test, rows.classes, "row", "test rows", evaluation, _rival_classifiers(rows))
        else:
            regressed = _regressed(model, posterior, rows, num_samples=num_samples, seed=seed)
        kind = "classifier" if target.is_class else "regression"
        title = f"A Bayesian {kind} of {target.name} in {Path(config.dataset).name}"
        about = {"file": config.dataset}
    settings = {name.replace("_", " "): _words(value) for name, value in asdict(config).items()}
    about |= {
        "training rows": f"{count(len(rows.x_train))} of {' x '.join(map(str, rows.facts.input_shape))} inputs",
        "test rows": count(len(rows.x_test)),
        "classes": ", ".join(rows.classes),
        "checksum of the rows": f"SHA-256 {rows.facts.sha256}",
    }
    return Subject(
        run,
        title=title,
        settings={name: words for name, words in settings.items() if words},
        data={name: words for name, words in about.items() if words},
        command=training_command(config, run),
        num_samples=num_samples,
        seed=seed,
        model=model,
        posterior=posterior,
        classified=classified,
        regressed=regressed,
    )


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _images(config: RunConfig, ood: str | None, data: Path | None, *, download: bool) -> tuple[Dataset, Tensor, str]:
    """A run's images; the unknown ones, of which there may be none; and what these are."""
    known, held_out = images.load_data(config, root=data, download=download)
    unknown = images.load_unknown(ood, config, known, root=data, download=download)
    name = ood or images.SIBLINGS.get(config.dataset, "")
    if unknown is None:
        name, unknown = f"the held-out classes {', '.join(map(str, config.hold_out))}", held_out
    images.check_unseen("test", known.x_test, known.x_train)
    images.check_unseen("unknown", unknown, known.x_train)
    return known, unknown, name


def _rival_classifiers(rows: Dataset) -> dict[str, ClassificationPrediction]:
    return {name: prediction.as_kind(ClassificationPrediction) for name, prediction in rivals_of(rows).items()}


def _regressed(
    model: BayesianModel, posterior: GuidePosterior, rows: Dataset, *, num_samples: int, seed: int
) -> Regressed:
    target, is_count = rows.facts.target, isinstance(model.likelihood, PoissonLikelihood)
    x, y = rows.x_test.to(model.device), rows.y_test.to(model.device)
    standard = predict(model, posterior, x, y=y, num_samples=num_samples, keep_draws=True, seed=seed)
    prediction = in_units(standard.as_kind(RegressionPrediction), target)
    assert prediction.targets is not None
    mean, scale = (torch.tensor(part, dtype=torch.double, device=y.device) for part in (target.mean, target.scale))
    train = mean + scale * rows.y_train.to(y.device).double()
    return Regressed(
        prediction.targets.double(),
        (target.name,) if target.size == 1 else tuple(f"{target.name} {i + 1}" for i in range(target.size)),
        prediction,
        in_units(predict_point(model, posterior.median(), x, y=y).as_kind(RegressionPrediction), target),
        {
            name: in_units(p.as_kind(RegressionPrediction), target)
            for name, p in rivals_of(rows, is_count=is_count).items()
        },
        train_mean=train.mean(0),
        train_scale=train.std(0),
        is_count=is_count,
    )
