"""Networks that themselves draw variables, in addition to the weights that the model draws."""

import functools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

import pyro_bnn as pb

pytestmark = pytest.mark.uses_param_store  # by Pyro's AutoNormal
ADAM = functools.partial(torch.optim.Adam, lr=0.02)


class Declared(PyroModule):
    """The variable is an attribute, whose name Pyro makes of the module's path."""

    def __init__(self):
        super().__init__()
        self.linear, self.gain = nn.Linear(2, 1), PyroSample(dist.LogNormal(0.0, 0.5))

    def forward(self, x):
        return self.gain * self.linear(x)


class Sampled(nn.Module):
    """The variable has a name of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        return pyro.sample("gain", dist.LogNormal(0.0, 0.5)) * self.linear(x)


NETS = {
    "declared": (Declared, "net.gain"),
    "declared inside": (lambda: PyroModule[nn.Sequential](nn.Flatten(), Declared()), "net.1.gain"),
    "sampled": (Sampled, "gain"),
}


def model_of(net):
    likelihood = pb.GaussianLikelihood(0.3)
    return pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=30)


@pytest.mark.daily("declared")
@pytest.mark.parametrize("name", NETS)
def test_a_guide_that_draws_them_is_fitted(name):
    torch.manual_seed(0)
    make, site = NETS[name]
    x = torch.randn(30, 2)
    y = x @ torch.tensor([[1.0], [-2.0]])
    model = model_of(make())
    guide = AutoNormal(model, init_scale=0.05)
    posterior = pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=300, seed=0)
    assert site in guide(x)
    assert sum(posterior.history.elbo[-20:]) > sum(posterior.history.elbo[:20])
    assert pb.predict(model, posterior, x, y=y, num_samples=50, seed=0).score()["rmse"] < 0.5


def test_a_variable_of_another_network_is_still_refused():
    x, y = torch.randn(30, 2), torch.randn(30, 1)
    guide = AutoNormal(model_of(Declared()))
    guide(x, y)
    with pytest.raises(ValueError, match=r"made for another model: it also draws \['net.gain'\]"):
        pb.fit_svi(model_of(Plain()), (x, y), guide, optimizer=ADAM, num_epochs=1)


class Plain(nn.Module):
    """The same weights without the variable."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        return self.linear(x)
