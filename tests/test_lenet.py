"""LeNet-5: the layers of the article, and a Bayesian model of it."""

import functools

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.nets import MCDropout, Standardize, lenet5


def test_it_has_the_parameters_and_maps_of_the_article():
    net = lenet5()
    linear = [400 * 120 + 120, 120 * 84 + 84, 84 * 10 + 10]  # C5, F6 and the outputs
    convolutions = [6 * 25 + 6, 16 * 6 * 25 + 16]  # C1, and C3 without the holes of its table
    assert [sum(p.numel() for p in layer.parameters()) for layer in net if list(layer.parameters())] == [
        *convolutions,
        *linear,
    ]
    x, shapes = torch.randn(2, 28, 28), {}
    for name, layer in net.named_children():
        x = layer(x)
        shapes[name] = tuple(x.shape[1:])
    assert [shapes[f"conv{i}"] for i in (1, 2)] == [(6, 28, 28), (16, 10, 10)]
    assert [shapes[f"pool{i}"] for i in (1, 2)] == [(6, 14, 14), (16, 5, 5)]
    assert [shapes[f"linear{i}"] for i in (1, 2, 3)] == [(120,), (84,), (10,)]


def test_colours_classes_dropout_and_layers_before_it_can_be_chosen():
    net = lenet5(num_classes=7, in_channels=3, first=[Standardize(torch.tensor(0.5), torch.tensor(2.0))], dropout=0.25)
    assert net(torch.randn(2, 3, 28, 28)).shape == (2, 7)
    assert [name for name, layer in net.named_children() if isinstance(layer, MCDropout)] == ["dropout1", "dropout2"]
    assert next(iter(dict(net.named_children()))) == "first0"
    grey = lenet5()
    x = torch.rand(2, 28, 28)
    assert torch.equal(grey(x), grey(x[:, None]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "`num_classes` must be a whole number of at least 1"),
        ({"in_channels": -1}, "`in_channels` must be a whole number of at least 1"),
        ({"first": nn.Flatten()}, "`first` must be a list of modules"),
        ({"dropout": 1.0}, "`p` must lie strictly between 0 and 1"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        lenet5(**options)
    with pytest.raises(ValueError, match=r"`x` must be images of shape \(N, 1, 28, 28\), got \(2, 32, 32\)"):
        lenet5()(torch.rand(2, 32, 32))


def test_all_of_it_can_be_random():
    model = pb.BayesianModel(lenet5(), prior=pb.NormalPrior(0.2), likelihood=pb.CategoricalLikelihood(), num_data=8)
    assert len(model.site_names) == 10
    x, y = torch.rand(8, 28, 28), torch.arange(8)
    adam = functools.partial(torch.optim.Adam, lr=1e-3)
    posterior = pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=adam, num_epochs=2, seed=0)
    assert pb.predict(model, posterior, x, num_samples=3, seed=0).probs.shape == (8, 10)


def test_pooling_without_gradients_has_the_same_result():
    net, x = lenet5(), torch.randn(3, 28, 28)
    with torch.no_grad():
        found = net(x)
    assert torch.equal(found, net(x).detach())
    reference = nn.Sequential(net.images, net.conv1, net.relu1, nn.MaxPool2d(2))
    torch.testing.assert_close(net[:4](x), reference(x), rtol=0.0, atol=0.0)
