"""Curvatures of the likelihood with respect to the weights, and covariances of the posterior."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor


class Covariance(ABC):
    """The covariance matrix of P weights. Files store `tensors` by name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    @abstractmethod
    def deviation(self, noise: Tensor) -> Tensor:
        """Transform standard normal numbers, shape (P,), to a draw from N(0, covariance)."""

    @abstractmethod
    def times(self, vector: Tensor) -> Tensor:
        """Multiply the covariance matrix by a vector of shape (P,)."""

    @abstractmethod
    def variances(self) -> Tensor:
        """Return the variance of each weight, shape (P,)."""

    def to(self, like: Tensor) -> "Covariance":
        """Return a contiguous copy, since the last bits of predictions depend on the memory layout."""
        contiguous = torch.contiguous_format
        return type(self)({n: value.to(like).clone(memory_format=contiguous) for n, value in self.tensors.items()})


class Full(Covariance):
    """A full covariance matrix, whose inverse is L L^T; `factor` is the lower Cholesky factor L, shape (P, P)."""

    def deviation(self, noise: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.tensors["factor"].mT, noise[:, None], upper=True)[:, 0]

    def times(self, vector: Tensor) -> Tensor:
        return self.deviation(torch.linalg.solve_triangular(self.tensors["factor"], vector[:, None], upper=False)[:, 0])

    def variances(self) -> Tensor:
        return torch.cholesky_inverse(self.tensors["factor"]).diagonal()


class AlongAxes(Covariance):
    r"""A covariance that is diagonal along orthogonal axes. `scales` has the standard deviations, shape (P,).

    Without Kronecker factors, the axes are the coordinate axes. With Kronecker factors, parameter number i, of shape
    (m, n), has the axes :math:`u \otimes v`: the vectors u are the columns of `left.i`, and the vectors v are the
    columns of `right.i`.
    """

    def _parts(self, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """For each parameter, yield `left`, `right`, and the parameter's part of each vector, shape (m, n)."""
        names = range(len(self.tensors) // 2)
        axes = [(self.tensors[f"left.{i}"], self.tensors[f"right.{i}"]) for i in names]
        shapes = [(len(left), len(right)) for left, right in axes]
        each = zip(*(vector.split([m * n for m, n in shapes]) for vector in vectors), strict=True)
        for (left, right), shape, parts in zip(axes, shapes, each, strict=True):
            yield left, right, *(part.view(shape) for part in parts)

    def _multiplied(self, vector: Tensor, factors: Tensor) -> Tensor:
        if "left.0" not in self.tensors:
            return factors * vector
        parts = self._parts(vector, factors)
        return torch.cat([(u @ ((u.mT @ part @ v) * factor) @ v.mT).flatten() for u, v, part, factor in parts])

    def deviation(self, noise: Tensor) -> Tensor:
        return self._multiplied(noise, self.tensors["scales"])

    def times(self, vector: Tensor) -> Tensor:
        return self._multiplied(vector, self.tensors["scales"].square())

    def variances(self) -> Tensor:
        squares = self.tensors["scales"].square()
        if "left.0" not in self.tensors:
            return squares
        return torch.cat([(u.square() @ part @ v.square().mT).flatten() for u, v, part in self._parts(squares)])


KINDS: dict[str, type[Covariance]] = {"full": Full, "kronecker": AlongAxes, "diagonal": AlongAxes}


def shapes_of(structure: str, shapes: Sequence[torch.Size]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a covariance's tensors, by name, for parameters of the given shapes."""
    total = sum(shape.numel() for shape in shapes)
    if structure == "full":
        return {"factor": (total, total)}
    expected: dict[str, tuple[int, ...]] = {"scales": (total,)}
    if structure == "kronecker":
        for index, shape in enumerate(shapes):
            m, n = shape[:1].numel(), shape[1:].numel()
            expected |= {f"left.{index}": (m, m), f"right.{index}": (n, n)}
    return expected


@dataclass(frozen=True)
class FullCurvature:
    r"""The positive semi-definite matrix :math:`G = \sum_k \beta_k G_k`, given the `matrices` G_k, shape (K, P, P).

    The matrix G_k comes from the outputs with the k-th noise scale, and beta_k is the precision of their noise. Most
    likelihoods have a single G_k, with beta = 1. The precision matrix of the posterior is G + diag(prior precision).
    """

    matrices: Tensor

    def log_det(self, noise: Tensor, prior: Tensor) -> Tensor:
        """Return the log-determinant of the precision matrix as a differentiable function of both arguments.

        `noise` is beta, shape (K,). `prior` has the prior precisions, shape (P,), or (1,) if all are equal.
        """
        if len(noise) == len(prior) == 1:  # the eigenvalues are computed once for all priors
            return (noise * self._eigenvalues + prior).log().sum()
        return 2 * self.covariance(noise, prior).tensors["factor"].diagonal().log().sum()

    @cached_property
    def _eigenvalues(self) -> Tensor:
        return torch.linalg.eigvalsh(self.matrices[0]).clamp_min(0)

    def covariance(self, noise: Tensor, prior: Tensor) -> Full:
        """Return the inverse of the precision matrix; for the arguments see :meth:`log_det`."""
        matrix = noise[0] * self.matrices[0] if len(noise) == 1 else torch.tensordot(noise, self.matrices, 1)
        factor, info = torch.linalg.cholesky_ex(matrix + prior.expand(len(matrix)).diag())
        if int(info):
            raise ValueError(
                "the precision matrix cannot be inverted in double precision, since the prior is too wide; use a "
                "narrower prior, or another `structure`."
            )
        return Full({"factor": factor})


@dataclass(frozen=True)
class CurvatureAlongAxes:
    """A curvature that is diagonal along the axes of :class:`AlongAxes`; `values`, shape (K, P), has the diagonals."""

    values: Tensor
    axes: Mapping[str, Tensor] = field(default_factory=dict)

    def log_det(self, noise: Tensor, prior: Tensor) -> Tensor:
        return (noise @ self.values + prior).log().sum()

    def covariance(self, noise: Tensor, prior: Tensor) -> AlongAxes:
        return AlongAxes({"scales": (noise @ self.values + prior).rsqrt(), **self.axes})


Curvature = FullCurvature | CurvatureAlongAxes


def kronecker(factors: Sequence[Sequence[Tensor]]) -> CurvatureAlongAxes:
    """Return the curvature with the given Kronecker factors: one or two symmetric matrices for each parameter."""
    axes: dict[str, Tensor] = {}
    parts = []
    for index, matrices in enumerate(factors):
        (left_values, left), *others = [torch.linalg.eigh(matrix) for matrix in matrices]
        right_values, right = others[0] if others else (left.new_ones(1), left.new_ones(1, 1))
        axes |= {f"left.{index}": left, f"right.{index}": right}
        parts.append(torch.outer(left_values.clamp_min(0), right_values.clamp_min(0)).flatten())
    return CurvatureAlongAxes(torch.cat(parts)[None], axes)
