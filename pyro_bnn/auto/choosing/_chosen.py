"""Held-out rows, scores and the result of a choice between models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from tqdm import tqdm

from ..._core.progress import progress_bar
from ..._core.summary import counted
from ...inference.mcmc import MCMCPosterior, in_short
from ...inference.posterior import Status
from ...modelling.model import BayesianModel
from ...results.prediction import predict

STEPS_PER_DRAW = 10  # steps from one draw to the next, as in Sommer et al. (2025), https://arxiv.org/abs/2502.06335
FEWEST_DRAWS = 8  # smallest number of draws of a chain, which its diagnostics need
MOST_DRAWS = 1000  # heuristic: longer chains make more steps from one draw to the next
FEWEST_COMPARED = 8  # heuristic: fewer rows cannot tell which model is the best
FEW_ROWS, NUM_FOLDS = 1000, 3  # heuristic: fewer rows are divided into folds, each of which is held out once
HELD_OUT, MOST_HELD_OUT = 0.2, 2000  # heuristic: of more rows, this share is held out, at most this number
MOST_COMPARED = 4000  # heuristic: most rows that are fitted in a comparison

UNKNOWN = "There are too few draws, or there is no ArviZ, to tell whether the chains have explored their modes."

MORE_TIME = "Judge such chains by scores on test rows; with more time (`time_limit=`) they explore further."
LONGEST = "Judge such chains by scores on test rows; longer chains need `fit_mcmc` with a larger `num_warmup`."
MOST_STEPS_MADE = "the most that a fit makes"  # a part of the sentence on the choice
SMOOTHER = "Many steps diverged: standardise the inputs, or use tighter priors."

Rows = tuple[Tensor, Tensor]
Folds = list[tuple[Tensor, Tensor]]
"""For each fold, the indices of the rows to fit and of the held-out rows."""

Candidate = Callable[[int], BayesianModel]
"""Makes a model for a given number of rows, with the same initial weights at each call."""


@dataclass(frozen=True)
class Chosen:
    """The best of several models, fitted."""

    name: str
    model: BayesianModel
    posterior: MCMCPosterior  # its status says what was compared and chosen
    scores: Mapping[str, float]  # mean log-density of the held-out rows in nats, by name; empty for only one model
    choice: str  # what was compared, chosen and left out, in a sentence
    chains: str  # number and length of the chains, in a sentence
    steps: str  # number of steps and whole time, in a sentence

    def in_words(self, agreement: str) -> str:
        """Describe the choice and the chains. `agreement` is a sentence on whether the chains explored their modes."""
        return f"{self.choice} {self.chains} {agreement} {self.steps}"


def log_density(model: BayesianModel, posterior: MCMCPosterior, rows: Rows, seed: int) -> float:
    """Return the summed log-density of the rows' targets, predicted with all draws."""
    x, y = rows
    found = predict(model, posterior, x, y=y, num_samples=posterior.num_stored, seed=seed).log_density
    assert found is not None
    return float(found.double().sum())


def folds_of(x: Tensor, seed: int) -> Folds:
    """Return, for each fold, the indices of the rows to fit and of the held-out rows."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    if len(x) < FEW_ROWS:
        size = len(x) // NUM_FOLDS
        parts = order[: NUM_FOLDS * size].split(size)  # equal sizes, so that each model is compiled once
        pairs = [(torch.cat([*parts[:k], *parts[k + 1 :]]), parts[k]) for k in range(NUM_FOLDS)]
    else:
        held_out = min(round(HELD_OUT * len(x)), MOST_HELD_OUT)
        pairs = [(order[held_out : held_out + MOST_COMPARED], order[:held_out])]
    return [(fitted, _new(x, fitted, held_out)) for fitted, held_out in pairs]


def comparison_bar(num_networks: int, num_fits: int, *, shown: bool | None) -> tqdm:
    """Return a progress bar such as ``comparing 5 networks: fit 4/15``."""
    return progress_bar(f"comparing {counted(num_networks, 'network')}: fit", num_fits, shown=shown)


def _new(x: Tensor, fitted: Tensor, held_out: Tensor) -> Tensor:
    """Return the held-out rows whose inputs occur in no fitted row, or all held-out rows if there are none.

    A model may remember the targets of fitted rows, so copies of these rows would not test it.
    """
    known = {tuple(row) for row in x[fitted].flatten(1).tolist()}
    is_new = torch.tensor([tuple(row) not in known for row in x[held_out].flatten(1).tolist()])
    return held_out[is_new] if bool(is_new.any()) else held_out


def chosen_from(
    scores: Mapping[str, float],
    name: str,
    model: BayesianModel,
    posterior: MCMCPosterior,
    *,
    cuts: Sequence[str],
    num_steps: int,
    seconds: float,
    is_longest: bool = False,
) -> Chosen:
    """Return the chosen model, and give its posterior a status.

    Each text in `cuts` says what was left out or cut short. `is_longest` says whether the chains are so long that more
    time would not make them longer.
    """
    others = sorted((score for other, score in scores.items() if other != name), reverse=True)
    if others:
        ahead = f"log-density {scores[name] - others[0]:.3f} nats per held-out row above the next"
        chosen = f"Chosen: {name} (best of {len(scores)} networks, {ahead})"
    else:
        chosen = f"{name[0].upper()}{name[1:]}"
    without_time = replace(posterior.statistics, seconds=None)  # one time is enough, that of the whole choice
    result = Chosen(
        name,
        model,
        posterior,
        scores,
        choice=f"{'; '.join([chosen, *cuts])}.",
        chains=f"{in_short(posterior.chains, without_time, posterior.sampler)}.",
        steps=f"{num_steps} steps of each chain in C, with warm-up, {seconds:.0f} s in all.",
    )
    ok = posterior.status.ok
    too_short = LONGEST if is_longest else MORE_TIME
    remedy = "" if ok else SMOOTHER if posterior.statistics.has_many_diverging else too_short
    agreement = UNKNOWN if posterior.modes is None else _sentence(posterior.modes.in_brief)
    verdict = UNKNOWN if posterior.modes is None else posterior.modes.fault or "The chains are not reliable."
    posterior.statistics = replace(posterior.statistics, seconds=seconds)
    posterior.seconds = seconds
    chains = in_short(posterior.chains, posterior.statistics, posterior.sampler)
    message = f"{agreement} {result.choice} {chains}."
    posterior.status = Status(ok, message, remedy=remedy, verdict="" if ok else verdict)
    return result


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."


def not_compared(num_slow: int, num_not_in_c: int, num_without_rows: int = 0) -> list[str]:
    """Say how many networks were not compared, and why."""
    reasons = {
        "time (a larger time limit would allow it)": num_slow,
        "C code": num_not_in_c,
        "rows": num_without_rows,
    }
    return [f"{counted(count, 'network')} not compared, for lack of {what}" for what, count in reasons.items() if count]


def taken(data: Rows, rows: Tensor) -> Rows:
    return data[0][rows], data[1][rows]
