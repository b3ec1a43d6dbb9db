"""Samplers in C read and write only their own memory."""

import pytest
import torch

import pyro_bnn as pb


def bowl(z):
    return 0.5 * z.square().sum(-1), 1.0 * z


def kernel_in_c(sampler, num_weights):
    return sampler.kernel(bowl, torch.zeros(1, num_weights), compile=True)


@pytest.mark.parametrize("sampler", [pb.NUTS(), pb.MCLMC(1)])
def test_points_may_be_longer_than_a_stack(sampler):
    draws = kernel_in_c(sampler, 400_000).draw()  # a stack has 8 MB, and a point of NUTS three vectors of 3.2 MB
    assert bool(draws.z.isfinite().all())


@pytest.mark.parametrize(
    "change",
    [
        {"point": torch.zeros(3)},
        {"numbers": torch.zeros(5, 2)},
        {"numbers": torch.zeros(5, 3), "position": 6},
        {"position": -1},
    ],
)
def test_a_state_beyond_whose_end_c_would_read_is_refused(change):
    kernel = kernel_in_c(pb.NUTS(), 3)
    state = kernel.state()
    state["chains"][0] |= change
    with pytest.raises(ValueError, match=r"`(point|numbers|position)`"):
        kernel.restore(state)
