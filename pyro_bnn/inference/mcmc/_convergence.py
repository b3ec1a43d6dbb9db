"""R-hat and effective sample sizes of scalar quantities, with ArviZ."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..._core.extras import optional
from ..._core.summary import Shown

FEWEST_DRAWS = 4  # R-hat needs at least this many draws in each of several chains, or in each half of a single chain


@dataclass(frozen=True, repr=False)
class Convergence(Shown):
    """R-hat and effective sample sizes of M scalar quantities; NaN for a quantity that is the same in all draws.

    All values are NaN if there are fewer than four draws in each of several chains, or fewer than eight in a single
    chain.

    Args:
        r_hat: Rank-normalised split R-hat, shape (M,).
        ess_bulk: Effective sample size for means, shape (M,).
        ess_tail: Effective sample size for the 5 % and 95 % quantiles, shape (M,).
        is_known: Whether there were enough draws.

    References:
        Vehtari et al. (2021), https://arxiv.org/abs/1903.08008.
    """

    r_hat: Tensor
    ess_bulk: Tensor
    ess_tail: Tensor
    is_known: bool = True

    def __str__(self) -> str:
        if not self.is_known:
            return "too few draws for R-hat"
        if bool(self.r_hat.isnan().all()):
            return "constant"
        bulk, tail = smallest(self.ess_bulk), smallest(self.ess_tail)
        return f"largest R-hat {self.worst_r_hat:.3f}, smallest ESS {bulk:.0f} (bulk) and {tail:.0f} (tail)"

    @property
    def worst_r_hat(self) -> float:
        """The largest R-hat of all quantities that vary; NaN if none varies."""
        return -smallest(-self.r_hat)

    @property
    def worst_ess(self) -> float:
        """The smallest bulk or tail effective sample size of all quantities that vary; NaN if none varies."""
        return smallest(torch.cat([self.ess_bulk, self.ess_tail]))


def told_beside(value: float, limit: float, fewest: int = 2) -> str:
    """Return a number with `fewest` decimals, or with more if they are needed to show that it is above a limit."""
    digits = next((n for n in range(fewest, 6) if round(value, n) > limit), 6) if value > limit else fewest
    return f"{value:.{digits}f}"


def smallest(values: Tensor) -> float:
    """Return the smallest number that is not NaN; NaN if all are NaN."""
    known = values[~values.isnan()]
    return float(known.min()) if len(known) else math.nan


def convergence(values: Tensor) -> Convergence:
    """Compute R-hat and effective sample sizes of scalar quantities.

    Args:
        values: Values of M quantities in K chains of S draws each, shape (K, S, M).

    Example:
        >>> import torch
        >>> from pyro_bnn.inference.mcmc import convergence
        >>> draws = torch.randn(4, 500, 1)  # four chains that agree
        >>> bool(convergence(draws).r_hat < 1.02)
        True
        >>> draws[0] += 3  # one chain is elsewhere
        >>> bool(convergence(draws).r_hat > 1.2)
        True
    """
    num_chains, num_draws, num_quantities = values.shape
    if num_draws < (FEWEST_DRAWS if num_chains > 1 else 2 * FEWEST_DRAWS):
        unknown = torch.full((num_quantities,), float("nan"), dtype=torch.float64)
        return Convergence(unknown, unknown, unknown, is_known=False)
    bulk, tail = (_by_quantity("ess", values, method=method) for method in ("bulk", "tail"))
    return Convergence(r_hats(values), bulk, tail)


def r_hats(values: Tensor) -> Tensor:
    """Return the rank-normalised split R-hat, shape (M,), of values of shape (K, S, M); NaN for a constant quantity."""
    if len(values) == 1:  # ArviZ needs two chains to compare: here the halves of a single one
        half = values.shape[1] // 2
        values = torch.cat([values[:, :half], values[:, -half:]])
    return _by_quantity("rhat", values)


def _by_quantity(function: str, values: Tensor, **options: str) -> Tensor:
    """Return a statistic of ArviZ for each quantity, shape (M,); NaN for a constant quantity."""
    arviz = optional("arviz", "ArviZ", "mcmc")
    values = values.detach().double().cpu()
    varies = (values != values[0, 0]).flatten(0, 1).any(0)
    found = torch.full(varies.shape, float("nan"), dtype=torch.float64)
    if bool(varies.any()):
        dataset = arviz.convert_to_dataset({"values": values[..., varies].numpy()})
        with np.errstate(divide="ignore", invalid="ignore"):  # R-hat is infinite if the chains never moved
            found[varies] = torch.as_tensor(getattr(arviz, function)(dataset, **options)["values"].values)
    return found
