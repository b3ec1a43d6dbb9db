"""Prediction: the mean over draws from a posterior, and its uncertainty."""

import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution

from . import _checks
from ._inputs import Inputs, as_inputs, as_targets, named_leaves, num_rows, take, to_device
from ._reuse import Memory, Plan
from ._scope import EXCLUSIVE, Stream, eval_mode, seeded, undone
from .guides import GuidePosterior
from .model import BayesianModel
from .posterior import Draw, Posterior
from .uncertainty import Prediction, concatenate

__all__ = ["predict", "predict_point"]

P = TypeVar("P", bound=Prediction)

DEFAULT_NUM_SAMPLES = 100

MOST_BYTES = 2**28
"""Heuristic: memory for what a network computes from several batches without its random parameters, 0.27 GB. If it is
more, batches are predicted one after the other. What is kept of one batch is less than a run of the network takes."""

END = object()


def predict(
    model: BayesianModel[P],
    posterior: Posterior | Callable[..., object],
    x: Inputs | Iterable,
    *,
    num_samples: int | None = None,
    y: Tensor | None = None,
    batch_size: int = 10_000,
    keep_draws: bool = False,
    seed: int | None = None,
) -> P:
    r"""The posterior predictive distribution at x, as a mean over weight draws.

    .. math:: p(y \mid x) \approx \tfrac1S \sum_s p(y \mid f_{w_s}(x)), \qquad w_s \sim q(w).

    Draws are used one after the other and summed up, so memory grows with `num_samples` only with `keep_draws`. All
    rows of x get the same draws. The network runs in eval mode and is then put back into the mode that it had.

    Args:
        model: The model; its learnable parameters are used too.
        posterior: Result of a fit, or any Pyro guide.
        x: Inputs, shape (N, ...): a tensor, array, list of numbers or data frame, or for a network with several inputs
            a tuple (not a list) or dictionary of these. Or a loader of batches x or (x, y), which are moved to the
            model's device. The targets of a loader are used for the log-density.
        num_samples: Number of weight draws, S; by default 100, or all draws of a posterior that stores fewer.
        y: Targets, shape (N, ...), for the log-density; not allowed with a loader.
        batch_size: Number of rows in each run of the network.
        keep_draws: Whether to keep the prediction of each draw too: logits for classes, and for numbers the mixture
            components, from which quantiles, densities and draws are computed. Memory is then S times as large.
        seed: Seed of the prediction, which makes it repeatable and leaves torch's generators as they were.

    Returns:
        A :class:`~pyro_bnn.uncertainty.ClassificationPrediction` or
        :class:`~pyro_bnn.uncertainty.RegressionPrediction`; for a mixture density network a
        :class:`~pyro_bnn.uncertainty.MixtureDensityPrediction`.

    Raises:
        ValueError: If x or y has a wrong shape, device, dtype or value, if a loader is empty, or if the network gives
            NaN.
    """
    source = posterior if isinstance(posterior, Posterior) else GuidePosterior(posterior)
    if num_samples is None:
        num_samples = min(DEFAULT_NUM_SAMPLES, source.num_stored or DEFAULT_NUM_SAMPLES)
    count = _checks.at_least("num_samples", num_samples, 1)

    def draws(x: Inputs) -> Iterator[Draw]:
        return source.draws(count, x)

    return _predict(model, draws, count, x, y, batch_size, keep_draws, seed)


def predict_point(
    model: BayesianModel[P],
    values: Mapping[str, Tensor],
    x: Inputs | Iterable,
    *,
    y: Tensor | None = None,
    batch_size: int = 10_000,
) -> P:
    """The prediction of a single setting of the latent variables, such as the mean weights ``guide.median()``.

    Args:
        model: The model.
        values: A value for every latent variable, ``{site: shape (*event)}``.
        x: Inputs, shape (N, ...), or a loader; see :func:`predict`.
        y: Targets, shape (N, ...), for the log-density; see :func:`predict`.
        batch_size: Number of rows in each run of the network.

    Returns:
        A prediction with one draw. It has no epistemic part; properties that need one raise an error.

    Raises:
        ValueError: If a latent variable has no value, or for any reason for which :func:`predict` raises it.
    """
    _checks.kind("values", values, Mapping, "a dict of values by site, such as `posterior.median()`")
    return _predict(model, lambda x: iter([dict(values)]), 1, x, y, batch_size, False, None)


def _predict(
    model: BayesianModel[P],
    draws: Callable[[Inputs], Iterator[Draw]],
    num_samples: int,
    x: Inputs | Iterable,
    y: Tensor | None,
    batch_size: int,
    keep: bool,
    seed: int | None,
) -> P:
    _checks.at_least("batch_size", batch_size, 1)
    _checks.flag("keep_draws", keep)
    _checks.kind("model", model, BayesianModel, "a BayesianModel")
    if seed is None:
        with EXCLUSIVE:
            seed = int(torch.randint(2**62, ()))
    stream = Stream(seed, model.device)
    with stream:
        seeds: list[int] = torch.randint(2**62, (num_samples,)).tolist()
    if not _is_loader(x):
        x, y = as_inputs("x", x, model.like), None if y is None else as_targets("y", y, model.like)
        return _predict_tensor(model, draws, seeds, x, y, batch_size, keep)
    if y is not None:
        raise ValueError("`y` goes with a tensor x; leave it out, since a loader has its own targets.")
    parts = [
        _predict_tensor(model, draws, seeds, inputs, targets, batch_size, keep)
        for inputs, targets in _loader_batches(x, stream, model.like)
    ]
    if not parts:
        raise ValueError("the loader is empty; pass one with at least one batch.")
    return concatenate(parts)


def _is_loader(x: object) -> bool:
    """Whether x gives batches; arrays and lists of numbers, tuples and dictionaries are inputs themselves."""
    first = x
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(x, list):
        return not isinstance(first, (numbers.Number, str))
    is_array = callable(getattr(type(x), "__array__", None))  # of tensors, arrays and data frames
    return isinstance(x, Iterable) and not (is_array or isinstance(x, (tuple, Mapping, str, bytes)))


def _loader_batches(loader: Iterable, stream: Stream, like: Tensor) -> Iterator[tuple[Inputs, Tensor | None]]:
    with stream:
        batches = iter(loader)
    while True:
        with stream:
            batch = next(batches, END)
        if batch is END:
            return
        parts = tuple(batch) if isinstance(batch, (tuple, list)) and _is_loader(list(batch)) else (batch,)
        if len(parts) not in (1, 2):
            raise ValueError(
                f"a batch must be x alone or a pair (x, y), got {len(parts)} parts; give several inputs as "
                "((x_1, x_2), y), or as a dictionary."
            )
        x, y = as_inputs("x", parts[0], like), None if len(parts) == 1 else as_targets("y", parts[1], like)
        yield to_device(x, like.device), None if y is None else y.to(like.device)


def _predict_tensor(
    model: BayesianModel[P],
    draws: Callable[[Inputs], Iterator[Draw]],
    seeds: list[int],
    x: Inputs,
    y: Tensor | None,
    batch_size: int,
    keep: bool,
) -> P:
    for name, leaf in named_leaves("x", x):
        _checks.finite(name, _checks.rows(name, leaf))
    if y is not None:
        model.check_targets(x, y)
        y = model.likelihood.as_targets(y, model.dtype)
    plan = Plan(model.network, {path for paths in model.parameter_paths.values() for path in paths})
    batches = [
        _Batch(model, take(x, part), None if y is None else y[part], Memory(plan))
        for part in (slice(start, start + batch_size) for start in range(0, max(num_rows(x), 1), batch_size))
    ]
    done = 0
    while done < len(batches):
        count = _add_draws(model, draws(x), seeds, batches[done:], keep)
        for batch in batches[done : done + count]:
            batch.forget()
        done += count
    log_num_samples = torch.tensor(float(len(seeds))).log().item()
    prediction = replace(concatenate([batch.prediction(log_num_samples) for batch in batches]), targets=y)
    _require_numbers(prediction)
    return prediction


def _add_draws(
    model: BayesianModel[P], source: Iterator[Draw], seeds: list[int], batches: list["_Batch[P]"], keep: bool
) -> int:
    """Add all draws to some batches of rows; returns the number of these, at least 1."""
    for seed in seeds:
        with torch.no_grad(), seeded(seed, model.device), eval_mode(model):  # other threads have their turns in between
            draw = next(source)
            if seed == seeds[0]:
                model.check_latents(draw)
            for index, batch in enumerate(batches):
                batch.add(draw, keep=keep)
                if batch.num_bytes and sum(b.num_bytes for b in batches[: index + 1]) > MOST_BYTES:
                    if seed == seeds[0] and not batch.has_noise:
                        batches = batches[: index + 1]  # the others get the same draws later
                        break
                    if index:
                        batch.forget()
    return len(batches)


class _Batch(Generic[P]):
    """Some of the rows, and what was predicted for them so far.

    Args:
        model: The model.
        x: Inputs.
        y: Targets; None without a log-density.
        memory: What the network computes from x without its random parameters.
    """

    def __init__(self, model: BayesianModel[P], x: Inputs, y: Tensor | None, memory: Memory) -> None:
        self._model, self._x, self._y, self._memory = model, x, y, memory
        self._sum = model.likelihood.accumulator()
        self._log_density: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of what is remembered."""
        return self._memory.num_bytes

    @property
    def has_noise(self) -> bool:
        """Whether the network draws random numbers of its own, which depend on how much was computed before."""
        return self._memory.has_noise

    def forget(self) -> None:
        """Remember nothing any more."""
        self._memory.forget()

    def add(self, draw: Draw, *, keep: bool) -> None:
        """Add the prediction of one draw."""
        observation = self._observation(draw)
        self._sum.add(observation, keep=keep)
        if self._y is not None:
            log_prob = observation.log_prob(self._y).reshape(len(self._y), -1).sum(-1)  # (N,)
            previous = self._log_density
            self._log_density = log_prob if previous is None else torch.logaddexp(previous, log_prob)

    def _observation(self, draw: Draw) -> Distribution:
        """The distribution of the targets; of what is remembered, or as a whole if something that was not is needed."""
        if not self._memory.is_used:
            with self._model.interception.remembering(self._memory):
                return _observation(self._model, draw, self._x)
        with undone(self._model.device) as undo:
            try:
                with self._model.interception.remembering(self._memory):
                    return _observation(self._model, draw, self._x)
            except Exception:  # a value that was not kept may be missed by more than operations of torch
                self._memory.forget()
                undo()
                return _observation(self._model, draw, self._x)

    def prediction(self, log_num_samples: float) -> P:
        """The prediction of all draws."""
        density = self._log_density
        return self._sum.prediction(None if density is None else density - log_num_samples)


def _require_numbers(prediction: Prediction) -> None:
    """Raise if the network has made NaN from finite inputs and weights, with which every score would be NaN."""
    is_bad = prediction.expectation.reshape(len(prediction), -1).isnan().any(-1)
    if bool(is_bad.any()):
        raise ValueError(
            f"the network must give numbers, got NaN in {int(is_bad.sum())} of {len(prediction)} rows for some drawn "
            "weights; look for a division by zero, a logarithm of a negative number, or a norm of removed weights "
            "(leave those of `weight_norm` out of `prune`)."
        )


def _observation(model: BayesianModel, draw: Draw, x: Inputs) -> Distribution:
    """The distribution of the targets at x; by Pyro if the draw has variables of the network's own, else without it."""
    if draw.keys() <= set(model.latent_names):
        return model.observation_given(draw, x)
    with poutine.block(), poutine.condition(data=draw):
        return model.observation(x)
