"""The function that chooses a model and fits it with chains.

Each model is first fitted to a part of the rows in a short run. The chosen model is the one that predicts the other,
held-out rows best. This model is then fitted to all rows.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..._core.progress import progress_bar
from ..._core.scope import silent_fits
from ..._core.summary import counted
from ...inference.mcmc import MCLMC, Descent, MCMCPosterior, NotInCError, fit_mcmc
from ...inference.posterior import Status
from ...modelling.model import BayesianModel
from ...results.prediction import predict
from ._budget import (
    FEWEST_STEPS,
    MOST_STEPS,
    MOST_STEPS_IN_TIME,
    NUM_CHAINS,
    NUM_SEARCH_CHAINS,
    SEARCH,
    Budget,
    Lengths,
)
from ._unsuitable import UnsuitableError, num_products, require_suitable

STEPS_PER_DRAW = 10
"""Number of steps from one draw to the next, as in Sommer et al. (2025), https://arxiv.org/abs/2502.06335."""

MOST_DRAWS = 1000
"""Heuristic: largest number of draws of a chain. Longer chains make more steps from one draw to the next."""

FEW_ROWS, NUM_FOLDS = 1000, 3
"""Heuristic: fewer than `FEW_ROWS` rows are divided into `NUM_FOLDS` folds, each of which is held out once."""

HELD_OUT, MOST_HELD_OUT, MOST_COMPARED = 0.2, 2000, 4000
"""With `FEW_ROWS` rows or more, a comparison holds out the share `HELD_OUT` of the rows, at most `MOST_HELD_OUT`. It
fits at most `MOST_COMPARED` of the other rows."""

MOST_DIVERGING = 0.01
"""Heuristic: the status is not ok if a larger share of the draws than this has a divergent step."""

FEW_TIMED, MOST_TIMED = 8, 2048
"""Heuristic: number of draws in the shortest and in the longest timed run. The shortest run consists mostly of
preparation."""

MORE_TIME = "With more time (`time_limit=`), each chain explores its mode further."

Rows = tuple[Tensor, Tensor]
Candidate = Callable[[int], BayesianModel]
"""Function that makes the model for a number of rows, always with the same weights."""


@dataclass(frozen=True)
class Chosen:
    """The best of several models, and its fit."""

    name: str
    model: BayesianModel
    posterior: MCMCPosterior  # its status says what was compared and chosen
    scores: Mapping[str, float]  # mean log-density of the held-out rows in nats, by name; empty for only one model


def fit_best(
    candidates: Mapping[str, Candidate],
    data: Rows,
    *,
    seconds: float | None = None,
    num_chains: int = NUM_CHAINS,
    max_draws: int | None = None,
    saves_search: bool = False,
    progress: bool = False,
    seed: int,
) -> Chosen:
    """Choose the model that predicts held-out rows best, and fit it with chains (:class:`~pyro_bnn.MCLMC`).

    Each chain starts at a trained network. The names of `candidates` describe the models in words. `seconds` limits the
    wall time on torch's threads, so the lengths of the chains depend on the machine. Without a limit, the lengths
    depend only on the numbers of rows and weights. Each chain has at most `max_draws` draws, but not fewer than 8. The
    warm-up of a chain also has at most `max_draws` draws. If `saves_search` is true, a single model gets only the time
    that would remain after a comparison of models.

    An :class:`UnsuitableError` is raised if chains cannot fit any of the models, for example because C code does not
    support them, or if the time is too short.
    """
    begin = time.perf_counter()
    num_rows = len(data[0])
    budget = Budget.of_rows(num_rows, MOST_STEPS if seconds is None else MOST_STEPS_IN_TIME)
    if max_draws is not None:
        budget = replace(budget, most_steps=STEPS_PER_DRAW * max_draws)
    if seconds is not None:
        threads = min(torch.get_num_threads(), num_chains)
        slowness = _slowness(next(iter(candidates.values())), data, seed)
        budget = replace(budget, seconds=threads * seconds, slowness=slowness)
    is_open = len(candidates) > 1 and num_rows >= NUM_FOLDS
    share = 1 - SEARCH if is_open or saves_search else 1.0
    models = {name: make(num_rows) for name, make in candidates.items()}
    sizes = {name: num_products(model, data[0]) for name, model in models.items()}
    lengths = {name: budget.lengths(share, num_rows, size, num_chains) for name, size in sizes.items()}
    suited = [name for name in models if max_draws is not None or lengths[name].num_steps >= FEWEST_STEPS]
    if not suited:
        name = max(lengths, key=lambda name: lengths[name].num_steps)
        raise UnsuitableError(
            f"{num_rows} rows of {sizes[name]} multiplications each leave time for only {lengths[name].num_steps} "
            f"steps of each chain, but at least {FEWEST_STEPS} are needed"
        )
    is_open = is_open and len(suited) > 1
    end = math.inf if seconds is None else begin + SEARCH * seconds
    few = {name: candidates[name] for name in suited}
    scores = _compared(few, sizes, data, budget, end, seed, progress) if is_open else {}
    name = max(scores or suited, key=lambda name: scores.get(name, 0.0))
    model = models[name]
    length = lengths[name]
    if seconds is not None and scores:  # the comparison may have taken longer than planned
        left = 1 - (time.perf_counter() - begin) / seconds
        share = min(share, max(left, share * min(FEWEST_STEPS / length.num_steps, 1.0)))
        length = budget.lengths(share, num_rows, sizes[name], num_chains)
    posterior = _run(model, data, length, seed, progress=progress)
    skipped = len(candidates) - (len(scores) or len(suited))
    posterior.status = _status(posterior, name, scores, skipped, length, time.perf_counter() - begin)
    return Chosen(name, model, posterior, scores)


def _compared(
    candidates: Mapping[str, Candidate],
    sizes: Mapping[str, int],
    data: Rows,
    budget: Budget,
    end: float,
    seed: int,
    progress: bool,
) -> dict[str, float]:
    """Return the mean log-density of held-out rows under each model.

    After the time `end` of the clock `time.perf_counter`, the remaining models are not compared.
    """
    folds, reason = _folds(data[0], seed), UnsuitableError("there is no model")
    scores: dict[str, float] = {}
    with progress_bar("trial fit", len(candidates) * len(folds), shown=progress) as bar:
        for name, make in candidates.items():
            if scores and time.perf_counter() > end:
                break
            try:
                share = SEARCH / len(candidates)
                scores[name] = _held_out_score(make, sizes[name], data, folds, budget, share, seed, bar.update)
            except UnsuitableError as error:
                reason = error
    if not scores:
        raise reason
    return scores


def _held_out_score(
    make: Candidate,
    size: int,
    data: Rows,
    folds: Sequence[tuple[Tensor, Tensor]],
    budget: Budget,
    share: float,
    seed: int,
    after_fit: Callable[[], object],
) -> float:
    total, count = 0.0, 0
    for fitted, held_out in folds:
        model = make(len(fitted))
        lengths = budget.lengths(share / len(folds), len(fitted), size, NUM_SEARCH_CHAINS)
        posterior = _run(model, _taken(data, fitted), lengths, seed)
        x, y = _taken(data, held_out)
        found = predict(model, posterior, x, y=y, num_samples=posterior.num_stored, seed=seed).log_density
        assert found is not None
        total, count = total + float(found.double().sum()), count + len(held_out)
        after_fit()
    return total / count if math.isfinite(total) else -math.inf


def _folds(x: Tensor, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return the numbers of the rows that each trial fits, and of the held-out rows that it predicts.

    Held-out rows with the same inputs as a fitted row are left out, since a model can remember fitted rows.
    """
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    if len(x) < FEW_ROWS:
        size = len(x) // NUM_FOLDS
        parts = order[: NUM_FOLDS * size].split(size)  # equal sizes, so that each model is compiled once
        pairs = [(torch.cat([*parts[:k], *parts[k + 1 :]]), parts[k]) for k in range(NUM_FOLDS)]
    else:
        held_out = min(round(HELD_OUT * len(x)), MOST_HELD_OUT)
        pairs = [(order[held_out : held_out + MOST_COMPARED], order[:held_out])]
    return [(fitted, _new(x, fitted, held_out)) for fitted, held_out in pairs]


def _new(x: Tensor, fitted: Tensor, held_out: Tensor) -> Tensor:
    """Return the held-out rows whose inputs are not those of a fitted row; all held-out rows if there are none."""
    known = {tuple(row) for row in x[fitted].flatten(1).tolist()}
    is_new = torch.tensor([tuple(row) not in known for row in x[held_out].flatten(1).tolist()])
    return held_out[is_new] if bool(is_new.any()) else held_out


def _run(model: BayesianModel, data: Rows, lengths: Lengths, seed: int, *, progress: bool = False) -> MCMCPosterior:
    require_suitable(model, data[0])
    steps_per_draw = max(STEPS_PER_DRAW, lengths.num_samples // MOST_DRAWS)
    with silent_fits():
        try:
            return fit_mcmc(
                model,
                data,
                sampler=MCLMC(steps_per_draw=steps_per_draw),
                init=Descent(num_steps=lengths.num_descent),
                num_chains=lengths.num_chains,
                num_warmup=-(-lengths.num_warmup // steps_per_draw),
                num_samples=max(-(-lengths.num_samples // steps_per_draw), 8),
                dtype=torch.float32,
                compile=True,
                progress=progress,
                seed=seed,
            )
        except NotInCError as error:
            raise UnsuitableError(error.reason) from error


def _status(
    posterior: MCMCPosterior, name: str, scores: Mapping[str, float], skipped: int, lengths: Lengths, seconds: float
) -> Status:
    """Return a status that says what was compared, chosen and run, and whether more time would help."""
    others = sorted((score for other, score in scores.items() if other != name), reverse=True)
    if others:
        ranks = f"{'the other' if len(others) == 1 else 'others'} had {', '.join(f'{score:.3f}' for score in others)}"
        chosen = f"Chosen: {name} (mean log-density of held-out rows {scores[name]:.3f} nats; {ranks})"
    else:
        chosen = f"{name[0].upper()}{name[1:]}"
    if skipped:
        chosen += f"; {counted(skipped, 'network')} not compared, for lack of time or of C code"
    found = posterior.status.message.partition(". ")[0].rstrip(".")  # leaves out the remedies of `fit_mcmc`
    said = [chosen, *found.split("; ", 1), f"{lengths.num_steps} steps of each chain in C, {seconds:.0f} s in all"]
    diverging = posterior.statistics.diverging
    is_fine = diverging is None or float(diverging.double().mean()) <= MOST_DIVERGING
    is_explored = bool(posterior.status) or lengths.num_steps >= MOST_STEPS
    return Status(is_fine, " ".join(f"{sentence}." for sentence in said), remedy="" if is_explored else MORE_TIME)


def _slowness(make: Candidate, data: Rows, seed: int) -> float:
    """Return the CPU time of a gradient, measured by runs of different lengths, as a multiple of its nominal time."""
    model = make(len(data[0]))

    def seconds(num_draws: int) -> float:
        lengths = Lengths(torch.get_num_threads(), 1, STEPS_PER_DRAW, num_draws * STEPS_PER_DRAW)
        found = _run(model, data, lengths, seed).seconds
        assert found is not None
        return found

    seconds(FEW_TIMED)  # compiles
    before, many = seconds(FEW_TIMED), FEW_TIMED
    added = 0.0
    while added < before and many < MOST_TIMED:
        many *= 4
        added = max(min(seconds(many), seconds(many)) - before, 0.1 * before)  # another program may slow one of them
    num_gradients = 2 * STEPS_PER_DRAW * (many - FEW_TIMED)
    return added / num_gradients / Budget(1.0).gradient(len(data[0]), num_products(model, data[0]))


def _taken(data: Rows, rows: Tensor) -> Rows:
    return data[0][rows], data[1][rows]
