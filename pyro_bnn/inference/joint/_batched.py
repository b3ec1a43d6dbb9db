"""Runs a model for many draws of its latent variables at once, without Pyro's effect handlers."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..._core import checks as _checks
from ..._core.functional import batched
from ..._core.inputs import Inputs, as_inputs, named_leaves, take
from ..._core.scope import EXCLUSIVE, Stream, eval_mode
from ...modelling.model import BayesianModel

DRAWS_AT_ONCE = 256
"""Heuristic: number of draws in a batch, for efficient products and little memory."""


def batched_observation(
    model: BayesianModel, example: Mapping[str, Tensor], x: Inputs
) -> Callable[[Mapping[str, Tensor], Inputs], Distribution]:
    """A function of K draws, ``{site: shape (K, *event)}``, and x: the distribution of the targets, (K, N, ...).

    `example` is two draws. The model must already be in the mode, device and dtype of later runs.
    """
    paths = {path: name for name, paths in model.parameter_paths.items() for path in paths}

    def weights(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {path: values[name] for path, name in paths.items()}

    network = batched(model.network, weights(example), x)
    return lambda values, x: model.observe(network(weights(values), x), values)


def draw_batches(
    model: BayesianModel, samples: Mapping[str, Tensor], x: Inputs, *, stream: Stream | None = None
) -> Iterator[Distribution]:
    """The distributions of the targets at x for stored draws, ``{site: shape (K, S, *event)}``, several at a time.

    `stream` has the generators for random numbers inside the network; None uses torch's generators.

    Yields:
        Distributions of batch shape ``(number of draws, N, ...)``, chain after chain.

    Raises:
        ValueError: If the draws or x do not fit the model.
    """
    flat = {name: value.flatten(0, 1).to(model.device, model.dtype) for name, value in samples.items()}
    num_draws = len(next(iter(flat.values())))
    x = as_inputs("x", x, model.like)
    unit = EXCLUSIVE if stream is None else stream
    with torch.no_grad(), unit, eval_mode(model):
        first = {name: value[0] for name, value in flat.items()}
        model.check_latents(first)
        for name, leaf in named_leaves("x", x):
            _checks.finite(name, leaf)
        model.observation_given(first, take(x, slice(1)))  # raises if x does not fit
        pairs = {name: torch.cat([value[:1], value[-1:]]) for name, value in flat.items()}
        observation_of = batched_observation(model, pairs, x)
    for start in range(0, num_draws, DRAWS_AT_ONCE):
        part = {name: value[start : start + DRAWS_AT_ONCE] for name, value in flat.items()}
        with torch.no_grad(), unit, eval_mode(model):
            observation = observation_of(part, x)
        yield observation
