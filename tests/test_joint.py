"""The potential: the same number and gradient as Pyro's own, for any network, prior and likelihood."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.mcmc.util import initialize_model
from torch import nn

from pyro_bnn._core.scope import eval_mode
from pyro_bnn.inference.joint import NetworkPotential, TracePotential

from .cases import PRIORS, PRIORS_AND_LIKELIHOODS, Recurrent, Tied, small_model
from .chains import hierarchy
from .tolerances import assert_identical


def assert_same_potential(model, x, y):
    """The potentials of the library, of its tracing version and of Pyro agree at the same points."""
    fast = NetworkPotential(model, x, y)
    traced = TracePotential(model, (x, y))
    with torch.no_grad():
        z = 0.5 * fast.from_prior(3)
    value, gradient = fast.value_and_grad(z)
    for other in traced.value_and_grad(z), _pyros(model, x, y, fast, z):
        assert_identical(value, other[0])
        assert_identical(gradient, other[1])


def _pyros(model, x, y, potential, z):
    _, potential_fn, _, _ = initialize_model(model, model_args=(x, y))
    values, gradients = [], []
    shapes = [site.unconstrained_start.shape for site in potential.sites]
    for row in z:
        row = row.clone().requires_grad_()
        parts = zip(potential.sites, row.split([shape.numel() for shape in shapes]), shapes, strict=True)
        value = potential_fn({site.name: part.view(shape) for site, part, shape in parts})
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, row)[0])
    return torch.stack(values), torch.stack(gradients)


@PRIORS_AND_LIKELIHOODS
def test_the_potential_is_that_of_pyro(prior, likelihood):
    model, x, y = small_model(prior=PRIORS[prior], likelihood=likelihood, num_data=6)
    assert_same_potential(model.double(), x, y)


class Doubled(nn.Sequential):
    """Looks like a chain of layers, but is none."""

    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    net[0].register_forward_hook(lambda module, arguments, output: 3 * output)
    return net


def with_one_activation():
    activation = nn.Tanh()
    return nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 5), activation, nn.Linear(5, 3))


NETS = {
    "own forward": lambda: Doubled(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "hook": hooked,
    "one activation twice": with_one_activation,
    "normalised": lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "another activation": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Softsign(), nn.Linear(5, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3)
    ),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)),
    "recurrent": Recurrent,
    "tied": Tied,
    "no bias": lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.GELU(), nn.Linear(5, 3, bias=False)),
}


@pytest.mark.parametrize("net", NETS)
def test_the_potential_of_other_networks(net):
    model, x, y = small_model(net=NETS[net](), num_data=6)
    with eval_mode(model):
        assert_same_potential(model, x, y)


def test_the_potential_with_some_parameters_fixed():
    model, x, y = small_model(num_data=6, where="net.2.*")
    assert_same_potential(model, x, y)


def test_a_module_used_twice():
    shared = nn.Linear(4, 4)
    model, x, y = small_model(net=nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 3)), num_data=6)
    assert model.site_names == ("net.0.weight", "net.0.bias", "net.3.weight", "net.3.bias")
    assert_same_potential(model, x, y)


def test_a_plain_pyro_model_is_checked_once_and_may_diverge_afterwards():
    """A scale of 0, far out on a trajectory, is not an error, but a target outside of its support is one."""
    x, y = torch.randn(8, 3), torch.randn(8)
    potential = TracePotential(hierarchy, (x, y))
    z = potential.from_prior(2)
    z[0, 0] = -1e4
    value, _ = potential.value_and_grad(z)
    assert not torch.isfinite(value[0])
    assert torch.isfinite(value[1])

    def counts(y):
        rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("obs", dist.Poisson(rate), obs=y)

    with pytest.raises(ValueError, match=r"within the support"):
        TracePotential(counts, (-torch.ones(3),))


def test_the_potential_of_a_plain_pyro_model_with_a_hyperprior():
    x, y = torch.randn(8, 3), torch.randn(8)
    potential = TracePotential(hierarchy, (x, y))
    z = potential.from_prior(3)
    value, gradient = potential.value_and_grad(z)
    pyros = _pyros(hierarchy, x, y, potential, z)
    assert_identical(value, pyros[0])
    assert_identical(gradient, pyros[1])
