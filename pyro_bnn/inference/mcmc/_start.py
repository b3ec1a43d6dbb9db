"""First points of chains."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..guides import Init
from ..joint import Potential
from ..posterior import Posterior

MAX_TRIALS = 100
"""Heuristic."""

Start = Init | Posterior | None


def starting_points(potential: Potential, init: Start, num_chains: int) -> Tensor:
    """Points with a finite potential and gradient, shape (K, P); `init` None is the prior. Others are drawn again."""
    z = _draw(potential, init, num_chains)
    for _ in range(MAX_TRIALS):
        value, gradient = potential.value_and_grad(z)
        bad = ~(value.isfinite() & gradient.isfinite().all(-1))
        if not bool(bad.any()):
            return z
        z = torch.where(bad[:, None], _draw(potential, init, num_chains), z)
    raise ValueError(
        f"no start with a finite density was found in {MAX_TRIALS} trials; pass another `init`, such as NetworkInit(), "
        "or scale the inputs to unit size."
    )


def _draw(potential: Potential, init: Start, num_chains: int) -> Tensor:
    if init is None:
        return potential.from_prior(num_chains)
    if isinstance(init, Posterior):
        if init.num_stored is not None and init.num_stored < num_chains:
            raise ValueError(f"`init` holds {init.num_stored} draws, but there are {num_chains} chains to start.")
        draws = list(init.draws(num_chains))
        return potential.unconstrain({name: torch.stack([draw[name] for draw in draws]) for name in draws[0]})
    rows = []
    for _ in range(num_chains):  # an Init may itself be random
        pairs = [init(site) for site in potential.sites]
        rows.append(torch.cat([(loc + softplus(rho) * torch.randn_like(loc)).reshape(-1) for loc, rho in pairs]))
    return torch.stack(rows)
