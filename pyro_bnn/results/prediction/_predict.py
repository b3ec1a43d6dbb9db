"""Prediction: the mean over draws from a posterior, and its uncertainty."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast, overload

from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.inputs import Inputs, as_inputs, as_targets, named_leaves, num_rows, take, to_device
from ..._core.reuse import Plan
from ..._core.scope import Stream
from ..._core.signatures import explained
from ...inference.guides import as_posterior
from ...inference.posterior import (
    Draw,
    Posterior,
    default_num_draws,
    num_members,
    warn_of_changes,
    warn_of_shared_network,
)
from ...modelling.model import BayesianModel, carried_paths, require_bayesian
from ...scores.uncertainty import Prediction, concatenate
from ._batch import Batch, Way, add_draws, draw_seeds, new_seed
from ._own_model import KINDS, predict_own, require_model

__all__ = ["predict", "predict_point"]

P = TypeVar("P", bound=Prediction)

MOST_ROWS = 10_000  # default number of rows in each run of the network

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

MOST_CONVOLVED = 2**19  # heuristic: largest size of x in a run with convolutions on a CPU, whose cache is small

END = object()

KINDS_OF_VALUES = KINDS | {"values": lambda values: not isinstance(values, Tensor)}


@overload
def predict(  # a BayesianModel is a callable, too; the first overload that fits counts
    model: BayesianModel[P],
    posterior: Posterior | Callable[..., object],
    x: Inputs | Iterable,
    *,
    num_samples: int | None = None,
    y: Tensor | None = None,
    batch_size: int | None = None,
    keep_draws: bool | None = None,
    linearised: bool | None = None,
    seed: int | None = None,
) -> P: ...


@overload
def predict(
    model: Callable[..., object],
    posterior: Posterior | Callable[..., object],
    x: Inputs | Iterable,
    *,
    num_samples: int | None = None,
    y: Tensor | None = None,
    keep_draws: bool | None = None,
    site: str | None = None,
    seed: int | None = None,
) -> Prediction: ...


@explained("predict(model, posterior, x)", kinds=KINDS)
def predict(
    model: BayesianModel[Any] | Callable[..., object],
    posterior: Posterior | Callable[..., object],
    x: Inputs | Iterable,
    *,
    num_samples: int | None = None,
    y: Tensor | None = None,
    batch_size: int | None = None,
    keep_draws: bool | None = None,
    linearised: bool | None = None,
    site: str | None = None,
    seed: int | None = None,
) -> Prediction:
    r"""Return the posterior predictive distribution at x, as a mean over draws of the weights.

    .. math:: p(y \mid x) \approx \tfrac1S \sum_s p(y \mid f_{w_s}(x)), \qquad w_s \sim q(w).

    All rows of x get the same draws. The network runs in eval mode.

    Args:
        model: The model, with its learned parameters.
        posterior: Result of a fit, or any Pyro guide.
        x: Inputs, shape (N, ...): a tensor, array, list of numbers or data frame; for several inputs, a tuple (not a
            list) or a dictionary of these. x may also be a loader: its batches are x or (x, y), and are moved to the
            model's device. The targets y of its batches are used for the log-density.
        num_samples: Number of draws of the weights, S; by default 100, or all that a posterior stores if it stores
            fewer. By default, each member of an ensemble of plain networks (:class:`DeltaGuide`) is drawn once.
        y: Targets, shape (N, ...), for the log-density; not allowed with a loader.
        batch_size: Rows in each run of the network; by default 10,000, or fewer for convolutions on a CPU, so that
            results fit into its cache.
        keep_draws: Whether to keep the prediction of each draw, which takes S times the memory. Each draw then has its
            logits in classification, and its component of the predictive mixture in regression. Intervals, quantiles,
            densities and draws of the prediction need the components. By default, the predictions of all draws are kept
            if they have at most a million elements (S times N times the number of outputs or classes).
        linearised: Whether to linearise the network in its weights around the posterior's median :math:`w^*`, to
            outputs :math:`f_{w^*}(x) + J(x) (w_s - w^*)`. In an ensemble, :math:`w^*` is the median of the member that
            gave the draw. By default, the network is linearised only for results of :func:`fit_laplace` or
            :func:`fit_gauss_newton` with random weights before the last layer. A linearised prediction takes about
            three times as long.
        site: What your own Pyro model predicts: an observed site with one row for each input, or ``"_RETURN"`` for the
            return value. By default, the observed site if there is exactly one, otherwise the return value.
        seed: Seed of the prediction; torch's generators do not change. With ``None``, a seed is drawn.

    Returns:
        In classification a :class:`~pyro_bnn.uncertainty.ClassificationPrediction`, and in regression a
        :class:`~pyro_bnn.uncertainty.RegressionPrediction`, :class:`~pyro_bnn.uncertainty.MixtureDensityPrediction` or
        :class:`~pyro_bnn.uncertainty.CensoredPrediction`. In your own Pyro model, a `Categorical` or `Bernoulli` site
        is predicted as in classification, and a site of independent elements with finite moments as in regression.
        Other sites and return values give a :class:`~pyro_bnn.uncertainty.ValuePrediction`.

    Raises:
        ValueError: If x or y has a wrong shape, device, dtype or value, if a loader is empty, if the network gives NaN,
            or if the network is to be linearised but the posterior has no median.

    Warns:
        UserWarning: If members of an ensemble may have learned different values of parameters that are not in their
            draws, or if the model's learned parameters have changed since the fit.

    References:
        Immer, Korzepa and Bauer (2021), Improving Predictions of Bayesian Neural Nets via Local Linearization,
        https://arxiv.org/abs/2008.08400, for `linearised`.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net = torch.nn.Linear(1, 1)
        >>> prior = pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_laplace(model, (x, 2 * x))
        >>> prediction = pb.predict(model, posterior, torch.tensor([[0.5]]), seed=0)
        >>> prediction.mean.round(decimals=1)
        tensor([[1.]])
        >>> low, high = prediction.interval(0.9)
        >>> 0.2 < float(high - low) < 0.5
        True

    Notes:
        *Memory.* Predictions are accumulated over small blocks of draws, so the memory does not grow with
        `num_samples`, unless `keep_draws` is true. Layers before the first random one run once for each batch of rows.

        *Your own Pyro model* runs for each draw with all rows at once, as ``model(x)``, or as ``model(*x)`` if x is a
        tuple. The rows may depend on each other, so `batch_size` has no effect. x cannot be a loader, and `linearised`
        cannot be true.
    """
    if isinstance(posterior, BayesianModel) or (not callable(posterior) and not isinstance(posterior, Posterior)):
        found = _checks.described(posterior)
        raise ValueError(
            f"`posterior` must be a posterior or a guide, got {found}; call `predict(model, posterior, x)`."
        )
    source = as_posterior(posterior)
    num_samples = default_num_draws(model, source) if num_samples is None else num_samples
    count = _checks.at_least("num_samples", num_samples, 1)
    keep = None if keep_draws is None else _checks.flag("keep_draws", keep_draws)
    if not isinstance(model, BayesianModel):
        _require_own_model(model, x, linearised=bool(linearised))
        return predict_own(model, source, x, num_samples=count, y=y, site=site, keep_draws=keep, seed=seed)
    if site is not None:
        raise ValueError(f"`site` is for Pyro models of your own, got {site!r} with a BayesianModel; leave it out.")

    is_linear = source.is_linearised if linearised is None else _checks.flag("linearised", linearised)
    centers = _centers(source, everywhere=linearised is not None) if is_linear else ()
    warn_of_shared_network(source, model)
    warn_of_changes(source, model)
    way = Way(source.constants.keys(), centers, keep, carried_paths(model, source.carried, "the draws have"))
    prediction = _predict(model, lambda x: source.draws(count, x), count, x, y, batch_size, way, seed)
    return replace(prediction, draws_are="member") if count == num_members(model, source) else prediction


def _require_own_model(model: object, x: object, *, linearised: bool) -> None:
    """Raise if `model` cannot be a Pyro model, or an argument needs a BayesianModel."""
    require_model(model)
    if isinstance(x, list) and _is_loader(x):
        raise ValueError(
            f"`x` must be a tensor, or a tuple of the arguments of your Pyro model, got a list of {len(x)} items; pass "
            "a tuple, as in `(x_1, x_2)`, and the rows of several batches as one tensor."
        )
    if linearised or _is_loader(x):
        raise ValueError(
            f"`{'linearised' if linearised else 'a loader'}` needs a BayesianModel, which has a likelihood of single "
            f"rows, got {_checks.described(model)}; leave it out."
        )


def _centers(posterior: Posterior, *, everywhere: bool) -> list[Draw | None]:
    """Return the points of :meth:`Posterior.centers`, but leave out the values that `Posterior.carried` names."""
    try:
        centers = posterior.centers(everywhere=everywhere)
    except ValueError as error:
        raise ValueError(
            "a linearised prediction needs posteriors with a median, around which the network is taken as linear, got "
            f"one of {posterior.method}; pass `linearised=False`, or a result of Laplace's method or of SVI."
        ) from error
    left_out = set(posterior.carried)
    return [None if c is None else {name: c[name] for name in c if name not in left_out} for c in centers]


@explained("predict_point(model, posterior, x)", kinds=KINDS_OF_VALUES)
def predict_point(
    model: BayesianModel[P],
    values: Mapping[str, Tensor] | Posterior,
    x: Inputs | Iterable,
    *,
    y: Tensor | None = None,
    batch_size: int | None = None,
) -> P:
    """Return the prediction for a single value of the latent variables, such as mean weights.

    Args:
        model: The model.
        values: A value for every latent variable, ``{site: shape (*event)}``, and optionally for the network's own
            parameters and buffers, ``{"net.PATH": value}``. For a posterior, its `median()` is used.
        x: As for :func:`predict`.
        y: As for :func:`predict`.
        batch_size: As for :func:`predict`.

    Returns:
        A prediction with one draw, so without an epistemic part: properties that need it raise an error.

    Raises:
        ValueError: If a latent variable has no value, or if a name is unknown; see also :func:`predict`.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net = torch.nn.Linear(1, 1)
        >>> prior = pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_laplace(model, (x, 2 * x))
        >>> prediction = pb.predict_point(model, posterior, torch.tensor([[0.5]]))
        >>> prediction.mean.round(decimals=1)
        tensor([[1.]])
    """
    values = values.median() if isinstance(values, Posterior) else values
    _checks.kind("values", values, Mapping, "a dict of values by site, or a posterior with a median")
    require_bayesian(model)
    carried = carried_paths(model, values)
    return _predict(model, lambda x: iter([dict(values)]), 1, x, y, batch_size, Way(carried=carried), None)


def _predict(
    model: BayesianModel[P],
    draws: Callable[[Inputs], Iterator[Draw]],
    num_samples: int,
    x: Inputs | Iterable,
    y: Tensor | None,
    batch_size: int | None,
    way: Way,
    seed: int | None,
) -> P:
    batch_size = None if batch_size is None else _checks.at_least("batch_size", batch_size, 1)
    _checks.in_memory("num_samples", num_samples, 2 * 32)  # Python's whole numbers and their places in a list
    seed = new_seed(seed)
    stream = Stream(seed, model.device)
    seeds = draw_seeds(stream, num_samples)
    parts, count = list[P](), 0
    for inputs, targets in _parts(x, y, stream, model.like):
        if parts and (parts[0].targets is None) != (targets is None):
            raise ValueError("the batches of a loader must all be pairs (x, y), or all x alone, got both.")
        count += len(seeds) * num_rows(inputs)
        own = replace(way, num_predictions=count)
        parts.append(_predict_rows(model, partial(draws, inputs), seeds, inputs, targets, batch_size, own))
    if not parts:
        raise ValueError("the loader is empty; pass one with at least one batch.")
    return replace(concatenate(parts), seed=seed)


def _rows_at_once(model: BayesianModel, x: Inputs) -> int:
    if model.device.type != "cpu" or not any(isinstance(module, CONVOLUTIONS) for module in model.network.modules()):
        return MOST_ROWS
    size = sum(leaf.numel() for _, leaf in named_leaves("x", x, with_rows=True))
    return max(1, min(MOST_ROWS, MOST_CONVOLVED * num_rows(x) // max(size, 1)))


def _is_loader(x: object) -> bool:
    """Return whether x is an iterable of batches, not an array, list of numbers, tuple or dictionary."""
    if isinstance(x, list):
        first: object = x
        while isinstance(first, list) and first:
            first = first[0]
        return not isinstance(first, (numbers.Number, str))
    is_array = callable(getattr(type(x), "__array__", None))  # as tensors, arrays and data frames have
    return isinstance(x, Iterable) and not (is_array or isinstance(x, (tuple, Mapping, str, bytes)))


def _parts(
    x: Inputs | Iterable, y: Tensor | None, stream: Stream, like: Tensor
) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Yield pairs of inputs and targets: a pair for each batch of a loader, otherwise a single pair."""
    if not _is_loader(x):
        yield as_inputs("x", x, like), None if y is None else as_targets("y", y, like)
        return
    if y is not None:
        raise ValueError("`y` cannot be given with a loader, which has its own targets; leave it out.")
    with stream:
        batches = iter(cast(Iterable, x))
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
        inputs, targets = as_inputs("x", parts[0], like), None if len(parts) == 1 else as_targets("y", parts[1], like)
        yield to_device(inputs, like.device), None if targets is None else targets.to(like.device)


def _predict_rows(
    model: BayesianModel[P],
    draws: Callable[[], Iterator[Draw]],
    seeds: list[int],
    x: Inputs,
    y: Tensor | None,
    batch_size: int | None,
    way: Way,
) -> P:
    for name, leaf in named_leaves("x", x):
        _checks.finite(name, leaf)
    for name, leaf in named_leaves("x", x, with_rows=True):
        _checks.rows(name, leaf)
    if y is not None:
        model.check_targets(x, y)
        y = model.likelihood.as_targets(y, model.dtype)
    if way.keep:  # at least one number per row
        remedy = "ask for fewer, or leave `keep_draws` out"
        _checks.in_memory("num_samples", len(seeds), num_rows(x) * model.like.element_size(), remedy)
    random = {path for name, paths in model.parameter_paths.items() if name not in way.constant for path in paths}
    plan = Plan(model.network, random | {*way.carried.values()})
    batch_size = batch_size or _rows_at_once(model, x)
    rows = (slice(start, start + batch_size) for start in range(0, max(num_rows(x), 1), batch_size))
    batches = [Batch(model, take(x, part), None if y is None else y[part], plan, way) for part in rows]
    left = batches
    while left:
        num_done = add_draws(model, draws(), seeds, left)
        for batch in left[:num_done]:
            batch.memory.forget()
        left = left[num_done:]
    prediction = replace(concatenate([batch.prediction(math.log(len(seeds))) for batch in batches]), targets=y)
    is_bad = prediction.expectation.reshape(len(prediction), -1).isnan().any(-1)
    if bool(is_bad.any()):  # otherwise every score would be NaN
        raise ValueError(
            f"the network must give numbers, got NaN in {int(is_bad.sum())} of {len(prediction)} rows for some drawn "
            "weights; look for a division by zero, a logarithm of a negative number, or a norm of removed weights "
            "(leave layers with `weight_norm` out of `prune`)."
        )
    return prediction
