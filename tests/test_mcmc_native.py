"""The sampler in C: its potentials, functions and draws, and chains that share several cores."""

import gc
import itertools
import os
import re
import signal
import threading
import time
from collections import Counter

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import TracePotential, network_potential
from pyro_bnn.inference.mcmc import _native, _operations
from pyro_bnn.inference.mcmc._native import native
from pyro_bnn.inference.mcmc._nuts import NativeNUTSKernel

from .cases import IN_C, PRIORS, small_model
from .chains import hierarchy, quietly
from .kill_chains import equal
from .test_exact import Problem
from .tolerances import IDENTITY, assert_identical


class Indexed(nn.Module):
    """A network that cuts and joins tensors; its third parameter is a vector by itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(9, 3, bias=False)
        self.shift = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        left, right = (self.first(x).sigmoid() - self.shift).split([2, 4], -1)
        hidden = torch.cat([right.relu(), left * x[:, 1:3].exp(), left.abs(), x[:, -1:]], 1)
        return self.second(hidden) * hidden[:, 4].unsqueeze(-1)


NETS = {
    "indexed": Indexed,
    "wide": lambda: nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 19), nn.ReLU(), nn.Linear(19, 3)),
    "without a hidden layer": lambda: nn.Linear(4, 3),
}
CASES = {
    **{
        f"{prior}, {likelihood}": {"prior": PRIORS[prior], "likelihood": likelihood}
        for prior, likelihood in zip(PRIORS, itertools.cycle(IN_C))
    },
    **{f"network {name}": {"net": net} for name, net in NETS.items()},
}


def potential_of(*, net=None, dtype=torch.float64, **options):
    model, x, y = small_model(net=net and net(), num_data=6, **options)
    return network_potential(model, x, y, dtype)


def start(potential, num_chains=1):
    return 0.5 * torch.randn(num_chains, sum(site.start.numel() for site in potential.sites))


@pytest.mark.daily(  # with `test_mcmc_blocks.py`, each formula of a likelihood or a prior
    *("mixture, *", "by-name, *", "hierarchical, *", "*mixture-density", "horseshoe, *", "*zero-inflated", "network *")
)
@pytest.mark.filterwarnings("ignore:the model's learnable parameters")
@pytest.mark.parametrize("name", CASES)
def test_potentials_and_gradients_are_those_of_torch(name):
    potential = potential_of(**CASES[name])
    sampler, z = native(potential.value_and_grad, start(potential), 3), start(potential, 5)
    for found, expected in zip(sampler.value_and_grad(z), potential.value_and_grad(z), strict=True):
        torch.testing.assert_close(found, expected, **IDENTITY)


ACTIVATIONS = [
    *(nn.SiLU(), nn.GELU(), nn.ELU(), nn.ELU(0.4), nn.SELU(), nn.CELU(0.6), nn.LeakyReLU(), nn.LeakyReLU(0.3)),
    *(nn.ReLU6(), nn.Hardtanh(-0.3, 0.4), nn.Softplus()),
]


class Activated(nn.Module):
    """Each activation has two inputs of its own."""

    def forward(self, x):
        return torch.cat([activation(part) for activation, part in zip(ACTIVATIONS, x.split(2, -1), strict=True)], -1)


@pytest.mark.usefixtures("optimized")
def test_activations_and_their_slopes_are_those_of_torch():
    size = 2 * len(ACTIVATIONS)
    potential = potential_of(net=lambda: nn.Sequential(nn.Linear(4, size), Activated(), nn.Linear(size, 3)))
    sampler = native(potential.value_and_grad, start(potential), 3)
    for scale in (1, 30):
        z = scale * start(potential, 5)
        for found, expected in zip(sampler.value_and_grad(z), potential.value_and_grad(z), strict=True):
            torch.testing.assert_close(found, expected, **IDENTITY)


ELEMENTARY = [
    *(torch.exp, torch.expm1, torch.log, torch.log1p, torch.tanh, torch.sin, torch.cos, torch.sigmoid),
    *(nn.functional.softplus, nn.functional.logsigmoid),
]


def assert_functions_are_right(size, **tolerance):
    """A potential whose gradient is each elementary function at all numbers, compared with double precision."""
    row = torch.cat([size, -size, torch.tensor([torch.nan])]).unsqueeze(0)

    def each(z):
        return torch.cat([f(part) for f, part in zip(ELEMENTARY, z.split(row.shape[1], -1), strict=True)], -1)

    z = row.repeat(1, len(ELEMENTARY)).to(size.dtype)
    found = native(lambda z: (z.sum(-1), each(z)), z, 1).value_and_grad(z)[1]
    torch.testing.assert_close(found.double(), each(z.double()), equal_nan=True, **tolerance)


@pytest.mark.usefixtures("optimized")
def test_functions_are_right_to_a_few_roundings_and_at_the_ends():
    size = torch.cat([torch.logspace(-320, 2.84, 999), torch.linspace(0.3, 40, 998), torch.tensor([0, torch.inf])])
    assert_functions_are_right(size, rtol=2e-15, atol=1e-307)


def normal_potential(z):
    """Its gradient is its argument, the very same tensor."""
    return 0.5 * z.square().sum(-1), z


def quartic_potential(z):
    """Steep enough for long steps to diverge."""
    return z.pow(4).sum(-1), 4 * z.pow(3)


def record(kernel, num_events):
    """What each chain reports, draw by draw, while its step size and its mass change as in warm-up."""
    reports = [[] for _ in kernel.step_size]
    for _ in range(num_events):
        draws = kernel.draw()
        for k in draws.finished.nonzero().flatten().tolist():
            numbers = [draws.log_density, draws.energy, draws.accept, draws.diverging, draws.num_steps, *draws.z.mT]
            reports[k].append(torch.stack([number[k].double() for number in numbers]))
            kernel.step_size[k] *= 0.97 if len(reports[k]) % 3 else 1.01
            kernel.inverse_mass[k] = 1 + 0.1 * (len(reports[k]) % 4)
    return [torch.stack(report) if report else torch.empty(0) for report in reports]


STEPS = [0.03, 0.3, 0.9, 2.5]
START = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)


def kernel_in_c(potential, *, max_tree_depth=6, num_threads=1, seed=0):
    kernel = NativeNUTSKernel(native(potential, START[:1], max_tree_depth), START, num_threads=num_threads)
    kernel.step_size = torch.tensor(STEPS)
    torch.manual_seed(seed)
    return kernel


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("potential", [normal_potential, quartic_potential])
@pytest.mark.parametrize("max_tree_depth", [1, 6])
def test_each_chain_is_the_eager_sampler_with_random_numbers_of_its_own(potential, max_tree_depth):
    together = record(kernel_in_c(potential, max_tree_depth=max_tree_depth), 40)
    torch.manual_seed(0)
    seeds = torch.randint(2**62, (len(STEPS),)).tolist()
    seen = Counter()
    for k, (seed, step) in enumerate(zip(seeds, STEPS, strict=True)):
        kernel = pb.NUTS(max_tree_depth).kernel(potential, START[[k]])
        kernel.step_size = torch.tensor([step])
        torch.manual_seed(seed)
        (alone,) = record(kernel, 40)
        torch.testing.assert_close(together[k], alone, rtol=1e-8, atol=1e-8)
        seen.update(alone[:, 4].tolist())
        seen["diverging"] += int(alone[:, 3].sum())
    assert seen[2**max_tree_depth - 1] > 0
    assert max_tree_depth == 1 or len(seen) > 5
    assert (seen["diverging"] > 0) == (potential is quartic_potential)


@pytest.mark.usefixtures("optimized")
def test_draws_do_not_depend_on_the_number_of_threads():
    """The number changes which chains report together, but not the draws of a chain."""
    one, several = (record(kernel_in_c(normal_potential, num_threads=count), 30) for count in (1, 3))
    other = record(kernel_in_c(normal_potential, seed=1), 30)
    for a, b, c in zip(one, several, other, strict=True):
        count = min(len(a), len(b))
        assert count > 0
        assert torch.equal(a[:count], b[:count])
        assert not torch.equal(a[:count], c[:count])


@pytest.mark.usefixtures("optimized")
def test_a_state_that_is_taken_while_chains_draw_is_gone_on_with_to_the_bit():
    kernel = kernel_in_c(normal_potential, num_threads=2)
    record(kernel, 7)
    assert any(not kernel.draw().finished.all() for _ in range(10_000))  # until others are still drawing
    state, step_size, inverse_mass = kernel.state(), kernel.step_size.clone(), kernel.inverse_mass.clone()
    again = kernel_in_c(normal_potential, num_threads=3, seed=5)
    again.step_size, again.inverse_mass = step_size, inverse_mass
    again.restore(state)
    for a, b in zip(record(kernel, 40), record(again, 40), strict=True):
        count = min(len(a), len(b))
        assert count > 0
        assert torch.equal(a[:count], b[:count])


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def fitted(**options):
    problem = Problem()
    options = {"num_samples": 30, "num_warmup": 60, "num_chains": 3, "seed": 4, "compile": True, **options}
    return quietly(pb.fit_nuts, problem.model, (problem.x, problem.y), **options)


def test_a_fit_on_several_threads_is_that_on_one_and_is_resumed(three_threads, tmp_path):
    several = fitted()
    fitted(num_samples=10, checkpoint=tmp_path / "run")
    longer = fitted(resume=tmp_path / "run")
    torch.set_num_threads(1)
    assert equal(several, fitted())
    assert not equal(several, fitted(seed=5))
    fitted(num_samples=10, checkpoint=tmp_path / "one")
    assert equal(longer, fitted(resume=tmp_path / "one"))


def test_a_run_that_was_drawn_in_another_way_is_refused():
    kernel, eager = kernel_in_c(normal_potential), pb.NUTS().kernel(normal_potential, START)
    for one, other in ((kernel, eager), (eager, kernel)):
        with pytest.raises(ValueError, match="one of the two runs draws in C"):
            one.restore(other.state())


def test_control_c_ends_a_fit_on_several_threads_and_the_next_one_is_as_ever(three_threads, monkeypatch):
    before = fitted()
    is_drawing, draw = threading.Event(), _native.NativeKernel.draw

    def interrupt():  # not earlier: torch may lose a KeyboardInterrupt while it records the density
        is_drawing.wait()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(_native.NativeKernel, "draw", lambda kernel: is_drawing.set() or draw(kernel))
    thread = threading.Thread(target=interrupt)
    gc.disable()  # Python drops an interrupt that meets a callback of `gc.callbacks`, and hypothesis has one
    thread.start()
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            fitted(num_samples=3 * 10**4)  # takes longer, but ends without the signal
    finally:
        gc.enable()
    assert time.monotonic() - begin < 20
    thread.join()
    assert equal(fitted(), before)


def test_other_numbers_share_what_is_compiled(monkeypatch):
    texts, compile_text = [], _native._compile
    monkeypatch.setattr(_native, "_kept", type(_native._kept)())
    monkeypatch.setattr(_native, "_compile", lambda text, timeout: texts.append(text) or compile_text(text, timeout))
    for options in ({}, {"prior": pb.NormalPrior(3.0)}, {}, {"likelihood": "heteroscedastic"}):
        potential = potential_of(**options)
        z = start(potential)
        value, _ = native(potential.value_and_grad, z, 3).value_and_grad(z)
        assert_identical(value, potential.value(z))
    assert len(texts) == 2


# --- what is not drawn in C says why ----------------------------------------------------------------------------------


class Cumulative(nn.Module):
    def forward(self, x):
        return x.cumsum(-1)


def cumulative():
    """A model whose network has an operation that is not written in C."""
    return small_model(net=nn.Sequential(nn.Linear(4, 3), Cumulative()), num_data=6)


def without_compiler(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(_native, "_compiler", lambda: None)


def failing_compiler(monkeypatch):
    monkeypatch.setenv("CC", "/bin/false")
    monkeypatch.setattr(_native, "_kept", type(_native._kept)())


def complaining_compiler(monkeypatch):
    monkeypatch.setattr(_native, "FLAGS", ("--no-such-option",))
    monkeypatch.setattr(_native, "_kept", type(_native._kept)())


def folder_without_programs(monkeypatch):
    def load(path):
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(_native.ctypes, "CDLL", load)
    monkeypatch.setattr(_native, "_kept", type(_native._kept)())


def wrong_operation(monkeypatch):
    aten = torch.ops.aten
    monkeypatch.setitem(_operations.OPERATIONS, aten.mul, _operations.OPERATIONS[aten.add])


def faulty_operation(monkeypatch):
    monkeypatch.setitem(_operations.OPERATIONS, torch.ops.aten.mul, lambda writer: None)


def regression():
    problem = Problem()
    return problem.model, problem.x, problem.y


CLOSED = {
    "no compiler": (regression, without_compiler, r"there is no C compiler \(`CC`, cc, gcc or clang\)"),
    "a compiler that is not there": (
        regression,
        lambda monkeypatch: monkeypatch.setenv("CC", "/nonexistent"),
        "the C compiler that `CC` names, '/nonexistent', is not found; correct or unset it",
    ),
    "a compiler that fails": (
        regression,
        failing_compiler,
        r"the C compiler failed with exit status 1 \(/bin/false ",
    ),
    "a compiler that complains": (regression, complaining_compiler, r"the C compiler failed .*no-such-option"),
    "a folder without programs": (
        regression,
        folder_without_programs,
        r"compiled code cannot be written or loaded \(.*: failed to map segment",
    ),
    "an operation": (
        cumulative,
        None,
        r"the density has an operation that is not written in C \(aten.cumsum.default\)",
    ),
    "an operation of other arguments": (regression, faulty_operation, r"the density .* in C \(.* takes 1 positional"),
    "a wide network": (
        regression,
        lambda monkeypatch: monkeypatch.setattr(_native, "MOST_PRODUCTS", 2),
        r"the density takes [\d,]+ multiplications, over 2, which torch does faster",
    ),
    "wrong numbers": (
        regression,
        wrong_operation,
        r"the (potential|gradient) in C begins with .* where torch's begins",
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_what_is_not_drawn_in_c_is_refused_or_drawn_in_torch_and_says_why(name, monkeypatch):
    make, change, message = CLOSED[name]
    model, x, y = make()
    options = {"num_samples": 4, "num_warmup": 1, "num_chains": 1, "max_tree_depth": 2, "seed": 0}
    if change is not None:
        change(monkeypatch)
    with pytest.raises(ValueError, match=f"(?s)^`compile=True` draws in C, but {message}"):
        pb.fit_nuts(model, (x, y), compile=True, **options)
    found = quietly(pb.fit_nuts, model, (x, y), compile="auto", **options)
    assert re.match(f"(?s)replayed: {message}", found.path)
    eager = quietly(pb.fit_nuts, model, (x, y), compile=False, **options)
    assert eager.path == "replayed: `compile` is False"
    assert equal(found, eager)


def test_chains_in_c_say_so_at_the_prompt_and_in_their_file(tmp_path):
    problem, found = Problem(), fitted(compile="auto")
    assert found.path == "C"
    assert "draws computed: in C" in repr(found)
    pb.save_posterior(found, tmp_path / "chains", problem.model)
    assert pb.load_posterior(tmp_path / "chains", problem.model).path == "C"
    assert equal(found, fitted())


def test_a_pyro_model_of_ones_own_is_drawn_in_c_from_the_same_density():
    x = torch.randn(20, 3)
    potential = TracePotential(hierarchy, (x, x.sum(-1)))
    sampler, z = native(potential.value_and_grad, start(potential), 3), start(potential, 5)
    for found, expected in zip(sampler.value_and_grad(z), potential.value_and_grad(z), strict=True):
        torch.testing.assert_close(found, expected, **IDENTITY)
    options = {"num_samples": 4, "num_warmup": 4, "num_chains": 2, "seed": 0}
    assert quietly(pb.fit_nuts, hierarchy, (x, x.sum(-1)), compile=True, **options).path == "C"


def test_other_values_of_compile_are_refused():
    with pytest.raises(ValueError, match=r'`compile` must be True, False or "auto", got \'always\''):
        fitted(compile="always")
