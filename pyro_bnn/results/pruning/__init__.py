"""Removal of the weights with the lowest signal-to-noise ratios.

References:
    Blundell et al. (2015), Weight Uncertainty in Neural Networks, https://arxiv.org/abs/1505.05424, section 5.1;
    Graves (2011), Practical Variational Inference for Neural Networks.
"""

from ..._core.remedies import explain_errors
from ._prune import Per as Per
from ._prune import decibel, prune, signal_to_noise
from ._prune import mean_field as mean_field
from ._report import PruningReport, PruningRow, snr_report
from ._sparse import MAX_DENSITY, SparseLinear, sparse_network

__all__ = [
    "MAX_DENSITY",
    "PruningReport",
    "PruningRow",
    "SparseLinear",
    "decibel",
    "prune",
    "signal_to_noise",
    "snr_report",
    "sparse_network",
]

explain_errors(__name__)
