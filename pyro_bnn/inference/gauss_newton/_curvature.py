"""The curvature of a likelihood in many weights, in three structures; what the evidence needs of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ._covariance import Block, Covariance, Diagonal, Full, Kronecker


class Curvature(ABC):
    r"""The matrix :math:`G = \sum_k \beta_k G_k`, P x P and not negative; the precision is G + diag(prior precision).

    The G_k belong to the noise scales of the outputs, with precisions beta; of most likelihoods there is one, and beta
    is 1. All numbers are in double precision.
    """

    @abstractmethod
    def log_det(self, noise: Tensor, prior: Tensor) -> Tensor:
        """Logarithm of the determinant of the precision, which is differentiable.

        Args:
            noise: Precisions of the noise, beta, shape (K,).
            prior: Prior precisions, shape (P,), or (1,) if they are all the same.

        Raises:
            ValueError: If the precision cannot be inverted.
        """

    @abstractmethod
    def covariance(self, noise: Tensor, prior: Tensor) -> Covariance:
        """The inverse of the precision; for arguments see :meth:`log_det`."""


@dataclass(frozen=True)
class DiagonalCurvature(Curvature):
    """The diagonals of the G_k alone, shape (K, P)."""

    values: Tensor

    def log_det(self, noise: Tensor, prior: Tensor) -> Tensor:
        """See :meth:`Curvature.log_det`."""
        return (noise @ self.values + prior).log().sum()

    def covariance(self, noise: Tensor, prior: Tensor) -> Diagonal:
        """See :meth:`Curvature.covariance`."""
        return Diagonal((noise @ self.values + prior).rsqrt())


@dataclass(frozen=True)
class FullCurvature(Curvature):
    """All of the G_k, shape (K, P, P)."""

    matrices: Tensor

    def log_det(self, noise: Tensor, prior: Tensor) -> Tensor:
        """See :meth:`Curvature.log_det`; of a single prior and noise from the eigenvalues, which are computed once."""
        if len(noise) == len(prior) == 1:
            return (noise * self._eigenvalues + prior).log().sum()
        return 2 * self.covariance(noise, prior).factor.diagonal().log().sum()

    @cached_property
    def _eigenvalues(self) -> Tensor:
        return torch.linalg.eigvalsh(self.matrices[0]).clamp_min(0)

    def covariance(self, noise: Tensor, prior: Tensor) -> Full:
        """See :meth:`Curvature.covariance`."""
        matrix = noise[0] * self.matrices[0] if len(noise) == 1 else torch.tensordot(noise, self.matrices, 1)
        factor, info = torch.linalg.cholesky_ex(matrix + prior.expand(len(matrix)).diag())
        if int(info):
            raise ValueError(
                "the curvature cannot be inverted in double precision, since the prior is too wide for it; use a "
                "narrower prior, or another `structure`."
            )
        return Full(factor)


@dataclass(frozen=True)
class KroneckerCurvature(Curvature):
    """One Kronecker product for each parameter; nothing between parameters. There is one noise scale.

    Args:
        blocks: Eigenvectors of the two factors of each parameter, with the products of their eigenvalues: left of shape
            (m, m), right of shape (n, n), values of shape (m, n).
    """

    blocks: tuple[tuple[Tensor, Tensor, Tensor], ...]

    def _precisions(self, noise: Tensor, prior: Tensor) -> list[Tensor]:
        """The eigenvalues of the precision. The prior's must be the same number for all weights of a parameter."""
        sizes = [values.numel() for _, _, values in self.blocks]
        parts = prior.expand(sum(sizes)).split(sizes)
        return [noise * values + part[0] for (_, _, values), part in zip(self.blocks, parts, strict=True)]

    def log_det(self, noise: Tensor, prior: Tensor) -> Tensor:
        """See :meth:`Curvature.log_det`; eigenvectors do not matter."""
        return torch.stack([values.log().sum() for values in self._precisions(noise, prior)]).sum()

    def covariance(self, noise: Tensor, prior: Tensor) -> Kronecker:
        """See :meth:`Curvature.covariance`."""
        pairs = zip(self.blocks, self._precisions(noise, prior), strict=True)
        return Kronecker(tuple(Block(left, right, values.rsqrt()) for (left, right, _), values in pairs))


def kronecker(factors: Sequence[Sequence[Tensor]]) -> KroneckerCurvature:
    """The curvature of Kronecker factors: for each parameter one or two symmetric matrices."""
    blocks = []
    for matrices in factors:
        pairs = [torch.linalg.eigh(matrix) for matrix in matrices]
        (left_values, left), (right_values, right) = pairs if len(pairs) == 2 else (pairs[0], _one_like(pairs[0][0]))
        blocks.append((left, right, torch.outer(left_values.clamp_min(0), right_values.clamp_min(0))))
    return KroneckerCurvature(tuple(blocks))


def _one_like(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.new_ones(1), values.new_ones(1, 1)
