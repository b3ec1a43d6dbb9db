"""Chooses a model and fits it by chains before a deadline. Measured times determine the lengths of the chains."""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice

from ..._core.extras import optional
from ..._core.scope import silent_fits
from ...inference.mcmc import ChainLengths, Ends, MCMCPosterior, NotInCError, TimedChains
from ...modelling.model import BayesianModel
from ._budget import (
    DESCENT,
    FEWEST_STEPS,
    MOST_DESCENT,
    NUM_CHAINS,
    NUM_SEARCH_CHAINS,
    WARMUP,
    Deadline,
    energy_error,
    slowdown,
)
from ._budget import MOST_STEPS as MOST_TRIAL_STEPS
from ._chosen import (
    FEWEST_COMPARED,
    FEWEST_DRAWS,
    MOST_DRAWS,
    MOST_STEPS_MADE,
    STEPS_PER_DRAW,
    Candidate,
    Chosen,
    Folds,
    Rows,
    chosen_from,
    comparison_bar,
    folds_of,
    log_density,
    not_compared,
    taken,
)
from ._unsuitable import UnsuitableError, require_suitable

MOST_STEPS = 50_000  # heuristic: most steps of a chain, separately for the warm-up and for the steps after it
SEARCH, COMPILED = 0.5, 0.6  # heuristic: shares of the time after which comparisons end, and the compiler is stopped
RESERVE = 0.03  # heuristic: share of the time for what comes after the chains, besides half the time of a preparation
LATE = 1.5  # heuristic: the descent ends at this multiple of its planned time, since another program slows it
FEWEST_CHAINS, FEWEST_TRIAL_STEPS = 2, 300  # heuristic: fewest chains, and fewest steps of a chain in a comparison
MORE = 1.3  # heuristic: the preparation of a model may take this multiple of the time that the first model took
NEEDED_SECONDS = 2.6  # heuristic: CPU seconds that C code needs to be of use; loading, recording and compiling take 2
SHORTEST_TIMEOUT = 0.1  # heuristic: seconds of the compiler if the time is over, since a known text takes none


def fit_in_time(
    candidates: Mapping[str, Candidate],
    data: Rows,
    deadline: Deadline,
    *,
    max_draws: int | None,
    progress: bool | None,
    seed: int,
) -> Chosen:
    """Choose the model that predicts held-out rows best, and fit it by chains, before a deadline."""
    begin = time.perf_counter()
    require_suitable(next(iter(candidates.values()))(len(data[0])), data[0])  # first, since time would not help
    needed, available = NEEDED_SECONDS * slowdown(), deadline.left()
    if needed > available:
        raise UnsuitableError(
            f"chains need about {needed:.0f} s to start, and {max(available, 0):.1f} s of the time limit are left, "
            f"after {deadline.used:.1f} s of imports and preparation",
            enough=deadline.longer(len(data[0])),
        )
    limit, deadline = deadline.seconds, deadline.rest()
    with suppress(ImportError):
        optional("arviz", "ArviZ", "mcmc")  # loaded first, so that the plan counts the time that this takes
    most_steps = MOST_STEPS if max_draws is None else STEPS_PER_DRAW * max_draws
    name, model, chains = _first(candidates, data, deadline, seed)
    lengths = _lengths(chains, _time_left(chains, deadline), NUM_CHAINS, most_steps)
    if _num_steps(lengths) < (fewest := min(FEWEST_STEPS, 2 * most_steps)):
        raise UnsuitableError(
            f"{len(data[0])} rows leave time for only {_num_steps(lengths)} steps of each of {lengths.num_chains} "
            f"chains in {limit:g} s, but at least {fewest} are needed",
            enough=deadline.longer(len(data[0]), fewest / _num_steps(lengths)),
        )
    has_few = len(data[0]) < FEWEST_COMPARED
    folds = folds_of(data[0], seed) if len(candidates) > 1 and not has_few else []
    num_models, num_folds = _affordable(chains, len(candidates), len(folds), deadline)
    compared = dict(islice(candidates.items(), num_models))
    scores, num_not_in_c = _compared(compared, data, folds[:num_folds], chains, deadline, seed, progress)
    if len(scores) < 2:
        scores = {}
    cuts = not_compared(0, 0, len(candidates) - 1) if has_few else []
    if folds and len(scores) < len(candidates):
        num_others = len(candidates) - max(len(scores), 1)
        cuts += not_compared(num_others - num_not_in_c, num_not_in_c)
    if scores and num_folds < len(folds):
        cuts.append(f"one part in {len(folds)} of the rows held out, for lack of time")
    if scores and (best := max(scores, key=scores.__getitem__)) != name:
        name, model = best, candidates[best](len(data[0]))
        chains = _prepared(model, data, deadline.left(), seed)
    seconds = _time_left(chains, deadline)
    lengths = _lengths(chains, seconds, NUM_CHAINS, most_steps)
    if lengths.num_chains < NUM_CHAINS:
        cuts.append(f"{lengths.num_chains} chains in place of {NUM_CHAINS}, for lack of time")
    posterior = _run(chains, lengths, seconds, progress=progress)
    num_draws = posterior.num_stored // posterior.num_chains
    made = {"warm-up": (chains.num_warmup, lengths.num_warmup), "sampling": (num_draws, lengths.num_samples)}
    cuts += [
        f"{part} cut short by the time limit, after {done} of {planned} draws"
        for part, (done, planned) in made.items()
        if done < planned
    ]
    num_steps = lengths.steps_per_draw * (chains.num_warmup + num_draws)
    is_longest = max_draws is None and num_steps >= 2 * MOST_STEPS
    if is_longest:
        cuts.append(f"chains of {num_steps:,} steps, {MOST_STEPS_MADE}")
    return chosen_from(
        scores,
        name,
        model,
        posterior,
        cuts=cuts,
        num_steps=num_steps,
        seconds=time.perf_counter() - begin,
        is_longest=is_longest,
    )


def _first(
    candidates: Mapping[str, Candidate], data: Rows, deadline: Deadline, seed: int
) -> tuple[str, BayesianModel, TimedChains]:
    """Return the first model that chains can fit: its name, the model, and prepared chains."""
    reason = UnsuitableError("there is no model")
    for name, make in candidates.items():
        model = make(len(data[0]))
        try:
            return name, model, _prepared(model, data, deadline.left(COMPILED), seed)
        except UnsuitableError as error:
            reason = error
        if deadline.left(COMPILED) < 0:
            # the compiler was stopped, or other models were not tried
            raise UnsuitableError(str(reason), enough=deadline.longer(len(data[0]))) from reason
    raise reason


def _prepared(model: BayesianModel, data: Rows, timeout: float, seed: int) -> TimedChains:
    require_suitable(model, data[0])
    try:
        return TimedChains(model, data, timeout=max(timeout, SHORTEST_TIMEOUT), seed=seed)
    except NotInCError as error:
        raise UnsuitableError.of(error) from error


def _time_left(chains: TimedChains, deadline: Deadline) -> float:
    """Return how many seconds the chains may take, so that enough time remains to judge and store them."""
    return deadline.left(1 - RESERVE) - chains.seconds / 2


def _lengths(chains: TimedChains, seconds: float, num_chains: int, most_steps: int) -> ChainLengths:
    """Return the lengths of chains that together take `seconds`. If time is short, there are fewer chains."""
    while True:
        descent = min(int(DESCENT * seconds / (num_chains * chains.seconds_of_descent)), MOST_DESCENT)
        left = seconds / num_chains - descent * chains.seconds_of_descent
        steps = left / chains.seconds_of_step
        warmup, samples = (min(part * steps, most_steps) for part in (WARMUP, 1 - WARMUP))
        if num_chains <= FEWEST_CHAINS or warmup + samples >= min(FEWEST_STEPS, 2 * most_steps):
            break
        num_chains = max(num_chains // 2, FEWEST_CHAINS)
    per_draw = max(STEPS_PER_DRAW, int(samples) // MOST_DRAWS)
    draws = [max(round(part / per_draw), 1) for part in (warmup, samples)]
    error = energy_error(is_longest=warmup + samples >= 2 * MOST_STEPS)
    return ChainLengths(num_chains, max(descent, 1), draws[0], max(draws[1], FEWEST_DRAWS), per_draw, error)


def _num_steps(lengths: ChainLengths) -> int:
    return lengths.steps_per_draw * (lengths.num_warmup + lengths.num_samples)


def _run(
    chains: TimedChains, lengths: ChainLengths, seconds: float, *, is_judged: bool = True, progress: bool | None = False
) -> MCMCPosterior:
    now = time.perf_counter()
    begin, warmup = LATE * DESCENT * seconds, (DESCENT + (1 - DESCENT) * WARMUP) * seconds
    ends = Ends(now + begin, now + (warmup + seconds) / 2, now + seconds)
    with silent_fits():
        return chains.explore(lengths, ends, is_judged=is_judged, progress=progress)


def _affordable(chains: TimedChains, num_models: int, num_folds: int, deadline: Deadline) -> tuple[int, int]:
    """Return how many models can be compared in time, and on how many folds; (0, 0) if not even two can."""
    trial = _trial_seconds(chains)
    for models in range(num_models, 1, -1):
        for folds in sorted({num_folds, 1} - {0}, reverse=True) if num_folds else []:
            compiled = MORE * chains.compile_seconds * (models - 1)
            if compiled + models * folds * (MORE * chains.seconds + trial) < deadline.left(SEARCH):
                return models, folds
    return 0, 0


def _trial_seconds(chains: TimedChains) -> float:
    """Return how many seconds a comparison needs for the shortest chains of one model on one fold."""
    steps = FEWEST_TRIAL_STEPS * chains.seconds_of_step
    return NUM_SEARCH_CHAINS * steps / (1 - DESCENT)


def _compared(
    candidates: Mapping[str, Candidate],
    data: Rows,
    folds: Folds,
    first: TimedChains,
    deadline: Deadline,
    seed: int,
    progress: bool | None,
) -> tuple[dict[str, float], int]:
    """Return each model's mean log-density of held-out rows, and the number of models that chains in C cannot fit."""
    scores: dict[str, float] = {}
    num_not_in_c = 0
    num_fits = len(candidates) * len(folds)
    fixed = MORE * (first.seconds * num_fits + first.compile_seconds * (len(candidates) - 1))
    seconds = max((deadline.left(SEARCH) - fixed) / max(num_fits, 1), _trial_seconds(first))
    with comparison_bar(len(candidates), num_fits, shown=progress and num_fits > 0) as bar:
        for name, make in candidates.items():
            total, count = 0.0, 0
            try:
                for fitted, held_out in folds:
                    model = make(len(fitted))
                    chains = _prepared(model, taken(data, fitted), deadline.left(SEARCH) - seconds, seed)
                    if deadline.left(SEARCH) < 0:
                        return scores, num_not_in_c
                    lengths = _lengths(chains, seconds, NUM_SEARCH_CHAINS, MOST_TRIAL_STEPS)
                    posterior = _run(chains, lengths, seconds, is_judged=False)
                    total += log_density(model, posterior, taken(data, held_out), seed)
                    count += len(held_out)
                    bar.update()
                scores[name] = total / count if math.isfinite(total) else -math.inf
            except UnsuitableError:  # the compiler may also have run out of time
                num_not_in_c += deadline.left(SEARCH) > seconds
    return scores, num_not_in_c
