"""Stochastic variational inference."""

from ._fit import fit_svi as fit_svi
from ._steps import NonFiniteError as NonFiniteError
