"""Likelihoods of class labels."""

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ..uncertainty import Accumulator, ClassAccumulator
from ._base import Likelihood, require_output_dims


class CategoricalLikelihood(Likelihood):
    """One of C classes; the network's last axis holds unnormalised log-probabilities (logits).

    Output of shape (N, C) goes with integer targets of shape (N,), each in 0, ..., C - 1.
    """

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        """Categorical(logits=output)."""
        require_output_dims("CategoricalLikelihood", output, 2, "(N, C)")
        return dist.Categorical(logits=output, validate_args=False)

    def check_values(self, output: Tensor, y: Tensor) -> None:
        """Raise unless targets are whole numbers from 0 to C - 1; see :meth:`Likelihood.check_values`."""
        num_classes = output.shape[-1]
        if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
            raise ValueError(f"class labels must be integers, got {y.dtype}; convert with `y.long()`.")
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"class labels must lie in 0, ..., {num_classes - 1} (the network has {num_classes} outputs), "
                f"got {low} to {high}; give the network one output per class."
            )

    def accumulator(self) -> Accumulator:
        """Averages probabilities."""
        return ClassAccumulator()


class BernoulliLikelihood(Likelihood):
    """Yes or no; the network's output is the log-odds of yes, and has the shape of the targets.

    Targets are 0 or 1 (integer, boolean or floating point). Predictions get a last axis of two classes, no and yes.
    """

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        """Bernoulli(logits=output)."""
        require_output_dims("BernoulliLikelihood", output, 1, "(N,) or (N, O)")
        return dist.Bernoulli(logits=output, validate_args=False)

    def check_values(self, output: Tensor, y: Tensor) -> None:
        """Raise unless targets are zeros and ones; see :meth:`Likelihood.check_values`."""
        if y.is_complex():
            raise ValueError(f"targets of BernoulliLikelihood must be 0 or 1, got {y.dtype}; convert with `y.real`.")
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(
                f"targets of BernoulliLikelihood must be 0 or 1, got {float(y.min())} to {float(y.max())}."
            )

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """The targets in the dtype of the output."""
        return y.to(dtype)

    def accumulator(self) -> Accumulator:
        """Averages probabilities."""
        return ClassAccumulator()
