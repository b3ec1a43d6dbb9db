"""A run on images as the subject of a report."""

from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from ....guides import GuidePosterior
from ....model import BayesianModel
from ...config import RunConfig
from ...datasets import Dataset
from ..evaluation import evaluate_classifier
from .commands import training_command
from .numbers import count
from .subject import Classified, Subject, in_words

__all__ = ["image_subject"]


def image_subject(
    run: Path,
    config: RunConfig,
    model: BayesianModel,
    posterior: GuidePosterior,
    images: Dataset,
    unknown: Tensor | None,
    *,
    unknown_name: str,
    num_samples: int,
    seed: int,
) -> Subject:
    """Measure a run on images.

    Args:
        run: Its folder.
        config: Its settings.
        model: Its model.
        posterior: Its posterior.
        images: Its images.
        unknown: Out-of-domain images, shape (M, H, W); None without any.
        unknown_name: What these are.
        num_samples: Number of weight draws in each prediction.
        seed: Seed of these draws.
    """
    evaluation = evaluate_classifier(model, posterior, images, unknown, num_samples=num_samples, seed=seed)
    test_name = "validation images" if config.validation else "test images"
    return Subject(
        run,
        title=f"A Bayesian classifier of {config.dataset}",
        settings=in_words(asdict(config)),
        data=_data(images, test_name, unknown, unknown_name),
        command=training_command(config, run),
        device=str(model.device),
        num_samples=num_samples,
        seed=seed,
        model=model,
        posterior=posterior,
        classified=Classified(
            images.y_test,
            images.classes,
            noun="image",
            test_name=test_name,
            evaluation=evaluation,
            images=images.x_test,
            unknown=unknown,
            unknown_name=unknown_name,
        ),
    )


def _data(images: Dataset, test_name: str, unknown: Tensor | None, unknown_name: str) -> dict[str, str]:
    height, width = images.x_train.shape[1:]
    return {
        "training images": f"{count(len(images.x_train))} of {height} x {width} pixels",
        test_name: count(len(images.x_test)),
        "classes": ", ".join(images.classes),
        "unknown images": "none" if unknown is None else f"{count(len(unknown))} images of {unknown_name}",
        "checksum of the training images": f"SHA-256 {images.facts.sha256}",
    }
