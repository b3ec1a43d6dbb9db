"""Rank-normalised R-hat (Vehtari et al., 2021, https://arxiv.org/abs/1903.08008) of many quantities at once.

ArviZ computes the same numbers for one quantity after the other, and takes about a millisecond for each.
"""

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import rankdata
from torch import Tensor


def r_hats(values: Tensor) -> Tensor:
    """Return the rank-normalised split R-hat, shape (M,), of quantities of shape (K, S, M); NaN for constants.

    S is at least 4 for several chains, and at least 8 for a single chain, whose halves are compared.
    """
    if len(values) == 1:
        values = _halves(values)
    halves = _halves(values.detach().double().cpu()).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # R-hat is infinite if the chains never moved
        bulk = _of_scores(halves)
        tail = _of_scores(np.abs(halves - np.median(halves, (0, 1))))
    return torch.from_numpy(np.where(tail > bulk, tail, bulk))  # the tail is NaN for quantities with only two values


def _halves(values: Tensor) -> Tensor:
    """Divide each chain into two chains; the middle draw of an odd number is left out."""
    half = values.shape[1] // 2
    return torch.cat([values[:, :half], values[:, -half:]])


def _of_scores(values: np.ndarray) -> np.ndarray:
    """Return the R-hat of the normal scores of the ranks of values, shape (K, S, M)."""
    num_chains, num_draws, num_quantities = values.shape
    ranks = rankdata(values.reshape(-1, num_quantities), axis=0)
    scores = ndtri((ranks - 3 / 8) / (num_chains * num_draws + 1 / 4)).reshape(values.shape)
    within = scores.var(1, ddof=1).mean(0)
    between = num_draws * scores.mean(1).var(0, ddof=1)
    return np.sqrt((between / within + num_draws - 1) / num_draws)
