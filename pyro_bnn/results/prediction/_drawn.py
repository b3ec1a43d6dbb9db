"""The weight draws of a prediction."""

from collections.abc import Callable

import torch

from ..._core import checks as _checks
from ..._core.inputs import Inputs
from ..._core.scope import EXCLUSIVE, Stream, eval_mode, reseed, restored
from ...inference.guides import as_posterior
from ...inference.posterior import Draw, Posterior
from ...modelling.model import BayesianModel


def new_seed(seed: int | None) -> int:
    """Return the given seed, or a seed drawn from torch's generator if `seed` is None."""
    if seed is not None:
        return _checks.seed(seed)
    with EXCLUSIVE:
        return int(torch.randint(2**62, ()))


def draw_seeds(stream: Stream, num_samples: int) -> list[int]:
    """Return a seed for each weight draw of a prediction, from a stream that begins with the prediction's seed."""
    with stream:
        seeds: list[int] = torch.randint(2**62, (num_samples,)).tolist()
    return seeds


def predicted_draws(
    model: BayesianModel, posterior: Posterior | Callable[..., object], x: Inputs, *, num_samples: int, seed: int
) -> Draw:
    """Return the draws that :func:`~pyro_bnn.predict` uses for these arguments, ``{site: shape (S, *event)}``."""
    source = as_posterior(posterior)
    turns, draws = source.draws(num_samples, x), []
    for own in draw_seeds(Stream(seed, model.device), num_samples):
        with torch.no_grad(), restored(model.device), eval_mode(model):
            reseed(own, model.device)
            draws.append(next(turns))
        if len(draws) == 1:
            model.check_latents(draws[0])
            _checks.in_memory("num_draws", num_samples, sum(value.nbytes for value in draws[0].values()))
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
