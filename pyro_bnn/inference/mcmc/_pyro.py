"""Chains that Pyro's own `MCMC` has drawn."""

import torch
from pyro.infer import MCMC
from torch import Tensor

from ..._core import checks as _checks
from ._statistics import ChainStatistics

FEWEST_DRAWS = 4
"""Smallest number of draws per chain from which R-hat can be computed."""


def read_samples(mcmc: MCMC) -> dict[str, Tensor]:
    """Draws of a run, ``{site: shape (K, S, *event)}``.

    Raises:
        ValueError: If there is no run, it is too short, or a site is discrete.
    """
    _checks.kind("mcmc", mcmc, MCMC, "a pyro.infer.MCMC")
    samples = mcmc.get_samples(group_by_chain=True)  # None before the run
    if not samples:
        raise ValueError("`mcmc` holds no draws; call `mcmc.run(x, y)` first, on a model with latent variables.")
    for name, values in samples.items():
        if not values.is_floating_point():
            raise ValueError(
                f"`{name}` is discrete ({values.dtype}); chains are judged and predict with continuous latent "
                "variables only. Sum it out of the model, as in a mixture likelihood."
            )
        if values.shape[1] < FEWEST_DRAWS:
            raise ValueError(
                f"`mcmc` holds {values.shape[1]} draws of each chain, but R-hat needs at least {FEWEST_DRAWS}; set its "
                "`num_samples`."
            )
    return {name: values.detach() for name, values in samples.items()}


def read_statistics(mcmc: MCMC, seconds: float | None) -> ChainStatistics:
    """What Pyro reports of a run, which is the draws that diverged, for samplers that can diverge."""
    samples = mcmc.get_samples(group_by_chain=True)
    like = next(iter(samples.values()))
    divergences = mcmc.diagnostics().get("divergences")
    diverging = None
    if divergences is not None:
        diverging = torch.zeros(like.shape[:2], dtype=torch.bool, device=like.device)
        for chain in range(len(diverging)):
            diverging[chain, divergences[f"chain {chain}"]] = True
    return ChainStatistics(
        log_density=None,
        energy=None,
        accept=None,  # Pyro's "acceptance rate" of NUTS is the fraction of draws that moved
        diverging=diverging,
        num_steps=None,
        step_size=None,  # the kernel has the step size of the last chain only
        inverse_mass=None,
        seconds=seconds,
    )
