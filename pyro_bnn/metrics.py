"""How good predictions are, how well calibrated, and how well uncertainty tells the unknown from the known.

Scores follow scikit-learn where it has them. Every function takes tensors on any device and returns a float.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from . import _checks

__all__ = [
    "CalibrationBins",
    "OODScores",
    "accuracy",
    "brier_score",
    "calibration_bins",
    "expected_calibration_error",
    "interval_coverage",
    "mixture_log_likelihood",
    "negative_log_likelihood",
    "ood_scores",
    "root_mean_squared_error",
]


def accuracy(probs: Tensor, y: Tensor) -> float:
    """Fraction of inputs whose most probable class is the right one.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
    """
    from sklearn.metrics import accuracy_score  # late: importing it takes longer than all of this package

    _check_classes(probs, y)
    return float(accuracy_score(y.cpu(), probs.argmax(-1).cpu()))


def negative_log_likelihood(probs: Tensor, y: Tensor) -> float:
    """Mean negative log-probability of the right class, in nats; infinite where that probability is 0.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
    """
    _check_classes(probs, y)
    return float(-probs.gather(-1, y.long()[:, None]).log().mean())


def brier_score(probs: Tensor, y: Tensor) -> float:
    """Mean over the data of the squared distance between probabilities and the one-hot label, in [0, 2].

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).

    References:
        Brier (1950), in its original form, summed over all classes.

    Example:
        >>> brier_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 0]))
        0.25
    """
    _check_classes(probs, y)
    return float((probs - one_hot(y.long(), probs.shape[-1])).square().sum(-1).mean())


@dataclass(frozen=True)
class CalibrationBins:
    """Confidence and accuracy by bin of confidence.

    Args:
        edges: Bin edges, shape (B + 1,).
        counts: Inputs in each bin, shape (B,).
        confidence: Their mean confidence, NaN in empty bins, shape (B,).
        accuracy: Their accuracy, NaN in empty bins, shape (B,).
    """

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    accuracy: Tensor


def calibration_bins(probs: Tensor, y: Tensor, *, num_bins: int = 15) -> CalibrationBins:
    """Sort predictions into bins of equal width by the probability of the predicted class.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
        num_bins: Number of bins; bin b holds confidences in (b / B, (b + 1) / B].
    """
    _check_classes(probs, y)
    _checks.at_least("num_bins", num_bins, 1)
    confidence, label = probs.double().max(-1)
    index = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1
    counts = torch.bincount(index, minlength=num_bins).double()
    mean_confidence = torch.bincount(index, confidence, minlength=num_bins) / counts
    mean_accuracy = torch.bincount(index, (label == y).double(), minlength=num_bins) / counts
    edges = torch.linspace(0, 1, num_bins + 1, dtype=torch.double)
    return CalibrationBins(edges, counts, mean_confidence, mean_accuracy)


def expected_calibration_error(probs: Tensor, y: Tensor, *, num_bins: int = 15) -> float:
    """Mean distance between confidence and accuracy over bins of equal width, weighted by the bins' counts.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
        num_bins: Number of bins of the confidence, 15 in most of the literature.

    References:
        Guo et al. (2017), On Calibration of Modern Neural Networks, https://arxiv.org/abs/1706.04599.

    Example:
        >>> round(expected_calibration_error(torch.tensor([[0.8, 0.2]]), torch.tensor([0])), 4)
        0.2
    """
    bins = calibration_bins(probs, y, num_bins=num_bins)
    gap = (bins.confidence - bins.accuracy).abs().nan_to_num(0.0)
    return float((gap * bins.counts).sum() / bins.counts.sum())


def root_mean_squared_error(mean: Tensor, y: Tensor) -> float:
    """Square root of the mean squared error, in the units of y.

    Args:
        mean: Predictive means, shape ``(N, *O)``.
        y: Targets of the same shape.
    """
    _check_same(mean, y)
    return math.sqrt(float((mean - y).square().mean()))


def mixture_log_likelihood(log_probs: Tensor) -> float:
    r"""Mean log predictive density, :math:`\frac1N\sum_n \log \frac1S\sum_s p_s(y_n)`, in nats.

    Args:
        log_probs: Log-density of each target under each draw, shape (S, N).
    """
    return float((log_probs.logsumexp(0) - math.log(len(log_probs))).mean())


def interval_coverage(lower: Tensor, upper: Tensor, y: Tensor) -> float:
    """Fraction of targets inside their predictive interval, ends included.

    Args:
        lower: Lower ends, shape ``(N, *O)``.
        upper: Upper ends, same shape.
        y: Targets, same shape.
    """
    _check_same(lower, y)
    _check_same(upper, y)
    return float(((lower <= y) & (y <= upper)).double().mean())


@dataclass(frozen=True)
class OODScores:
    """How well a score tells out-of-domain inputs (the positives) from in-domain ones.

    Args:
        auroc: Area under the ROC curve: the chance that an unknown input scores above a known one.
        aupr: Average precision, out-of-domain being the positive class.
        fpr95: Fraction of in-domain inputs taken for unknown when 95 % of the unknown are found.
    """

    auroc: float
    aupr: float
    fpr95: float


def ood_scores(in_domain: Tensor, out_of_domain: Tensor) -> OODScores:
    """Rate any score that should be larger for unknown inputs.

    Args:
        in_domain: Scores of known inputs, shape (N,).
        out_of_domain: Scores of unknown inputs, shape (M,).

    Example:
        >>> ood_scores(torch.tensor([0.1, 0.2]), torch.tensor([0.9, 0.8]))
        OODScores(auroc=1.0, aupr=1.0, fpr95=0.0)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    for name, value in (("in_domain", in_domain), ("out_of_domain", out_of_domain)):
        if value.dim() != 1 or len(value) == 0:
            raise ValueError(f"`{name}` must be a non-empty vector of scores, got shape {_checks.shape(value)}.")
        _checks.finite(name, value)
    unknown = torch.cat([torch.zeros(len(in_domain)), torch.ones(len(out_of_domain))]).numpy()
    score = torch.cat([in_domain.cpu(), out_of_domain.cpu()]).double().numpy()
    false_positive, true_positive, _ = roc_curve(unknown, score, drop_intermediate=False)
    return OODScores(
        auroc=float(roc_auc_score(unknown, score)),
        aupr=float(average_precision_score(unknown, score)),
        fpr95=float(false_positive[true_positive >= 0.95].min()),
    )


def _check_classes(probs: Tensor, y: Tensor) -> None:
    if probs.dim() != 2 or y.shape != probs.shape[:1]:
        raise ValueError(
            f"`probs` must have shape (N, C) and `y` shape (N,), got {_checks.shape(probs)} and {_checks.shape(y)}."
        )


def _check_same(value: Tensor, y: Tensor) -> None:
    if value.shape != y.shape:
        raise ValueError(
            f"predictions and targets must have the same shape, got {_checks.shape(value)} and {_checks.shape(y)}."
        )
