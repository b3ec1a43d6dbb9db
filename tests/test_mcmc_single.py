"""The samplers in C in single precision, compared with torch and with double precision."""

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.inference.mcmc._native import native

from .test_exact import Problem
from .test_mcmc_native import CASES, assert_functions_are_right, potential_of, start
from .tolerances import STANDARD_ERRORS


@pytest.mark.daily("mixture, bernoulli", "by-name, gaussian-latent-vector", "network indexed")
@pytest.mark.filterwarnings("ignore:the model's learnable parameters")
@pytest.mark.parametrize("name", CASES)
def test_potentials_are_as_near_to_double_precision_as_those_of_torch(name):
    double, single = potential_of(**CASES[name]), potential_of(**CASES[name], dtype=torch.float32)
    z = start(double, 5)
    sampler = native(single.value_and_grad, z[:1].float(), 3)
    found, torchs, exact = (
        f(p)
        for f, p in (
            (sampler.value_and_grad, z.float()),
            (single.value_and_grad, z.float()),
            (double.value_and_grad, z),
        )
    )
    for own, theirs, expected in zip(found, torchs, exact, strict=True):
        assert own.dtype == torch.float32
        rounding = torch.finfo(torch.float32).eps * expected.abs().max()
        assert (own - expected).abs().max() < 10 * ((theirs - expected).abs().max() + rounding)


def test_functions_are_right_to_a_few_roundings_and_at_the_ends():
    size = torch.cat([torch.logspace(-44, 1.9, 999), torch.linspace(0.3, 40, 998), torch.tensor([0, torch.inf])])
    assert_functions_are_right(size.float(), rtol=5e-7, atol=1e-37)


@pytest.mark.daily("NUTS")
@pytest.mark.parametrize(
    "sampler", [pb.NUTS(), pb.MCLMC(energy_error=5e-4, first_energy_error=5e-4)], ids=lambda s: s.name
)
def test_draws_have_the_moments_of_the_exact_posterior(sampler):
    problem = Problem()
    run = pb.fit_mcmc(
        problem.model,
        (problem.x, problem.y),
        sampler=sampler,
        num_samples=1000,
        num_warmup=300,
        dtype=torch.float32,
        compile=True,
        seed=0,
    )
    assert run.path == "C"
    weights = run.chains["net.weight"]
    size = run.diagnose().latents.worst_ess
    assert size > 400
    scale = problem.precision.inverse().diagonal().sqrt()
    assert ((weights.flatten(0, 1).mean(0) - problem.mean).abs() < STANDARD_ERRORS * scale / size**0.5).all()
    ratio = weights.flatten(0, 1).std(0) / scale
    assert ((ratio - 1).abs() < STANDARD_ERRORS / (2 * size) ** 0.5).all()
    assert ((1.3 * ratio - 1).abs() > STANDARD_ERRORS / (2 * size) ** 0.5).all()  # must fail
