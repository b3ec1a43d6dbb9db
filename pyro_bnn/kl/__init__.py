r"""Weights of the KL term, relative to the ELBO, and divergences between distributions.

The objective of a batch b is :math:`N \cdot \mathrm{NLL}_b + \lambda\, \mathrm{KL}`, with the NLL a mean per data
point. Weight 1 is the ELBO; a constant other than 1 is a temperature. Texts that sum the likelihood over a batch only
write 1/M for what is weight 1 here, M being the number of batches (Graves, 2011).
"""

from ._divergence import Divergence as Divergence
from ._divergence import divergence as divergence
from ._weights import KLWeight as KLWeight
from ._weights import blundell as blundell
from ._weights import check_weight as check_weight
from ._weights import constant as constant
from ._weights import linear_warmup as linear_warmup
from ._weights import per_weight as per_weight

__all__ = ["Divergence", "KLWeight", "blundell", "constant", "divergence", "linear_warmup", "per_weight"]
