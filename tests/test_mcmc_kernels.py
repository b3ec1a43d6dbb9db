"""Kernels leave their distribution invariant."""

import math

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.inference.mcmc import _nuts
from pyro_bnn.inference.mcmc._tree import turn

from .cases import SAMPLERS
from .tolerances import STANDARD_ERRORS, z_scores

SHAPE = 1.5
"""z is the logarithm of a Gamma(1.5, 1): skewed, so that left and right differ."""


def log_gamma_potential(z):
    return (z.exp() - SHAPE * z).sum(-1), z.exp() - SHAPE


def moments_after(sampler, *, num_chains=8000, num_draws=100):
    """Means over a chain's draws of four functions of z, shape (chains, 4), for chains that start in equilibrium."""
    z = torch.distributions.Gamma(SHAPE, 1.0).sample((num_chains, 1)).log()
    kernel = sampler.kernel(log_gamma_potential, z)
    kernel.step_size = torch.full((num_chains,), 1.2)  # errors of the energy matter
    count, total = torch.zeros(num_chains, dtype=torch.long), torch.zeros(num_chains, 4)
    while True:
        draws = kernel.draw()
        counts = draws.finished & (count < num_draws)
        z = draws.z[:, 0]
        values = torch.stack([z, z.exp(), (2 * z).exp(), z * z.exp()], 1)
        total += torch.where(counts[:, None], values, 0)
        count += counts
        if bool((count == num_draws).all()):
            return total / num_draws


def largest_z_score(sampler):
    digamma = float(torch.digamma(torch.tensor(SHAPE)))
    expected = torch.tensor([digamma, SHAPE, SHAPE * (SHAPE + 1), SHAPE * digamma + 1])
    return z_scores(moments_after(sampler), expected).abs().max()


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_from_a_skewed_distribution_stay_so(name):
    assert largest_z_score(SAMPLERS[name][0]) < STANDARD_ERRORS


@pytest.mark.nightly
def test_a_preferred_direction_would_be_seen(monkeypatch):
    """The direction is right with probability 1/4, so that points are too often in the middle of their trees."""

    def prefers_left(chains, tree, subtree, setting, log_uniform):
        return turn(chains, tree, subtree, setting, log_uniform + math.log(2))

    monkeypatch.setattr(_nuts, "turn", prefers_left)
    assert largest_z_score(pb.NUTS()) > 2 * STANDARD_ERRORS
