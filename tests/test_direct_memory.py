"""During a fit, parameters share long vectors; before, after and in callbacks they look as usual."""

import functools

import pytest
import torch
from torch import nn

import pyro_bnn as pb

from .fits import FUSED, linear, problem, six_rows


def test_after_the_fit_every_parameter_has_memory_of_its_own_again():
    model, guide, data = problem()()
    watched = []

    def callback(history):
        watched.append({p.untyped_storage().data_ptr() for p in guide.parameters()})

    pb.fit_svi(
        model, data, guide, optimizer=functools.partial(torch.optim.Adam, lr=0.1), num_epochs=1, callbacks=[callback]
    )
    parameters = list(guide.parameters())
    assert len(watched[0]) == 2
    for tensors in (parameters, [p.grad for p in parameters]):
        assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(parameters)
        assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in tensors)


def test_the_memory_format_of_parameters_is_kept():
    net = nn.Sequential(nn.Unflatten(1, (2, 2, 1)), nn.Conv2d(2, 3, (2, 1)), nn.Flatten(), nn.Linear(3, 2))
    model, guide = linear(net.to(memory_format=torch.channels_last))
    strides = [parameter.stride() for parameter in guide.parameters()]
    pb.fit_svi(model, six_rows(), guide, optimizer=FUSED, num_epochs=1)
    assert [parameter.stride() for parameter in guide.parameters()] == strides
    assert not all(parameter.is_contiguous() for parameter in guide.parameters())


def test_trying_the_model_out_leaves_no_trace():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model, guide = linear(net, where=["net.0.*", "net.2.*"])
    pb.fit_svi(model, six_rows(), guide, optimizer=FUSED, num_epochs=5)
    assert int(model.net[1].num_batches_tracked) == 5


def test_parameters_are_put_back_after_an_error_too():
    model, guide, data = problem()()

    def callback(history):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pb.fit_svi(
            model,
            data,
            guide,
            optimizer=functools.partial(torch.optim.Adam, lr=0.1),
            num_epochs=1,
            callbacks=[callback],
        )
    parameters = list(guide.parameters())
    assert len({p.untyped_storage().data_ptr() for p in parameters}) == len(parameters)
