"""Scores for active learning: which rows of a pool to label next.

A pool consists of rows without labels. Each function takes a prediction of the pool by :func:`~pyro_bnn.predict`, and
returns a score for each row. Rows with the largest scores should be labelled first. :func:`batch_bald` instead returns
several rows, chosen together.

In classification, a pool may also be a tensor of logits of shape (S, N, C): S draws, N rows, C classes.
:func:`from_baal` converts arrays of shape (N, C, S).

:func:`epig` and :func:`batch_bald` compare predictions of the same draw for different rows. Do not use these functions
with :class:`~pyro_bnn.nets.MCDropout`, which draws a mask for each row.
"""

from ..._core.remedies import explain_errors
from ._batch import batch_bald
from ._scores import bald, entropy, epig, from_baal, variation_ratios

__all__ = ["bald", "batch_bald", "entropy", "epig", "from_baal", "variation_ratios"]

explain_errors(__name__)
