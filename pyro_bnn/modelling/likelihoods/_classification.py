"""Likelihoods of class labels and of ordered class labels."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import logsigmoid

from ..._core import checks as _checks
from ...scores.uncertainty import Accumulator, ClassAccumulator, ClassificationPrediction
from ._base import Likelihood, require_one_output, require_output_dims
from ._numbers import NumbersLikelihood, lifted

ROUNDING_ERRORS, SUM_TOLERANCE = 16, 1e-2  # heuristic: outputs are probabilities if their sum is nearer to 1


class _ClassLikelihood(Likelihood[ClassificationPrediction]):
    class_weights: Tensor | None

    def __init__(self, class_weights: Tensor | Sequence[float] | None = None) -> None:
        super().__init__()
        self.keep_exact("class_weights", None if class_weights is None else _checked_weights(class_weights))

    def fit_weights(self, y: Tensor, dtype: torch.dtype) -> Tensor | None:
        weights = super().fit_weights(y, dtype)
        if self.class_weights is None:
            return weights
        of_labels = self.class_weights[self.as_targets(y, dtype).long()]
        return of_labels if weights is None else weights * of_labels

    def accumulator(self) -> Accumulator[ClassificationPrediction]:
        return ClassAccumulator()


class CategoricalLikelihood(_ClassLikelihood):
    """One of C classes. Outputs are logits, shape (N, C); targets are integers from 0 to C - 1, shape (N,).

    With class weights, a fit multiplies the log-probability of each row by the weight of its class, so that rare
    classes can count as much as common ones; see :class:`Likelihood`. The weights ``len(y) / (C * torch.bincount(y,
    minlength=C))`` make all classes count equally, and have mean 1 over the data.

    Args:
        class_weights: Weights of the classes, C numbers above 0; None for equal weights.

    Raises:
        ValueError: If the weights are not C finite numbers above 0.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> likelihood = pb.CategoricalLikelihood()
        >>> likelihood(torch.tensor([[5.0, 0.0, 0.0]])).probs.round(decimals=2)
        tensor([[0.9900, 0.0100, 0.0100]])
    """

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_output_dims("CategoricalLikelihood", output, 2, "(N, C)")
        if self.class_weights is not None and len(self.class_weights) != output.shape[-1]:
            raise ValueError(
                f"there are {len(self.class_weights)} `class_weights`, but the network has {output.shape[-1]} outputs; "
                "give one weight per class."
            )
        return dist.Categorical(logits=output, validate_args=False)

    def check_output(self, output: Tensor) -> None:
        require_output_dims("CategoricalLikelihood", output, 2, "(N, C)")
        off, num_classes = (output.double().sum(-1) - 1).abs(), output.shape[-1]
        tolerance = min(ROUNDING_ERRORS * torch.finfo(output.dtype).eps, SUM_TOLERANCE)
        if num_classes > 1 and bool((output >= 0).all()) and bool((off < tolerance).all()):
            warnings.warn(
                "the network's outputs are at least 0 and add up to 1, as after a softmax, but CategoricalLikelihood "
                "takes logits and applies the softmax itself; with these outputs no class can get a probability above "
                f"{math.e / (math.e + num_classes - 1):.2f}. Remove the softmax, or end in `nn.LogSoftmax`.",
                stacklevel=3,
            )

    def check_values(self, output: Tensor, y: Tensor) -> None:
        num_classes = output.shape[-1]
        if self.has_row_weights:  # joined with weights, labels are floating point
            require_classes(y)
            y = y.long()
        require_classes(y)
        if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
            raise ValueError(f"class labels must be integers, got {y.dtype}; convert with `y.long()`.")
        low, high = map(int, y.aminmax())
        if low < 0 or high >= num_classes:
            is_shifted = high - low < num_classes
            remedy = "give the network one output per class"
            if is_shifted or low < 0:
                shifted = f"`y {'-' if low > 0 else '+'} {abs(low)}`"
                remedy = f"count from 0, as in {shifted if is_shifted else '`(y > 0).long()` for labels -1 and 1'}"
            raise ValueError(
                f"class labels must lie in 0, ..., {num_classes - 1} (the network has {num_classes} outputs), "
                f"got {low} to {high}; {remedy}."
            )

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        labels = super().as_targets(y, dtype)
        return labels.long() if self.has_row_weights else labels


class BernoulliLikelihood(_ClassLikelihood):
    """Yes or no. The output is the log-odds of yes, in the shape of the targets.

    Targets are 0 or 1 (integer, boolean or floating point). The last axis of a prediction has two classes: "no", "yes".

    Args:
        class_weights: Weights of "no" and of "yes", as for :class:`CategoricalLikelihood`. The weights (1, w) act as
            ``pos_weight=w`` of torch's ``BCEWithLogitsLoss``.

    Raises:
        ValueError: If the weights are not two finite numbers above 0.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> likelihood = pb.BernoulliLikelihood()
        >>> likelihood(torch.tensor([0.0, 2.0])).mean.round(decimals=2)
        tensor([0.5000, 0.8800])
    """

    def __init__(self, class_weights: Tensor | Sequence[float] | None = None) -> None:
        super().__init__(class_weights)
        if self.class_weights is not None and len(self.class_weights) != 2:
            raise ValueError(f"`class_weights` must be two numbers, for no and for yes, got {len(self.class_weights)}.")

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_output_dims("BernoulliLikelihood", output, 1, "(N,) or (N, O)")
        return dist.Bernoulli(logits=output, validate_args=False)

    def check_values(self, output: Tensor, y: Tensor) -> None:
        if y.is_complex():
            raise ValueError(f"targets of BernoulliLikelihood must be 0 or 1, got {y.dtype}; convert with `y.real`.")
        require_classes(y)
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(
                f"targets of BernoulliLikelihood must be 0 or 1, got {y.min():g} to {y.max():g}; "
                f"convert them, as in `y > {y.min():g}`."
            )

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return super().as_targets(y, dtype).to(dtype)


def require_classes(y: Tensor) -> None:
    """Raise if targets have fractions."""
    fractions = y[y != y.floor()] if y.is_floating_point() else y[:0]
    if len(fractions):
        got = f"got numbers such as {float(fractions[0]):.3g}"
        raise ValueError(f"`y` must hold classes, {got}; for numbers use GaussianLikelihood.")


def _checked_weights(weights: object) -> Tensor:
    try:
        vector = torch.as_tensor(weights, dtype=torch.float64).detach().to("cpu", copy=True)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"`class_weights` must be one number per class, got {_checks.got(weights)}.") from None
    if vector.dim() != 1 or len(vector) < 2:
        raise ValueError(
            f"`class_weights` must be a vector of C numbers, got shape {_checks.shape(vector)}; for equal weights "
            "leave it out: the number of classes, C, is that of the network's outputs."
        )
    if not bool((torch.isfinite(vector) & (vector > 0)).all()):
        raise ValueError(f"`class_weights` must be finite and above 0, got {vector.tolist()}.")
    return vector


class Ordinal(NumbersLikelihood[ClassificationPrediction]):
    r"""One of C ordered classes, such as grades: a cumulative logit model (proportional odds).

    .. math:: P(y \le k \mid x) = \frac{1}{1 + e^{f(x) - c_k}}, \qquad c_0 < c_1 < \dots < c_{C-2}.

    Output of shape (N, 1) goes with targets of shape (N,): integers from 0 to C - 1. A larger output makes higher
    classes more probable. Predictions are class probabilities. If the last bias and all cutpoints shift by the same
    amount, the probabilities do not change, so only the priors determine this amount.

    Args:
        num_classes: Number of classes C, at least 2.
        cutpoints: C - 1 increasing numbers; None to learn them, starting at values that make all classes equally
            probable if the output is 0; or a distribution of an ordered vector, such as :meth:`prior`, for the latent
            variable ``likelihood.cutpoints``.

    Raises:
        ValueError: If the cutpoints are not C - 1 increasing numbers, or their prior is not over ordered vectors.

    References:
        McCullagh (1980), Regression Models for Ordinal Data, https://doi.org/10.1111/j.2517-6161.1980.tb01109.x.

    Example:
        >>> import torch
        >>> from pyro_bnn import likelihoods
        >>> likelihoods.Ordinal(3, cutpoints=[-1.0, 1.0])(torch.zeros(1, 1)).probs
        tensor([[0.2689, 0.4621, 0.2689]])
    """

    def __init__(
        self, num_classes: int, cutpoints: Sequence[float] | Tensor | TorchDistributionMixin | None = None
    ) -> None:
        super().__init__()
        self.num_classes = _checks.at_least("num_classes", num_classes, 2)
        if cutpoints is None:
            even = torch.arange(1, self.num_classes, dtype=torch.float64) / self.num_classes
            self.add_learned("cutpoints", _free(even.logit()), _ordered)
        elif isinstance(cutpoints, Distribution):
            self.add_latent("cutpoints", _checked_prior(cutpoints, self.num_classes))
        else:
            self.add_fixed("cutpoints", _checked_points(cutpoints, self.num_classes))

    @staticmethod
    def prior(num_classes: int, scale: float = 3.0) -> TorchDistributionMixin:
        r"""Return a prior of cutpoints: the first one and the log-distances between neighbours are :math:`N(0, s^2)`.

        Args:
            num_classes: Number of classes.
            scale: The standard deviation s.
        """
        count = _checks.at_least("num_classes", num_classes, 2) - 1
        normal = dist.Normal(0.0, _checks.positive("scale", scale)).expand([count]).to_event(1)
        return dist.TransformedDistribution(normal, [dist.transforms.OrderedTransform()])

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_one_output("Ordinal", output)
        cuts = lifted(self.number("cutpoints"), 1, output).to(output) - output  # (*draws, N, C - 1)
        low, high = cuts[..., :-1], cuts[..., 1:]
        # log(s(b) - s(a)) = log s(b) + log s(-a) + log(1 - exp(a - b)) loses no digits in the tails
        between = logsigmoid(high) + logsigmoid(-low) + (-(low - high).expm1()).log()
        log_probs = torch.cat([logsigmoid(cuts[..., :1]), between, logsigmoid(-cuts[..., -1:])], -1)
        return dist.Categorical(logits=log_probs, validate_args=False)

    def num_outputs(self, num_targets: int) -> int:
        return 1

    def check_values(self, output: Tensor, y: Tensor) -> None:
        require_classes(y)
        if y.is_complex() or y.dtype == torch.bool or (y.is_floating_point() and not self.has_row_weights):
            raise ValueError(f"targets of Ordinal must be integers, got {y.dtype}; convert with `y.long()`.")
        low, high = map(float, y.aminmax())
        if low < 0 or high >= self.num_classes:
            raise ValueError(
                f"targets of Ordinal must be whole numbers from 0 to {self.num_classes - 1}, got values from {low:g} "
                f"to {high:g}; count classes from 0, or raise `num_classes`."
            )

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return super().as_targets(y, dtype).long()

    def extra_repr(self) -> str:
        return f"{self.num_classes} classes, {super().extra_repr()}"

    def accumulator(self) -> Accumulator[ClassificationPrediction]:
        return ClassAccumulator()


def _free(cutpoints: Tensor) -> Tensor:
    """Return the first cutpoint and the logarithms of the distances between neighbours."""
    return torch.cat([cutpoints[:1], cutpoints.diff().log()])


def _ordered(free: Tensor) -> Tensor:
    """Undo :func:`_free`."""
    return torch.cat([free[:1], free[:1] + free[1:].exp().cumsum(0)])


def _checked_points(cutpoints: Any, num_classes: int) -> Tensor:
    try:
        points = torch.as_tensor(cutpoints, dtype=torch.float64).detach().to("cpu", copy=True)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        points = torch.zeros(0)
    if points.shape != (num_classes - 1,) or not bool(torch.isfinite(points).all() and (points.diff() > 0).all()):
        raise ValueError(
            f"`cutpoints` must be {num_classes - 1} increasing numbers for {num_classes} classes, got "
            f"{_checks.got(cutpoints)}; use None to learn the cutpoints."
        )
    return points


def _checked_prior(prior: Any, num_classes: int) -> TorchDistributionMixin:
    is_ordered = isinstance(prior, TorchDistributionMixin) and prior.support is constraints.ordered_vector
    if not is_ordered or prior.batch_shape or prior.event_shape != (num_classes - 1,):
        raise ValueError(
            f"the prior of `cutpoints` must be a distribution of an ordered vector of {num_classes - 1} numbers, got "
            f"{type(prior).__name__} with event shape {tuple(prior.event_shape)} on {prior.support}; use "
            f"`Ordinal.prior({num_classes})`."
        )
    return prior
