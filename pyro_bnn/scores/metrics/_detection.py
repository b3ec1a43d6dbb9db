"""Scores of the detection of unknown inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core import checks as _checks
from ._inputs import Numbers, as_tensor


@dataclass(frozen=True)
class OODScores:
    """Measures of how well a score separates unknown inputs (out of domain, positives) from known inputs (in domain).

    Args:
        auroc: Area under the ROC curve: the probability that an unknown input has a larger score than a known one.
        aupr: Average precision, with unknown inputs as the positive class.
        fpr95: Fraction of known inputs whose scores reach the threshold. At least 95 % of the unknown inputs have
            scores that reach the threshold, and no larger threshold has this property.
        auroc_standard_error: Standard error of the AUROC over known and unknown inputs (DeLong et al., 1988); NaN if
            there is only one known or only one unknown input.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> known, unknown = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.9])
        >>> scores = pb.metrics.ood_scores(known, unknown)
        >>> round(scores.auroc, 3)
        0.833
    """

    auroc: float
    aupr: float
    fpr95: float
    auroc_standard_error: float


def ood_scores(in_domain: Numbers, out_of_domain: Numbers) -> OODScores:
    """Measure how well a score separates unknown from known inputs. Scores should be larger for unknown inputs.

    Args:
        in_domain: Scores of known inputs, shape (N,).
        out_of_domain: Scores of unknown inputs, shape (M,).

    References:
        DeLong, DeLong and Clarke-Pearson (1988), Comparing the Areas under Two or More Correlated Receiver Operating
        Characteristic Curves, Biometrics 44, 837-845.

    Example:
        >>> import torch
        >>> from pyro_bnn import metrics
        >>> metrics.ood_scores(torch.tensor([0.1, 0.2]), torch.tensor([0.9, 0.8]))
        OODScores(auroc=1.0, aupr=1.0, fpr95=0.0, auroc_standard_error=0.0)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve  # importing it takes seconds

    in_domain, out_of_domain = as_tensor("in_domain", in_domain), as_tensor("out_of_domain", out_of_domain)
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
        auroc_standard_error=_standard_error(in_domain.cpu().double(), out_of_domain.cpu().double()),
    )


def _standard_error(known: Tensor, unknown: Tensor) -> float:
    if len(known) < 2 or len(unknown) < 2:
        return float("nan")
    variances = (_shares_below(known, unknown).var() / len(unknown), _shares_below(unknown, known).var() / len(known))
    return float(sum(variances) ** 0.5)


def _shares_below(scores: Tensor, at: Tensor) -> Tensor:
    """Return, for each value in `at`, the share of the scores below this value; equal scores count one half."""
    ordered = scores.sort().values
    below, not_above = (torch.searchsorted(ordered, at, side=side) for side in ("left", "right"))
    return (below + not_above).double() / (2 * len(scores))
