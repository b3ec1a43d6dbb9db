"""Layers with random parameters, their outputs under an estimator, and the distribution that the outputs must have."""

import torch
from pyro import poutine
from torch import nn

import pyro_bnn as pb

# name -> (layer, shape of one row of its input, which of its parameters are random)
LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (4,), "**"),
    "linear-no-bias": (lambda: nn.Linear(4, 3, bias=False), (4,), "**"),
    "linear-weight-only": (lambda: nn.Linear(4, 3), (4,), "net.weight"),
    "linear-bias-only": (lambda: nn.Linear(4, 3), (4,), "net.bias"),
    "conv1d-stride-padding": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 5), "**"),
    "conv1d-same-dilation": (lambda: nn.Conv1d(2, 2, 2, padding="same", dilation=2), (2, 4), "**"),
    "conv2d-stride-no-bias": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), bias=False), (2, 5, 4), "**"),
    "conv2d-groups-dilation": (lambda: nn.Conv2d(4, 2, 2, groups=2, dilation=2, padding=1), (4, 3, 3), "**"),
    "conv2d-circular": (lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), (1, 3, 3), "**"),
    "conv2d-weight-only": (lambda: nn.Conv2d(2, 2, 2), (2, 3, 3), "net.weight"),
    "conv2d-bias-only": (lambda: nn.Conv2d(2, 2, 2), (2, 3, 3), "net.bias"),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2, padding=(0, 1, 0)), (2, 2, 2, 2), "**"),
}


def pair(net, *, where="**", num_data=20, prior=None, likelihood=None, scale=0.3):
    """A model and a guide whose standard deviations are not small and not all the same."""
    model = pb.BayesianModel(
        net,
        prior=prior or pb.NormalPrior(),
        likelihood=likelihood or pb.GaussianLikelihood(0.5),
        num_data=num_data,
        where=where,
    )
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=scale))
    with torch.no_grad():
        for parameter in guide.rho.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model, guide


def output(model, guide, x):
    return poutine.replay(model, poutine.trace(guide).get_trace(x))(x)


def outputs(estimator, model, guide, x, num_calls):
    """Network outputs of independent calls, (S, N, ...); without an estimator, outputs of drawn weights."""
    with torch.no_grad():
        if estimator is None:
            return torch.stack([output(model, guide, x) for _ in range(num_calls)])
        with estimator.applied(model, guide):
            return torch.stack([output(model, guide, x) for _ in range(num_calls)])


def exact_law(net, guide, x):
    """Mean (M,) and covariance (M, M) of one row's outputs under the guide: a layer is linear in its weights."""
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    random = {name.removeprefix("net."): loc for name, loc in guide.locations().items()}
    scales = [guide.scales()[f"net.{name}"].flatten() for name in random]

    def run(*values):
        tensors = {**parameters, **dict(zip(random, values, strict=True))}
        return torch.func.functional_call(net, tensors, (x[None],)).flatten()

    jacobians = torch.autograd.functional.jacobian(run, tuple(random.values()))
    jacobian = torch.cat([j.flatten(1) for j in jacobians], 1) * torch.cat(scales)
    return run(*random.values()), jacobian @ jacobian.T


def standard_errors_apart(a, b):
    """How many standard errors the means of two samples differ, elementwise."""
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    return (a.mean(0) - b.mean(0)).abs() / error
