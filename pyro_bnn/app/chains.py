"""Chooses the network that predicts held-out rows of a table or arrays best, and draws its weights by chains in C."""

import functools
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

from .._core.processes import Processes
from ..auto.choosing import (
    ACTIVATIONS,
    OF_CLASSES,
    OF_NUMBERS,
    Chosen,
    Deadline,
    Design,
    UnsuitableError,
    fit_best,
    has_few_values,
    longer_limit,
    open_designs,
)
from ..inference.mcmc import LARGEST_WITHIN, MCMCPosterior, Modes
from ..inference.posterior import Status
from ..modelling.model import BayesianModel
from ..results.prediction import predict
from ..scores.uncertainty import ClassificationPrediction
from .building import build_model
from .config import RunConfig
from .datasets import Dataset
from .numbers import percent
from .recipes import CHOSEN
from .remedies import limit_in, longer_chains
from .specs import make_prior, prior_spec

CLOSE_CLASSES, CLOSE_NUMBERS = 0.05, 0.2
"""Heuristic: predictions of classes agree if their total variation distance is at most `CLOSE_CLASSES`. Predictions of
numbers agree if their means differ by at most `CLOSE_NUMBERS` times the total standard deviation."""

CLOSE_WIDTHS, MOST_WIDTHS = 0.1, 0.25
"""Heuristic: the widths of intervals agree if they differ by at most `CLOSE_WIDTHS` in the median over rows, and by at
most `MOST_WIDTHS` in nine of ten rows."""

SLIGHTLY_SHORT = 1.5  # heuristic: above this R-hat, the halves of a chain may agree because both are near its start
HARDLY = "longer sampling should hardly change the predictions"
MAY_CHANGE = "intervals may change with longer sampling"
STAYS = "more time is unlikely to suffice"  # of chains that are too short, if no time limit can be advised

NUM_CHECKED, NUM_DRAWS = 200, 800  # heuristic: rows at which the halves of chains are compared, and most draws for it

OF_NET = ("hidden", "activation")  # settings of fully connected networks, which a user's own network ignores


@dataclass(frozen=True)
class Choice:
    """The settings that were chosen automatically for a run that draws Markov chains."""

    sentence: str  # what was compared, chosen and left out

    @property
    def not_compared(self) -> tuple[int, int]:
        """The number of networks that were not compared for lack of time, and the number of all networks."""
        num_slow = sum(map(int, re.findall(r"(\d+) networks? not compared, for lack of time", self.sentence)))
        num_others = sum(map(int, re.findall(r"(\d+) networks? not compared", self.sentence)))
        compared = re.search(r"best of (\d+) networks", self.sentence)
        return num_slow, num_others + (int(compared[1]) if compared else 1)


def fit_chains(
    config: RunConfig,
    data: Dataset,
    *,
    given: Collection[str],
    deadline: Deadline | None,
    device: str,
) -> tuple[RunConfig, Choice, BayesianModel, MCMCPosterior]:
    """Choose the settings in `CHOSEN` that are not in `given`, and draw the weights of the chosen network by chains."""
    begin = time.perf_counter()
    if device != "cpu" or Processes.present().are_many:
        raise UnsuitableError("chains in C run on a CPU, in one process")
    fixed = _fixed(config, data, given)
    choices = _choices(config, data, fixed)
    configs = {f"{network_in_words(each)}, {each.likelihood}, prior {each.prior}": each for each in choices}
    chosen = fit_best(
        {name: functools.partial(build_model, choice, data) for name, choice in configs.items()},
        (data.x_train, data.y_train),
        deadline=deadline,
        saves_search=True,  # so that a run with the written settings repeats the fit
        progress=True,
        seed=config.seed,
    )
    found, posterior = replace(configs[chosen.name], method="mclmc"), chosen.posterior
    if are_short(posterior.modes):
        change = drift(chosen.model, posterior, data.x_train)
        posterior.status = replace(posterior.status, is_slight=are_slightly_short(change, posterior.modes))
    posterior.status, choice = with_verdict(chosen, found), Choice(chosen.choice)
    seconds = posterior.seconds or 0.0
    limit_for = functools.partial(longer_limit, time.perf_counter() - begin - seconds, seconds, len(data.x_train))
    remedy = longer_chains(posterior, choice.not_compared[0], limit_for)
    posterior.status = replace(posterior.status, remedy=remedy)
    return found, choice, chosen.model, posterior


def with_verdict(chosen: Chosen, config: RunConfig) -> Status:
    """Return the status of chains, whose message says whether they were long enough."""
    status, modes, limit = chosen.posterior.status, chosen.posterior.modes, LARGEST_WITHIN
    if modes is None:
        return status
    has_one = has_one_mode(config)
    finding, agreement = finding_on(modes, has_one_mode=has_one), f"{modes}."
    if has_one:
        agreement = (
            f"R-hat within chains is up to {modes.within.max():.2f}, between them {modes.between:.2f}; "
            f"{percent(modes.share, 0)} of the variance of predictions lies between chains."
        )
    message = chosen.in_words(agreement)
    if finding == "short":
        return replace(status, message=message)
    if finding == "disagreeing":
        said = f"R-hat between chains is above {limit}, but a linear model has one mode, so the chains are too short."
        return replace(status, ok=False, message=f"{message} {said}")
    verdict = f"R-hat within chains is at most {limit}, so each chain is long enough for the mode that it is in."
    if finding == "agreeing":
        verdict = f"R-hat is at most {limit} within and between chains, so the chains are long enough."
    return replace(status, message=f"{message} {verdict}")


def has_one_mode(config: RunConfig) -> bool:
    """Return whether the network of a run is a linear model, whose posterior has one mode."""
    return config.is_linear and not config.likelihood.startswith("mixture")


Finding: TypeAlias = Literal["unknown", "short", "disagreeing", "in modes", "agreeing"]
"""Whether chains were long enough.

- "unknown": there are too few draws to tell.
- "short": some chains have not explored their mode.
- "disagreeing": the chains differ, but the posterior has only one mode, so the chains are too short.
- "in modes": each chain has explored its mode, and the chains are in different modes.
- "agreeing": the chains were long enough.
"""


def finding_on(modes: Modes | None, *, has_one_mode: bool) -> Finding:
    """Judge whether chains were long enough. The commands `train` and `report` call this function."""
    if modes is None:
        return "unknown"
    if modes.num_unexplored:
        return "short"
    if modes.between <= LARGEST_WITHIN:
        return "agreeing"
    return "disagreeing" if has_one_mode else "in modes"


def are_short(modes: Modes | None) -> bool:
    """Return whether at least one chain is too short to explore its mode."""
    return modes is not None and modes.num_unexplored > 0


@dataclass(frozen=True)
class Drift:
    """How much the predictions change from the first halves of the chains to the second halves.

    For numbers, `mean` is the root mean square change of the mean, divided by the root mean square of the predicted
    standard deviation. For classes, it is the mean total variation distance between the two predictions.
    """

    mean: float
    widths: tuple[float, float] = (0.0, 0.0)  # relative change of the sds of numbers: median and 90 % quantile of rows
    is_class: bool = False

    @property
    def is_small(self) -> bool:
        """Whether neither the predictions nor the widths of their intervals change much."""
        is_near = self.mean <= (CLOSE_CLASSES if self.is_class else CLOSE_NUMBERS)
        return is_near and self.widths[0] <= CLOSE_WIDTHS and self.widths[1] <= MOST_WIDTHS


def drift(model: BayesianModel, posterior: MCMCPosterior, x: Tensor) -> Drift:
    """Compare the predictions at rows of `x` by the first and by the second halves of the chains."""
    num_draws = min(NUM_DRAWS // posterior.num_chains * posterior.num_chains, posterior.num_stored)
    rows = x[torch.linspace(0, len(x) - 1, min(len(x), NUM_CHECKED)).long()]
    found: Any = predict(model, posterior, rows, num_samples=num_draws, keep_draws=True, seed=0)

    def halves(draws: Tensor) -> tuple[Tensor, ...]:
        parts = draws.double().unflatten(0, (posterior.num_chains, -1)).tensor_split(2, 1)
        return tuple(part.flatten(0, 1) for part in parts)

    if isinstance(found, ClassificationPrediction):
        first, second = (half.softmax(-1).mean(0) for half in halves(cast("Tensor", found.logits)))
        return Drift(float(0.5 * (first - second).abs().sum(-1).mean()), is_class=True)
    means, noises = halves(found.components.mean), halves(found.components.variance.expand_as(found.components.mean))
    first, second = (half.mean(0) for half in means)
    change = float((first - second).square().mean().sqrt() / found.total.double().mean().sqrt())
    sds = [(noise.mean(0) + mean.var(0, correction=0)).sqrt() for noise, mean in zip(noises, means, strict=True)]
    moved = ((sds[1] / sds[0]).log().abs().expm1()).flatten()  # the larger sd divided by the smaller, minus 1
    return Drift(change, (float(moved.median()), float(moved.quantile(0.9))))


def are_slightly_short(change: Drift, modes: Modes | None) -> bool:
    """Return whether longer chains would hardly change the predictions and their intervals.

    The two halves of a very short chain agree, since both are near the start. Such a chain is not slightly short.
    """
    return modes is not None and float(modes.within.max()) <= SLIGHTLY_SHORT and change.is_small


def doubt_on(status: Status) -> str:
    """Return a clause on chains that are too short: what longer sampling would change."""
    if status.is_slight:
        return f"but {HARDLY}"
    return f"and {MAY_CHANGE if limit_in(status.remedy) else STAYS}"


def in_plain_words(posterior: MCMCPosterior) -> str:
    """Say how the fit went, without terms of statistics."""
    if posterior.statistics.has_many_diverging:
        return "many steps of the sampler failed"
    if posterior.modes is None:
        return "too few draws to check the sampler"
    doubt = doubt_on(posterior.status)
    if not posterior.status and STAYS in doubt:
        return f"chains not fully converged, {doubt}: judge the run by its scores"
    if are_short(posterior.modes):
        return f"{posterior.modes.unexplored.partition(' to explore')[0]}, {doubt}"
    return f"the sampler {'ran long enough' if posterior.status else 'would need longer to be exact'}"


def on_choice(config: RunConfig, choice: Choice) -> str:
    """Say which network was chosen if the time did not suffice to compare all networks; otherwise return ""."""
    num_slow, num_networks = choice.not_compared
    if not num_slow:
        return ""
    cut = f"{num_slow} of {num_networks} networks not compared, for lack of time"
    return f"Chosen: {network_in_words(config)} ({cut})."


def fault_of(posterior: MCMCPosterior) -> tuple[Literal["problem", "note", "good"], str]:
    """Return the level of the worst fault of chains, and a clause that names it; ("good", "") if there is none."""
    if posterior.statistics.has_many_diverging:
        return "problem", "many steps of the chains diverged"
    if posterior.status:
        return "good", ""
    if posterior.modes is not None and are_short(posterior.modes):
        # no problem, since such chains often predict well
        return "note", f"{posterior.modes.unexplored}, {doubt_on(posterior.status)}"
    return "note", "some chains are too short to explore their modes"


def _fixed(config: RunConfig, data: Dataset, given: Collection[str]) -> dict[str, Any]:
    """Return the settings that the comparison of models must not change, with their values."""
    own = Design(config.hidden, ACTIVATIONS[config.activation], make_prior(config.prior), config.likelihood)
    fixed = {name: getattr(own, name) for name in CHOSEN if name in given or (name in OF_NET and config.net != "mlp")}
    if not data.classes and has_few_values(data.y_train):
        fixed["likelihood"] = config.likelihood
    return fixed


def _choices(config: RunConfig, data: Dataset, fixed: Mapping[str, Any]) -> list[RunConfig]:
    designs = open_designs(OF_CLASSES if data.classes else OF_NUMBERS, **fixed)
    names: dict[Any, Any] = {make: name for name, make in ACTIVATIONS.items()}
    return [
        replace(
            config,
            hidden=design.hidden,
            activation=names[design.activation],
            prior=config.prior if "prior" in fixed else prior_spec(design.prior),
            likelihood=design.likelihood,
        )
        for design in designs
    ]


def network_in_words(config: RunConfig) -> str:
    """Name the network of a run, without its prior and its likelihood."""
    if config.net != "mlp":
        return config.net
    return f"{' + '.join(map(str, config.hidden))} {config.activation} units" if config.hidden else "a linear model"
