"""Dropout that stays on."""

from torch import Tensor, nn
from torch.nn import functional

from .._core import checks as _checks


class MCDropout(nn.Module):
    r"""Monte Carlo dropout: dropout that stays on in eval mode, so that predictions with the same weights differ.

    .. math:: x \mapsto \frac{b \cdot x}{1 - p}, \qquad b_i \sim \mathrm{Bernoulli}(1 - p).

    With the fit of :func:`~pyro_bnn.auto_delta` under :meth:`NormalPrior.from_weight_decay
    <pyro_bnn.NormalPrior.from_weight_decay>`, `predict` averages over dropout masks. Each row of each run of the
    network gets a new mask, so two rows never share a subnetwork, and a seed repeats a prediction only with the same
    rows and the same `batch_size`.

    Args:
        p: Probability that an element is set to zero, strictly between 0 and 1.

    References:
        Gal and Ghahramani (2016), Dropout as a Bayesian Approximation, https://arxiv.org/abs/1506.02142.

    Example:
        >>> import torch
        >>> layer = MCDropout(0.5).eval()
        >>> sorted(layer(torch.ones(1000)).unique().tolist())
        [0.0, 2.0]
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = _checks.between_zero_and_one("p", p)

    def forward(self, x: Tensor) -> Tensor:
        """Set some elements to zero, and scale the others up so that the mean stays the same."""
        return functional.dropout(x, self.p, training=True)

    def extra_repr(self) -> str:
        """The probability, for `repr`."""
        return f"p={self.p}"
