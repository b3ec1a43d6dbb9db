"""How a likelihood curves in the outputs of a network."""

from collections.abc import Callable

import torch
from torch import Tensor

from ...modelling.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    HeteroscedasticGaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
)


def _of_two_halves(output: Tensor) -> Tensor:
    _, log_variance = output.chunk(2, -1)
    return torch.cat([(-log_variance).exp(), torch.full_like(log_variance, 0.5)], -1)


DIAGONALS: dict[type, Callable[[Tensor], Tensor]] = {
    GaussianLikelihood: torch.ones_like,
    BernoulliLikelihood: lambda output: output.sigmoid() * (-output).sigmoid(),
    PoissonLikelihood: torch.exp,
    HeteroscedasticGaussianLikelihood: _of_two_halves,
}
"""The curvature in outputs of shape (N, C) where there is none between two of them; for noise of scale 1."""

SERVED = (CategoricalLikelihood, *DIAGONALS)
"""Likelihoods whose curvature in the outputs is known."""


def root_of(likelihood: Likelihood, output: Tensor, y: Tensor) -> Tensor:
    r"""L of shape (N, C, C), so that the curvature of each row is :math:`L L^\top`; Gaussian noise has scale 1.

    The curvature is the expected Hessian of the negative log-likelihood, weighted as in a fit. It depends on the
    targets only by their weights. For all but heteroscedastic noise it is the Hessian itself.

    Args:
        likelihood: One of :data:`SERVED`.
        output: Outputs, shape (N, C).
        y: Targets, with their weights if the likelihood has row weights.
    """
    weights = likelihood.fit_weights(y, output.dtype)
    if type(likelihood) is CategoricalLikelihood:
        # diag(p) - p p^T for L = diag(sqrt p) - p sqrt(p)^T, since p sums to 1
        probs = output.softmax(-1)
        root = torch.diag_embed(probs.sqrt()) - probs[:, :, None] * probs.sqrt()[:, None, :]
        return root if weights is None else root * weights.sqrt()[:, None, None]
    values = DIAGONALS[type(likelihood)](output)
    if weights is not None:
        values = values * weights.repeat(1, values.shape[1] // weights.shape[1])
    return torch.diag_embed(values.sqrt())
