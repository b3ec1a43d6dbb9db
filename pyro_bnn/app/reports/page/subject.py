"""The run that a report is on, with everything that the sections look at."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ....guides import GuidePosterior
from ....model import BayesianModel
from ....uncertainty import RegressionPrediction
from ..evaluation import Evaluation

__all__ = ["Classified", "Regressed", "Subject", "in_words"]


@dataclass(frozen=True)
class Classified:
    """What was measured of a classifier.

    Args:
        y: Labels of the test rows, shape (N,).
        classes: Names of the classes.
        noun: What one row is, such as ``image``.
        test_name: What the test rows are, such as ``test images``.
        evaluation: The predictions and their scores.
        images: The test rows as grey images, shape (N, H, W); None if they are something else.
        unknown: Out-of-domain images, shape (M, H, W); None without any.
        unknown_name: What these are.
    """

    y: Tensor
    classes: tuple[str, ...]
    noun: str
    test_name: str
    evaluation: Evaluation
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
        guess_mean: Mean of the training targets, shape (O,): what one would say without a network.
        guess_scale: Standard deviation of the training targets, shape (O,).
        is_count: Whether the targets are counts.
    """

    y: Tensor
    names: tuple[str, ...]
    prediction: RegressionPrediction
    guess_mean: Tensor
    guess_scale: Tensor
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
        device: Where the report was computed.
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
    device: str
    num_samples: int
    seed: int
    model: BayesianModel
    posterior: GuidePosterior
    classified: Classified | None = None
    regressed: Regressed | None = None


def in_words(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as a person reads them; those that are empty are left out."""
    found = {name.replace("_", " "): _words(value) for name, value in settings.items()}
    return {name: words for name, words in found.items() if words}


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)
