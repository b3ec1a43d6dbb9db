"""Dropout that stays on."""

from torch import Tensor, nn
from torch.nn import functional

from .._core import checks as _checks


class MCDropout(nn.Module):
    r"""Monte Carlo dropout: dropout that is also on in eval mode, so that each prediction draws a new mask.

    .. math:: x \mapsto \frac{b \cdot x}{1 - p}, \qquad b_i \sim \mathrm{Bernoulli}(1 - p).

    Fit :class:`~pyro_bnn.DeltaGuide` with a prior from :meth:`NormalPrior.from_weight_decay
    <pyro_bnn.NormalPrior.from_weight_decay>`; `predict` then averages over dropout masks. Each row has its own mask in
    each run of the network, so a seed gives the same prediction only for the same rows and the same `batch_size`.

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
        """Set random elements to zero, and scale the others so that the mean stays the same."""
        return functional.dropout(x, self.p, training=True)

    def extra_repr(self) -> str:
        """The probability, for `repr`."""
        return f"p={self.p}"
