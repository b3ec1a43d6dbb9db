r"""Weights of the KL term relative to the ELBO, and divergences between distributions.

The objective of a batch b is :math:`N \cdot \mathrm{NLL}_b + \lambda\, \mathrm{KL}`, where the NLL is a mean per data
point. The weight :math:`\lambda = 1` gives the ELBO; another constant is a temperature. Texts that sum the likelihood
over a batch only, such as Graves (2011), use the weight 1/M for M batches; in this package that weight is 1.
"""

from ._divergence import Divergence as Divergence
from ._divergence import divergence as divergence
from ._weights import KLWeight as KLWeight
from ._weights import as_function as as_function
from ._weights import blundell as blundell
from ._weights import check_weight as check_weight
from ._weights import constant as constant
from ._weights import linear_warmup as linear_warmup
from ._weights import per_weight as per_weight

__all__ = ["Divergence", "KLWeight", "blundell", "constant", "divergence", "linear_warmup", "per_weight"]
