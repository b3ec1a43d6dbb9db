"""Microcanonical chains: each formula by hand, the bias on a Gaussian, and chains that begin at modes."""

import math
import re
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import find_sites, network_potential
from pyro_bnn.inference.mcmc import Descent, FreshInit, modes
from pyro_bnn.inference.mcmc._fit import ChainProcesses, starting_points
from pyro_bnn.inference.mcmc._mclmc import autocorrelation_time, refreshment, turned

from .chains import quietly
from .test_exact import Problem
from .tolerances import STANDARD_ERRORS

NUM_WEIGHTS = 5


def bowl(z):
    """A potential whose third derivatives are not zero."""
    return (0.5 * z.square() + 0.1 * z.pow(4)).sum(-1), z + 0.4 * z.pow(3)


def eager_and_native(**state):
    """Kernels in torch and in C at the same two points, with the same direction and without noise."""
    z = torch.randn(2, NUM_WEIGHTS, dtype=torch.float64)
    direction = nn.functional.normalize(torch.randn(2, NUM_WEIGHTS, dtype=torch.float64))
    eager, native = (pb.MCLMC(4).kernel(bowl, z, compile=compile) for compile in (False, True))
    value, gradient = bowl(z)
    eager.restore({"z": z, "direction": direction, "gradient": gradient, "potential": value})
    saved = native.state()
    for row, chain in enumerate(saved["chains"]):
        chain["point"][NUM_WEIGHTS : 2 * NUM_WEIGHTS] = direction[row]
    native.restore(saved)
    for kernel in (eager, native):
        kernel.step_size[:], kernel.length[:] = torch.tensor([0.3, 0.5]), torch.inf
    return eager, native


def test_a_turn_solves_the_equation_of_the_direction():
    """By many short steps of Heun's method, with the kinetic energy as an integral beside it."""
    direction = nn.functional.normalize(torch.randn(1, NUM_WEIGHTS, dtype=torch.float64))
    gradient, time, num_steps = torch.randn(1, NUM_WEIGHTS, dtype=torch.float64), 1.7, 4000

    def slope(u):
        along = (u * gradient).sum()
        return -(gradient - u * along) / (NUM_WEIGHTS - 1), -along

    u, kinetic, step = direction, 0.0, time / num_steps
    for _ in range(num_steps):
        first, power = slope(u)
        second, later = slope(u + step * first)
        u, kinetic = u + 0.5 * step * (first + second), kinetic + 0.5 * step * (power + later)
    turned_to, change = turned(direction, gradient, torch.tensor([[time]]))
    assert torch.allclose(turned_to, u, atol=1e-6)
    assert math.isclose(float(change), float(kinetic), rel_tol=1e-5)


def test_a_direction_is_forgotten_over_the_length():
    """After steps of 0.1 over a length of 2, the mean of u . u_0 is exp(-1)."""
    num_weights, step, length = 400, torch.tensor(0.1), torch.tensor(2.0)
    start = nn.functional.normalize(torch.randn(500, num_weights))
    u = start
    for _ in range(20):
        u = nn.functional.normalize(u + refreshment(step, length, num_weights) * torch.randn_like(u))
    assert float((u * start).sum(-1).mean()) == pytest.approx(math.exp(-1), abs=0.01)


def test_the_energy_error_of_a_step_is_of_third_order():
    errors = []
    for step in (0.1, 0.05):
        torch.manual_seed(1)
        z = torch.randn(200, NUM_WEIGHTS, dtype=torch.float64)
        kernel = pb.MCLMC(1).kernel(bowl, z)
        kernel.step_size[:], kernel.length[:] = step, torch.inf
        errors.append(kernel.draw().energy_errors.square().mean().sqrt())
    assert float(errors[0] / errors[1]) == pytest.approx(8, rel=0.15)


def test_steps_in_c_are_those_in_torch():
    eager, native = eager_and_native()
    ours, theirs = eager.draw(), native.draw()
    assert torch.allclose(ours.z, theirs.z, rtol=1e-12, atol=1e-12)
    assert torch.allclose(ours.energy_errors, theirs.energy_errors, atol=1e-11)
    assert torch.allclose(ours.log_density, theirs.log_density, rtol=1e-12)
    assert not torch.allclose(ours.z[0] - ours.z[1], torch.zeros(NUM_WEIGHTS, dtype=torch.float64))


def wall(z):
    """A potential that is infinite outside of the unit ball."""
    value, gradient = bowl(z)
    outside = z.square().sum(-1) > 1.0
    return torch.where(outside, torch.inf, value), torch.where(outside[:, None], torch.nan, gradient)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(("potential", "step"), [(wall, 50.0), (bowl, 300.0)], ids=["not finite", "far tails"])
def test_a_step_that_leaves_for_where_the_chain_would_never_come_back_is_not_taken(potential, step, compile):
    z = torch.zeros(1, NUM_WEIGHTS, dtype=torch.float64)
    kernel = pb.MCLMC(5).kernel(potential, z, compile=compile)
    kernel.step_size[:], kernel.length[:] = step, 1.0
    draws = kernel.draw()
    assert draws.diverging.all()
    assert torch.equal(draws.z, z)
    kernel.step_size[:] = 0.01
    assert not kernel.draw().diverging.any()


def relative_variance(energy_error, seed):
    """Variance of the draws of a regression by that of the posterior, and its standard error, over four chains."""
    problem = Problem()
    sampler = pb.MCLMC(5, energy_error=energy_error, first_energy_error=energy_error)
    posterior = quietly(
        pb.fit_mcmc,
        problem.model,
        (problem.x, problem.y),
        sampler=sampler,
        num_samples=4000,
        num_warmup=500,
        compile=True,
        seed=seed,
    )
    root = torch.linalg.cholesky(problem.precision.double())
    white = (posterior.chains["net.weight"].flatten(2).double() - problem.mean.double()) @ root
    of_chains = white.square().mean((1, 2))
    return float(of_chains.mean()), float(of_chains.std() / 2)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
def test_the_bias_falls_with_the_energy_error(seed):
    exact, loose = relative_variance(1e-5, seed), relative_variance(1.0, seed)
    assert abs(exact[0] - 1) < STANDARD_ERRORS * exact[1] + 0.02
    assert abs(loose[0] - 1) > STANDARD_ERRORS * exact[1] + 0.02


def test_autocorrelation_time_is_that_of_an_autoregression():
    """x_t = a x_(t-1) + noise has the time (1 + a) / (1 - a)."""
    noise, draws = torch.randn(20_000, 8), [torch.zeros(8)]
    for row in noise:
        draws.append(0.8 * draws[-1] + row)
    assert autocorrelation_time(torch.stack(draws)) == pytest.approx(9, rel=0.15)
    assert autocorrelation_time(noise) == pytest.approx(1, abs=0.1)
    assert autocorrelation_time(torch.ones(30, 2)) == 1


# ---- chains that begin at modes


def curve():
    x = torch.linspace(-1, 1, 40)[:, None]
    y = torch.sin(4 * x) + 0.1 * torch.randn(40, 1)
    net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    return pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=pb.GaussianLikelihood(0.1), num_data=40), x, y


def test_the_status_speaks_of_modes_only_if_chains_disagree():
    noise = torch.randn(4, 500, 2)
    assert str(modes(noise)).startswith("4 chains whose predictions agree; R-hat within chains up to 1.")
    drifting = noise + torch.linspace(0, 3, 500)[:, None]  # alike, but no chain has explored its mode
    assert str(modes(drifting)).startswith("4 of 4 chains are too short to explore their modes; R-hat")
    apart = noise + 5 * torch.arange(4.0)[:, None, None]
    assert str(modes(apart)).startswith("4 modes, which count equally; R-hat")
    assert "lies between modes" in str(modes(apart))


def test_one_call_trains_members_and_explores_their_modes():
    model, x, y = curve()
    lengths = {"num_samples": 300, "num_warmup": 300, "num_chains": 3, "compile": True, "seed": 0}
    posterior = quietly(pb.fit_mcmc, model, (x, y), sampler=pb.MCLMC(), init=Descent(500), **lengths)
    assert posterior.to_arviz().sample_stats["energy_error"].shape == (3, 300)
    message = posterior.status.message
    assert re.match("[1-3] (modes, which|of 3 chains|chains whose predictions agree).*; R-hat within chains", message)
    assert "; MCLMC: 3 chains of 300 draws" in message
    rmse = (pb.predict(model, posterior, x, num_samples=100).mean - y).square().mean().sqrt()
    assert rmse < 0.15 < y.std()
    from_prior = quietly(pb.fit_mcmc, model, (x, y), sampler=pb.MCLMC(), **{**lengths, "num_warmup": 0})
    assert posterior.statistics.log_density.mean() > from_prior.statistics.log_density[:, 0].mean()


def test_a_descent_ends_lower_and_each_row_by_itself():
    z = torch.randn(4, NUM_WEIGHTS, dtype=torch.float64)
    end = Descent(300, 0.05)(bowl, z)
    assert (bowl(end)[0] < 1e-3).all()
    assert torch.allclose(Descent(20)(bowl, z[:1]), Descent(20)(bowl, z)[:1])


def test_fresh_networks_keep_the_scale_of_what_passes_through():
    model, *_ = curve()
    sites = {site.name: site for site in find_sites(model, (), {})}
    loc, rho = FreshInit()(sites["net.2.weight"])
    assert not loc.any()
    assert torch.allclose(nn.functional.softplus(rho), torch.tensor(math.sqrt(2 / 8)))
    loc, rho = FreshInit()(sites["net.2.bias"])
    assert not nn.functional.softplus(rho).any()


def test_chains_of_an_ensemble_begin_at_its_members():
    model, x, y = curve()
    members = [pb.GuidePosterior(pb.DeltaGuide(model, init=pb.NormalInit(0.3))) for _ in range(3)]
    potential = network_potential(model, x, y, torch.float64)
    starts = potential.constrain(starting_points(potential, pb.EnsemblePosterior(members), 3))
    for start, member in zip(starts["net.0.weight"], members, strict=True):
        assert torch.allclose(start, member.sample(1)["net.0.weight"][0])
    shares = [ChainProcesses(rank, 2).share(3) for rank in range(2)]  # also if two processes share the chains
    parts = [starting_points(potential, pb.EnsemblePosterior(members), 3, share) for share in shares]
    assert torch.equal(potential.constrain(torch.cat(parts))["net.0.weight"], starts["net.0.weight"])


def test_members_that_are_left_out_are_warned_of_where_the_user_called():
    model, x, y = curve()
    members = [pb.GuidePosterior(pb.DeltaGuide(model, init=pb.NormalInit(0.3))) for _ in range(3)]
    lengths = {"num_samples": 4, "num_warmup": 4, "num_chains": 2, "seed": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pb.fit_mcmc(model, (x, y), sampler=pb.MCLMC(), init=pb.EnsemblePosterior(members), **lengths)
    files = {str(warning.message)[:19]: warning.filename for warning in caught}
    assert files["2 draws do not use "] == __file__


def test_modes_tell_exploring_from_disagreeing():
    level = torch.tensor([0.0, 3.0])[:, None, None]
    explored = level + torch.randn(2, 400, 3)
    found = modes(explored)
    assert not found.problems
    assert found.between > 1.5
    assert found.share == pytest.approx(2.25 / 3.25, rel=0.1)
    drifting = explored + torch.linspace(0, 4, 400)[:, None]
    assert "2 of 2 chains have not explored their modes" in modes(drifting).problems[0]
    assert modes(torch.randn(2, 400, 3)).share < 0.02


def test_a_chain_that_does_not_move_has_not_explored_its_mode():
    stuck = torch.randn(2, 100, 3)
    stuck[1] = 1.0
    assert math.isinf(modes(stuck).within[1])
    stuck[1, 50:] = 2.0
    assert math.isinf(modes(stuck).within[1])
    some_constant = torch.cat([torch.randn(2, 400, 3), torch.ones(2, 400, 1)], -1)
    assert not modes(some_constant).problems


def test_steps_that_were_not_taken_are_warned_of():
    """Without a warm-up, steps are far too long for the modes, and no chain moves."""
    model, x, y = curve()
    lengths = {"num_samples": 20, "num_warmup": 0, "num_chains": 2, "compile": True, "seed": 0}
    with pytest.warns(pb.ConvergenceWarning, match="40 divergent trajectories.*Also, 2 of 2 chains have not") as caught:
        posterior = pb.fit_mcmc(model, (x, y), sampler=pb.MCLMC(), init=Descent(200), **lengths)
    assert caught[0].filename == __file__
    assert not posterior.status.ok
    assert posterior.status.message.startswith("2 of 2 chains are too short to explore their modes; ")
    assert posterior.status.message.endswith("Warm up longer.")
    assert "lower the `energy_error` of MCLMC" in posterior.status.message
    assert posterior.diagnose().problems[1].startswith("2 of 2 chains have not explored their modes")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_chain_that_stood_still_can_go_on(dtype):
    """The draws of this chain have standard deviation 0, and a decoherence length of 0 would give NaN."""
    z = torch.zeros(1, NUM_WEIGHTS, dtype=dtype)
    sampler = pb.MCLMC(1)
    kernel, adaptation = sampler.kernel(bowl, z), sampler.adaptation(300, 0.8, z[0])
    for index in range(300):
        adaptation.apply(kernel, 0)
        draws = replace(kernel.draw(), z=z)
        adaptation.update(index, draws, 0, None)
        assert adaptation.length > 0
    sampler.adaptation(300, 0.8, z[0]).restore(adaptation.state())
    assert not kernel.draw().diverging.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pb.MCLMC(0), "`steps_per_draw` must be a whole number of at least 1"),
        (lambda: pb.MCLMC(energy_error=0.0), "`energy_error`"),
        (lambda: pb.MCLMC().kernel(bowl, torch.zeros(2, 1)), "MCLMC needs at least two latent numbers"),
        (lambda: Descent(0), "`num_steps` must be a whole number of at least 1"),
        (lambda: Descent(init=3), "`init` must be an Init or None, got int"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
