"""Scores for active learning: which rows of a pool to label next.

A pool consists of rows without labels. Each function takes a prediction of the pool, the result of
:func:`~pyro_bnn.predict`, and returns a score for each row. Rows with the largest scores should be labelled first.
Instead of scores, :func:`batch_bald` returns several rows, chosen together.

In classification, a pool may also be a tensor of logits (unnormalised log-probabilities) of shape (S, N, C): S draws, N
rows, C classes. :func:`from_baal` makes such logits from an array of shape (N, C, S). The functions process the rows in
parts, so they need little memory in addition to the draws.

:func:`epig` and :func:`batch_bald` compare the predictions that one draw gives for different rows. So each draw must
use the same weights for all rows. Do not use :func:`epig` and :func:`batch_bald` with
:class:`~pyro_bnn.nets.MCDropout`, which draws a mask for each row.
"""

from ..._core.remedies import explain_missing
from ._batch import batch_bald
from ._scores import bald, entropy, epig, from_baal, variation_ratios

__all__ = ["bald", "batch_bald", "entropy", "epig", "from_baal", "variation_ratios"]

explain_missing(__name__)
