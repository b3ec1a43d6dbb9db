"""Removal of the weights with the lowest signal-to-noise ratios.

References:
    Blundell et al. (2015), Weight Uncertainty in Neural Networks, https://arxiv.org/abs/1505.05424, section 5.1;
    Graves (2011), Practical Variational Inference for Neural Networks.
"""

from ._prune import decibel as decibel
from ._prune import mean_field as mean_field
from ._prune import prune as prune
from ._prune import signal_to_noise as signal_to_noise
from ._report import PruningReport as PruningReport
from ._report import PruningRow as PruningRow
from ._report import snr_report as snr_report
from ._sparse import MAX_DENSITY as MAX_DENSITY
from ._sparse import SparseLinear as SparseLinear
from ._sparse import sparse_network as sparse_network

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
