"""Chains that die with their process."""

import pytest

from .kill_chains import equal, killed, sample


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", ["NUTS", "HMC"])
def test_chains_of_processes_that_were_killed_are_to_the_bit_those_of_one_that_was_not(sampler, tmp_path):
    path = tmp_path / "chains"
    assert killed(sampler, path, 3, seed=0) == 3
    assert equal(sample(sampler, path), sample(sampler, None))
