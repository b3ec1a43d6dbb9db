"""Samplers compiled by torch make the same draws; `test_mcmc_native.py` has those in C."""

import functools

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.mcmc import _native, _nuts
from pyro_bnn.mcmc._compiled import compiled

from .chains import moments_agree, quietly
from .test_exact import Problem
from .tolerances import assert_identical


@pytest.fixture
def without_c(monkeypatch):
    monkeypatch.setattr(_native, "_compiler", lambda: None)


@pytest.mark.slow
def test_the_compiled_sampler_is_the_same_sampler(without_c):
    problem = Problem()
    runs = [
        quietly(
            pb.fit_nuts, problem.model, problem.x, problem.y, num_samples=10, num_warmup=60, seed=0, compile=compile
        )
        for compile in (False, True)
    ]
    torch.testing.assert_close(runs[0].samples, runs[1].samples, rtol=1e-6, atol=1e-8)
    assert torch.equal(runs[0].statistics.num_steps, runs[1].statistics.num_steps)
    torch.testing.assert_close(runs[0].statistics.inverse_mass, runs[1].statistics.inverse_mass)


def normal_potential(z):
    """Its gradient is its argument, the very same tensor."""
    return 0.5 * z.square().sum(-1), z


def quartic_potential(z):
    """Steep enough for long steps to diverge."""
    return z.pow(4).sum(-1), 4 * z.pow(3)


def record(value_and_grad, steps, *, max_tree_depth, num_events, compile):
    """All that a kernel reports, event by event, shape (events, statistics, K)."""
    torch.manual_seed(1)
    kernel = pb.NUTS(max_tree_depth).kernel(value_and_grad, torch.randn(len(steps), 3), compile=compile)
    kernel.step_size = torch.tensor(steps)
    torch.manual_seed(2)
    reports = []
    for index in range(num_events):
        draws = kernel.draw()
        numbers = [draws.log_density, draws.energy, draws.accept, draws.diverging, draws.num_steps, *draws.z.mT]
        reports.append(torch.stack([torch.where(draws.finished, number, 0) for number in (draws.finished, *numbers)]))
        kernel.step_size[index % len(steps)] *= 1.01 if index % 3 else 0.97  # as in warm-up
        kernel.inverse_mass[index % len(steps)] = 1 + 0.1 * (index % 4)
    return torch.stack(reports)


CASES = {
    "chains that end at different times": (normal_potential, [0.03, 0.2, 0.9], 5, 7),
    "one step per draw": (normal_potential, [0.4, 1.2], 1, 3),
    "divergences": (quartic_potential, [0.2, 2.5], 4, 256),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_compiled_kernel_makes_the_same_draws(case, without_c, monkeypatch):
    """Also where the random numbers of a block do not last until a subtree ends."""
    potential, steps, max_tree_depth, block = CASES[case]
    monkeypatch.setattr(_nuts, "RANDOM_BLOCK", block)
    eager, fast = (
        record(potential, steps, max_tree_depth=max_tree_depth, num_events=60, compile=c) for c in (False, True)
    )
    torch.testing.assert_close(fast, eager, rtol=1e-8, atol=1e-8)
    finished, diverging, num_steps = eager[:, 0] > 0, eager[:, 4] > 0, eager[:, 5]
    assert num_steps.max() == 2**max_tree_depth - 1
    assert (case == "one step per draw") == bool(finished.all())
    assert (case == "divergences") == bool(diverging.any())
    assert not diverging[finished].all()


def test_a_compiler_is_asked_any_number_of_times():
    """It gives up on a function after eight versions, which is a count of fits here."""
    z = torch.randn(3)
    with torch._dynamo.config.patch(recompile_limit=1):
        for power in (1, 2, 3):
            function = compiled(functools.partial(torch.pow, exponent=power), [z])
            assert_identical(function(z), z**power)


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_chains_on_a_gpu(compile):
    problem = Problem()
    model, x, y = problem.model.cuda(), problem.x.cuda(), problem.y.cuda()
    state = torch.cuda.get_rng_state()
    posterior = quietly(pb.fit_nuts, model, x, y, num_samples=200, num_warmup=100, compile=compile, seed=0)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    weights = posterior.samples["net.weight"]
    assert weights.is_cuda
    assert moments_agree(weights.flatten(2).cpu(), problem.mean.flatten(), torch.linalg.inv(problem.precision))
    assert pb.predict(model, posterior, x).mean.is_cuda
    assert posterior.diagnostics(model, x).predictions.worst_r_hat < 1.1
