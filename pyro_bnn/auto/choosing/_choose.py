"""Chooses the model that predicts held-out rows best in a short run, and fits it to all rows by chains."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import torch

from ..._core.scope import silent_fits
from ...inference.mcmc import MCLMC, Descent, MCMCPosterior, NotInCError, fit_mcmc
from ...modelling.model import BayesianModel
from ._budget import FEWEST_STEPS, NUM_CHAINS, NUM_SEARCH_CHAINS, SEARCH, Budget, Deadline, Lengths
from ._chosen import (
    FEWEST_COMPARED,
    FEWEST_DRAWS,
    MOST_DRAWS,
    STEPS_PER_DRAW,
    Candidate,
    Chosen,
    Rows,
    chosen_from,
    comparison_bar,
    folds_of,
    log_density,
    not_compared,
    taken,
)
from ._in_time import fit_in_time
from ._unsuitable import UnsuitableError, num_products, require_suitable


def fit_best(
    candidates: Mapping[str, Candidate],
    data: Rows,
    *,
    deadline: Deadline | None = None,
    max_draws: int | None = None,
    saves_search: bool = False,
    progress: bool | None = False,
    seed: int,
) -> Chosen:
    """Choose the model that predicts held-out rows best, and fit it by chains.

    Without a deadline, the result does not depend on the machine. A chain has from 8 to `max_draws` draws. If there is
    only one candidate, its chains also use the time that a comparison would take, unless `saves_search` is true.
    """
    if deadline is not None:
        return fit_in_time(candidates, data, deadline, max_draws=max_draws, progress=progress, seed=seed)
    begin = time.perf_counter()
    num_rows = len(data[0])
    budget = Budget.of_rows(num_rows)
    if max_draws is not None:
        budget = replace(budget, most_steps=STEPS_PER_DRAW * max_draws)
    is_open = len(candidates) > 1 and num_rows >= FEWEST_COMPARED
    share = 1 - SEARCH if is_open or saves_search else 1.0
    models = {name: make(num_rows) for name, make in candidates.items()}
    sizes = {name: num_products(model, data[0]) for name, model in models.items()}
    lengths = {name: budget.lengths(share, num_rows, size, NUM_CHAINS) for name, size in sizes.items()}
    suited = [name for name in models if max_draws is not None or lengths[name].num_steps >= FEWEST_STEPS]
    if not suited:
        name = max(lengths, key=lambda name: lengths[name].num_steps)
        raise UnsuitableError(
            f"{num_rows} rows of {sizes[name]} multiplications each leave time for only {lengths[name].num_steps} "
            f"steps of each chain, but at least {FEWEST_STEPS} are needed",
            lacks_time=True,
        )
    is_open = is_open and len(suited) > 1
    few = {name: candidates[name] for name in suited}
    scores = _compared(few, sizes, data, budget, seed, progress) if is_open else {}
    name = max(scores or suited, key=lambda name: scores.get(name, 0.0))
    model = models[name]
    length = lengths[name]
    posterior = _run(model, data, length, seed, progress=progress)
    num_slow, num_compared = len(candidates) - len(suited), len(scores) or len(suited)
    num_without_rows = len(suited) - 1 if num_rows < FEWEST_COMPARED else 0
    cuts = not_compared(num_slow, len(suited) - num_compared, num_without_rows)
    seconds = time.perf_counter() - begin
    return chosen_from(scores, name, model, posterior, cuts=cuts, num_steps=length.num_steps, seconds=seconds)


def _compared(
    candidates: Mapping[str, Candidate],
    sizes: Mapping[str, int],
    data: Rows,
    budget: Budget,
    seed: int,
    progress: bool | None,
) -> dict[str, float]:
    folds, reason = folds_of(data[0], seed), UnsuitableError("there is no model")
    scores: dict[str, float] = {}
    with comparison_bar(len(candidates), len(candidates) * len(folds), shown=progress) as bar:
        for name, make in candidates.items():
            total, count, share = 0.0, 0, SEARCH / len(candidates) / len(folds)
            try:
                for fitted, held_out in folds:
                    model = make(len(fitted))
                    lengths = budget.lengths(share, len(fitted), sizes[name], NUM_SEARCH_CHAINS)
                    posterior = _run(model, taken(data, fitted), lengths, seed)
                    total += log_density(model, posterior, taken(data, held_out), seed)
                    count += len(held_out)
                    bar.update()
                scores[name] = total / count if math.isfinite(total) else -math.inf
            except UnsuitableError as error:
                reason = error
    if not scores:
        raise reason
    return scores


def _run(
    model: BayesianModel, data: Rows, lengths: Lengths, seed: int, *, progress: bool | None = False
) -> MCMCPosterior:
    require_suitable(model, data[0])
    steps_per_draw = max(STEPS_PER_DRAW, lengths.num_samples // MOST_DRAWS)
    with silent_fits():
        try:
            return fit_mcmc(
                model,
                data,
                sampler=MCLMC(steps_per_draw, lengths.energy_error),
                init=Descent(num_steps=lengths.num_descent),
                num_chains=lengths.num_chains,
                num_warmup=-(-lengths.num_warmup // steps_per_draw),
                num_samples=max(-(-lengths.num_samples // steps_per_draw), FEWEST_DRAWS),
                dtype=torch.float32,
                compile=True,
                progress=progress,
                seed=seed,
            )
        except NotInCError as error:
            raise UnsuitableError.of(error) from error
