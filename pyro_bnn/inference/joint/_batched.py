"""Runs a model for many draws of its latent variables at once, without Pyro's effect handlers."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..._core import checks as _checks
from ..._core import functional as _functional
from ..._core.inputs import Inputs, as_inputs, named_leaves, take
from ..._core.scope import EXCLUSIVE, Stream, eval_mode
from ...modelling.model import BayesianModel


class BatchedModel:
    """Runs a :class:`BayesianModel` for many draws of its latent variables at once.

    `example` is two draws, ``{site: shape (2, *event)}``. The model must already be in the mode, device and dtype of
    later runs.
    """

    def __init__(self, model: BayesianModel, example: Mapping[str, Tensor], x: Inputs) -> None:
        self._model = model
        self._paths = {path: name for name, paths in model.parameter_paths.items() for path in paths}
        self._network = _functional.batched(model.network, self._weights(example), x)

    def _weights(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {path: values[name] for path, name in self._paths.items()}

    def observation(self, values: Mapping[str, Tensor], x: Inputs) -> Distribution:
        """The distribution of the targets, batch shape ``(K, N, ...)``, for values of shape ``(K, *event)``."""
        output = self._network(self._weights(values), x)
        return self._model.observe(output, values)


DRAWS_AT_ONCE = 256
"""Heuristic: number of draws in a batch, for efficient products and little memory."""


def draw_batches(
    model: BayesianModel, samples: Mapping[str, Tensor], x: Inputs, *, stream: Stream | None = None
) -> Iterator[Distribution]:
    """The distributions of the targets at x for stored draws, several draws at a time.

    Args:
        model: The model.
        samples: Draws of all latent variables, ``{site: shape (K, S, *event)}``; K chains of S draws.
        x: Inputs, shape (N, ...), also as arrays or lists.
        stream: Generators for random numbers inside the network; None uses torch's generators.

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
        batched = BatchedModel(model, pairs, x)
    for start in range(0, num_draws, DRAWS_AT_ONCE):
        part = {name: value[start : start + DRAWS_AT_ONCE] for name, value in flat.items()}
        with torch.no_grad(), unit, eval_mode(model):
            observation = batched.observation(part, x)
        yield observation
