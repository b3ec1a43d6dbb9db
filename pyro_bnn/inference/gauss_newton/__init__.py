"""Laplace's method for large networks: a Gaussian whose precision is a generalised Gauss-Newton matrix."""

from ._fit import fit_gauss_newton as fit_gauss_newton
from ._posterior import GaussNewtonPosterior as GaussNewtonPosterior
