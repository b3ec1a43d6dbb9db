"""NUTS and HMC without a compiler: what torch replays gives the draws of the functions that were recorded."""

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.mcmc import _hmc, _replayed, _steps

from .cases import LIKELIHOODS, PRIORS, small_model
from .chains import hierarchy, quietly
from .tolerances import IDENTITY

START = torch.tensor([[0.3, -0.2], [1.0, 0.5], [-0.7, 0.1]], dtype=torch.float64)


def watched(monkeypatch, module, name):
    """Whether each function that a module gives to one of `_replayed` was recorded, in turn."""
    seen, record = [], getattr(_replayed, name)

    def watching(function, example):
        run = record(function, example)
        seen.append(run is not None and run is not function)
        return run

    monkeypatch.setattr(module, name, watching)
    return seen


@pytest.fixture
def records(monkeypatch):
    """Of NUTS: those of its parts."""
    return watched(monkeypatch, _steps, "recorded")


@pytest.fixture
def potentials(monkeypatch):
    """Of HMC: only its potential is recorded."""
    return watched(monkeypatch, _hmc, "replayed")


def without_records(monkeypatch):
    monkeypatch.setattr(_steps, "recorded", lambda function, example: None)
    monkeypatch.setattr(_hmc, "replayed", lambda value_and_grad, z: value_and_grad)


def fitted(model, x, y, **options):
    options = {"num_samples": 5, "num_warmup": 5, "num_chains": 2, "max_tree_depth": 4, "seed": 0, **options}
    return quietly(pb.fit_nuts, model, x, y, dtype=torch.float64, compile=False, **options).samples


def walk(potential, *, num_draws=20, seed=1):
    """Draws of a kernel, and how many steps each took."""
    torch.manual_seed(seed)
    kernel = pb.NUTS(5).kernel(potential, START)
    kernel.step_size = torch.full((len(START),), 0.4, dtype=START.dtype)
    return [(d.finished, d.z, d.log_density, d.num_steps) for d in (kernel.draw() for _ in range(num_draws))]


def assert_equal(a, b):
    torch.testing.assert_close(a, b, **IDENTITY)


def normal_potential(z):
    return 0.5 * z.square().sum(-1), z.clone()


def branching(z):
    sign = 1.0 if float(z.detach().sum()) > 0 else 2.0
    return sign * 0.5 * z.square().sum(-1), sign * z


def leaving(z):
    """Numbers that leave torch and come back are constants of a record."""
    values = torch.from_numpy(z.detach().numpy().copy())
    return 0.5 * values.square().sum(-1), values


def long(z):
    total = z.square().sum(-1)
    for _ in range(3000):
        total = total * 1.0
    return 0.5 * total, z.clone()


@pytest.mark.filterwarnings("ignore:the model's learnable parameters")
@pytest.mark.parametrize(
    ("likelihood", "prior"),
    [*((name, "normal") for name in LIKELIHOODS), *(("gaussian-fixed", name) for name in PRIORS)],
)
def test_a_record_gives_the_draws_of_what_was_recorded(likelihood, prior, records, monkeypatch):
    model, x, y = small_model(likelihood=likelihood, prior=PRIORS[prior], num_data=6)
    found = fitted(model, x, y)
    assert records == [True] * 3
    without_records(monkeypatch)
    assert_equal(found, fitted(model, x, y))


def test_a_users_own_pyro_model_is_recorded_too(records, monkeypatch):
    x = torch.randn(20, 3)
    y = x.sum(-1)
    found = fitted(hierarchy, x, y)
    assert records == [True] * 3
    without_records(monkeypatch)
    assert_equal(found, fitted(hierarchy, x, y))


@pytest.mark.parametrize("num_chains", [1, 3])
def test_long_chains_agree(num_chains, monkeypatch):
    model, x, y = small_model(num_data=6)
    found = fitted(model, x, y, num_chains=num_chains, num_samples=30, num_warmup=30)
    without_records(monkeypatch)
    torch.testing.assert_close(found, fitted(model, x, y, num_chains=num_chains, num_samples=30, num_warmup=30))


def test_a_potential_that_branches_on_values_is_not_recorded(records):
    walk(branching)
    assert records == [True] * 2  # those without the potential


def test_a_potential_whose_record_is_wrong_elsewhere_runs_as_it_is(records):
    calls = []

    def potential(z):
        calls.append(len(z))
        return leaving(z)

    found = walk(potential)
    assert records == [True] * 3
    assert len(calls) > 60
    assert_equal(found, walk(normal_potential))


def test_a_potential_of_many_operations_is_not_recorded(records):
    """Recording takes longer than short chains do."""
    found = walk(long, num_draws=3)
    assert records == [True] * 2
    assert_equal(found, walk(normal_potential, num_draws=3))


def test_without_the_check_a_wrong_record_would_be_used(monkeypatch):
    """The test before this one can fail."""
    monkeypatch.setattr(_steps, "agree", lambda a, b: True)
    first = walk(leaving)
    assert not torch.allclose(first[-1][1], walk(normal_potential)[-1][1])


def test_a_torch_without_these_functions_gives_the_same_draws(monkeypatch):
    expected = walk(normal_potential)
    monkeypatch.delattr(torch._C, "_create_graph_by_tracing")
    assert _replayed.recorded(lambda x: [x + 1], [torch.ones(2)]) is None
    assert_equal(walk(normal_potential), expected)


def test_recording_draws_no_random_numbers():
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    pb.NUTS(5).kernel(normal_potential, START)
    assert torch.equal(torch.get_rng_state(), expected)


def test_data_and_prior_scales_of_each_fit_are_its_own():
    """A record must not keep those of the fit before it."""
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    first, second = fitted(model, x, y), fitted(model, 2 * x, y)
    assert not all(torch.allclose(first[name], second[name]) for name in first)


# --- HMC: only its potential is recorded ------------------------------------------------------------------------------


def hamiltonian(model, x, y):
    options = {"num_samples": 5, "num_warmup": 5, "num_chains": 2, "seed": 0, "dtype": torch.float64}
    return quietly(pb.fit_mcmc, model, x, y, sampler=pb.HMC(max_steps=8), **options).samples


def walk_by_hmc(potential):
    torch.manual_seed(1)
    kernel = pb.HMC(6).kernel(potential, START)
    return [(d.z, d.log_density, d.num_steps) for d in (kernel.draw() for _ in range(20))]


@pytest.mark.filterwarnings("ignore:the model's learnable parameters")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_draws_of_hmc_are_those_of_the_potential_that_was_recorded(likelihood, potentials, monkeypatch):
    model, x, y = small_model(likelihood=likelihood, num_data=6)
    found = hamiltonian(model, x, y)
    assert potentials == [True]
    without_records(monkeypatch)
    assert_equal(found, hamiltonian(model, x, y))


@pytest.mark.parametrize("potential", [branching, leaving, long])
def test_hmc_runs_what_cannot_be_recorded_as_it_is(potential, potentials, monkeypatch):
    found = walk_by_hmc(potential)
    assert potentials == [False]
    without_records(monkeypatch)
    assert_equal(found, walk_by_hmc(potential))


def test_a_recorded_potential_takes_points_of_any_memory_layout():
    """As `Kernel.find_step` gives them: one point for all chains."""
    network = torch.nn.Linear(2, 3).double()

    def potential(z):
        z = z.detach().requires_grad_()
        value = network(z.view(-1, 2)).square().sum(-1)
        return value.detach(), torch.autograd.grad(value.sum(), z)[0]

    run = _replayed.replayed(potential, START)
    assert run is not potential
    assert_equal(run(START[:1].expand(3, 2)), potential(START[:1].expand(3, 2)))
