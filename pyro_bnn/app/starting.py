"""Finds the settings of new runs, in a recipe or from the user's data. Settings that the user gives have priority."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import recipes
from .config import SVI, RunConfig, kind_of, option_of
from .config import settings as declared
from .recipes import OWN
from .specs import stored

NUM_STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 3000, 20, 3000  # heuristic, for tables and arrays
MOST_COLUMNS = 20  # largest number of columns in an error message
VARIATIONAL = frozenset(name for name, setting in declared().items() if setting.panel == SVI)
"""Settings of a variational fit. If the user gives one of them, the run is variational."""


@contextmanager
def _naming_options() -> Iterator[None]:
    """In the message of a ValueError, replace the names of settings by command-line options."""
    try:
        yield
    except ValueError as error:
        names = "|".join(declared())
        said = re.sub(rf"`({names})(\.\d+)?`", lambda found: option_of(found[1]), str(error))
        raise ValueError(said) from error


@_naming_options()
def check_given(dataset: str, recipe: str | None, given: Mapping[str, Any]) -> None:
    """Raise ValueError if settings of a new run are wrong. The checks need neither torch nor the rows of the data."""
    _asked(dataset, recipe, given).check(without_torch=True)


@_naming_options()
def new_config(dataset: str, recipe: str | None, given: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """Return the settings of a new run, and sentences that explain the settings which the program chose."""
    config = _asked(dataset, recipe, given)
    config.check()
    return (config, []) if config.kind == "images" else _completed(config, dataset, given)


def _asked(dataset: str, recipe: str | None, given: Mapping[str, Any]) -> RunConfig:
    """Return those settings of a new run that are known before the rows of a table or of arrays are read."""
    settings = dict(given)
    if settings.get("method", "").lower() == "nuts":
        raise ValueError(
            "--method must be auto, mclmc or svi, got nuts; to compare a trained run with NUTS: pyro-bnn compare RUN"
        )
    for option in ("features", "ignore"):
        if settings.get("target") in settings.get(option, ()):
            raise ValueError(f"the target {settings['target']!r} cannot be among --{option}; leave it out.")
    if "net" in settings:
        if "hidden" in settings:
            raise ValueError("--hidden is for the network of fully connected layers; leave it out with --net.")
        settings["net"] = stored(settings["net"]) if settings["net"] != "mlp" else "mlp"
    if twice := {*settings.get("features", ())} & {*settings.get("ignore", ())}:
        raise ValueError(f"{min(twice)} is in both --features and --ignore; leave it out of one of them.")
    if not Path(dataset).suffix or kind_of(dataset) == "images":
        return replace(recipes.find_recipe(dataset, recipe or "default"), **settings)
    if recipe is not None:
        raise ValueError(f"recipes are for image sets; leave out --recipe {recipe} with data of your own.")
    guesses: dict[str, Any] = {"dataset": str(Path(dataset).resolve()), "method": method_for(settings)}
    if kind_of(dataset) == "arrays":
        guesses["target"] = ""
    is_natural = settings.get("optimizer", "adam").startswith("natural")
    if settings.get("net", "mlp") != "mlp" or settings.get("guide", "mean-field") != "mean-field" or is_natural:
        guesses["estimator"] = "weights"  # the other estimators do not support every layer, guide and optimizer
    return replace(OWN, **{**guesses, **settings})


def columns_of(dataset: str, *, header: bool) -> str:
    """Return a sentence that names the columns of a table."""
    from .own.cells import listed
    from .own.reading import hint_of_header, read_table  # imported late: loads pandas

    table = read_table(dataset, header=header)
    return f" Its columns are {listed(table.names, MOST_COLUMNS)}.{hint_of_header(table.names)}"


def method_for(settings: Mapping[str, Any]) -> str:
    """Return the method of a run on a table or arrays.

    The default is svi if an option of variational fits is given, and otherwise auto.
    """
    names, method = _variational(settings), settings.get("method")
    if method is None:
        return "svi" if names else "auto"
    if names and method != "svi":
        them = "it" if len(names) == 1 else "them"
        raise ValueError(f"--method {method} has no {' and '.join(names)}; leave {them} out, or choose svi.")
    return str(method)


def _variational(settings: Mapping[str, Any]) -> list[str]:
    return [option_of(name) for name in settings if name in VARIATIONAL]


def _completed(config: RunConfig, dataset: str, given: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """Return the configuration with the settings that depend on the rows, and sentences that explain them."""
    from . import sources  # imported late: loads torch

    guesses: dict[str, Any] = {}
    is_guessed = "likelihood" not in given
    guesses["likelihood"], reason, num_rows, has_test_rows = sources.first_look(config, guesses=is_guessed)
    if has_test_rows:
        typed = [option_of(name) for name in ("test_fraction", "split_seed") if name in given]
        if typed:
            raise ValueError(f"{dataset} holds its test rows (x_test and y_test); leave out {' and '.join(typed)}.")
        guesses["test_fraction"] = 0.0
    test_fraction = guesses.get("test_fraction", config.test_fraction)
    num_train = max(round(num_rows * (1 - test_fraction) * (1 - config.calibrate)), 1)
    guesses["batch_size"] = math.ceil(num_train / math.ceil(num_train / OWN.batch_size))
    epochs = round(NUM_STEPS / math.ceil(num_train / given.get("batch_size", guesses["batch_size"])))
    guesses["epochs"] = min(max(epochs, FEWEST_EPOCHS), MOST_EPOCHS)
    config = replace(config, **{name: value for name, value in guesses.items() if name not in given})
    config.check()
    notes = [reason] if is_guessed else []
    if config.method == "svi" and "method" not in given:
        notes.append(f"The fit is variational (--method svi) because of {' and '.join(_variational(given))}.")
    return config, notes
