"""NUTS and HMC without a compiler: replayed recordings give the draws of the recorded functions."""

import re

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.inference.mcmc import _traced
from pyro_bnn.inference.mcmc._traced import UnsupportedError

from .cases import LIKELIHOODS, PRIORS, small_model
from .chains import hierarchy, quietly
from .tolerances import IDENTITY

START = torch.tensor([[0.3, -0.2], [1.0, 0.5], [-0.7, 0.1]], dtype=torch.float64)


WHY = "`compile` is False"
NUTS = pb.NUTS(5)


def without_records(monkeypatch):
    def refuse(value_and_grad, z):
        raise UnsupportedError("it is refused here")

    monkeypatch.setattr(_traced, "replayed", refuse)


def fitted(model, x, y, **options):
    options = {"num_samples": 5, "num_warmup": 5, "num_chains": 2, "max_tree_depth": 4, "seed": 0, **options}
    return quietly(pb.fit_nuts, model, (x, y), dtype=torch.float64, compile=False, **options)


def assert_replayed(fit, *args, monkeypatch):
    """A fit is replayed, and has the same draws as a fit that is not replayed."""
    found = fit(*args)
    assert found.path == f"replayed: {WHY}"
    without_records(monkeypatch)
    expected = fit(*args)
    assert expected.path == f"eager: {WHY}, and it is refused here"
    assert_equal(found.chains, expected.chains)


def walk(potential, *, sampler=NUTS, num_draws=20, seed=1):
    """How draws of a kernel are computed; the draws, and how many steps each took."""
    torch.manual_seed(seed)
    kernel = sampler.kernel(potential, START)
    kernel.step_size = torch.full((len(START),), 0.4, dtype=START.dtype)
    draws = (kernel.draw() for _ in range(num_draws))
    return kernel.path, [(d.finished, d.z, d.log_density, d.num_steps) for d in draws]


def assert_equal(a, b):
    torch.testing.assert_close(a, b, **IDENTITY)


def normal_potential(z):
    return 0.5 * z.square().sum(-1), z.clone()


def branching(z):
    sign = 1.0 if float(z.detach().sum()) > 0 else 2.0
    return sign * 0.5 * z.square().sum(-1), sign * z


def leaving(z):
    """Numbers that pass through Python become constants of a recording."""
    values = torch.from_numpy(z.detach().numpy().copy())
    return 0.5 * values.square().sum(-1), values


def long(z):
    total = z.square().sum(-1)
    for _ in range(3000):
        total = total * 1.0
    return 0.5 * total, z.clone()


OBSTACLES = {
    "branches": (branching, r"the density cannot be recorded \("),
    "leaves torch": (leaving, "a record of the density gives other numbers than the density"),
    "is long": (long, r"the density has \d+ operations, over 2000"),
}


@pytest.mark.daily(  # with those of HMC below
    *("mixture-density-normal", "poisson-normal", "zero-inflated-normal", "gaussian-fixed-hierarchical"),
)
@pytest.mark.filterwarnings("ignore:the model's learnable parameters")
@pytest.mark.parametrize(
    ("likelihood", "prior"),
    [*((name, "normal") for name in LIKELIHOODS), *(("gaussian-fixed", name) for name in PRIORS)],
)
def test_a_record_gives_the_draws_of_what_was_recorded(likelihood, prior, monkeypatch):
    assert_replayed(
        fitted, *small_model(likelihood=likelihood, prior=PRIORS[prior], num_data=6), monkeypatch=monkeypatch
    )


def test_a_users_own_pyro_model_is_recorded_too(monkeypatch):
    x = torch.randn(20, 3)
    assert_replayed(fitted, hierarchy, x, x.sum(-1), monkeypatch=monkeypatch)


@pytest.mark.daily("1")
@pytest.mark.parametrize("num_chains", [1, 3])
def test_long_chains_agree(num_chains, monkeypatch):
    data = small_model(num_data=6)
    options = {"num_chains": num_chains, "num_samples": 30, "num_warmup": 30}
    found = fitted(*data, **options).chains
    without_records(monkeypatch)
    torch.testing.assert_close(found, fitted(*data, **options).chains)


@pytest.mark.parametrize(("sampler", "num_draws"), [(NUTS, 3), (pb.HMC(6), 20)], ids=["NUTS", "HMC"])
@pytest.mark.parametrize("name", OBSTACLES)
def test_what_cannot_be_recorded_runs_as_it_is_and_says_why(name, sampler, num_draws, monkeypatch):
    potential, message = OBSTACLES[name]
    path, found = walk(potential, sampler=sampler, num_draws=num_draws)
    assert re.match(f"eager: {WHY}, and {message}", path)
    without_records(monkeypatch)
    assert_equal(found, walk(potential, sampler=sampler, num_draws=num_draws)[1])


def test_a_potential_whose_record_is_wrong_elsewhere_is_called_at_each_step():
    calls = []

    def potential(z):
        calls.append(len(z))
        return leaving(z)

    _, found = walk(potential)
    assert len(calls) > 60
    assert_equal(found, walk(normal_potential)[1])


def test_without_the_check_a_wrong_record_would_be_used(monkeypatch):
    """The twin of the test before."""
    monkeypatch.setattr(torch, "allclose", lambda *args, **kwargs: True)
    path, found = walk(leaving)
    assert path == f"replayed: {WHY}"
    monkeypatch.undo()
    assert not torch.allclose(found[-1][1], walk(normal_potential)[1][-1][1])


def test_a_torch_without_these_functions_gives_the_same_draws(monkeypatch):
    _, expected = walk(normal_potential)
    monkeypatch.delattr(torch._C, "_create_graph_by_tracing")
    path, found = walk(normal_potential)
    assert path == f"eager: {WHY}, and torch {torch.__version__} cannot record operations"
    assert_equal(found, expected)


def test_recording_draws_no_random_numbers():
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    pb.NUTS(5).kernel(normal_potential, START)
    assert torch.equal(torch.get_rng_state(), expected)


def test_data_and_prior_scales_of_each_fit_are_its_own():
    """A recording must not keep the data and prior scales of an earlier fit."""
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    first, second = fitted(model, x, y).chains, fitted(model, 2 * x, y).chains
    assert not all(torch.allclose(first[name], second[name]) for name in first)


# --- HMC --------------------------------------------------------------------------------------------------------------


def hamiltonian(model, x, y):
    options = {"num_samples": 5, "num_warmup": 5, "num_chains": 2, "seed": 0, "dtype": torch.float64}
    return quietly(pb.fit_mcmc, model, (x, y), sampler=pb.HMC(max_steps=8), compile=False, **options)


@pytest.mark.daily("gaussian-fixed", "categorical", "gaussian-latent", "own")
@pytest.mark.filterwarnings("ignore:the model's learnable parameters")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_draws_of_hmc_are_those_of_the_potential_that_was_recorded(likelihood, monkeypatch):
    assert_replayed(hamiltonian, *small_model(likelihood=likelihood, num_data=6), monkeypatch=monkeypatch)


def test_hmc_with_gradients_in_c_gives_the_draws_of_torch():
    model, x, y = small_model(num_data=6)
    options = {"sampler": pb.HMC(8), "num_samples": 6, "num_warmup": 0, "num_chains": 2, "seed": 0}
    options["dtype"] = torch.float64
    in_c = quietly(pb.fit_mcmc, model, (x, y), compile=True, **options)
    in_torch = quietly(pb.fit_mcmc, model, (x, y), compile=False, **options)
    assert in_c.path == "C"
    assert in_torch.path == "replayed: `compile` is False"
    for name, draws in in_torch.chains.items():
        torch.testing.assert_close(in_c.chains[name], draws, rtol=1e-6, atol=1e-8)


def test_a_recorded_potential_takes_points_of_any_memory_layout():
    """`Kernel.find_step` passes an expanded tensor: one point for all chains."""
    network = torch.nn.Linear(2, 3).double()

    def potential(z):
        z = z.detach().requires_grad_()
        value = network(z.view(-1, 2)).square().sum(-1)
        return value.detach(), torch.autograd.grad(value.sum(), z)[0]

    run = _traced.replayed(potential, START)
    assert run is not potential
    assert_equal(run(START[:1].expand(3, 2)), potential(START[:1].expand(3, 2)))
