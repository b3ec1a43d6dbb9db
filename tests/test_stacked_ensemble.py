"""The members of an ensemble in one model: a step updates all of them, each as its own fit would."""

import functools

import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core.copies import copied
from pyro_bnn.auto.fitting._one_step import site_of_member, stacked_model
from pyro_bnn.modelling.model import reset_network

from .cases import FIXED_PRIORS, small_model
from .cases import LIKELIHOODS as ALL_LIKELIHOODS
from .fits import FUSED

NUM_DATA = 20
SGD = functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9, fused=True)

FIXED = [prior for prior in FIXED_PRIORS.values() if not isinstance(prior, pb.NetworkNormalPrior)]
LIKELIHOODS = [
    name
    for name, (likelihood, *_) in ALL_LIKELIHOODS.items()
    if likelihood.has_fixed_priors and not likelihood._pyro_samples and not [*likelihood.parameters()]
]


def tied():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
    net[2].weight = net[0].weight
    return net


def lenet():
    first = nn.Unflatten(1, (1, 2, 2)), nn.ZeroPad2d(2), nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))


def partly_frozen():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    net[:2].requires_grad_(False)
    return net


NETWORKS = {
    "mlp": lambda: pb.nets.mlp([4, 5, 2], activation=nn.Tanh),
    "lenet": lenet,
    "tied": tied,
    "layer": lambda: nn.Linear(4, 2),
    "frozen": partly_frozen,
}


def problem(network="mlp", prior=None, likelihood=None):
    """A model of several members, and its data."""
    torch.manual_seed(3)
    net, x = network() if callable(network) else NETWORKS[network](), torch.randn(NUM_DATA, 4)
    y = torch.randn(NUM_DATA, 2)
    return pb.BayesianModel(
        net,
        prior=pb.FanInNormalPrior(2.0) if prior is None else prior,
        likelihood=pb.GaussianLikelihood(0.5) if likelihood is None else likelihood,
        num_data=NUM_DATA,
        where="net.3.*" if network == "frozen" else "**",
    ), (x, y)


def starts(model, num_members=3):
    """A model and a guide for each member, with new weights."""
    models = [copied(model) for _ in range(num_members)]
    for member in models:
        reset_network(member)
    return [(member, pb.DeltaGuide(member)) for member in models]


def assert_same_fits(model, data, **options):
    """Compare the fit of a stacked model with a fit of each member."""
    members = starts(model)
    stacked = stacked_model(model, [guide.median() for _, guide in members])
    options = {"optimizer": FUSED, "num_epochs": 5, "batch_size": 8, "seed": 1, **options}
    together = pb.fit_svi(stacked, data, pb.DeltaGuide(stacked), **options)
    apart = [pb.fit_svi(member, data, guide, **options) for member, guide in members]
    assert together.history.path == "direct"
    for name, values in together.median().items():
        expected = [posterior.median()[site_of_member(name)] for posterior in apart]
        torch.testing.assert_close(values, torch.stack(expected), rtol=1e-9, atol=1e-12)
    total = torch.tensor([posterior.history.elbo for posterior in apart]).sum(0)
    torch.testing.assert_close(torch.tensor(together.history.elbo), total, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("optimizer", [FUSED, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("network", NETWORKS)
def test_each_member_of_a_stacked_fit_is_its_own_fit(network, optimizer):
    assert_same_fits(*problem(network), optimizer=optimizer)


@pytest.mark.parametrize("prior", [*FIXED, dist.StudentT(3.0, 0.0, 0.5)], ids=str)
def test_each_member_has_its_prior(prior):
    assert_same_fits(*problem(prior=prior))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_each_member_observes_the_targets(likelihood):
    model, x, y = small_model(likelihood=likelihood, num_data=6)
    assert_same_fits(model, (x, y), batch_size=4)


def test_weights_of_rows_and_classes_belong_to_each_member():
    model, (x, y) = problem(likelihood=pb.GaussianLikelihood(0.5).with_row_weights())
    assert_same_fits(model, (x, pb.GaussianLikelihood.join_weights(y, torch.rand(NUM_DATA))))
    model, (x, y) = problem(likelihood=pb.CategoricalLikelihood(class_weights=[1.0, 3.0]))
    assert_same_fits(model, (x, y.argmax(-1)))


class Several(nn.Module):
    """Reads words, numbers and a table that all rows share, in one tensor for each row."""

    def __init__(self):
        super().__init__()
        self.words, self.numbers = nn.Embedding(5, 3), nn.Linear(4, 3)

    def forward(self, words, numbers, table):
        return (self.words(words) * self.numbers(numbers) @ table).sum(-1)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_network_may_have_several_inputs_and_one_output_a_row(is_named):
    torch.manual_seed(0)
    likelihood = pb.BernoulliLikelihood()
    model = pb.BayesianModel(Several(), prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_DATA)
    parts = torch.randint(5, (NUM_DATA,)), torch.randn(NUM_DATA, 4), pb.Shared(torch.randn(3, 2))
    x = dict(zip(("words", "numbers", "table"), parts, strict=True)) if is_named else parts
    assert_same_fits(model, (x, torch.arange(NUM_DATA) % 2))
