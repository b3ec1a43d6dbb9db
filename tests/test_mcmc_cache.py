"""What is compiled is compiled once, and each model gets its own answers from it."""

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.mcmc import _compiled, _native

from .chains import quietly
from .tolerances import assert_identical

NUM_ROWS = 12


class Standardised(nn.Module):
    """A network with a buffer, and an activation that may be exchanged."""

    def __init__(self, shift, activation):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.activation = activation
        self.register_buffer("shift", torch.full((2,), shift))

    def forward(self, x):
        return self.activation(self.linear(x - self.shift))


def problem(*, prior_scale=1.0, shift=0.5, factor=1.0, activation=torch.tanh, num_rows=NUM_ROWS):
    """A model and its data. All that `constants` names below are tensors to the compiler."""
    torch.manual_seed(0)
    net = Standardised(shift, activation)
    x = factor * torch.randn(num_rows, 2)
    likelihood = pb.GaussianLikelihood(0.3)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(prior_scale), likelihood=likelihood, num_data=num_rows)
    return model, x, x.sum(-1, keepdim=True).sin()


def draws(model, x, y, *, sampler=None, **options):
    posterior = quietly(
        pb.fit_mcmc,
        *(model, x, y),
        sampler=sampler or pb.HMC(4),
        **{"num_samples": 6, "num_warmup": 12, "num_chains": 2, "seed": 0, **options},
    )
    return torch.cat([value.flatten(2) for value in posterior.samples.values()], -1)


@pytest.fixture
def compilations(monkeypatch):
    """The graphs compiled so far, which are run as they are instead: what is tested is who gets which."""
    seen = []

    def record(graph, example, loops):
        seen.append(graph)
        return graph

    monkeypatch.setattr(_compiled, "_compile", record)
    monkeypatch.setattr(_native, "_compiler", lambda: None)  # or small networks would be written in C
    monkeypatch.setattr(_compiled, "kept", type(_compiled.kept)())
    return seen


CONSTANTS = {"the prior": {"prior_scale": 3.0}, "a buffer": {"shift": -1.0}, "the data": {"factor": 2.0}}
OTHERS = {"the network's code": {"activation": torch.relu}, "the number of rows": {"num_rows": NUM_ROWS + 1}}


@pytest.mark.parametrize("sampler", [pb.HMC(4), pb.NUTS(3)], ids=lambda sampler: sampler.name)
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_model_with_other_numbers_shares_what_is_compiled_and_gets_its_own_draws(name, sampler, compilations):
    for changes in ({}, CONSTANTS[name], {}):
        expected = draws(*problem(**changes), sampler=sampler)
        torch.testing.assert_close(draws(*problem(**changes), sampler=sampler, compile=True), expected)
    assert len(compilations) == 1


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_is_compiled_for_itself(name, compilations):
    for changes in ({}, OTHERS[name], {}):
        expected = draws(*problem(**changes))
        torch.testing.assert_close(draws(*problem(**changes), compile=True), expected)
    assert len(compilations) == 2


def test_seed_and_number_of_draws_do_not_matter_but_the_number_of_chains_does(compilations):
    for options in ({}, {"seed": 1}, {"num_samples": 8}, {"num_warmup": 0}):
        draws(*problem(), compile=True, **options)
    assert len(compilations) == 1
    draws(*problem(), compile=True, num_chains=3)
    assert len(compilations) == 2


def test_a_key_without_the_code_would_give_the_draws_of_another_model(compilations, monkeypatch):
    monkeypatch.setattr(_compiled, "key_of", lambda graph, example, loops: len(example))
    draws(*problem(), compile=True)
    changes = OTHERS["the network's code"]
    wrong = draws(*problem(**changes), compile=True)
    assert len(compilations) == 1
    assert not torch.allclose(wrong, draws(*problem(**changes)))


def test_only_what_was_used_last_is_kept(compilations, monkeypatch):
    monkeypatch.setattr(_compiled, "NUM_KEPT", 2)
    x = torch.arange(3.0)
    functions = [lambda x, power=power: x**power for power in (2, 3, 4)]
    for number in (0, 1, 0, 2, 0):  # the third one puts out the second
        assert_identical(_compiled.compiled(functions[number], [x])(x), functions[number](x))
    assert len(compilations) == 3
    _compiled.compiled(functions[1], [x])
    assert len(compilations) == 4
    assert len(_compiled.kept) == 2


def test_a_function_with_a_tensor_of_its_own_is_refused():
    with pytest.raises(RuntimeError, match="must get all tensors as arguments"):
        _compiled.compiled(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), [torch.ones(3)])


@pytest.mark.slow
def test_what_was_compiled_serves_two_models():
    """With the compiler itself."""
    for changes in ({}, CONSTANTS["the data"], OTHERS["the network's code"]):
        model, x, y = problem(**changes)
        torch.testing.assert_close(draws(model, x, y, compile=True), draws(model, x, y))
