"""ResNet-20: the network of the article, and a Bayesian model of it with deterministic batch normalisation."""

import functools

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.nets import resnet20

from .tolerances import agrees_in_mean, assert_identical

WEIGHTS = ["**.conv*.weight", "net.linear.*"]


def test_it_has_the_parameters_and_layers_of_the_article():
    net = resnet20()
    convolutions = [16 * 3 * 9, 6 * 16 * 16 * 9, 32 * 16 * 9 + 5 * 32 * 32 * 9, 64 * 32 * 9 + 5 * 64 * 64 * 9]
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    assert sum(p.numel() for p in net.parameters()) == sum(convolutions) + norms + 65 * 10 == 269_722
    assert sum(isinstance(module, (nn.Conv2d, nn.Linear)) for module in net.modules()) == 20


def test_stages_halve_the_image_and_double_the_channels():
    net = resnet20().eval()
    x = torch.randn(2, 3, 32, 32)
    shapes = []
    for name, layer in net.named_children():
        x = layer(x)
        shapes += [tuple(x.shape)] if name.startswith("stage") else []
    assert shapes == [(2, 16, 32, 32), (2, 32, 16, 16), (2, 64, 8, 8)]
    assert x.shape == (2, 10)
    other = resnet20(num_classes=7, in_channels=1, width=4).eval()
    assert other(torch.randn(3, 1, 27, 21)).shape == (3, 7)
    for option in ({"num_classes": 0}, {"in_channels": 1.5}, {"width": -1}):
        with pytest.raises(ValueError, match=f"`{next(iter(option))}` must be a whole number of at least 1"):
            resnet20(**option)


def test_another_layer_may_stand_in_for_batch_normalisation():
    net = resnet20(norm=functools.partial(nn.GroupNorm, 4))
    kinds = [type(module) for module in net.modules()]
    assert (kinds.count(nn.GroupNorm), kinds.count(nn.BatchNorm2d)) == (19, 0)
    x = torch.randn(2, 3, 8, 8)
    assert_identical(net(x), net.eval()(x))
    with pytest.raises(ValueError, match="`norm` must be a function from a number of channels to a layer"):
        resnet20(norm="group")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_shortcut_has_no_parameters(stage):
    """Without the residual part, the first block of a stage gives its input: every other position, and zeros."""
    block = resnet20().eval().get_submodule(f"stage{stage}.0")
    nn.init.zeros_(block.norm2.weight)
    num_in = block.conv1.in_channels
    x = torch.rand(2, num_in, 8, 8)
    if stage == 1:
        assert_identical(block(x), x)
    else:
        assert_identical(block(x)[:, :num_in], x[:, :, ::2, ::2])
        assert_identical(block(x)[:, num_in:], torch.zeros(2, num_in, 4, 4))


def test_convolutions_start_with_the_variance_of_the_article():
    for layer in resnet20().modules():
        if isinstance(layer, nn.Conv2d):
            fan_in = 9 * layer.in_channels
            assert agrees_in_mean(layer.weight.detach().flatten().square(), 2 / fan_in)
            assert layer.bias is None
    assert not agrees_in_mean(resnet20().stage3[2].conv2.weight.detach().flatten().square(), 1 / fan_in)


def test_its_weights_are_random_and_its_batch_normalisation_is_not():
    net = resnet20(width=2)
    num_data = 12
    model = pb.BayesianModel(
        net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=num_data, where=WEIGHTS
    )
    assert len(model.site_names) == 19 + 2
    learned = dict(model.named_parameters())
    assert len(learned) == 2 * 19  # of the normalisation: a scale and a shift for each of 19 layers
    guide = pb.MeanFieldGuide(model)
    x, y = torch.randn(num_data, 3, 8, 8), torch.arange(num_data) % 10
    before = {name: value.detach().clone() for name, value in learned.items()}
    posterior = pb.fit_svi(model, (x, y), guide, optimizer=torch.optim.Adam, num_epochs=2, batch_size=6)
    for name, value in model.named_parameters():
        assert not torch.equal(value, before[name])
    assert int(model.network.get_buffer("norm.num_batches_tracked")) == 4
    assert int(net.norm.num_batches_tracked) == 0
    found = pb.predict(model, posterior, x, num_samples=3)
    assert found.probs.shape == (num_data, 10)
    assert int(model.network.get_buffer("norm.num_batches_tracked")) == 4  # a prediction does not learn them
