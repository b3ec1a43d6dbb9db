r"""Weights of the KL term in a fit, and divergences between distributions.

The loss of a batch b is :math:`N \cdot \mathrm{NLL}_b + \lambda\, \mathrm{KL}`. Here N is the number of rows in the
data set, and the NLL is a mean over the rows of the batch. The weight :math:`\lambda = 1` gives the ELBO; any other
constant weight acts as a temperature. Some papers, such as Graves (2011), sum the NLL over the rows of a batch, and use
the weight 1/M for M batches. Their weight 1/M corresponds to the weight 1 in this package.
"""

from ..._core.remedies import explain_missing
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

explain_missing(__name__)
