"""Networks that cannot work are refused with a remedy, instead of being fitted wrongly."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import pyro_bnn as pb
from pyro_bnn.inference.svi import NonFiniteError

from .architecture_nets import CLASSES, ROWS, Using, around, head, vectors
from .fits import ADAM

TARGETS = torch.arange(ROWS) % CLASSES


def model_of(net):
    return pb.BayesianModel(net, prior=pb.NormalPrior(0.5), likelihood=pb.CategoricalLikelihood(), num_data=ROWS)


def complex_weights():
    def run(net, x):
        return net.head(x) + (x.to(net.filters.dtype) @ net.filters).abs()

    return Using(run, filters=nn.Parameter(torch.randn(4, CLASSES, dtype=torch.complex128)), head=head(4))


def listed(container):
    """Uses its parameters through a Python container."""
    layer = head(4)
    return Using(lambda net, x: nn.functional.linear(x, *net.all), layer=layer, all=container(layer.parameters()))


def by_name():
    layer = head(4)
    return Using(lambda net, x: x @ net.all["weight"].T, layer=layer, all=dict(layer.named_parameters()))


def with_two_outputs():
    return Using(lambda net, x: {"classes": net.head(x)}, head=head(4))


class Holder:
    """A class of the user."""


def keeping_in_an_object():
    def run(net, x):
        net.holder.output = net.head(x)
        return net.holder.output

    net = Using(run, head=head(4), holder=Holder())
    net(vectors())
    return net


REFUSED = {
    # name -> (network, sentence)
    "complex": (complex_weights, r"must be real, got `filters` of torch.complex128; leave it out of `where`, or"),
    "list": (lambda: listed(list), r"`net.all` is a list with the parameter `layer.weight`.*use a `ParameterList`"),
    "tuple": (lambda: listed(tuple), r"`net.all` is a tuple with the parameter `layer.weight`"),
    "dictionary": (by_name, r"`net.all` is a dict with the parameter `layer.weight`"),
    "outputs": (with_two_outputs, r"must return one tensor, got dict; wrap it in a module that returns one"),
    "held": (keeping_in_an_object, r"Using must be a module that can be.*make that object keep `tensor.detach\(\)`"),
    "lazy": (lambda: nn.LazyLinear(CLASSES), r"`weight` has no shape yet; run `net` once on an example batch"),
    "data-parallel": (lambda: nn.DataParallel(head(4)), r"pass the module inside, `net.module`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_would_not_see_drawn_weights_are_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        model_of(make())(vectors())


def test_a_list_of_modules_is_no_list_of_parameters():
    """The modules in the list get drawn weights, since they are also registered in the network."""
    layers = nn.Linear(4, 4), head(4)
    net = Using(lambda net, x: net.order[1](net.order[0](x)), first=layers[0], last=layers[1], order=list(layers))
    model, x = model_of(net), vectors()
    values = {site: torch.randn(model.initial_value(site).shape) for site in model.site_names}
    hidden = x @ values["net.first.weight"].T + values["net.first.bias"]
    expected = hidden @ values["net.last.weight"].T + values["net.last.bias"]
    torch.testing.assert_close(model.observation_given(values, x).logits, expected.log_softmax(-1))


def test_a_direction_without_length_is_told_and_not_predicted_with():
    net = around(parametrizations.weight_norm(nn.Linear(4, 4)))
    model, x = model_of(net), vectors()
    pruned = pb.pruning.prune(pb.MeanFieldGuide(model), threshold=1e9, where="**.original1")
    with pytest.raises(ValueError, match=r"got NaN in 6 of 6 rows.*leave layers with `weight_norm` out of `prune`"):
        pb.predict(model, pruned, x, num_samples=2, seed=0)
    with pytest.raises(NonFiniteError):
        pb.fit_svi(model, (x, TARGETS), pruned.guide, optimizer=ADAM, num_epochs=1, seed=0)


def test_networks_that_keep_their_output_are_copied_again_and_again():
    """Each fit makes a copy; the second fit finds tensors that the first one left."""

    def run(net, x):
        net.kept = {"all": [net.head(x)], "pair": (net.head(x), None)}
        return net.kept["all"][0]

    net, x = Using(run, head=head(4)), vectors()
    net(x)
    kept = net.kept["all"][0]
    model = model_of(net)
    guide = pb.MeanFieldGuide(model)
    for _ in range(2):
        fitted = pb.fit_svi(model, (x, TARGETS), guide, optimizer=ADAM, num_epochs=1, seed=0)
        assert fitted.history.path == "direct"
    assert net.kept["all"][0] is kept
    assert kept.grad_fn is not None
