"""Laplace's method for networks of any size: a Gaussian whose precision is a generalised Gauss-Newton matrix."""

from ._fit import fit_gauss_newton as fit_gauss_newton
from ._posterior import GaussNewtonPosterior as GaussNewtonPosterior
