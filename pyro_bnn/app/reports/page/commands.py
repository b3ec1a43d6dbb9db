"""The command that repeats a training."""

import shlex
from dataclasses import fields, replace
from pathlib import Path

from ... import recipes
from ...config import RunConfig
from ...starting import OWN

__all__ = ["training_command"]

GUESSED = ("likelihood", "epochs", "batch_size", "estimator")
"""Settings of tables and arrays that follow from the rows or from others if they are not given."""


def training_command(config: RunConfig, run: Path) -> str:
    """The command that trains with these settings, as short as recipes make it.

    Args:
        config: The settings.
        run: Folder of the run.
    """
    candidates: list[list[str]] = []
    if config.kind != "images":
        candidates.append(_options(config, replace(OWN, target=""), always=GUESSED))
    for dataset, recipe in recipes.RECIPES:
        if dataset == config.dataset:
            name = [] if recipe == "default" else ["--recipe", recipe]
            candidates.append([*name, *_options(config, recipes.find_recipe(dataset, recipe))])
    shortest = min(candidates, key=len)
    return shlex.join(["pyro-bnn", "train", config.dataset, *shortest, "--out", str(run)])


def _options(config: RunConfig, usual: RunConfig, *, always: tuple[str, ...] = ()) -> list[str]:
    """The options by which settings differ from the usual ones.

    Args:
        config: The settings.
        usual: Those that need no option.
        always: Names of settings that always need one.
    """
    options: list[str] = []
    for field in fields(config):
        name, value = f"--{field.name.replace('_', '-')}", getattr(config, field.name)
        is_usual = value == getattr(usual, field.name) and field.name not in always
        if is_usual or field.name == "dataset" or (field.name == "hidden" and config.net != "mlp"):
            continue
        if isinstance(value, bool):
            options.append(name if value else name.replace("--", "--no-", 1))
        else:
            options += [name, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return options
