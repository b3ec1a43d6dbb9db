"""Scores of single rows, without regard to other rows."""

import math

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..uncertainty import ClassificationPrediction, RegressionPrediction, mutual_information, predictive_entropy
from ._draws import Pool, by_rows, class_draws, noisy, probs_of


def entropy(pool: Pool) -> Tensor:
    r"""Entropy of the label of each row, in nats: uncertainty sampling.

    For numbers it is that of a Gaussian with the predictive variance, :math:`\tfrac12 \log(2 \pi e\, v)`, which may be
    negative.

    Args:
        pool: Prediction of the pool, or logits of shape (S, N, C).

    Returns:
        Scores, shape (N,).

    Raises:
        ValueError: If the prediction has several outputs for each row, or if logits are not finite.

    Example:
        >>> import torch
        >>> entropy(torch.zeros(2, 1, 2))
        tensor([0.6931])
    """
    if isinstance(pool, ClassificationPrediction):
        return _one_label(pool).total
    if isinstance(pool, RegressionPrediction):
        return _of_variance(2 * math.pi * math.e * noisy("pool", pool).total, pool)
    return by_rows(predictive_entropy, class_draws("pool", pool, least=1))


def bald(pool: Pool) -> Tensor:
    r"""Mutual information of the label of each row and the weights, in nats: what a label tells about the weights.

    For classes this is the epistemic part of the entropy, :func:`~pyro_bnn.uncertainty.mutual_information`. For numbers
    label and mean are treated as Gaussians with the predicted variances: :math:`\tfrac12 \log(v_\text{total} /
    v_\text{aleatoric})`.

    Args:
        pool: Prediction of the pool, or logits of shape (S, N, C).

    Returns:
        Scores, at least 0, shape (N,).

    Raises:
        ValueError: If there are fewer than two draws, several outputs for each row, numbers without noise, or logits
            that are not finite.

    References:
        Houlsby et al. (2011), Bayesian Active Learning for Classification and Preference Learning,
        https://arxiv.org/abs/1112.5745; Gal, Islam and Ghahramani (2017), Deep Bayesian Active Learning with Image
        Data, https://arxiv.org/abs/1703.02910.

    Example:
        >>> import torch
        >>> bald(torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]]))  # two draws that disagree
        tensor([0.6919])
    """
    if isinstance(pool, ClassificationPrediction):
        return _one_label(pool).epistemic
    if isinstance(pool, RegressionPrediction):
        noisy("pool", pool)
        return _of_variance(pool.total / pool.aleatoric, pool)
    return by_rows(mutual_information, class_draws("pool", pool))


def variation_ratios(pool: ClassificationPrediction | Tensor) -> Tensor:
    """Probability that the label of each row is not the most probable class.

    Args:
        pool: Prediction of classes, or logits of shape (S, N, C).

    Returns:
        Scores in [0, 1 - 1 / C], shape (N,).

    Raises:
        ValueError: If the prediction has several outputs for each row, or if logits are not finite.

    References:
        Gal, Islam and Ghahramani (2017), https://arxiv.org/abs/1703.02910.

    Example:
        >>> import torch
        >>> variation_ratios(torch.zeros(2, 1, 4))
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
    """Half the logarithm of a variance or of a ratio of variances, shape (N,)."""
    return (variance.log() / 2).view(len(pool)).to(pool.mean.dtype)
