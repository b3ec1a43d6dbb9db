"""Warm-up: windows, step size, mass."""

import math

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.inference.mcmc._adaptation import DualAveraging, Welford, windows

from .chains import quietly
from .test_exact import Problem
from .tolerances import assert_identical


def test_windows_are_those_of_stan():
    assert windows(1000) == [100, 150, 250, 450, 950]
    assert windows(150) == [100]
    assert windows(49) == []
    assert windows(500)[-1] == 450


def test_dual_averaging_finds_the_step_of_a_known_acceptance():
    averaging = DualAveraging(1.0, 0.8)
    for _ in range(3000):
        averaging.update(math.exp(-averaging.step_size))
    assert averaging.average == pytest.approx(-math.log(0.8), rel=0.05)


def test_welford_is_the_variance():
    values = torch.randn(40, 3)
    welford = Welford.like(values[0])
    for value in values:
        welford.update(value)
    assert_identical(welford.variance(), 40 / 45 * values.var(0) + 1e-3 * 5 / 45)


@pytest.mark.parametrize("num_warmup", [5, 20, 30, 49, 50, 60])
def test_short_warm_ups_end_with_a_step_that_works(num_warmup):
    problem = Problem()
    posterior = quietly(
        pb.fit_nuts,
        problem.model,
        (problem.x, problem.y),
        num_samples=20,
        num_warmup=num_warmup,
        max_tree_depth=4,
        seed=0,
    )
    assert posterior.statistics.accept.mean() > 0.5
    assert posterior.statistics.diverging.sum() < 8
