"""Covariances of many weights, in three structures; what draws need of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


class Covariance(ABC):
    """The covariance matrix of P weights, as far as its structure stores it."""

    @abstractmethod
    def deviation(self, noise: Tensor) -> Tensor:
        """A draw of N(0, covariance), made from one of N(0, 1), both of shape (P,)."""

    @abstractmethod
    def times(self, vector: Tensor) -> Tensor:
        """The covariance matrix times a vector of shape (P,)."""

    @abstractmethod
    def variances(self) -> Tensor:
        """The variance of each weight, shape (P,)."""

    @abstractmethod
    def to(self, like: Tensor) -> "Covariance":
        """The same on the device and in the dtype of a tensor, as a file gives it back."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All numbers, for a file; :func:`covariance_from` reads them."""


@dataclass(frozen=True)
class Diagonal(Covariance):
    """Independent weights.

    Args:
        scales: Standard deviations, shape (P,).
    """

    scales: Tensor

    def deviation(self, noise: Tensor) -> Tensor:
        """See :meth:`Covariance.deviation`."""
        return self.scales * noise

    def times(self, vector: Tensor) -> Tensor:
        """See :meth:`Covariance.times`."""
        return self.scales.square() * vector

    def variances(self) -> Tensor:
        """See :meth:`Covariance.variances`."""
        return self.scales.square()

    def to(self, like: Tensor) -> "Diagonal":
        """See :meth:`Covariance.to`."""
        return Diagonal(_moved(self.scales, like))

    def tensors(self) -> dict[str, Tensor]:
        """See :meth:`Covariance.tensors`."""
        return {"scales": self.scales}


@dataclass(frozen=True)
class Full(Covariance):
    """All covariances, by the Cholesky factor of the precision matrix.

    Args:
        factor: The lower triangular factor L of the precision L L^T, shape (P, P).
    """

    factor: Tensor

    def deviation(self, noise: Tensor) -> Tensor:
        """See :meth:`Covariance.deviation`."""
        return torch.linalg.solve_triangular(self.factor.mT, noise[:, None], upper=True)[:, 0]

    def times(self, vector: Tensor) -> Tensor:
        """See :meth:`Covariance.times`."""
        return self.deviation(torch.linalg.solve_triangular(self.factor, vector[:, None], upper=False)[:, 0])

    def variances(self) -> Tensor:
        """See :meth:`Covariance.variances`."""
        return torch.cholesky_inverse(self.factor).diagonal()

    def to(self, like: Tensor) -> "Full":
        """See :meth:`Covariance.to`."""
        return Full(_moved(self.factor, like))

    def tensors(self) -> dict[str, Tensor]:
        """See :meth:`Covariance.tensors`."""
        return {"factor": self.factor}


@dataclass(frozen=True)
class Block:
    r"""The weights of one parameter, W of shape (m, n), or of shape (m,) where n is 1.

    Their precision matrix has the eigenvectors :math:`u_i \otimes v_j`, and the eigenvalues :math:`1 / s_{ij}^2`.

    Args:
        left: The vectors u in its columns, shape (m, m).
        right: The vectors v in its columns, shape (n, n).
        scales: The standard deviations s along the eigenvectors, shape (m, n).
    """

    left: Tensor
    right: Tensor
    scales: Tensor

    def rotated(self, vector: Tensor, factors: Tensor) -> Tensor:
        """A vector of shape (m n,), with its part along each eigenvector multiplied by a factor."""
        weights = vector.view(self.scales.shape)
        return (self.left @ ((self.left.mT @ weights @ self.right) * factors) @ self.right.mT).flatten()

    def variances(self) -> Tensor:
        """The variance of each weight, shape (m n,)."""
        return (self.left.square() @ self.scales.square() @ self.right.square().mT).flatten()


@dataclass(frozen=True)
class Kronecker(Covariance):
    """Independent parameters, each with Kronecker-factored eigenvectors.

    Args:
        blocks: One for each parameter, in order.
    """

    blocks: tuple[Block, ...]

    def _parts(self, vector: Tensor) -> tuple[Tensor, ...]:
        return vector.split([block.scales.numel() for block in self.blocks])

    def deviation(self, noise: Tensor) -> Tensor:
        """See :meth:`Covariance.deviation`."""
        parts = zip(self.blocks, self._parts(noise), strict=True)
        return torch.cat([block.rotated(part, block.scales) for block, part in parts])

    def times(self, vector: Tensor) -> Tensor:
        """See :meth:`Covariance.times`."""
        parts = zip(self.blocks, self._parts(vector), strict=True)
        return torch.cat([block.rotated(part, block.scales.square()) for block, part in parts])

    def variances(self) -> Tensor:
        """See :meth:`Covariance.variances`."""
        return torch.cat([block.variances() for block in self.blocks])

    def to(self, like: Tensor) -> "Kronecker":
        """See :meth:`Covariance.to`."""
        parts = ((b.left, b.right, b.scales) for b in self.blocks)
        return Kronecker(tuple(Block(*(_moved(value, like) for value in values)) for values in parts))

    def tensors(self) -> dict[str, Tensor]:
        """See :meth:`Covariance.tensors`."""
        return {f"{name}.{i}": value for i, block in enumerate(self.blocks) for name, value in vars(block).items()}


def _moved(value: Tensor, like: Tensor) -> Tensor:
    """A copy in memory of its own: products depend, in their last bits, on the order and alignment of the numbers."""
    return value.to(like).clone(memory_format=torch.contiguous_format)


def covariance_from(tensors: Mapping[str, Tensor], sizes: list[int]) -> Covariance:
    """The covariance of a file.

    Args:
        tensors: What :meth:`Covariance.tensors` gave.
        sizes: Number of weights of each parameter.

    Raises:
        ValueError: If the tensors are those of no structure, or do not fit the weights.
    """
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    total = sum(sizes)
    for name, value in tensors.items():
        if name.startswith("scales") and not bool((value > 0).all()):
            raise ValueError(f"`{name}` of the covariance must be above 0, got {float(value.min()):.4g}; fit again.")
    if shapes == {"scales": (total,)}:
        return Diagonal(tensors["scales"])
    if shapes == {"factor": (total, total)}:
        if not bool((tensors["factor"].diagonal() > 0).all()):
            raise ValueError("the diagonal of `factor` of the covariance must be above 0; fit again.")
        return Full(tensors["factor"])
    blocks = []
    for index, size in enumerate(sizes):
        parts = [tensors.get(f"{name}.{index}") for name in ("left", "right", "scales")]
        left, right, scales = parts
        if left is None or right is None or scales is None or scales.dim() != 2 or scales.numel() != size:
            raise ValueError(f"its covariance does not fit {total} weights; pass a file that `save_posterior` wrote.")
        m, n = scales.shape
        if left.shape != (m, m) or right.shape != (n, n):
            raise ValueError(f"its covariance has factors of other sizes than {m} and {n}; save the posterior again.")
        blocks.append(Block(left, right, scales))
    if len(shapes) != 3 * len(blocks):
        raise ValueError("its covariance has more numbers than its weights need; save the posterior again.")
    return Kronecker(tuple(blocks))
