"""Entropies of class probabilities, split into aleatoric and epistemic uncertainty."""

import torch
from torch import Tensor

from ..._core import checks as _checks

LOG_ZERO = -800.0  # stands for the logarithm of 0; its exponential is 0 in double precision

SERIES_BELOW = 0.01  # for smaller |u|, four terms of a series (error 1e-9) are more accurate than logarithms


def entropy(probs: Tensor) -> Tensor:
    """Return the entropy of probabilities (..., C) over the last axis, in nats, where 0 log 0 is 0.

    Example:
        >>> import torch
        >>> from pyro_bnn import uncertainty
        >>> uncertainty.entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.6931])
    """
    _checks.finite("probs", _checks.real_tensor("probs", probs))
    if probs.dim() == 0 or bool((probs < 0).any()):
        raise ValueError(
            f"`probs` must be probabilities, shape (..., C), none below 0, got shape {_checks.shape(probs)} with a "
            f"smallest value of {float(probs.min()):g}; turn logits into probabilities with `.softmax(-1)`."
        )
    return torch.special.entr(probs).sum(-1)


def predictive_entropy(logits: Tensor) -> Tensor:
    r"""Return the total uncertainty of a classifier, :math:`H[\frac1S\sum_s p_s]`, in nats, in [0, log C].

    Args:
        logits: Unnormalised log-probabilities, shape (S, N, C); the result has the shape (N,).

    Example:
        >>> import torch
        >>> from pyro_bnn import uncertainty
        >>> logits = torch.tensor([[[50.0, 0.0]], [[0.0, 50.0]]])  # they disagree
        >>> uncertainty.predictive_entropy(logits).round(decimals=3)
        tensor([0.6930])
    """
    return entropy(_running(logits).mean).to(single_at_least(logits))


def expected_entropy(logits: Tensor) -> Tensor:
    r"""Return the aleatoric uncertainty of a classifier, :math:`\frac1S\sum_s H[p_s]`, in nats, in [0, log C].

    Args:
        logits: Unnormalised log-probabilities, shape (S, N, C); the result has the shape (N,).

    Example:
        >>> import torch
        >>> from pyro_bnn import uncertainty
        >>> logits = torch.tensor([[[50.0, 0.0]], [[0.0, 50.0]]])  # two sure draws
        >>> uncertainty.expected_entropy(logits).round(decimals=3)
        tensor([0.])
    """
    return _running(logits).expected_entropy.to(single_at_least(logits))


def mutual_information(logits: Tensor) -> Tensor:
    r"""Return the epistemic uncertainty of a classifier, in nats, which is larger if the draws disagree more.

    .. math:: I = H\big[\tfrac1S \sum_s p_s\big] - \tfrac1S \sum_s H[p_s].

    If the draws nearly agree, rounding errors in the two terms would be larger than this difference. So the value is
    computed as a sum of non-negative terms, in double precision.

    Args:
        logits: Unnormalised log-probabilities, shape (S, N, C).

    Returns:
        Values in [0, log C], shape (N,).

    Raises:
        ValueError: If S < 2, since one draw would always give 0.

    References:
        Houlsby et al. (2011), https://arxiv.org/abs/1112.5745.

    Example:
        >>> import torch
        >>> from pyro_bnn import uncertainty
        >>> uncertainty.mutual_information(torch.zeros(2, 1, 2))
        tensor([0.])
    """
    running = _running(logits)
    require_two(len(logits))
    return running.mutual_information.to(single_at_least(logits))


class RunningEntropies:
    r"""Mean probabilities of successive draws, their expected entropy, and the mutual information of label and draw.

    The mutual information :math:`I_S` of S draws is their mean KL divergence from the mean :math:`m_S`. A new draw p
    changes the mean, and updates :math:`I_{S-1}` to

    .. math:: I_S = b I_{S-1} + a\, \mathrm{KL}(p \| m_S) + b\, \mathrm{KL}(m_{S-1} \| m_S), \qquad
              a = \tfrac1S, \quad b = 1 - a, \quad m_S = b\, m_{S-1} + a\, p.

    With :math:`h(p) = p \log p`, :math:`u = (p - m_{S-1}) / m_S` and :math:`g(x) = (1 + x) \log(1 + x) - x`, the two
    divergences add up to a sum over classes of

    .. math:: a\, h(p) + b\, h(m_{S-1}) - h(m_S) = m_S \big(a\, g(b u) + b\, g(-a u)\big) \ge 0.

    For large u the left-hand side is computed. For small u its terms would cancel, so the series of g is summed.
    """

    def __init__(self) -> None:
        self.num_samples = 0

    def add(self, log_probs: Tensor) -> Tensor:
        """Add draws of log-probabilities, shape (S, ..., C), and return their probabilities."""
        log_probs = log_probs.double()
        unnormalised = log_probs.exp()
        total = unnormalised.sum(-1, keepdim=True)  # not exactly 1: single-precision inputs sum to 1 only within 1e-7
        probs = unnormalised / total
        products = probs * (log_probs - total.log()).clamp_min(LOG_ZERO)
        mean = probs.mean(0)
        floor = mean.clamp_min(torch.finfo(mean.dtype).tiny)
        u = (probs - mean) / floor
        cubic = u.square() * torch.addcmul(u.new_full((), 1 / 2), u, _tail(u))
        growth = torch.where(u.abs() < SERIES_BELOW, cubic, torch.special.xlog1py(1 + u, u) - u)
        information = (mean * growth).sum(-1).mean(0)  # mean over draws of the sums of m g((p - m) / m)
        self._merge(mean, mean * floor.log(), -products.sum(-1).mean(0), information, len(probs))
        return probs

    def _merge(self, probs: Tensor, product: Tensor, entropy: Tensor, information: Tensor, count: int) -> None:
        """Include `count` draws, given statistics of these draws. For their mean p (`probs`), `product` is p log p."""
        self.num_samples += count
        if self.num_samples == count:
            self.mean, self._mean_product, self.expected_entropy = probs, product, entropy
            self.mutual_information = information
            return
        weight = count / self.num_samples  # a in the formulas
        mean = torch.lerp(self.mean, probs, weight)
        floor = mean.clamp_min(torch.finfo(mean.dtype).tiny)
        mean_product = mean * floor.log()
        difference = probs - self.mean
        u = difference / floor
        growth = torch.where(
            u.abs() < SERIES_BELOW,
            difference * u * _series(u, weight),
            torch.lerp(self._mean_product, product, weight) - mean_product,
        )
        mutual_information = (1 - weight) * self.mutual_information + weight * information
        self.mutual_information = mutual_information + growth.sum(-1)
        self.expected_entropy = torch.lerp(self.expected_entropy, entropy, weight)
        self.mean, self._mean_product = mean, mean_product


def _tail(u: Tensor) -> Tensor:
    r"""Return :math:`(g(u) / u^2 - 1/2) / u` for :math:`g(x) = (1 + x) \log(1 + x) - x`, by its series."""
    return torch.addcmul(u.new_full((), -1 / 6), u, torch.addcmul(u.new_full((), 1 / 12), u, u.new_full((), -1 / 20)))


def require_two(num_samples: int) -> None:
    if num_samples < 2:
        raise ValueError(
            f"an epistemic uncertainty needs at least 2 draws, got {num_samples}, since it measures how they differ; "
            "call `predict` with a larger `num_samples`."
        )


def single_at_least(value: Tensor) -> torch.dtype:
    """Return the values' dtype, or float32 if that is more precise."""
    return torch.promote_types(value.dtype, torch.float32)


def _series(u: Tensor, a: float) -> Tensor:
    r"""Return (a g(b u) + b g(-a u)) / u^2 as the sum of :math:`(-u)^{k-2} (a b^k + b (-a)^k) / (k (k - 1))` over k."""
    b = 1 - a
    coefficients = ((a * b**k + b * (-a) ** k) / (k * (k - 1)) for k in (5, 4, 3, 2))
    fifth, fourth, third, second = (u.new_full((), coefficient) for coefficient in coefficients)
    v = -u
    return torch.addcmul(second, v, torch.addcmul(third, v, torch.addcmul(fourth, v, fifth)))


def _running(logits: Tensor) -> RunningEntropies:
    """Compute the entropies for unnormalised log-probabilities (S, N, C), draw by draw to save memory."""
    if bool(_checks.real_tensor("logits", logits).isnan().any()):  # minus infinity is a probability of 0
        raise ValueError("`logits` must be numbers, got NaN; drop the rows that have one.")
    if logits.dim() < 2 or logits.numel() == 0:
        raise ValueError(f"`logits` must have shape (S, N, C), none of them 0, got {_checks.shape(logits)}.")
    running = RunningEntropies()
    for draw in logits.split(1):
        running.add(draw.double().log_softmax(-1))
    return running
