"""From diagnostics to a status."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..._core.inputs import Inputs, as_inputs, leaves, num_rows, take
from ..._core.scope import warn_of_fit
from ...modelling.model import BayesianModel
from ..posterior import Status
from ._diagnostics import FEWEST_DRAWS, ConvergenceWarning, count, diagnose, predicted
from ._modes import modes
from ._statistics import ChainStatistics

NUM_PREDICTION_CHECKS = 50
"""Number of inputs at which the chains' predictions are compared; heuristic."""

MAX_QUANTITIES = 400
"""ArviZ takes about a millisecond for each, and should not take longer than the sampling; heuristic."""

MAX_QUANTITIES_OF_MODES = 50
"""The same for quantities that are looked at in each chain by itself."""


def judge(
    samples: Mapping[str, Tensor],
    statistics: ChainStatistics,
    sampler: str,
    model: BayesianModel | None,
    x: Inputs | None,
    *,
    stacklevel: int,
    at_modes: bool = False,
) -> Status:
    """Status that says what the diagnostics found. Problems are also warned of.

    Args:
        samples: The chains, ``{site: shape (K, S, *event)}``.
        statistics: What the sampler reported.
        sampler: Name of the algorithm.
        model: The model, if its predictions are to be judged rather than its latent variables.
        x: Inputs of the model, shape (N, ...); some of them are used.
        stacklevel: Level of the caller to whom the warning points, counted as by `warnings.warn` in the caller of
            this function.
        at_modes: Whether each chain began at a mode of its own. Then each is judged by itself, and not by whether it
            agrees with the others.

    Warns:
        ConvergenceWarning: If there are problems.
    """
    num_draws = next(iter(samples.values())).shape[1]
    done = _what_was_done(samples, statistics, sampler)
    if x is not None and model is not None:
        x = as_inputs("x", x, model.like)
        rows = num_rows(x)
        chosen = torch.linspace(0, rows - 1, min(rows, NUM_PREDICTION_CHECKS)).long()
        x = take(x, chosen.to(leaves(x)[0].device))
    try:
        if at_modes and model is not None and x is not None and num_draws >= 2 * FEWEST_DRAWS:
            found = modes(predicted(model, samples, x, MAX_QUANTITIES_OF_MODES))
            return _judged(f"{done}; {found}", found.problems, stacklevel=stacklevel + 1)
        report = diagnose(samples, statistics, model, x, max_quantities=MAX_QUANTITIES)
    except ImportError as error:
        is_fine = statistics.diverging is None or not bool(statistics.diverging.any())
        return Status(is_fine, f"{done}; R-hat and effective sample sizes were not computed: {error}")
    what, judged = report.judged
    return _judged(f"{done}; {what}: {judged}", report.problems, stacklevel=stacklevel + 1)


def _judged(finding: str, problems: Sequence[str], *, stacklevel: int) -> Status:
    message = " ".join([f"{finding}.", *map(_sentence, problems)])
    if problems:
        warn_of_fit(message, ConvergenceWarning, stacklevel=stacklevel + 1)
    return Status(not problems, message)


def _what_was_done(samples: Mapping[str, Tensor], statistics: ChainStatistics, sampler: str) -> str:
    num_chains, num_draws = next(iter(samples.values())).shape[:2]
    chains = f"{num_chains} chain{'s' if num_chains > 1 else ''}"
    seconds = "" if statistics.seconds is None else f" in {statistics.seconds:.0f} s"
    num_divergences = count(statistics.diverging)
    divergences = "divergences not reported" if num_divergences is None else f"{num_divergences} divergences"
    return f"{sampler}: {chains} of {num_draws} draws{seconds}, {divergences}"


def _sentence(problem: str) -> str:
    return problem[0].upper() + problem[1:]
