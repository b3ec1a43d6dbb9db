"""Convergence of chains, by ArviZ."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from ..joint import draw_batches
from ..model import BayesianModel

if TYPE_CHECKING:
    from ._posterior import ChainStatistics

LARGEST_R_HAT = 1.01
SMALLEST_ESS_PER_CHAIN = 100
"""Both after Vehtari et al. (2021), https://arxiv.org/abs/1903.08008."""

SMALLEST_BFMI = 0.3
"""Betancourt (2016), https://arxiv.org/abs/1604.00695: below, the momentum explores the energies too slowly."""


class ConvergenceWarning(UserWarning):
    """The chains are not to be trusted as they are; the message says what to do."""


@dataclass(frozen=True)
class Convergence:
    """R-hat and effective sample sizes, one for each of M scalar quantities, with NaN for constant ones.

    Args:
        r_hat: Rank-normalised split R-hat, shape (M,).
        ess_bulk: Effective sample size for means, shape (M,).
        ess_tail: Effective sample size for the 5 % and 95 % quantiles, shape (M,).

    References:
        Vehtari et al. (2021), https://arxiv.org/abs/1903.08008.
    """

    r_hat: Tensor
    ess_bulk: Tensor
    ess_tail: Tensor

    def __str__(self) -> str:
        r_hat = self.r_hat[~self.r_hat.isnan()]
        if not len(r_hat):
            return "constant"
        ess = (values[~values.isnan()].min() for values in (self.ess_bulk, self.ess_tail))
        return f"largest R-hat {r_hat.max():.3f}, smallest ESS {next(ess):.0f} (bulk) and {next(ess):.0f} (tail)"

    @property
    def worst_r_hat(self) -> float:
        """The largest, leaving constant quantities out; NaN if all are constant."""
        r_hat = self.r_hat[~self.r_hat.isnan()]
        return float(r_hat.max()) if len(r_hat) else float("nan")

    @property
    def worst_ess(self) -> float:
        """The smallest of all bulk and tail sizes, leaving constant quantities out."""
        ess = torch.cat([self.ess_bulk, self.ess_tail])
        ess = ess[~ess.isnan()]
        return float(ess.min()) if len(ess) else float("nan")


@dataclass(frozen=True)
class Diagnostics:
    """What the chains of a sampler say about themselves.

    Args:
        num_chains: K.
        num_divergences: Over all chains, after warm-up.
        bfmi: Bayesian fraction of missing information of each chain, shape (K,).
        latents: Convergence of every element of every latent variable.
        predictions: Convergence of the predictive moments at given inputs; None without them.
    """

    num_chains: int
    num_divergences: int
    bfmi: Tensor
    latents: Convergence
    predictions: Convergence | None

    def __str__(self) -> str:
        lines = [
            f"chains       {self.num_chains}, divergences {self.num_divergences}, smallest BFMI {self.bfmi.min():.2f}",
            f"latents      {self.latents} (weights are identified up to permutations and signs only)",
        ]
        if self.predictions is not None:
            lines.append(f"predictions  {self.predictions}")
        return "\n".join(lines)

    @property
    def judged(self) -> tuple[str, Convergence]:
        """What counts, with its name: the predictions, unless there are none, or they are the same for all weights."""
        if self.predictions is None or bool(self.predictions.r_hat.isnan().all()):
            return "latent variables", self.latents
        return "predictions", self.predictions

    @property
    def problems(self) -> list[str]:
        """What is wrong, each with what to try; empty if nothing is."""
        found = []
        if self.num_divergences:
            found.append(
                f"{self.num_divergences} divergent trajectories: the steps are too long for part of the posterior; "
                "warm up longer (1000 draws), raise `target_accept` (0.95), or use smoother activations or tighter "
                "priors."
            )
        if self.bfmi.min() < SMALLEST_BFMI:
            found.append(f"the smallest BFMI is {self.bfmi.min():.2f}: the tails are explored slowly; warm up longer.")
        what, judged = self.judged
        if bool(judged.r_hat.isnan().all()):
            found.append(
                f"all draws have the same {what}: the chains did not move; warm up longer, or start them elsewhere "
                "with `init`."
            )
        if judged.worst_r_hat > LARGEST_R_HAT:
            found.append(
                f"the largest R-hat of the {what} is {judged.worst_r_hat:.3f}, above {LARGEST_R_HAT}: the chains "
                "disagree; warm up and sample longer, or look whether they sit in different modes."
            )
        if judged.worst_ess < SMALLEST_ESS_PER_CHAIN * self.num_chains:
            found.append(
                f"the smallest effective sample size of the {what} is {judged.worst_ess:.0f}, below "
                f"{SMALLEST_ESS_PER_CHAIN} a chain: sample longer."
            )
        return found


def require_arviz() -> Any:
    """ArviZ, or an error that says how to get it. Importing it is slow, and it announces its own future."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import arviz
    except ImportError as error:
        raise ImportError("this needs ArviZ: pip install 'pyro-bnn[mcmc]'.") from error
    return arviz


def convergence(values: Tensor) -> Convergence:
    """R-hat and effective sample sizes of scalar quantities.

    Args:
        values: Shape (K, S, M).
    """
    arviz = require_arviz()
    values = values.detach().double().cpu()
    varies = (values != values[0, 0]).flatten(0, 1).any(0)  # of constants all three are NaN
    columns = torch.full((3, len(varies)), float("nan"), dtype=torch.float64)
    if bool(varies.any()):
        chains = values[..., varies].numpy()
        datasets = [arviz.convert_to_dataset({"values": part}) for part in (_two_chains(chains), chains)]
        results = (
            arviz.rhat(datasets[0]),
            arviz.ess(datasets[1], method="bulk"),
            arviz.ess(datasets[1], method="tail"),
        )
        columns[:, varies] = torch.stack([torch.as_tensor(result["values"].values) for result in results])
    return Convergence(*columns)


def _two_chains(chains: Any) -> Any:
    """ArviZ compares two chains at least; of a single one, the halves."""
    if len(chains) > 1:
        return chains
    half = chains.shape[1] // 2
    return np.stack([chains[0, :half], chains[0, -half:]])


def predictive_moments(observation: Distribution) -> Tensor:
    """What identifies an observation's distribution: class probabilities, or mean and standard deviation."""
    if isinstance(observation, (Categorical, Bernoulli)):
        return observation.probs.flatten(1)
    return torch.cat([observation.mean.flatten(1), observation.stddev.flatten(1)], 1)


def diagnose(
    samples: Mapping[str, Tensor],
    statistics: "ChainStatistics",
    model: BayesianModel | None,
    x: Tensor | None,
    *,
    max_quantities: int | None = None,
) -> Diagnostics:
    """All diagnostics of chains, see :meth:`MCMCPosterior.diagnostics`; of evenly spaced quantities if too many."""
    if (model is None) != (x is None):
        raise ValueError("`model` and `x` go together: predictions need both.")
    predictions = None
    if model is not None and x is not None:
        moments = [predictive_moments(observation) for observation in draw_batches(model, samples, x)]
        predictions = convergence(_spaced(torch.cat(moments).unflatten(0, statistics.energy.shape), max_quantities))
    energy = statistics.energy.double()
    return Diagnostics(
        num_chains=len(energy),
        num_divergences=int(statistics.diverging.sum()),
        bfmi=torch.as_tensor(require_arviz().bfmi(energy.cpu().numpy())),
        latents=convergence(_spaced(torch.cat([v.flatten(2) for v in _with_event(samples)], 2), max_quantities)),
        predictions=predictions,
    )


def _spaced(values: Tensor, at_most: int | None) -> Tensor:
    count = values.shape[-1]
    if at_most is None or count <= at_most:
        return values
    return values[..., torch.linspace(0, count - 1, at_most).long().to(values.device)]


def _with_event(samples: Mapping[str, Tensor]) -> list[Tensor]:
    return [value if value.dim() > 2 else value.unsqueeze(-1) for value in samples.values()]
