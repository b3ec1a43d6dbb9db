"""Scores of class probabilities, and of detecting unknown inputs."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..._core import checks as _checks
from ..._core.summary import Shown, Summary, counted
from ._inputs import Numbers, as_tensor, class_inputs


def accuracy(probs: Numbers, y: Numbers) -> float:
    """Return the share of rows whose label is the most probable class.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).

    Example:
        >>> from pyro_bnn import metrics
        >>> metrics.accuracy([[0.9, 0.1], [0.4, 0.6]], [0, 0])
        0.5
    """
    probs, y = class_inputs(probs, y)
    return float((probs.argmax(-1) == y).double().mean())


def negative_log_likelihood(probs: Numbers, y: Numbers) -> float:
    """Return the mean negative log-probability of the labels, in nats.

    It is infinite if a label has probability 0, while scikit-learn's ``log_loss`` clips probabilities.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).

    Example:
        >>> from pyro_bnn import metrics
        >>> round(metrics.negative_log_likelihood([[0.9, 0.1], [0.4, 0.6]], [0, 0]), 3)
        0.511
    """
    probs, y = class_inputs(probs, y)
    return float(-probs.gather(-1, y[:, None]).log().mean())


def brier_score(probs: Numbers, y: Numbers) -> float:
    """Return the mean squared distance of class probabilities from one-hot labels, in [0, 2].

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).

    References:
        Brier (1950), who also sums over all classes.

    Example:
        >>> from pyro_bnn import metrics
        >>> metrics.brier_score([[1.0, 0.0], [0.5, 0.5]], [0, 0])
        0.25
    """
    probs, y = class_inputs(probs, y)
    return float((probs - one_hot(y, probs.shape[-1])).square().sum(-1).mean())


@dataclass(frozen=True, repr=False)
class CalibrationBins(Shown):
    """Mean confidence and accuracy of predictions in bins of the confidence.

    Args:
        edges: Bin edges, shape (B + 1,).
        counts: Number of inputs in each bin, shape (B,).
        confidence: Mean confidence in each bin, NaN in empty bins, shape (B,).
        accuracy: Accuracy in each bin, NaN in empty bins, shape (B,).

    Example:
        >>> from pyro_bnn import metrics
        >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]
        >>> metrics.calibration_bins(probs, [0, 1, 1], num_bins=2)
        CalibrationBins: 2 bins of 3 inputs
          above   to  inputs  confidence  accuracy
              0  0.5       0
            0.5    1       3         0.8    0.6667
    """

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    def _summary(self) -> Summary:
        columns = (self.edges[:-1], self.edges[1:], self.counts.int(), self.confidence, self.accuracy)
        rows = [
            [None if math.isnan(cell) else cell for cell in row]  # an empty bin has no means
            for row in zip(*(column.tolist() for column in columns), strict=True)
        ]
        title = f"CalibrationBins: {counted(len(rows), 'bin')} of {counted(int(self.counts.sum()), 'input')}"
        return Summary(title, rows=rows, header=("above", "to", "inputs", "confidence", "accuracy"))

    def accuracy_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        r"""Return the ends of Wilson intervals of the accuracies, each of shape (B,); NaN in empty bins.

        For n inputs in a bin, the accuracy a, and the two-sided normal quantile z, they are

        .. math::

            \Big(a + \tfrac{z^2}{2n} \pm z \sqrt{\tfrac{a(1-a)}{n} + \tfrac{z^2}{4n^2}}\Big) \Big/ (1 + \tfrac{z^2}{n}).

        Args:
            level: Approximate probability that an interval contains the true accuracy.

        References:
            Wilson (1927), Probable Inference, the Law of Succession, and Statistical Inference, JASA 22, 209-212.

        Example:
            >>> from pyro_bnn import metrics
            >>> bins = metrics.calibration_bins([[1.0, 0.0]] * 10, [0] * 10, num_bins=1)
            >>> [round(float(end), 4) for end in bins.accuracy_interval()]
            [0.7225, 1.0]
        """
        level = _checks.between_zero_and_one("level", level)
        z = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.double)).item()
        wider = z**2 / self.counts
        middle = self.accuracy + wider / 2
        half = z * (self.accuracy * (1 - self.accuracy) / self.counts + wider / (4 * self.counts)).sqrt()
        low, high = (middle - half) / (1 + wider), (middle + half) / (1 + wider)
        return low.clamp(min=0), high.clamp(max=1)  # up to rounding the ends are in [0, 1]

    def joined(self, min_inputs: int) -> "CalibrationBins":
        """Return wider bins with at least `min_inputs` inputs each: smaller bins are joined with their neighbours.

        With fewer inputs in all, there is a single bin.

        Example:
            >>> from pyro_bnn import metrics
            >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]
            >>> bins = metrics.calibration_bins(probs, [0, 1, 1], num_bins=10)
            >>> bins.counts.tolist(), bins.joined(2).counts.tolist()
            ([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0], [3.0])
        """
        min_inputs = _checks.at_least("min_inputs", min_inputs, 1)
        ends, num_inputs, left = [], 0, int(self.counts.sum())
        for end, count in enumerate(self.counts.int().tolist(), start=1):
            num_inputs, left = num_inputs + count, left - count
            if num_inputs >= min_inputs and left >= min_inputs:
                ends.append(end)
                num_inputs = 0
        bounds = torch.tensor([0, *ends, len(self.counts)])
        weighted = ((part * self.counts).nan_to_num(0.0) for part in (self.confidence, self.accuracy))
        counts, confidence, accuracy = (
            torch.stack([part.sum() for part in values.split(bounds.diff().tolist())])
            for values in (self.counts, *weighted)
        )
        return CalibrationBins(self.edges[bounds], counts, confidence / counts, accuracy / counts)


def calibration_bins(probs: Numbers, y: Numbers, *, num_bins: int = 15, equal_mass: bool = False) -> CalibrationBins:
    """Sort predictions into bins by the probability of the predicted class.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
        num_bins: Number of bins B; bin b contains confidences in (b / B, (b + 1) / B].
        equal_mass: Whether bins have equal numbers of inputs instead of equal width. The input of rank r, counted from
            0, is then in bin floor(r B / N). Inputs of equal confidence share a bin, so the numbers may differ.

    Example:
        >>> from pyro_bnn import metrics
        >>> probs = [[0.51, 0.49], [0.52, 0.48], [0.53, 0.47], [0.99, 0.01]]
        >>> y = [0, 0, 1, 0]
        >>> bins = metrics.calibration_bins(probs, y, num_bins=2, equal_mass=True)
        >>> bins.counts.tolist(), bins.accuracy.tolist()
        ([2.0, 2.0], [1.0, 0.5])
    """
    probs, y = class_inputs(probs, y)
    confidence, label = probs.max(-1)
    num_bins = _num_bins(num_bins)
    index, edges = _confidence_bins(confidence, num_bins, equal_mass=equal_mass)
    counts = torch.bincount(index, minlength=num_bins).double()
    mean_confidence = torch.bincount(index, confidence, minlength=num_bins) / counts
    mean_accuracy = torch.bincount(index, (label == y).double(), minlength=num_bins) / counts
    return CalibrationBins(edges, counts, mean_confidence, mean_accuracy)


def _num_bins(value: int) -> int:
    found = _checks.at_least("num_bins", value, 1)
    _checks.in_memory("num_bins", found, 4 * 8)  # four numbers of eight bytes for each bin
    return found


def _confidence_bins(confidence: Tensor, num_bins: int, *, equal_mass: bool) -> tuple[Tensor, Tensor]:
    """Return the bin of each confidence, (N,), and the edges of the bins, (B + 1,)."""
    _checks.flag("equal_mass", equal_mass)
    if not equal_mass:
        edges = torch.arange(num_bins + 1, dtype=torch.double) / num_bins
        index = torch.searchsorted(edges.to(confidence.device), confidence) - 1  # a product would be rounded
        return index.clamp(0, num_bins - 1), edges
    ordered, num_data = confidence.sort().values, len(confidence)
    first = (torch.arange(num_bins + 1, device=confidence.device) * num_data / num_bins).ceil().long()
    edges = ordered[first.clamp(max=num_data - 1)].double().cpu()
    return torch.searchsorted(ordered, confidence) * num_bins // num_data, edges


def expected_calibration_error(probs: Numbers, y: Numbers, *, num_bins: int = 15, equal_mass: bool = False) -> float:
    """Return the distance between confidence and accuracy, averaged over bins with their numbers of inputs as weights.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
        num_bins: Number of bins of the confidence. Most articles use 15.
        equal_mass: As for :func:`calibration_bins`.

    References:
        Guo et al. (2017), On Calibration of Modern Neural Networks, https://arxiv.org/abs/1706.04599.

    Example:
        >>> from pyro_bnn import metrics
        >>> round(metrics.expected_calibration_error([[0.8, 0.2]], [0]), 4)
        0.2
    """
    bins = calibration_bins(probs, y, num_bins=num_bins, equal_mass=equal_mass)
    gap = (bins.confidence - bins.accuracy).abs().nan_to_num(0.0)
    return float((gap * bins.counts).sum() / bins.counts.sum())


def calibration_error_by_chance(
    probs: Numbers, *, num_bins: int = 15, num_samples: int = 1000, seed: int = 0, equal_mass: bool = False
) -> Tensor:
    r"""Return the calibration errors that a perfectly calibrated classifier has by chance on N rows.

    In each bin, accuracy differs from confidence by chance. This function draws labels from the given probabilities,
    which are then perfectly calibrated:

    .. math:: E = \frac1N \sum_b \Big| \sum_{n \in b} (c_n - t_n) \Big|, \quad t_n \sim \mathrm{Bernoulli}(c_n),
              \quad c_n = \max_c p_{nc}.

    If the :func:`expected_calibration_error` of the true labels is below the 95 % quantile of E, there is no evidence
    of miscalibration.

    Args:
        probs: Class probabilities, shape (N, C).
        num_bins: As for :func:`expected_calibration_error`.
        num_samples: Number R of sets of labels to draw.
        seed: Seed of the labels.
        equal_mass: As for :func:`expected_calibration_error`.

    Returns:
        Calibration errors, shape (R,).

    References:
        Bröcker and Smith (2007), Increasing the Reliability of Reliability Diagrams; Vaicenavicius et al. (2019),
        https://arxiv.org/abs/1902.06977.

    Example:
        >>> from pyro_bnn import metrics
        >>> metrics.calibration_error_by_chance([[1.0, 0.0]], num_samples=2).tolist()
        [0.0, 0.0]
    """
    probs = as_tensor("probs", probs)
    probs, _ = class_inputs(probs, torch.zeros(probs.shape[:1], dtype=torch.long))
    num_samples = _checks.at_least("num_samples", num_samples, 1)
    num_bins = _num_bins(num_bins)
    generator = torch.Generator().manual_seed(_checks.seed(seed))
    confidence = probs.amax(-1).double().cpu()
    index, _ = _confidence_bins(confidence, num_bins, equal_mass=equal_mass)
    errors = []
    for _ in range(num_samples):
        is_right = torch.rand(len(confidence), generator=generator, dtype=torch.double) < confidence
        errors.append(torch.bincount(index, confidence - is_right.double(), minlength=num_bins).abs().sum())
    return torch.stack(errors) / len(confidence)


def adaptive_calibration_error(probs: Numbers, y: Numbers, *, num_bins: int = 15) -> float:
    r"""Return the mean distance between probability and frequency over all classes and bins.

    .. math:: \frac1{CB} \sum_c \sum_b \Big| \frac1{|b|} \sum_{n \in b} \big(1[y_n = c] - p_{nc}\big) \Big|.

    For each class c, the inputs are ordered by their probability of c, and cut into B bins. The input of rank r,
    counted from 0, is in bin floor(r B / N). If N is not a multiple of B, a bin is weighted by its share of the inputs
    instead of 1 / B. Inputs with equal probabilities all get the mean of their labels, so the order of rows does not
    matter.

    Args:
        probs: Class probabilities, shape (N, C).
        y: Labels, shape (N,).
        num_bins: Number of bins B per class.

    References:
        Nixon et al. (2019), Measuring Calibration in Deep Learning, https://arxiv.org/abs/1904.01685.

    Example:
        >>> from pyro_bnn import metrics
        >>> round(metrics.adaptive_calibration_error([[0.8, 0.2]], [0]), 4)
        0.2
    """
    probs, y = class_inputs(probs, y)
    num_bins = _num_bins(num_bins)
    num_data, num_classes = probs.shape
    bins = torch.arange(num_data, device=probs.device) * num_bins // num_data
    total = 0.0
    for label in range(num_classes):
        confidence, order = probs[:, label].sort()
        _, tied, num_tied = confidence.unique_consecutive(return_inverse=True, return_counts=True)
        frequency = (torch.bincount(tied, (y[order] == label).double()) / num_tied)[tied]
        total += float(torch.bincount(bins, frequency - confidence).abs().sum()) / num_data
    return total / num_classes


@dataclass(frozen=True)
class OODScores:
    """How well a score separates unknown inputs (out of domain, positives) from known ones (in domain).

    Args:
        auroc: Area under the ROC curve: the probability that an unknown input has a larger score than a known one.
        aupr: Average precision, with unknown inputs as the positive class.
        fpr95: False positive rate: the share of known inputs whose score is at least t, where t is the largest
            threshold that at least 95 % of the unknown inputs reach.
        auroc_standard_error: Standard error of the AUROC over inputs (DeLong et al., 1988); NaN for a single known or
            unknown input.
    """

    auroc: float
    aupr: float
    fpr95: float
    auroc_standard_error: float


def ood_scores(in_domain: Numbers, out_of_domain: Numbers) -> OODScores:
    """Measure how well a score separates unknown from known inputs. The score should be larger for unknown ones.

    Args:
        in_domain: Scores of known inputs, shape (N,).
        out_of_domain: Scores of unknown inputs, shape (M,).

    References:
        DeLong, DeLong and Clarke-Pearson (1988), Comparing the Areas under Two or More Correlated Receiver Operating
        Characteristic Curves, Biometrics 44, 837-845.

    Example:
        >>> from pyro_bnn import metrics
        >>> metrics.ood_scores([0.1, 0.2], [0.9, 0.8])
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
    """Return the share of the scores below each value in `at`; equal scores count one half."""
    ordered = scores.sort().values
    below, not_above = (torch.searchsorted(ordered, at, side=side) for side in ("left", "right"))
    return (below + not_above).double() / (2 * len(scores))
