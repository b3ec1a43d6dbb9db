"""Acquisition scores of single rows, and checks of inputs."""

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from ..._core import checks as _checks
from .. import metrics
from ..uncertainty import (
    ClassificationPrediction,
    Prediction,
    RegressionPrediction,
    mutual_information,
    predictive_entropy,
)

Pool: TypeAlias = ClassificationPrediction | RegressionPrediction | Tensor
"""A prediction, or logits of shape (S, N, C)."""

NUMBERS = 2**20  # heuristic: largest number of elements of an intermediate result; 8 MB in double precision

KEEP, MORE = "call `predict(..., keep_draws=True)`", "call `predict` with a larger `num_samples`"


def from_baal(predictions: metrics.Numbers, *, logits: bool = False) -> Tensor:
    """Convert probabilities from the library baal, which orders axes differently, to logits.

    Args:
        predictions: Probabilities, shape (N, C, S): N rows, C classes, S draws.
        logits: Whether `predictions` are logits instead of probabilities.

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
    """Return the logits of all draws, shape (S, N, C). Raise if there are fewer than `least` draws."""
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
    """Raise unless two tensors (S, ...) have equally many draws."""
    if len(pool) != len(targets):
        raise ValueError(
            f"`pool` and `targets` must have the same draws, got {len(pool)} and {len(targets)}; predict both in one "
            "call, or with the same `seed` and `num_samples`."
        )


def require_same_seed(pool: object, targets: object) -> None:
    """Raise if two predictions come from different seeds. Tensors are not checked."""
    if isinstance(pool, Prediction) and isinstance(targets, Prediction) and pool.seed != targets.seed:
        raise ValueError(
            f"`pool` and `targets` must have the same draws, got those of the seeds {pool.seed} and {targets.seed}; "
            "call `predict(..., keep_draws=True, seed=0)` for both, or predict both in one call."
        )


def probs_of(name: str, logits: Tensor) -> Tensor:
    """Return class probabilities in double precision."""
    probs = logits.double().softmax(-1)
    if bool(probs.isnan().any()):
        raise ValueError(f"`{name}` must have finite logits, got NaN or infinity; drop the rows that have one.")
    return probs


def by_rows(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Apply a function to blocks of rows of logits (S, N, C), and join the results (N,)."""
    return torch.cat([function(part) for part in parts(logits, logits.shape[0] * logits.shape[2])])


def parts(values: Tensor, numbers_per_row: int) -> Iterator[Tensor]:
    """Split the rows of values (S, N, ...) into parts of at most `NUMBERS` numbers."""
    yield from values.split(max(NUMBERS // numbers_per_row, 1), dim=1)


def noisy(name: str, prediction: RegressionPrediction) -> RegressionPrediction:
    """Return a prediction. Raise unless it has noise, at least two draws, and one output."""
    outputs = prediction.mean.shape[1:]
    if outputs.numel() != 1:
        raise ValueError(f"`{name}` must predict one number for each row, got outputs of shape {tuple(outputs)}.")
    if prediction.variance_of_means is None:
        raise ValueError(f"`{name}` must have at least 2 draws, got 1; {MORE}.")
    if not bool(prediction.total.isfinite().all()):
        raise ValueError(f"`{name}` must have finite variances, got infinity or NaN; use a likelihood that has them.")
    if bool((prediction.aleatoric <= 0).any()):
        raise ValueError(f"`{name}` must have noise, got a variance of 0: a label would carry infinite information.")
    return prediction


def entropy(pool: Pool) -> Tensor:
    r"""Return the entropy of each row's label, in nats, as in uncertainty sampling.

    In regression, each label is treated as Gaussian with the predictive variance v, so the entropy is :math:`\tfrac12
    \log(2 \pi e\, v)`, which may be negative.

    Args:
        pool: Prediction of the pool, or logits of shape (S, N, C).

    Returns:
        Scores, shape (N,).

    Raises:
        ValueError: If the prediction has several outputs for each row, or if logits are not finite.

    Example:
        >>> import torch
        >>> from pyro_bnn import acquisition
        >>> acquisition.entropy(torch.zeros(2, 1, 2))
        tensor([0.6931])
    """
    if isinstance(pool, ClassificationPrediction):
        return _one_label(pool).total
    if isinstance(pool, RegressionPrediction):
        return _of_variance(2 * math.pi * math.e * noisy("pool", pool).total, pool)
    return by_rows(predictive_entropy, class_draws("pool", pool, least=1))


def bald(pool: Pool) -> Tensor:
    r"""Return the mutual information of each row's label and the weights, in nats.

    This score says how much the label tells about the weights. In classification, it is the epistemic part of the
    entropy, :func:`~pyro_bnn.uncertainty.mutual_information`. In regression, the label is treated as Gaussian, both for
    known and for unknown weights, so the mutual information is :math:`\tfrac12 \log(v_\text{total} /
    v_\text{aleatoric})`.

    Args:
        pool: Prediction of the pool, or logits of shape (S, N, C).

    Returns:
        Scores, at least 0, shape (N,).

    Raises:
        ValueError: If there are fewer than two draws, several outputs for each row, a regression without noise, or
            logits that are not finite.

    References:
        Houlsby et al. (2011), Bayesian Active Learning for Classification and Preference Learning,
        https://arxiv.org/abs/1112.5745; Gal, Islam and Ghahramani (2017), Deep Bayesian Active Learning with Image
        Data, https://arxiv.org/abs/1703.02910.

    Example:
        >>> import torch
        >>> from pyro_bnn import acquisition
        >>> acquisition.bald(
        ...     torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]])
        ... )  # they disagree
        tensor([0.6919])
    """
    if isinstance(pool, ClassificationPrediction):
        return _one_label(pool).epistemic
    if isinstance(pool, RegressionPrediction):
        noisy("pool", pool)
        return _of_variance(pool.total / pool.aleatoric, pool)
    return by_rows(mutual_information, class_draws("pool", pool))


def variation_ratios(pool: ClassificationPrediction | Tensor) -> Tensor:
    """Return the probability that a row's label is not its most probable class.

    Args:
        pool: Prediction of classes, or logits of shape (S, N, C).

    Returns:
        Scores in [0, 1 - 1 / C], shape (N,).

    Raises:
        ValueError: If there are several outputs for each row, or logits are not finite.

    References:
        Gal, Islam and Ghahramani (2017), https://arxiv.org/abs/1703.02910.

    Example:
        >>> import torch
        >>> from pyro_bnn import acquisition
        >>> acquisition.variation_ratios(torch.zeros(2, 1, 4))
        tensor([0.7500])
    """
    if isinstance(pool, ClassificationPrediction):
        return 1 - _one_label(pool).max_probability
    logits = class_draws("pool", pool, least=1)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return by_rows(lambda part: (1 - probs_of("pool", part).mean(0).amax(-1)).to(dtype), logits)


def _one_label(pool: ClassificationPrediction) -> ClassificationPrediction:
    if pool.probs.dim() != 2:
        raise ValueError(f"`pool` must have one label for each row, got probabilities of {_checks.shape(pool.probs)}.")
    return pool


def _of_variance(variance: Tensor, pool: RegressionPrediction) -> Tensor:
    """Return half the logarithm of `variance`, which may be a ratio of variances, shape (N,)."""
    return (variance.log() / 2).view(len(pool)).to(pool.mean.dtype)


def epig(pool: Pool, targets: Pool) -> Tensor:
    r"""Return the expected predictive information gain (EPIG) of each row's label, in nats.

    This is the mutual information of the row's label and the label of a target row, averaged over the target rows:

    .. math:: \mathrm{EPIG}(x) = \frac1M \sum_{m=1}^M I[y; y_m \mid x, x_m].

    Unlike :func:`bald`, EPIG ignores weights that have no effect on the target rows. Choose target rows like the inputs
    that will be predicted; a hundred are usually enough.

    In regression, labels are treated as Gaussian. The correlation :math:`\rho` of two labels comes from the draws, and
    their mutual information is :math:`-\tfrac12 \log(1 - \rho^2)`.

    Args:
        pool: Prediction of the pool with `keep_draws`, or logits of shape (S, N, C).
        targets: Prediction of the target rows with `keep_draws`, or logits of shape (S, M, C'). Draws must be those of
            `pool`: from the same posterior, with the same `seed` and `num_samples`. For logits, `epig` cannot check
            this.

    Returns:
        Scores, at least 0, shape (N,).

    Raises:
        ValueError: If draws were not kept, or if the predictions have different seeds, different numbers of draws,
            fewer than two draws, or several outputs for each row. Also if a regression has no noise, or if logits are
            not finite.

    References:
        Bickford Smith et al. (2023), Prediction-Oriented Bayesian Active Learning, https://arxiv.org/abs/2304.08151.

    Example:
        >>> import torch
        >>> from pyro_bnn import acquisition
        >>> logits = torch.tensor([[[9.0, 0.0], [0.0, 0.0]], [[0.0, 9.0], [0.0, 0.0]]])
        >>> acquisition.epig(logits, logits[:, :1])  # the second row tells nothing
        tensor([0.6909, 0.0000])
    """
    require_same_seed(pool, targets)
    if isinstance(pool, RegressionPrediction):
        if not isinstance(targets, RegressionPrediction):
            raise ValueError(f"`targets` must be a prediction of numbers, got {_checks.described(targets)}.")
        return _of_numbers(pool, targets)
    pool, targets = class_draws("pool", pool), class_draws("targets", targets)
    require_same_draws(pool, targets)
    squared = pool.shape[2] * targets.shape[2]
    at_once = max(min(targets.shape[1], NUMBERS // squared), 1)
    total = torch.zeros(pool.shape[1], dtype=torch.double, device=pool.device)
    for some in targets.split(at_once, dim=1):
        others = probs_of("targets", some)
        total += torch.cat([_information(probs_of("pool", part), others) for part in parts(pool, at_once * squared)])
    mean = (total / targets.shape[1]).clamp_min(0)  # a difference of entropies: rounding may make it negative
    return mean.to(torch.promote_types(pool.dtype, torch.float32))


def _information(probs: Tensor, others: Tensor) -> Tensor:
    """For each row of `probs`, (S, N, C), sum its mutual information with all rows of `others`, (S, M, C')."""
    num_samples, num_rows, num_classes = probs.shape
    joint = probs.flatten(1).mT @ others.flatten(1) / num_samples  # (N C, M C')
    entr = torch.special.entr
    of_pairs = entr(joint).view(num_rows, num_classes, -1).sum((1, 2))
    return others.shape[1] * entr(probs.mean(0)).sum(-1) + entr(others.mean(0)).sum() - of_pairs


def _of_numbers(pool: RegressionPrediction, targets: RegressionPrediction) -> Tensor:
    of_pool, of_targets = _standardised("pool", pool), _standardised("targets", targets)
    require_same_draws(of_pool, of_targets)
    numbers = max(len(of_pool), of_targets.shape[1])
    correlations = (part.mT @ of_targets for part in parts(of_pool, numbers))  # (N, M)
    scores = [-torch.log1p(-rho.square()).mean(1) / 2 for rho in correlations]
    return torch.cat(scores).to(pool.mean.dtype)


def _standardised(name: str, prediction: RegressionPrediction) -> Tensor:
    """Return the draws' means, scaled such that inner products are correlations of labels; shape (S, N)."""
    components = noisy(name, prediction).components
    if components is None:
        raise ValueError(f"`{name}` must have the mean of each draw; {KEEP}.")
    means = components.mean.double().flatten(1)
    scale = (prediction.total.flatten() * (len(means) - 1)).sqrt()
    return (means - means.mean(0)) / scale
