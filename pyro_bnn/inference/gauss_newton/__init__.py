"""Laplace's method for large networks, with a generalised Gauss-Newton matrix in place of the Hessian."""

from ._fit import FARTHER as FARTHER
from ._fit import fit_gauss_newton as fit_gauss_newton
from ._posterior import GaussNewtonPosterior as GaussNewtonPosterior
