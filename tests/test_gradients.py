"""Networks that hide a gradient are found before a fit, and no correct network is refused."""

import copy

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import check_gradients

from .cases import Tied
from .test_networks import NETS


class HidesRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        return weight.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        gradient[0] = 0
        return gradient


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        return weight.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Changed(nn.Linear):
    """A linear layer that does something to its weight first."""

    def __init__(self, num_inputs, num_outputs, change):
        super().__init__(num_inputs, num_outputs)
        self.change = change

    def forward(self, x):
        return nn.functional.linear(x, self.change(self.weight), self.bias)


def clamped_in_place(weight):
    with torch.no_grad():
        return weight.clamp_(-0.1, 0.1)


def straight_through(weight):
    return weight + (weight.sign() - weight).detach()


class PaddedByHand(nn.Module):
    """Hides the gradient of a row, as `nn.Embedding` does, but is no such layer."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(6, 2)), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(nn.functional.embedding(x, self.table, padding_idx=0).flatten(1))


def model_of(net, num_rows):
    return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=num_rows)


def data(num_rows=40, shape=(4,)):
    return torch.randn(num_rows, *shape), torch.arange(num_rows) % 3


LIARS = {
    "function": (
        HidesRow.apply,
        r"`net.0.weight`: along one direction autograd gives 0 nats and a finite difference -?\d",
    ),
    "detach": (torch.Tensor.detach, r"`net.0.weight`: along one direction autograd gives 0 nats"),
    "part": (lambda w: torch.cat([w[:2].detach(), w[2:]]), r"`net.0.weight`: along .* autograd gives 0 nats"),
    "factor": (Doubles.apply, r"`net.0.weight`: along one direction autograd gives (?!0 )"),
    "in-place": (clamped_in_place, r"must not change its weights in place .*`net.0.weight`"),
}


@pytest.mark.parametrize("name", LIARS)
def test_what_a_layer_hides_is_named_with_both_numbers(name):
    change, message = LIARS[name]
    x, y = data()
    model = model_of(nn.Sequential(Changed(4, 8, change), nn.ReLU(), nn.Linear(8, 3)), 40)
    with pytest.raises(ValueError, match=message):
        check_gradients(model, x, y)
    for fit in (lambda: pb.fit_laplace(model, (x, y)), lambda: pb.fit_nuts(model, (x, y))):
        with pytest.raises(ValueError, match=r"net\.0\.weight"):
            fit()


def test_a_hidden_row_of_a_table_is_found_among_rows_that_are_not_used():
    x, y = torch.randint(3, (40, 3)), data()[1]
    with pytest.raises(ValueError, match=r"`net\.table`"):
        check_gradients(model_of(PaddedByHand(), 40), x, y)
    check_gradients(model_of(PaddedByHand(), 40), x + 1, y)  # without the padding token there is nothing to hide


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seed", range(3))
def test_no_network_of_the_other_tests_is_accused(name, training, seed):
    torch.manual_seed(seed)
    make, shape = NETS[name]
    x = torch.randint(6, (5, 3)) if shape == "tokens" else torch.randn(shape)
    model = pb.BayesianModel(make(), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.1), num_data=5)
    model.train(training)
    y = torch.zeros_like(model(x))
    check_gradients(model, x, y)
    with torch.no_grad():  # as within a fit
        check_gradients(model, x, y)


def deep(width, activation):
    layers = [nn.Linear(4, width)]
    for _ in range(12):
        layers += [activation(), nn.Linear(width, width)]
    return nn.Sequential(*layers, activation(), nn.Linear(width, 3))


def dead():
    """Half of the units are always off, and the others are at their kink where x is 0."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        net[0].bias.copy_(torch.tensor([-100.0] * 4 + [0.0] * 4))
    return net


HONEST = {
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)),
    "mc-dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), pb.nets.MCDropout(0.5), nn.Linear(8, 3)),
    "tied": Tied,
    "deep": lambda: deep(6, nn.ReLU),
    "deep-tanh": lambda: deep(6, nn.Tanh),
    "wide": lambda: nn.Sequential(nn.Linear(4, 500), nn.ReLU(), nn.Linear(500, 3)),
    "dead": dead,
    "unused": lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1), nn.Linear(3, 3)),
    "pool": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2, padding=1), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(4, 3)
    ),
    "spectral-norm": lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Linear(8, 3)),
    "straight-through": lambda: nn.Sequential(Changed(4, 8, straight_through), nn.Linear(8, 3)),
    "rounded": lambda: nn.Sequential(Changed(4, 8, lambda w: w.float().double()), nn.Linear(8, 3)),
}


@pytest.mark.parametrize("inputs", ["normal", "zeros", "repeated"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", HONEST)
def test_kinks_noise_and_quantised_weights_are_no_lies(name, training, inputs):
    x, y = data()
    x = {"normal": x, "zeros": torch.zeros_like(x), "repeated": x[:1].expand_as(x)}[inputs]
    check_gradients(model_of(HONEST[name](), 40).train(training), x, y)


def test_it_leaves_the_model_and_the_generator_alone():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    model, (x, y) = model_of(net, 40), data()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    check_gradients(model, x, y)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert model.dtype == torch.float64


def test_an_honest_network_is_run_few_times_on_few_rows():
    sizes = []

    class Counting(nn.Linear):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    x, y = data(100)
    model = model_of(nn.Sequential(Counting(4, 8), nn.Tanh(), nn.Linear(8, 3)), 100)
    check_gradients(model, x, y)
    assert len(sizes) <= 8
    assert max(sizes) <= 32


def test_a_network_for_single_precision_alone_is_let_pass():
    class Single(nn.Linear):
        def forward(self, x):
            return nn.functional.linear(x.float(), self.weight)  # fails in double precision

    check_gradients(model_of(Single(4, 3).float(), 40), *data())
