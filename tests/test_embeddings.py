"""Embeddings as random layers: the padding row is a constant, and no gradient is lost or changed."""

import functools

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import NetworkPotential, TracePotential

from .tolerances import assert_identical

SITE = "net.0.weight"


class Padded(nn.Module):
    """An embedding whose weight is also that of the last layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 2, padding_idx=0)
        self.head = nn.Linear(2, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(torch.tanh(self.table(x).sum(1)))


def net_of(layer):
    """A network of an embedding of five tokens in two dimensions, for rows of three tokens."""
    width = 6 if isinstance(layer, nn.Embedding) else 2
    return nn.Sequential(layer, nn.Flatten(), nn.Tanh(), nn.Linear(width, 1))


LAYERS = {
    "embedding": lambda **options: nn.Embedding(5, 2, padding_idx=0, **options),
    "last-token": lambda **options: nn.Embedding(5, 2, padding_idx=-1, **options),
    "bag": lambda **options: nn.EmbeddingBag(5, 2, padding_idx=0, **options),
}


def problem(layer, num_rows=12):
    torch.manual_seed(1)
    net = net_of(layer)
    with torch.no_grad():
        net[0].weight[net[0].padding_idx] = torch.tensor([0.3, -0.2])
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.1), num_data=num_rows)
    return model, torch.randint(5, (num_rows, 3)), torch.randn(num_rows, 1)


def drawn(model, *draws):
    return {name: torch.randn(*draws, *model.initial_value(name).shape) for name in model.site_names}


@pytest.mark.parametrize("name", LAYERS)
def test_the_gradient_is_that_of_the_likelihood_in_every_element(name):
    model, x, y = problem(LAYERS[name]())
    values = drawn(model)
    weight = values[SITE].requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_likelihood(values, x, y), weight)
    for index in range(weight.numel()):
        step = torch.zeros_like(weight).flatten()
        step[index] = 1e-6
        ahead, behind = (
            model.log_likelihood({**values, SITE: weight.detach() + sign * step.view_as(weight)}, x, y)
            for sign in (1, -1)
        )
        assert float(gradient.flatten()[index]) == pytest.approx(float(ahead - behind) / 2e-6, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_the_padding_row_is_that_of_the_callers_network_wherever_the_network_is_run(name):
    model, x, y = problem(LAYERS[name]())
    row = model.network[0].padding_idx
    values = drawn(model, 4)
    other = {**values, SITE: values[SITE].clone()}
    other[SITE][:, row] += 7.0
    plain = net_of(LAYERS[name]())
    potential = NetworkPotential(model, x, y)
    assert_identical(*(potential.log_likelihood(v) for v in (values, other)))
    for index in range(4):
        weights = {key: value[index].clone() for key, value in values.items()}
        weights[SITE][row] = torch.tensor([0.3, -0.2])
        plain.load_state_dict({key.removeprefix("net."): value for key, value in weights.items()})
        with poutine.condition(data={key: value[index] for key, value in values.items()}):
            assert_identical(model(x), plain(x).detach())
        assert_identical(model.network_weights({k: v[index] for k, v in values.items()})["0.weight"], weights[SITE])
    with pyro.plate("particles", 4, dim=-2), poutine.condition(data={k: v.unsqueeze(1) for k, v in values.items()}):
        assert_identical(model(x)[-1], plain(x).detach())


@pytest.mark.parametrize("name", LAYERS)
def test_samplers_and_laplace_see_the_same_density_and_the_prior_of_the_padding_row(name):
    model, x, y = problem(LAYERS[name]())
    fast, traced = NetworkPotential(model, x, y), TracePotential(model, (x, y))
    z = fast.from_prior(3)
    for ours, other in zip(fast.value_and_grad(z), traced.value_and_grad(z), strict=True):
        assert_identical(ours, other)
    if name == "bag":  # torch has no second derivative of it
        return
    posterior = pb.fit_laplace(model, (x, y))
    row = model.network[0].padding_idx % 5
    size = len(posterior.location)
    assert_identical(posterior.precision[2 * row : 2 * row + 2], torch.eye(size)[2 * row : 2 * row + 2])


@pytest.mark.daily("direct")
@pytest.mark.uses_param_store
@pytest.mark.parametrize("elbo", ["direct", "pyro"])
def test_a_fit_leaves_the_padding_row_at_its_prior(elbo):
    model, x, y = problem(LAYERS["embedding"]())
    guide = pb.MeanFieldGuide(model) if elbo == "direct" else pb.auto_guide(AutoNormal, model)
    history = pb.fit_svi(
        model, (x, y), guide, optimizer=functools.partial(torch.optim.Adam, lr=0.05), num_epochs=300, seed=0
    ).history
    assert history.path.startswith(elbo)
    if elbo == "direct":
        scale = guide.scales()[SITE]
        assert bool((scale[0] > 0.5).all())
        assert bool((scale[1:] < 0.5).any())
    prediction = pb.predict(model, guide, x, y=y, num_samples=20, seed=0)
    assert prediction.mean.shape == y.shape
    assert Predictive(model, guide=guide, num_samples=4, parallel=True)(x)["obs"].shape == (4, 12, 1)


def test_a_tied_layer_uses_all_rows():
    """The padding row is a constant for the embedding only."""
    model = pb.BayesianModel(
        Padded(), prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6
    ).double()
    values = drawn(model)
    weight = values["net.table.weight"].requires_grad_()
    (gradient,) = torch.autograd.grad(
        model.log_likelihood(values, torch.randint(5, (6, 3)), torch.arange(6) % 5), weight
    )
    assert bool((gradient[0] != 0).all())
    used = model.network_weights(values)
    assert_identical(used["head.weight"], weight)
    assert not torch.equal(used["table.weight"], weight)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_become_dense_ones_with_the_same_numbers(kind):
    losses = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model, x, y = problem(kind(5, 2, padding_idx=0, sparse=sparse))
        assert model.network[0].sparse is False
        guide = pb.MeanFieldGuide(model)
        torch.manual_seed(2)
        Trace_ELBO().differentiable_loss(model, guide, x, y).backward()
        losses.append([parameter.grad for parameter in guide.parameters()])
        pb.fit_svi(model, (x, y), guide, optimizer=functools.partial(torch.optim.Adam, lr=0.01), num_epochs=2, seed=0)
    assert all(map(torch.equal, *losses))
    layer = kind(5, 2, sparse=True)
    pb.BayesianModel(net_of(layer), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.1), num_data=12)
    assert layer.sparse  # the caller's own


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"max_norm": 1.0}, r"`net.0.weight` is random .*`max_norm=1.0`, which changes .*leave `net.0.weight` out"),
        ({"scale_grad_by_freq": True}, r"`net.0.weight` is random .*`scale_grad_by_freq=True`.*leave `net.0.weight`"),
    ],
)
def test_layers_that_change_weights_or_gradients_are_refused_where_they_are_random(kind, option, message):
    with pytest.raises(ValueError, match=message):
        problem(kind(5, 2, padding_idx=0, **option))
    net = net_of(kind(5, 2, **option))
    likelihood = pb.GaussianLikelihood(0.1)
    pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=12, where="net.3.*")
