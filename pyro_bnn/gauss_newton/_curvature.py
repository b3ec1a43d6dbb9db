"""The curvature of a likelihood in many weights, in three structures; what the evidence needs of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ._covariance import Block, Covariance, Diagonal, Full, Kronecker

Groups = Sequence[Sequence[int]]
"""Groups of parameters that share a prior precision, by their numbers."""


class Curvature(ABC):
    """The matrix G of the likelihood's curvature, P x P and not negative; the precision is G + diag(prior precision).

    All numbers are in double precision, and so are the vectors of prior precisions, of shape (P,).
    """

    @abstractmethod
    def log_det(self, prior: Tensor) -> float:
        """Logarithm of the determinant of the precision."""

    @abstractmethod
    def covariance(self, prior: Tensor) -> Covariance:
        """The inverse of the precision.

        Raises:
            ValueError: If the prior precisions do not go with the structure, or the precision cannot be inverted.
        """

    def traces(self, prior: Tensor, parts: Sequence[slice], groups: Groups) -> list[float]:
        """Sums of the posterior variances of the weights in each group.

        Args:
            prior: Prior precisions, the same number in each group.
            parts: Where the weights of each parameter are, in order.
            groups: Numbers of the parameters of each group; each parameter is in one of them.
        """
        variances = self.covariance(prior).variances()
        return [sum(float(variances[parts[i]].sum()) for i in group) for group in groups]


@dataclass(frozen=True)
class DiagonalCurvature(Curvature):
    """The diagonal of G alone, shape (P,)."""

    values: Tensor

    def log_det(self, prior: Tensor) -> float:
        """See :meth:`Curvature.log_det`."""
        return float((self.values + prior).log().sum())

    def covariance(self, prior: Tensor) -> Diagonal:
        """See :meth:`Curvature.covariance`."""
        return Diagonal((self.values + prior).rsqrt())


@dataclass(frozen=True)
class FullCurvature(Curvature):
    """All of G, shape (P, P)."""

    matrix: Tensor

    def log_det(self, prior: Tensor) -> float:
        """See :meth:`Curvature.log_det`."""
        return 2 * float(self.covariance(prior).factor.diagonal().log().sum())

    def covariance(self, prior: Tensor) -> Full:
        """See :meth:`Curvature.covariance`."""
        factor, info = torch.linalg.cholesky_ex(self.matrix + prior.diag())
        if int(info):
            raise ValueError(
                "the curvature cannot be inverted in double precision, since the prior is too wide for it; use a "
                "narrower prior, or another `structure`."
            )
        return Full(factor)

    @cached_property
    def _eigenvalues(self) -> Tensor:
        return torch.linalg.eigvalsh(self.matrix)

    def traces(self, prior: Tensor, parts: Sequence[slice], groups: Groups) -> list[float]:
        """See :meth:`Curvature.traces`; of a single group from the eigenvalues, which are computed once."""
        if len(groups) > 1:
            return super().traces(prior, parts, groups)
        return [float((self._eigenvalues + prior[0]).reciprocal().sum())]


@dataclass(frozen=True)
class KroneckerCurvature(Curvature):
    """One Kronecker product for each parameter; nothing between parameters.

    Args:
        blocks: Eigenvectors of the two factors of each parameter, with the products of their eigenvalues: left of shape
            (m, m), right of shape (n, n), values of shape (m, n).
    """

    blocks: tuple[tuple[Tensor, Tensor, Tensor], ...]

    def _precisions(self, prior: Tensor) -> list[Tensor]:
        """The eigenvalues of the precision. The prior's must be the same number for all weights of a parameter."""
        parts = prior.split([values.numel() for _, _, values in self.blocks])
        return [values + part[0] for (_, _, values), part in zip(self.blocks, parts, strict=True)]

    def log_det(self, prior: Tensor) -> float:
        """See :meth:`Curvature.log_det`."""
        return sum(float(values.log().sum()) for values in self._precisions(prior))

    def traces(self, prior: Tensor, parts: Sequence[slice], groups: Groups) -> list[float]:
        """See :meth:`Curvature.traces`; eigenvectors do not matter."""
        sums = [float(values.reciprocal().sum()) for values in self._precisions(prior)]
        return [sum(sums[i] for i in group) for group in groups]

    def covariance(self, prior: Tensor) -> Kronecker:
        """See :meth:`Curvature.covariance`."""
        pairs = zip(self.blocks, self._precisions(prior), strict=True)
        return Kronecker(tuple(Block(left, right, values.rsqrt()) for (left, right, _), values in pairs))


def kronecker(factors: list[list[Tensor]], scale: float) -> KroneckerCurvature:
    """The curvature of Kronecker factors.

    Args:
        factors: For each parameter the factors, one or two symmetric matrices.
        scale: What their products are multiplied by.
    """
    blocks = []
    for matrices in factors:
        pairs = [torch.linalg.eigh(matrix.double()) for matrix in matrices]
        (left_values, left), (right_values, right) = pairs if len(pairs) == 2 else (pairs[0], _one_like(pairs[0][0]))
        values = torch.outer(left_values.clamp_min(0), right_values.clamp_min(0)) * scale
        blocks.append((left, right, values))
    return KroneckerCurvature(tuple(blocks))


def _one_like(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.new_ones(1), values.new_ones(1, 1)
