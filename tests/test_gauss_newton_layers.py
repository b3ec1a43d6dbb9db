"""Gauss-Newton matrices of layers that do more than their class defines, compared with Jacobians by brute force."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pyro_bnn as pb
from pyro_bnn.inference.gauss_newton._matrices import acts_by_layers

from .cases import Recurrent

NUM_DATA = 20


class Scaled(nn.Linear):
    """A subclass with its own forward pass."""

    def forward(self, x):
        return F.linear(x, 3 * self.weight, self.bias)


class TiedAutoencoder(nn.Module):
    """A weight that is used by its layer, and also directly."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 4)

    def forward(self, x):
        return F.linear(self.encoder(x).tanh(), self.encoder.weight.T)


class Residual(nn.Module):
    """A sum that is made in place."""

    inplace = True

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        h = self.first(x)
        r = self.second(F.relu(h))
        if not self.inplace:
            return h + r
        h += r
        return h


def in_place():
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 6), nn.Tanh())


def convolution(padding):
    conv = nn.Conv2d(1, 2, 2, padding=padding)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), conv, nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(6))


NETS = {
    "in place": in_place,
    "convolution": lambda: convolution(1),
    "padding": lambda: convolution("same"),
    "own forward": lambda: nn.Sequential(Scaled(6, 4), nn.Tanh(), nn.Linear(4, 6)),
    "tied by hand": TiedAutoencoder,
    "sum in place": Residual,
    "recurrent": lambda: Recurrent(6),
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), nn.Linear(4, 6)),
}


def problem(name):
    torch.manual_seed(0)
    net, x = NETS[name](), torch.randn(NUM_DATA, 6)
    net(x)
    likelihood = pb.GaussianLikelihood(1.0)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_DATA)
    return model, (x, torch.randn(NUM_DATA, 6))


def precision(model, x):
    """The Gauss-Newton matrix with the prior's precision 1, from one pass backwards for each output of each row."""
    net, sites = model.network, model.site_names
    leaves = {
        path: model.initial_value(name).requires_grad_() for name in sites for path in model.parameter_paths[name]
    }
    output = torch.func.functional_call(net, leaves, (x,))
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(o, list(leaves.values()), retain_graph=True)])
        for o in output.flatten()
    ]
    jacobian = torch.stack(rows)
    return jacobian.T @ jacobian + torch.eye(jacobian.shape[1])


class SlightlyTied(nn.Module):
    """A weight that is also used a little without its layer; outputs, and so gradients, of any size."""

    def __init__(self, size):
        super().__init__()
        self.size, self.first, self.second = size, nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x):
        return self.size * (self.second(self.first(x).tanh()) + 0.01 * F.linear(x[:, :4], self.first.weight.T))


@pytest.mark.parametrize("size", [1.0, 1e-8])
def test_a_weight_that_is_used_elsewhere_a_little_is_noticed_whatever_the_size_of_the_gradients(size):
    torch.manual_seed(0)
    x, y = torch.randn(NUM_DATA, 6), torch.randn(NUM_DATA, 6)
    likelihood = pb.GaussianLikelihood(size)  # so that the matrix has the same numbers
    model = pb.BayesianModel(SlightlyTied(size), prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_DATA)
    found = pb.fit_gauss_newton(model, (x, size * y), structure="diagonal").moments().scale
    with pytest.raises(ValueError, match="Kronecker factors need standard layers"):
        pb.fit_gauss_newton(model, (x, size * y), structure="kronecker")
    model.network.size = 1.0
    expected = precision(model, x).diag().rsqrt()
    torch.testing.assert_close(torch.cat([found[site].flatten() for site in model.site_names]), expected)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("structure", ["diagonal", "full"])
@pytest.mark.parametrize("name", NETS)
def test_the_scales_are_those_by_brute_force(name, structure):
    model, (x, y) = problem(name)
    found = pb.fit_gauss_newton(model, (x, y), structure=structure).moments().scale
    matrix = precision(model, x)
    expected = matrix.diag().rsqrt() if structure == "diagonal" else matrix.inverse().diag().sqrt()
    torch.testing.assert_close(torch.cat([found[site].flatten() for site in model.site_names]), expected)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own forward", "Kronecker factors need standard layers"),
        ("tied by hand", "Kronecker factors need standard layers"),
        ("padding", "without groups, padded by a number of zeros"),
        ("recurrent", "need linear, or one- or two-dimensional"),
    ],
)
def test_kronecker_factors_of_such_layers_are_refused(name, message):
    model, data = problem(name)
    with pytest.raises(ValueError, match=message):
        pb.fit_gauss_newton(model, data, structure="kronecker")


@pytest.mark.parametrize("name", ["in place", "sum in place", "convolution"])
def test_kronecker_factors_do_not_depend_on_what_is_in_place(name):
    model, data = problem(name)
    found = pb.fit_gauss_newton(model, data, structure="kronecker")
    for layer in model.network.modules():
        layer.inplace = False
    expected = pb.fit_gauss_newton(model, data, structure="kronecker")
    assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-9)


def test_rounding_in_single_precision_is_not_mistaken_for_another_use_of_a_weight():
    torch.manual_seed(0)
    layer = nn.Linear(20, 20)
    net = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer, nn.Tanh(), layer).float()  # sums in another order
    assert acts_by_layers(net, torch.randn(30, 20).float())
