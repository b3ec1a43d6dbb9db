"""Networks as surrogates for Bayesian optimisation by BoTorch."""

from ._surrogate import Surrogate as Surrogate

__all__ = ["Surrogate"]
