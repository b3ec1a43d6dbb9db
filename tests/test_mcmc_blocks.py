"""Potentials in C are loops over blocks of rows, if rows are independent: for any number of rows."""

import itertools

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import TracePotential, network_potential
from pyro_bnn.inference.mcmc import _blocks, _native
from pyro_bnn.inference.mcmc._emit import emitted
from pyro_bnn.inference.mcmc._native import native
from pyro_bnn.inference.mcmc._traced import traced

from .cases import IN_C, LIKELIHOODS, PRIORS, small_model
from .chains import hierarchy, quietly
from .tolerances import IDENTITY

ROWS, FEWEST = 16, 12
REST = 5


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(_blocks, "ROWS", ROWS)
    monkeypatch.setattr(_blocks, "FEWEST_ROWS", FEWEST)


def potential_of(num_rows, *, likelihood="gaussian-fixed", **options):
    model, _, _ = small_model(num_data=num_rows, likelihood=likelihood, **options)
    x, y = torch.randn(num_rows, 4), LIKELIHOODS[likelihood][2](num_rows)
    return network_potential(model, x, y, torch.float64)


def check(potential):
    """Compare with torch's, and return whether there are blocks."""
    z = 0.5 * torch.randn(3, sum(site.start.numel() for site in potential.sites))
    sampler = native(potential.value_and_grad, z[:1], 3)
    for found, expected in zip(sampler.value_and_grad(z), potential.value_and_grad(z), strict=True):
        torch.testing.assert_close(found, expected, **IDENTITY)
    function = traced(potential.value_and_grad, [z[:1]])
    return emitted(function.graph, [z[:1], *function.constants]).blocks is not None


@pytest.mark.usefixtures("optimized")
@pytest.mark.daily("normal-categorical", "mixture-bernoulli")
@pytest.mark.filterwarnings("ignore:the model's learnable parameters")
@pytest.mark.parametrize(("prior", "likelihood"), list(zip(PRIORS, itertools.cycle(IN_C))))
def test_a_potential_in_blocks_is_that_of_torch(prior, likelihood):
    assert check(potential_of(3 * ROWS + REST, prior=PRIORS[prior], likelihood=likelihood))


@pytest.mark.daily("12", "17", "79")
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("num_rows", [FEWEST, ROWS, ROWS + 1, 2 * ROWS, 2 * ROWS + 1, 5 * ROWS - 1])
def test_every_row_is_counted_once(num_rows):
    assert check(potential_of(num_rows))


def test_few_rows_are_written_whole():
    assert not check(potential_of(FEWEST - 1))


@pytest.mark.filterwarnings("ignore:the model's learnable parameters")
@pytest.mark.parametrize("likelihood", IN_C)
@pytest.mark.daily("own")
def test_other_numbers_of_rows_share_what_is_compiled(likelihood, monkeypatch):
    texts, compile_text = [], _native._compile
    monkeypatch.setattr(_native, "_kept", type(_native._kept)())
    monkeypatch.setattr(_native, "_compile", lambda text, timeout: texts.append(text) or compile_text(text, timeout))
    for num_rows in (FEWEST + 1, 2 * ROWS, 3 * ROWS + REST):
        assert check(potential_of(num_rows, likelihood=likelihood))
    assert len(texts) == 1


@pytest.mark.daily("7", "24")
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("num_hidden", [3, 7, 23, 24])
def test_any_number_of_units_is_summed_over_rows(num_hidden):
    """Units are computed several at a time, then the rest; another way is used for more units than rows in a block."""
    net = nn.Sequential(nn.Linear(4, num_hidden), nn.Tanh(), nn.Linear(num_hidden, 2))
    assert check(potential_of(3 * ROWS + REST, net=net))


class Mixing(nn.Module):
    """A network whose hidden layer mixes rows."""

    def __init__(self, mix):
        super().__init__()
        self.first, self.last, self.mix = nn.Linear(4, 5), nn.Linear(5, 2), mix

    def forward(self, x):
        return self.last(self.mix(self.first(x)))


MIXING = {
    "the mean": lambda hidden: hidden - hidden.sum(-2, keepdim=True) / hidden.shape[-2],
    "the first row": lambda hidden: hidden * hidden.select(-2, 0).unsqueeze(-2),
    "the next row": lambda hidden: hidden + hidden[..., [*range(1, hidden.shape[-2]), 0], :],
    "the shape": lambda hidden: hidden.mT.reshape(hidden.shape).relu(),
}


@pytest.mark.daily("the first row", "the mean")
@pytest.mark.parametrize("name", MIXING)
def test_where_rows_meet_the_potential_is_written_whole(name):
    assert not check(potential_of(3 * ROWS, net=Mixing(MIXING[name])))


@pytest.mark.parametrize(("num_rows", "num_hidden", "has_blocks"), [(3 * ROWS, 3 * ROWS, False), (4 * 9, 9, True)])
def test_as_many_units_or_weights_as_rows_are_not_mistaken_for_them(num_rows, num_hidden, has_blocks):
    net = nn.Sequential(nn.Linear(4, num_hidden), nn.Tanh(), nn.Linear(num_hidden, 2))
    assert check(potential_of(num_rows, net=net)) == has_blocks


NUM_ROWS = 4 * ROWS
X = torch.linspace(-1, 1, 4 * NUM_ROWS, dtype=torch.float64).view(NUM_ROWS, 4).sin()
OTHERS = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(0))


def total(terms):
    """A sum over all axes, shape (1,), in which no element can take another's place."""
    return terms.square().sum().reshape(1)


def along_rows(z):
    """A function of each row alone, which is written in blocks."""
    return total((X * z).tanh())


ACROSS = {
    "a softmax of the rows": lambda z: total((X * z).mT.log_softmax(1)),
    "the exponentials of all rows": lambda z: total((X * z).logsumexp(0)),
    "each row with each": lambda z: total((X * z) @ X.mT),
    "rows in another order": lambda z: total((X * z)[OTHERS] * X),
    "rows put elsewhere": lambda z: total(torch.zeros_like(X).index_put((OTHERS,), X * z, accumulate=True) * X),
    "rows read as columns": lambda z: total((X * z).mT.contiguous().view(NUM_ROWS, 4) * X),
    "rows reshaped as columns": lambda z: total((X * z).mT.reshape(NUM_ROWS, 4) * X),
    "weights repeated to as many as rows": lambda z: total(torch.cat([z] * ROWS, -1) * X[:, 0]),
}


def is_in_blocks(function, z):
    """Compare a function of a point with torch's, its gradient left out, and return whether it is written in blocks."""

    def value_and_grad(z):
        return function(z), z.clone()

    (found, _), expected = native(value_and_grad, z[:1], 3).value_and_grad(z[:1]), function(z[:1])
    torch.testing.assert_close(found, expected, **IDENTITY)
    graph, constants = traced(value_and_grad, [z[:1]])
    return emitted(graph, [z[:1], *constants]).blocks is not None


@pytest.mark.parametrize("name", ACROSS)
def test_operations_across_rows_are_seen(name):
    z = torch.tensor([[0.3, -1.2, 0.8, 0.5]], dtype=torch.float64)
    assert is_in_blocks(along_rows, z)
    assert is_in_blocks(lambda z: total((X * z).mT @ X), z)
    assert not is_in_blocks(ACROSS[name], z)


AFTER = {
    "logarithms": lambda x, z: (x * z).log().sum().reshape(1),
    "a product with them": lambda x, z: total((x * z).reciprocal().mT @ (x * z).log()),
    "a product with data": lambda x, z: total((x * z).reciprocal().mT @ x),
    "a product with a vector": lambda x, z: total((x * z).reciprocal().mT @ x[:, 0]),
}


@pytest.mark.parametrize("name", AFTER)
@pytest.mark.parametrize("num_rows", [2 * ROWS, 2 * ROWS + 1, 3 * ROWS - 1])
def test_what_follows_the_rows_of_a_block_is_not_counted(name, num_rows):
    """The rows are followed by zeros, whose logarithms and inverses are infinite."""
    x = 1 + torch.rand(num_rows, 4, dtype=torch.float64)
    assert is_in_blocks(lambda z: AFTER[name](x, z), torch.tensor([[0.3, 1.2, 0.8, 0.5]], dtype=torch.float64))


def test_as_many_weights_as_rows_are_not_mistaken_for_them():
    z = torch.linspace(-1, 1, NUM_ROWS, dtype=torch.float64)[None]
    assert not is_in_blocks(lambda z: total(X[:, 0] * z), z)


def test_the_longest_axis_is_cut():
    """Either of two axes could be cut; with the shorter one, the longer table would stay in memory."""
    shorter = X[: 3 * ROWS].clone()

    def value_and_grad(z):
        return along_rows(z) + total((shorter * z).tanh()), z.clone()

    z = torch.ones(1, 4, dtype=torch.float64)
    graph, constants = traced(value_and_grad, [z])
    assert emitted(graph, [z, *constants]).num_rows == NUM_ROWS


def test_a_pyro_model_of_ones_own_is_written_in_blocks():
    x = torch.randn(3 * ROWS, 3)
    assert check(TracePotential(hierarchy, (x, x.sum(-1))))


@pytest.mark.daily("4-7")
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("num_hidden", [7, 10])
@pytest.mark.parametrize("num_rows", [4, 8, 11, 16, 2 * ROWS + 8])
def test_small_loops_with_conditions_are_right(num_rows, num_hidden):
    """GCC 12 reads wrong numbers if a condition stands before a read, so all numbers are read first."""
    net = nn.Sequential(nn.Linear(4, num_hidden), nn.ReLU(), nn.Linear(num_hidden, 2))
    check(potential_of(num_rows, net=net))


def test_a_fit_of_many_rows_is_that_without_blocks(monkeypatch):
    x = torch.linspace(-1, 1, 4 * ROWS)[:, None]
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.3), num_data=len(x))
    options = {"num_samples": 4, "num_warmup": 3, "num_chains": 1, "seed": 0, "compile": True}

    def fitted():
        return quietly(pb.fit_nuts, model, (x, x.sin()), **options).chains

    in_blocks = fitted()
    monkeypatch.setattr(_blocks, "FEWEST_ROWS", len(x) + 1)
    for name, value in fitted().items():
        torch.testing.assert_close(in_blocks[name], value, rtol=1e-4, atol=1e-4)
