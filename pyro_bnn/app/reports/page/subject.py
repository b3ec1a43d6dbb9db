"""The run that a report is on, with everything that the sections look at."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ....data import Images
from ....guides import GuidePosterior
from ....model import BayesianModel
from ..evaluation import Evaluation

__all__ = ["Classified", "Subject"]


@dataclass(frozen=True)
class Classified:
    """What was measured of a classifier of images.

    Args:
        images: The run's images.
        unknown: Out-of-domain images, shape (M, H, W); None without any.
        unknown_name: What these are.
        test_name: What the test images are, such as ``test images``.
        evaluation: The predictions and their scores.
    """

    images: Images
    unknown: Tensor | None
    unknown_name: str
    test_name: str
    evaluation: Evaluation


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
        classified: What was measured, if the run is a classifier of images.
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
