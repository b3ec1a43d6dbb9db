"""Selection of random parameters: by name, by kind of layer, by a function, and by `exclude`."""

import functools
import re
import warnings

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

import pyro_bnn as pb
from pyro_bnn.modelling.model import SelectionWarning

from .cases import small_model, small_net

SMALL = ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")


def in_words(value):
    """An id that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


class Mixed(nn.Module):
    """Convolutions, a norm, tied weights, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))
        self.conv = nn.Conv1d(1, 3, 2)
        self.norm = nn.LayerNorm(3)
        self.encoder, self.decoder = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        hidden = self.norm(self.conv(x.unsqueeze(1)).transpose(1, 2))  # (N, 3, 3)
        return (self.decoder(self.encoder(hidden).tanh()) + self.shift).mean(1)


def built(net, **rules):
    prior, likelihood = pb.NormalPrior(), pb.GaussianLikelihood(0.5)
    return pb.BayesianModel(net, prior=prior, likelihood=likelihood, num_data=20, **rules)


@functools.cache
def resnet():
    return resnet18().float()


CONV, NORM = ("net.conv.weight", "net.conv.bias"), ("net.norm.weight", "net.norm.bias")
LINEAR = ("net.encoder.weight", "net.encoder.bias", "net.decoder.bias")

RULES = [
    ({"where": pb.layers(nn.Linear)}, LINEAR),
    ({"where": pb.layers(nn.Conv1d, nn.LayerNorm)}, CONV + NORM),
    ({"where": pb.layers(Mixed)}, ("net.shift",)),
    ({"exclude": pb.layers(nn.LayerNorm)}, ("net.shift", *CONV, *LINEAR)),
    ({"exclude": ["**.bias", "net.shift"]}, ("net.conv.weight", "net.norm.weight", "net.encoder.weight")),
    ({"where": "net.decoder.*"}, ("net.encoder.weight", "net.decoder.bias")),
    ({"where": pb.layers(nn.Linear), "exclude": "net.decoder.weight"}, ("net.encoder.bias", "net.decoder.bias")),
    ({"where": [pb.layers(nn.Conv1d), "net.norm.bias"]}, (*CONV, "net.norm.bias")),
    ({"where": pb.layers(nn.Conv1d) | pb.layers(nn.LayerNorm)}, CONV + NORM),
    ({"where": pb.layers(nn.Linear) & "**.weight"}, ("net.encoder.weight",)),
    ({"where": pb.layers(nn.Linear) - "net.encoder.*"}, ("net.decoder.bias",)),
    ({"where": pb.layers(nn.Linear) - (lambda name, parameter, layer: parameter.dim() > 1)}, LINEAR[1:]),
    ({"where": lambda name, parameter, layer: isinstance(layer, nn.Conv1d) and name.endswith("bias")}, CONV[1:]),
    ({"where": (lambda name, parameter, layer: parameter.dim() == 0), "exclude": []}, ("net.shift",)),
]


@pytest.mark.parametrize(("rules", "random"), RULES, ids=in_words)
def test_rules_select_and_the_rest_learns(rules, random):
    net = Mixed()
    model = built(net, **rules)
    guide = pb.MeanFieldGuide(model)
    assert model.site_names == random
    learned = {f"net.{name}" for name, _ in net.named_parameters()} - set(random)
    assert {name for name, _ in model.named_parameters()} == learned
    adam = lambda parameters: torch.optim.Adam(parameters, lr=0.01)  # noqa: E731
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    pb.fit_svi(model, (torch.randn(20, 4), torch.randn(20, 3)), guide, optimizer=adam, num_epochs=1)
    assert all(not torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_a_parametrised_weight_belongs_to_its_layer():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.LayerNorm(3))
    found = built(net, where=pb.layers(nn.Linear)).site_names
    assert found == tuple(f"net.0.{name}" for name, _ in net[0].named_parameters())
    assert len(found) == 3


def test_a_function_gets_what_a_prior_gets():
    seen = []
    net = small_net()
    small_model(net=net, where=lambda *arguments: seen.append(arguments) or True)
    assert tuple(name for name, _, _ in seen) == SMALL
    for (_, parameter, layer), (path, own) in zip(seen, net.named_parameters(), strict=True):
        assert torch.equal(parameter, own)
        assert parameter is not own
        assert getattr(layer, path.rpartition(".")[2]) is not None


def test_selections_show_what_they_select():
    rule = pb.layers(nn.Linear, nn.Conv2d) - "**.bias" | pb.layers(nn.LayerNorm) & "net.0.*"
    assert repr(rule) == "layers(Linear, Conv2d) - '**.bias' | layers(LayerNorm) & 'net.0.*'"


# --- a wrong rule is told ---------------------------------------------------------------------------------------------


def small(**rules):
    return small_model(**rules)[0]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"where": ["**.bias", "net.*.wieght"]}, "`where` glob 'net.*.wieght' matches none"),
        ({"where": "net.*.wieght"}, "write 'net.*.weight'."),
        ({"where": "0.weight"}, "write 'net.0.weight'."),
        ({"where": "net.0"}, "write 'net.0.**'."),
        ({"where": "0"}, "write 'net.0.**'."),
        ({"exclude": "**.wieght"}, "`exclude` glob '**.wieght' matches none of the network's parameters; write"),
        ({"where": "net.7.*"}, "the names are net.0.weight, net.0.bias, net.2.weight, net.2.bias."),
        ({"where": pb.layers(nn.Conv2d, nn.Linear)}, "`where` has layers of kind Conv2d, but none of them owns"),
        ({"exclude": pb.layers(nn.LayerNorm)}, "`exclude` has layers of kind LayerNorm, but none of them owns"),
        ({"exclude": pb.layers(nn.LayerNorm)}, "choose among Linear."),
        ({"where": pb.layers(nn.Linear) - "net.9.*"}, "'net.9.*' matches none"),
        ({"where": lambda *_: False}, "`where` selects no parameter"),
        ({"where": pb.layers(nn.Linear) - "**"}, "`where` selects no parameter"),
        ({"where": "**.bias", "exclude": "net.**"}, "`exclude` leaves no parameter random, of the 2 that `where`"),
        ({"where": nn.Linear}, "got the class Linear; call `layers(Linear)`."),
        ({"where": nn.Linear(2, 2)}, "got Linear; pass its name."),
        ({"exclude": None}, "`exclude` must be a glob on site names or a list of them"),
        ({"exclude": [3]}, "`exclude` must be a glob on site names or a list of them"),
    ],
    ids=in_words,
)
def test_a_rule_that_selects_nothing_is_an_error_with_a_remedy(rules, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        small(**rules)


def test_the_nearest_names_of_a_large_network():
    with pytest.raises(ValueError, match=r"among the 62 names are .*net\.layer1\.1\.conv2\.weight"):
        built(resnet(), where="net.layer1.9.conv2.weight")
    with pytest.raises(ValueError, match=r"write 'net\.layer\*\.\*\.conv\*\.\*\*'"):
        built(resnet(), where="net.layer*.*.conv*")


@pytest.mark.parametrize("kinds", [(), ("Linear",), (nn.Linear(1, 1),), (torch.Tensor,)], ids=in_words)
def test_layers_takes_classes_of_layers(kinds):
    with pytest.raises(ValueError, match="`kinds` must"):
        pb.layers(*kinds)


# --- a part of the layers of one kind ---------------------------------------------------------------------------------

DOWNSAMPLING = [f"net.layer{i}.0.downsample.0.weight" for i in (2, 3, 4)]


@pytest.mark.parametrize(
    "glob", ["net.layer*.*.conv*.weight", "net.layer*.*.conv?.*", "net.layer*.**.conv*.weight", "**.conv*.weight"]
)
def test_a_glob_that_leaves_out_downsampling_convolutions_is_told(glob):
    with pytest.warns(SelectionWarning, match="leaves out net.layer2.0.downsample.0.weight, ") as caught:
        model = built(resnet(), where=glob)
    assert caught[0].filename == __file__
    assert not set(DOWNSAMPLING) & set(model.site_names)
    assert re.search(r"Conv2d.weight +(3|4) of 20 learned .*layer2.0.downsample.0", repr(model))


def test_an_exclusion_that_leaves_layers_of_its_kind_random_is_told():
    with pytest.warns(SelectionWarning, match="leaves random net.layer2.0.downsample.1.weight, "):
        built(resnet(), exclude="net.layer*.*.bn*.*")


def test_a_glob_that_stops_at_the_first_level_is_told():
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 3)))
    with pytest.warns(SelectionWarning, match=r"'net.\*.weight' selects only a part of Linear.weight in `net` and"):
        built(net, where="net.*.weight")


@pytest.mark.parametrize(
    "rules",
    [
        {"where": "net.fc.*"},
        {"where": ["net.fc.**", "net.layer4.**"]},
        {"where": "net.layer4.**.weight"},
        {"where": "net.layer1.*.conv*.weight"},  # no downsampling there
        {"where": "net.layer*.*.conv1.weight"},
        {"where": "net.conv1.weight"},
        {"where": ["net.layer*.*.conv*.weight", "**.downsample.0.*"]},
        {"where": "net.layer*.*.conv*.weight", "exclude": "**.downsample.**"},
        {"where": pb.layers(nn.Conv2d)},
        {"where": pb.layers(nn.Conv2d) - "net.layer*.*.conv*.weight"},
        {"exclude": "**.bias"},
        {"exclude": pb.layers(nn.BatchNorm2d)},
        {"exclude": "net.layer4.**"},
        {"exclude": ["net.layer*.*.bn*.*", "**.downsample.1.*"]},
    ],
    ids=in_words,
)
def test_a_glob_that_means_what_it_says_is_not_told(rules):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(resnet(), **rules)


def test_excluded_batch_norm_leaves_all_else_random():
    model = built(resnet(), exclude=pb.layers(nn.BatchNorm2d))
    assert set(DOWNSAMPLING) <= set(model.site_names)
    assert len(model.site_names) == 22
    assert "Conv2d.weight             20 of 20 random   11,166,912" in repr(model)
    assert "BatchNorm2d.weight, bias  20 of 20 learned" in repr(model)
