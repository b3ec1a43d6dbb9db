"""Divergences against closed forms and quadrature; KL weights are tested with the fits that use them."""

import itertools
import math

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.integrate
import torch
from torch.distributions import kl_divergence

import pyro_bnn as pb
from pyro_bnn.inference.kl import divergence
from pyro_bnn.modelling.distributions import ScaleMixtureNormal

from .tolerances import STANDARD_ERRORS, assert_identical


def mixture(weights, locs, scales):
    return dist.MixtureSameFamily(
        dist.Categorical(torch.tensor(weights)), dist.Normal(*map(torch.tensor, (locs, scales)))
    )


MEMBERS = {
    "normal": lambda: dist.Normal(torch.tensor(0.3), torch.tensor(1.2)),
    "two-modes": lambda: mixture([0.5, 0.5], [0.0, 3.0], [0.4, 1.0]),
    "spike-and-slab": lambda: ScaleMixtureNormal(torch.tensor(0.5), torch.tensor(1.5), torch.tensor(0.05)),
    "laplace": lambda: dist.Laplace(torch.tensor(0.0), torch.tensor(0.3)),
    "student": lambda: dist.StudentT(torch.tensor(5.0), torch.tensor(0.0), torch.tensor(1.0)),
}
PAIRS = [(a, b) for a in MEMBERS for b in MEMBERS if a != b]


def quadrature(p, q):
    """KL by adaptive integration, with the places where the densities bend as break points."""

    def integrand(w):
        w = torch.tensor(w, dtype=torch.float64)
        return float(p.log_prob(w).exp() * (p.log_prob(w) - q.log_prob(w)))

    edges = [-60, -10, -3, -1, -0.2, 0, 0.2, 1, 3, 10, 60]
    pieces = itertools.pairwise(edges)
    return math.fsum(scipy.integrate.quad(integrand, *piece, epsabs=1e-10, limit=200)[0] for piece in pieces)


def agrees(result, exact):
    return bool(((result.value - exact).abs() <= STANDARD_ERRORS * result.standard_error + 1e-9).all())


@pytest.mark.daily(  # a closed form, one and both sides with draws
    *("normal-laplace", "laplace-normal", "normal-student", "student-normal"),
    *("spike-and-slab-two-modes", "two-modes-spike-and-slab"),
)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_agrees_with_quadrature_and_not_with_the_other_direction(first, second):
    p, q = MEMBERS[first](), MEMBERS[second]()
    result = divergence(p, q, num_samples=100_000)
    exact, swapped = quadrature(p, q), quadrature(q, p)
    assert exact > 0.001
    assert abs(exact - swapped) > 0.005
    assert agrees(result, exact)
    assert not agrees(result, swapped)
    assert result.value > 0
    assert (result.num_samples == 0) == ({first, second} == {"normal", "laplace"})


@pytest.mark.parametrize("name", MEMBERS)
def test_zero_iff_equal(name):
    result = divergence(MEMBERS[name](), MEMBERS[name](), num_samples=1000)
    assert_identical(result.value, 0.0)
    assert_identical(result.standard_error, 0.0)


def test_two_gaussians_are_in_closed_form_and_the_same_by_sampling():
    p = dist.Normal(torch.randn(3, 4), torch.rand(3, 4) + 0.5)
    q = dist.Normal(torch.randn(3, 4), torch.rand(3, 4) + 0.5)
    exact = kl_divergence(p, q)
    result = divergence(p, q)
    assert result.num_samples == 0
    assert_identical(result.value, exact)
    assert_identical(result.standard_error, torch.zeros(3, 4))
    sampled = divergence(p, q, closed_form=False, num_samples=50_000)
    assert sampled.num_samples == 50_000
    assert agrees(sampled, exact)
    assert not agrees(sampled, 1.05 * exact + 0.05)


@pytest.mark.parametrize("dims", [1, 2])
def test_events_are_summed_over_and_batches_are_not(dims):
    p, q = (dist.Normal(torch.randn(2, 3, 4), 1.0 + torch.rand(2, 3, 4)) for _ in range(2))
    exact = kl_divergence(p, q).flatten(3 - dims).sum(-1)
    assert_identical(divergence(p.to_event(dims), q.to_event(dims)).value, exact)
    nested = (
        torch.distributions.Independent(torch.distributions.Independent(p, 1), dims - 1) if dims > 1 else p.to_event(1)
    )
    assert_identical(divergence(nested, q.to_event(dims)).value, exact)
    sampled = divergence(p.to_event(dims), q.to_event(dims), closed_form=False, num_samples=20_000)
    assert sampled.value.shape == exact.shape
    assert agrees(sampled, exact)


def test_independent_gaussians_against_a_full_one():
    p = dist.Normal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])).to_event(1)
    q = dist.MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 2.0]]))
    full = dist.MultivariateNormal(p.mean, p.variance.diag())
    result = divergence(p, q, num_samples=50_000)
    assert agrees(result, kl_divergence(full, q))


def test_a_weight_priors_divergence_is_the_sum_over_its_weights():
    prior = pb.ScaleMixturePrior()("net.weight", torch.zeros(3, 2), torch.nn.Linear(2, 3))
    q = dist.Normal(torch.full((3, 2), 0.1), torch.full((3, 2), 0.3)).to_event(2)
    result = divergence(q, prior, num_samples=50_000)
    one = quadrature(dist.Normal(torch.tensor(0.1), torch.tensor(0.3)), ScaleMixtureNormal(0.5, 1.0, math.exp(-6)))
    assert result.value.shape == ()
    assert agrees(result, 6 * one)
    assert not agrees(result, one)


def test_chunks_give_the_mean_and_standard_error_of_one_pass(monkeypatch):
    p, q = MEMBERS["two-modes"]().expand((3,)), MEMBERS["normal"]().expand((3,))
    monkeypatch.setattr(pb.kl, "CHUNK_NUMBERS", 3 * 70)  # 1000 draws are 14 chunks of 70 and one of 20
    result = divergence(p, q, num_samples=1000, seed=3)
    with pb._core.scope.seeded(3):
        sizes = [70] * 14 + [20]
        draws = torch.cat([p.sample((size,)) for size in sizes])
    ratio = p.log_prob(draws) - q.log_prob(draws)
    assert_identical(result.value, ratio.mean(0))
    assert_identical(result.standard_error, ratio.std(0) / math.sqrt(1000))


def test_the_standard_error_is_that_of_repeated_estimates():
    p, q = MEMBERS["two-modes"](), MEMBERS["normal"]()
    results = [divergence(p, q, num_samples=200) for _ in range(200)]
    spread = float(torch.stack([r.value for r in results]).std())
    claimed = float(torch.stack([r.standard_error for r in results]).mean())
    assert abs(spread / claimed - 1) < STANDARD_ERRORS / math.sqrt(2 * 200)


def test_a_seed_repeats_the_estimate_and_moves_no_generator():
    p, q = MEMBERS["two-modes"](), MEMBERS["normal"]()
    state = torch.get_rng_state()
    first, second = (divergence(p, q, num_samples=100, seed=1) for _ in range(2))
    assert torch.equal(first.value, second.value)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first.value, divergence(p, q, num_samples=100, seed=2).value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_the_dtype_whatever_the_default(dtype):
    q = dist.Normal(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype))
    p = ScaleMixtureNormal(*torch.tensor([0.5, 1.0, 0.1], dtype=dtype))
    for result in (divergence(p, q, num_samples=10), divergence(q, q)):
        assert result.value.dtype == result.standard_error.dtype == dtype


def test_what_the_approximation_cannot_reach_costs_infinitely_much():
    positive = dist.LogNormal(torch.zeros(2), torch.ones(2))
    everywhere = dist.Laplace(torch.tensor([0.0, 200.0]), torch.tensor([1.0, 1.0]))
    result = divergence(everywhere, positive, num_samples=1000)
    assert result.value[0] == math.inf
    assert result.standard_error[0] == 0
    assert result.value[1].isfinite()
    assert divergence(positive, everywhere, num_samples=1000).value.isfinite().all()


def test_gradients_are_those_of_the_closed_form_on_average():
    loc, scale = torch.tensor(0.5, requires_grad=True), torch.tensor(1.5, requires_grad=True)
    p, q = dist.Normal(loc, scale), dist.Normal(torch.tensor(0.0), torch.tensor(1.0))
    exact = torch.autograd.grad(kl_divergence(p, q), (loc, scale))
    draws = torch.tensor(
        [
            torch.autograd.grad(divergence(p, q, closed_form=False, num_samples=100).value, (loc, scale))
            for _ in range(200)
        ]
    )
    error = draws.std(0) / math.sqrt(200)
    assert ((draws.mean(0) - torch.stack(exact)).abs() < STANDARD_ERRORS * error).all()
    assert not ((draws.mean(0) + torch.stack(exact)).abs() < STANDARD_ERRORS * error).any()


def test_a_gradient_that_would_be_wrong_is_refused():
    scale = torch.tensor(1.0, requires_grad=True)
    p, q = ScaleMixtureNormal(0.5, scale, 0.1), dist.Normal(0.0, scale)
    with pytest.raises(ValueError, match=r"no gradient in the parameters of `p`, ScaleMixtureNormal"):
        divergence(p, q)
    with torch.no_grad():
        assert divergence(p, q).value > 0
    value = divergence(MEMBERS["two-modes"](), q).value  # the gradient of q is all there is
    assert torch.autograd.grad(value, scale)[0] != 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n: divergence(n, n.expand((3,))), r"batch shapes \(\) and \(3,\).*`.expand\(batch_shape\)`"),
        (lambda n: divergence(n.expand((3,)), n.expand((3,)).to_event(1)), r"event shapes \(\) and \(3,\).*`.to_event"),
        (lambda n: divergence(n, n, num_samples=1), "`num_samples` must be a whole number of at least 2, got 1"),
        (lambda n: divergence(n, 3.0), "`q` must be a torch or Pyro distribution, got float"),
    ],
)
def test_errors_say_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call(dist.Normal(0.0, 1.0))


def test_a_broken_density_is_not_called_infinite():
    broken = dist.Laplace(torch.tensor(0.0), torch.tensor(math.nan), validate_args=False)
    assert divergence(MEMBERS["student"](), broken, num_samples=10).value.isnan()


def test_discrete_distributions_too():
    p, q = dist.Poisson(torch.tensor(2.0)), dist.NegativeBinomial(torch.tensor(3.0), torch.tensor(0.5))
    counts = torch.arange(80.0)
    exact = float((p.log_prob(counts).exp() * (p.log_prob(counts) - q.log_prob(counts))).sum())
    assert agrees(divergence(p, q, num_samples=20_000), exact)
    assert np.isfinite(exact)
