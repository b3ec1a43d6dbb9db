"""Fits to tables and arrays by Markov chains in C: held-out rows choose a network, and chains explore its modes."""

import functools
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from .._core.processes import Processes
from ..auto.choosing import (
    ACTIVATIONS,
    OF_CLASSES,
    OF_NUMBERS,
    Deadline,
    Design,
    UnsuitableError,
    fit_best,
    has_few_values,
    open_designs,
)
from ..inference.mcmc import LARGEST_WITHIN, MCMCPosterior
from ..inference.posterior import Status
from ..modelling.model import BayesianModel
from .building import build_model
from .config import RunConfig
from .datasets import Dataset
from .recipes import CHOSEN
from .specs import make_prior, prior_spec

OF_NET = ("hidden", "activation")
"""The settings that describe a fully connected network, and do not apply to a user's own network."""


def fit_chains(
    config: RunConfig, data: Dataset, *, given: Collection[str], deadline: Deadline | None, device: str
) -> tuple[RunConfig, BayesianModel, MCMCPosterior]:
    """Choose the settings of `CHOSEN` that are not named in `given`, and explore the network's modes with chains.

    Returns the chosen settings, the model, and the chains. A run with the returned settings repeats the fit without
    comparing settings again. The status of the chains says which settings were compared and chosen.

    Raises:
        UnsuitableError: If chains cannot run here, C code supports none of the networks, or the time is too short.
    """
    if device != "cpu" or Processes.present().are_many:
        raise UnsuitableError("chains in C run on a CPU, in one process")
    configs = {_in_words(choice): choice for choice in _choices(config, data, given)}
    chosen = fit_best(
        {name: functools.partial(build_model, choice, data) for name, choice in configs.items()},
        (data.x_train, data.y_train),
        deadline=deadline,
        saves_search=True,  # so that a run with the written settings repeats the fit
        progress=True,
        seed=config.seed,
    )
    found = replace(configs[chosen.name], method="mclmc")
    chosen.posterior.status = with_verdict(chosen.posterior.status, found, chosen.posterior.seconds or 0.0)
    return found, chosen.model, chosen.posterior


DIFFER = "modes with equal weights, which are not their posterior weights"
"""What the status says about chains that have explored their modes, but differ from each other."""

MORE = 4
"""Heuristic: chains that are too short should get this multiple of their time."""


def with_verdict(status: Status, config: RunConfig, seconds: float) -> Status:
    """Add a sentence that judges whether the chains were long enough, and if not, says what to type.

    `seconds` is the time that the fit took. A linear model has one mode, so its chains must agree.
    """
    more = (
        "pass a longer time. How long they need is not known: a first guess is four times the time of this fit, "
        f"--time-limit {10 * math.ceil(MORE * seconds / 10)}."
    )
    message, limit = status.message, LARGEST_WITHIN
    if "R-hat within chains" not in message:
        return replace(status, remedy="")
    is_linear = config.net == "mlp" and not config.hidden and not config.likelihood.startswith("mixture")
    if (short := "too short to explore their modes") in message:
        too_short = (
            f"R-hat within chains is above {limit}: how well such chains predict is seen from the scores on test rows. "
            f"For longer chains, {more}"
        )
        message = message.replace(short, "too short") if is_linear else message
        return replace(status, message=message, remedy=too_short)
    if DIFFER in message and is_linear:
        message = message.replace(DIFFER, "chains whose predictions differ").replace("between modes", "between chains")
        said = f"R-hat between chains is above {limit}, but a linear model has one mode, so the chains are too short"
        return replace(status, message=message, remedy=f"{said}: {more}")
    said = f"R-hat within chains is at most {limit}, so each chain is long enough for the mode that it is in."
    if DIFFER not in message:
        said = f"R-hat is at most {limit} within and between chains, so the chains are long enough."
    return replace(status, message=f"{message} {said}", remedy="")


def _choices(config: RunConfig, data: Dataset, given: Collection[str]) -> list[RunConfig]:
    own = Design(config.hidden, ACTIVATIONS[config.activation], make_prior(config.prior), config.likelihood)
    fixed = {name: getattr(own, name) for name in CHOSEN if name in given or (name in OF_NET and config.net != "mlp")}
    if not data.classes and "likelihood" not in fixed and has_few_values(data.y_train):
        fixed["likelihood"] = config.likelihood
    designs = open_designs(OF_CLASSES if data.classes else OF_NUMBERS, **fixed)
    names: dict[Any, Any] = {make: name for name, make in ACTIVATIONS.items()}
    return [
        replace(
            config,
            hidden=design.hidden,
            activation=names[design.activation],
            prior=config.prior if "prior" in given else prior_spec(design.prior),
            likelihood=design.likelihood,
        )
        for design in designs
    ]


def _in_words(config: RunConfig) -> str:
    units = f"{' + '.join(map(str, config.hidden))} {config.activation} units" if config.hidden else "a linear model"
    return f"{units if config.net == 'mlp' else config.net}, {config.likelihood}, prior {config.prior}"
