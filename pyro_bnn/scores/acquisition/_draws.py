"""Inputs of the acquisition scores: predictions, or logits of all draws."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from ..._core import checks as _checks
from .. import metrics
from ..uncertainty import ClassificationPrediction, Prediction, RegressionPrediction

Pool: TypeAlias = ClassificationPrediction | RegressionPrediction | Tensor
"""A prediction, or logits of shape (S, N, C)."""

NUMBERS = 2**20
"""Heuristic: largest number of elements of an intermediate result; 8 MB in double precision."""

KEEP, MORE = "call `predict(..., keep_draws=True)`", "call `predict` with a larger `num_samples`"


def from_baal(predictions: metrics.Numbers, *, logits: bool = False) -> Tensor:
    """Convert an array with the axes of the library baal to logits for the functions of this module.

    Args:
        predictions: Probabilities, shape (N, C, S): N rows, C classes, S draws.
        logits: Whether `predictions` are logits, as networks give them, instead of probabilities.

    Returns:
        Logits, shape (S, N, C).

    Raises:
        ValueError: If the shape is wrong, or if probabilities do not sum to 1 over classes.

    Example:
        >>> from pyro_bnn import acquisition
        >>> acquisition.from_baal([[[1.0, 0.5], [0.0, 0.5]]]).exp()
        tensor([[[1.0000, 0.0000]],
        <BLANKLINE>
                [[0.5000, 0.5000]]], dtype=torch.float64)
    """
    found = metrics.as_tensor("predictions", predictions)
    if found.dim() != 3 or found.numel() == 0:
        raise ValueError(f"`predictions` must have shape (N, C, S), none of them 0, got {_checks.shape(found)}.")
    found = found.movedim(-1, 0)
    if _checks.flag("logits", logits):
        return _checks.real_tensor("predictions", found)
    try:
        metrics.probabilities("predictions", found)
    except ValueError as error:
        raise ValueError(f"{error} If they are logits, pass `logits=True`.") from None
    return found.log()


def class_draws(name: str, value: object, *, least: int = 2) -> Tensor:
    """Return the logits of all draws, shape (S, N, C), and raise if there are fewer draws than `least`."""
    if isinstance(value, ClassificationPrediction):
        if value.logits is None:
            raise ValueError(f"`{name}` must have the probabilities of each draw; {KEEP}.")
        value = value.logits
    elif not isinstance(value, Tensor):
        raise ValueError(f"`{name}` must be a prediction of classes or a tensor, got {_checks.described(value)}.")
    logits = _checks.real_tensor(name, value)
    if logits.dim() != 3 or logits.numel() == 0:
        raise ValueError(f"`{name}` must have logits of shape (S, N, C), none of them 0, got {_checks.shape(logits)}.")
    if len(logits) < least:
        raise ValueError(
            f"`{name}` must have at least {least} draws, got {len(logits)}; call `predict` with a larger `num_samples`."
        )
    return logits.detach()


def require_same_draws(pool: Tensor, targets: Tensor) -> None:
    """Raise unless two tensors of shape (S, ...) have the same number of draws."""
    if len(pool) != len(targets):
        raise ValueError(
            f"`pool` and `targets` must have the same draws, got {len(pool)} and {len(targets)}; predict both in one "
            "call, or with the same `seed` and `num_samples`."
        )


def require_same_seed(pool: object, targets: object) -> None:
    """Raise if two predictions come from different seeds. Tensors have no seed, and are not checked."""
    if not (isinstance(pool, Prediction) and isinstance(targets, Prediction)) or pool.seed == targets.seed:
        return
    raise ValueError(
        f"`pool` and `targets` must have the same draws, got those of the seeds {pool.seed} and {targets.seed}; call "
        "`predict(..., keep_draws=True, seed=0)` for both, or predict both in one call."
    )


def probs_of(name: str, logits: Tensor) -> Tensor:
    """Return the class probabilities for given logits, in double precision."""
    probs = logits.double().softmax(-1)
    if bool(probs.isnan().any()):
        raise ValueError(f"`{name}` must have finite logits, got NaN or infinity; drop the rows that have one.")
    return probs


def by_rows(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Apply a function to a part of the rows of (S, N, C) at a time; return the results of all rows, shape (N,)."""
    return torch.cat([function(part) for part in parts(logits, logits.shape[0] * logits.shape[2])])


def parts(values: Tensor, numbers_per_row: int) -> Iterator[Tensor]:
    """Split values of shape (S, N, ...) into parts of at most `NUMBERS` numbers, or of a single row."""
    yield from values.split(max(NUMBERS // numbers_per_row, 1), dim=1)


def noisy(name: str, prediction: RegressionPrediction) -> RegressionPrediction:
    """Return `prediction`. Raise unless the prediction has noise, two or more draws, and one number for each row."""
    outputs = prediction.mean.shape[1:]
    if outputs.numel() != 1:
        raise ValueError(f"`{name}` must predict one number for each row, got outputs of shape {tuple(outputs)}.")
    if prediction.variance_of_means is None:
        raise ValueError(f"`{name}` must have at least 2 draws, got 1; {MORE}.")
    if bool((prediction.aleatoric <= 0).any()):
        raise ValueError(f"`{name}` must have noise, got a variance of 0: a label would carry infinite information.")
    return prediction
