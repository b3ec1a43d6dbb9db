"""Scores of the detection of unknown inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _checks
from ._inputs import Numbers, as_tensor


@dataclass(frozen=True)
class OODScores:
    """Quality of a score that separates out-of-domain inputs (the positives) from in-domain ones.

    Args:
        auroc: Area under the ROC curve: the probability that an unknown input scores above a known one.
        aupr: Average precision, with out-of-domain as the positive class.
        fpr95: Fraction of in-domain inputs above the threshold that finds 95 % of the unknown inputs.
    """

    auroc: float
    aupr: float
    fpr95: float


def ood_scores(in_domain: Numbers, out_of_domain: Numbers) -> OODScores:
    """Quality of a score that should be larger for unknown inputs than for known ones.

    Args:
        in_domain: Scores of known inputs, shape (N,).
        out_of_domain: Scores of unknown inputs, shape (M,).

    Example:
        >>> ood_scores(torch.tensor([0.1, 0.2]), torch.tensor([0.9, 0.8]))
        OODScores(auroc=1.0, aupr=1.0, fpr95=0.0)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve  # the import takes seconds

    in_domain, out_of_domain = score_vector("in_domain", in_domain), score_vector("out_of_domain", out_of_domain)
    unknown = torch.cat([torch.zeros(len(in_domain)), torch.ones(len(out_of_domain))]).numpy()
    score = torch.cat([in_domain.cpu(), out_of_domain.cpu()]).double().numpy()
    false_positive, true_positive, _ = roc_curve(unknown, score, drop_intermediate=False)
    return OODScores(
        auroc=float(roc_auc_score(unknown, score)),
        aupr=float(average_precision_score(unknown, score)),
        fpr95=float(false_positive[true_positive >= 0.95].min()),
    )


def score_vector(name: str, value: Numbers) -> Tensor:
    """Scores as a tensor of shape (N,).

    Raises:
        ValueError: If they are not a vector of finite numbers, or there are none.
    """
    scores = as_tensor(name, value)
    if scores.dim() != 1 or len(scores) == 0:
        raise ValueError(f"`{name}` must be a non-empty vector of scores, got shape {_checks.shape(scores)}.")
    _checks.finite(name, scores)
    return scores
