"""Fits to tables and arrays by Markov chains in C: held-out rows choose a network, and chains explore its modes."""

import functools
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
from ..inference.mcmc import MCMCPosterior
from ..modelling.model import BayesianModel
from .building import build_model
from .config import RunConfig
from .datasets import Dataset
from .specs import make_prior, prior_spec

PARTS = ("hidden", "activation", "prior", "likelihood")
"""The settings that `--method auto` chooses unless the user gives them."""

OF_NET = ("hidden", "activation")
"""The settings that describe a fully connected network, and do not apply to a user's own network."""


def fit_chains(
    config: RunConfig, data: Dataset, *, given: Collection[str], deadline: Deadline | None, device: str
) -> tuple[RunConfig, BayesianModel, MCMCPosterior]:
    """Choose the settings of `PARTS` that are not named in `given`, and explore the network's modes with chains.

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
    return replace(configs[chosen.name], method="mclmc"), chosen.model, chosen.posterior


def _choices(config: RunConfig, data: Dataset, given: Collection[str]) -> list[RunConfig]:
    own = Design(config.hidden, ACTIVATIONS[config.activation], make_prior(config.prior), config.likelihood)
    fixed = {name: getattr(own, name) for name in PARTS if name in given or (name in OF_NET and config.net != "mlp")}
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
