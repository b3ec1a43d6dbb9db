"""Networks as surrogates for Bayesian optimisation with BoTorch."""

from ._fit import fit_surrogate as fit_surrogate
from ._surrogate import Surrogate as Surrogate

__all__ = ["Surrogate", "fit_surrogate"]
