"""Likelihoods of class labels."""

import math
import warnings
from collections.abc import Sequence

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ..._core import checks as _checks
from ...scores.uncertainty import Accumulator, ClassAccumulator, ClassificationPrediction
from ._base import Likelihood, require_output_dims

ROUNDING_ERRORS, SUM_TOLERANCE = 16, 1e-2
"""Heuristic: outputs that add up to 1 within 16 rounding errors, or within 1e-2 if this is less, are probabilities.
Other outputs rarely do, even in a single row."""


class _ClassLikelihood(Likelihood[ClassificationPrediction]):
    """A likelihood of class labels, each of which a fit may weight."""

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
    """One of C classes. The network's output has shape (N, C): unnormalised log-probabilities (logits).

    Targets are integers from 0 to C - 1, shape (N,).

    With class weights, a fit multiplies the log-probability of each row by the weight of its class, for example to give
    rare classes the same influence as common ones; see :class:`Likelihood`. The weights are not normalised. The weights
    ``len(y) / (C * torch.bincount(y, minlength=C))`` are inverse to the frequencies of the classes and have mean 1 over
    the data; ``weights / weights[y].mean()`` gives any weights this mean.

    Args:
        class_weights: Weight above 0 of each class, C numbers; by default 1 for all classes.

    Raises:
        ValueError: If the weights are not C finite numbers above 0.
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
        """Warn if the outputs are probabilities, as from a network that ends in a softmax."""
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
        """Raise unless targets are whole numbers from 0 to C - 1."""
        num_classes = output.shape[-1]
        if self.has_row_weights:  # joined with weights, labels are floating point
            if not bool((y == y.floor()).all()):
                raise ValueError(f"class labels must be whole numbers, got {y[y != y.floor()][:3].tolist()}.")
            y = y.long()
        if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
            raise ValueError(f"class labels must be integers, got {y.dtype}; convert with `y.long()`.")
        low, high = map(int, y.aminmax())
        if low < 0 or high >= num_classes:
            is_shifted = high - low < num_classes
            remedy = f"count from 0, as in `y - {low}`" if is_shifted else "give the network one output per class"
            raise ValueError(
                f"class labels must lie in 0, ..., {num_classes - 1} (the network has {num_classes} outputs), "
                f"got {low} to {high}; {remedy}."
            )

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        labels = super().as_targets(y, dtype)
        return labels.long() if self.has_row_weights else labels


class BernoulliLikelihood(_ClassLikelihood):
    """Yes or no. The network's output is the log-odds of yes, and has the shape of the targets.

    Targets are 0 or 1 (integer, boolean or floating point). Predictions get a last axis of two classes, no and yes.

    Args:
        class_weights: Weights above 0 of the classes no and yes in a fit, as for :class:`CategoricalLikelihood`; by
            default 1 for both. (1, w) has the effect of ``pos_weight=w`` in torch's ``BCEWithLogitsLoss``.

    Raises:
        ValueError: If the weights are not two finite numbers above 0.
    """

    def __init__(self, class_weights: Tensor | Sequence[float] | None = None) -> None:
        super().__init__(class_weights)
        if self.class_weights is not None and len(self.class_weights) != 2:
            raise ValueError(f"`class_weights` must be two numbers, for no and for yes, got {len(self.class_weights)}.")

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        require_output_dims("BernoulliLikelihood", output, 1, "(N,) or (N, O)")
        return dist.Bernoulli(logits=output, validate_args=False)

    def check_values(self, output: Tensor, y: Tensor) -> None:
        """Raise unless targets are zeros and ones."""
        if y.is_complex():
            raise ValueError(f"targets of BernoulliLikelihood must be 0 or 1, got {y.dtype}; convert with `y.real`.")
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(
                f"targets of BernoulliLikelihood must be 0 or 1, got {float(y.min())} to {float(y.max())}."
            )

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return super().as_targets(y, dtype).to(dtype)


def _checked_weights(weights: object) -> Tensor:
    """The weights as a vector in double precision; raises unless they are two or more numbers above 0."""
    try:
        vector = torch.as_tensor(weights, dtype=torch.float64).detach().to("cpu", copy=True)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"`class_weights` must be one number per class, got {_checks.got(weights)}.") from None
    if vector.dim() != 1 or len(vector) < 2:
        raise ValueError(f"`class_weights` must be a vector of C numbers, got shape {_checks.shape(vector)}.")
    if not bool((torch.isfinite(vector) & (vector > 0)).all()):
        raise ValueError(f"`class_weights` must be finite and above 0, got {vector.tolist()}.")
    return vector
