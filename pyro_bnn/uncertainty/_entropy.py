"""Entropies of class probabilities, and how they split."""

import torch
from torch import Tensor


def entropy(probs: Tensor) -> Tensor:
    """Entropy over the last axis, in nats; 0 log 0 is 0.

    Args:
        probs: Probabilities, shape (..., C).

    Returns:
        Values in [0, log C], shape (...).

    Example:
        >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.6931])
    """
    return torch.special.entr(probs).sum(-1)


def predictive_entropy(logits: Tensor) -> Tensor:
    r"""Total uncertainty of a classifier, :math:`H[\frac1S\sum_s p_s]`, in nats.

    Args:
        logits: Unnormalised log-probabilities, shape (S, N, C).

    Returns:
        Values in [0, log C], shape (N,).
    """
    return entropy(logits.softmax(-1).mean(0))


def expected_entropy(logits: Tensor) -> Tensor:
    r"""Aleatoric uncertainty of a classifier, :math:`\frac1S\sum_s H[p_s]`, in nats.

    Args:
        logits: Unnormalised log-probabilities, shape (S, N, C).

    Returns:
        Values in [0, log C], shape (N,).
    """
    return entropy(logits.softmax(-1)).mean(0)


def mutual_information(logits: Tensor) -> Tensor:
    r"""Epistemic uncertainty of a classifier, in nats; larger means that the draws disagree more.

    .. math:: I = H\big[\tfrac1S \sum_s p_s\big] - \tfrac1S \sum_s H[p_s].

    Args:
        logits: Unnormalised log-probabilities, shape (S, N, C).

    Returns:
        Values in [0, log C], shape (N,).

    Raises:
        ValueError: If S < 2, where the quantity is zero by construction.

    References:
        Houlsby et al. (2011), https://arxiv.org/abs/1112.5745.

    Example:
        >>> mutual_information(torch.zeros(2, 1, 2))
        tensor([0.])
    """
    require_two(len(logits))
    return (predictive_entropy(logits) - expected_entropy(logits)).clamp_min(0)


def require_two(num_samples: int) -> None:
    """Raise unless there are draws to disagree."""
    if num_samples < 2:
        raise ValueError(
            f"an epistemic uncertainty needs at least 2 draws, got {num_samples}: a single one cannot disagree with "
            "itself; call `predict` with a larger `num_samples`."
        )
