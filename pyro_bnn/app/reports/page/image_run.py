"""A run on images as the subject of a report."""

import shlex
from dataclasses import asdict, fields
from pathlib import Path

from torch import Tensor

from ....data import Images
from ....guides import GuidePosterior
from ....model import BayesianModel
from ... import recipes
from ...config import RunConfig
from ...images import fingerprint
from ..evaluation import evaluate_classifier
from .numbers import count
from .subject import Classified, Subject

__all__ = ["image_subject", "training_command"]


def image_subject(
    run: Path,
    config: RunConfig,
    model: BayesianModel,
    posterior: GuidePosterior,
    images: Images,
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
        settings={name.replace("_", " "): _words(value) for name, value in asdict(config).items()},
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


def training_command(config: RunConfig, run: Path) -> str:
    """The command that trains with these settings, as short as a recipe makes it."""
    candidates: list[list[str]] = []
    for dataset, recipe in recipes.RECIPES:
        if dataset == config.dataset:
            parts = ["pyro-bnn", "train", dataset, *([] if recipe == "default" else ["--recipe", recipe])]
            candidates.append([*parts, *_options(config, recipes.find_recipe(dataset, recipe)), "--out", str(run)])
    shortest = min(candidates, key=len)
    return shlex.join(shortest)


def _options(config: RunConfig, recipe: RunConfig) -> list[str]:
    """The options by which settings differ from those of a recipe."""
    options: list[str] = []
    for field in fields(config):
        name, value = f"--{field.name.replace('_', '-')}", getattr(config, field.name)
        if value == getattr(recipe, field.name):
            continue
        if isinstance(value, bool):
            options.append(name if value else name.replace("--", "--no-", 1))
        else:
            options += [name, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return options


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _data(images: Images, test_name: str, unknown: Tensor | None, unknown_name: str) -> dict[str, str]:
    height, width = images.x_train.shape[1:]
    return {
        "training images": f"{count(len(images.x_train))} of {height} x {width} pixels",
        test_name: count(len(images.x_test)),
        "classes": ", ".join(images.classes),
        "unknown images": "none" if unknown is None else f"{count(len(unknown))} images of {unknown_name}",
        "checksum of the training images": f"SHA-256 {fingerprint(images)['sha256']}",
    }
