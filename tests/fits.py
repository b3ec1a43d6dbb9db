"""Fits on both paths, and the priors, models and optimizers that tests of fits share."""

import functools

import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.svi import _svi_step

from .cases import ESTIMATORS, FIXED_PRIORS, small_model
from .tolerances import assert_identical

ELBOS = [Trace_ELBO, TraceMeanField_ELBO]
PLAIN_OR_ESTIMATOR = {"plain": None, **ESTIMATORS}
ADAM = functools.partial(torch.optim.Adam, lr=0.01)
SGD = functools.partial(torch.optim.SGD, lr=1e-3)
FUSED = functools.partial(torch.optim.Adam, lr=0.05, fused=True)
FROZEN = functools.partial(torch.optim.SGD, lr=0.0)
PATHS = {"direct": "direct", "pyro": "pyro: forbidden by the test"}
"""What the history says of either."""


def forbid_direct(monkeypatch):
    """Send every fit through Pyro."""
    monkeypatch.setattr(_svi_step, "direct_joint", lambda *_: "forbidden by the test")


def fit(model, guide, x, y, **kwargs):
    return pb.fit_svi(model, (x, y), guide, **{"optimizer": ADAM, "num_epochs": 3, "seed": 0, **kwargs})


def whole(likelihood="categorical", **kwargs):
    """A model whose data set has six rows."""
    return small_model(likelihood=likelihood, num_data=6, **kwargs)


def fresh(make_guide=pb.MeanFieldGuide):
    """A model, a guide and data, the same at every call."""
    torch.manual_seed(11)
    model, x, y = whole("gaussian-latent")
    return model, make_guide(model), x, y


# --- priors beyond the library's own ----------------------------------------------------------------------------------


class PerWeightPrior(pb.Prior):
    """A Gaussian with a mean and a scale for each weight."""

    def elementwise(self, name, parameter, module):
        ramp = torch.arange(parameter.numel()).view(parameter.shape).to(parameter)
        return dist.Normal(ramp / 10, 0.5 + ramp / 20)


class JointPrior(pb.Prior):
    """Weights that depend on each other."""

    def elementwise(self, name, parameter, module):
        raise NotImplementedError

    def __call__(self, name, parameter, module):
        size = parameter.numel()
        covariance = torch.eye(size).to(parameter) + 0.3
        gaussian = dist.MultivariateNormal(parameter.new_zeros(size), covariance)
        return dist.TransformedDistribution(
            gaussian, [dist.transforms.ReshapeTransform((size,), tuple(parameter.shape))]
        )


class WidePrior(pb.Prior):
    """A Gaussian away from zero."""

    def elementwise(self, name, parameter, module):
        return dist.Normal(parameter.new_tensor(0.3), parameter.new_tensor(2.0))


class PositivePrior(pb.Prior):
    """Some weights are positive."""

    def elementwise(self, name, parameter, module):
        one = parameter.new_ones(())
        return dist.LogNormal(0 * one, one) if name.endswith("2.weight") else dist.Normal(0 * one, one)


MORE_PRIORS = {
    **FIXED_PRIORS,
    "mixture-swapped": pb.ScaleMixturePrior(0.25, 0.1, 0.75),
    "per-weight": PerWeightPrior(),
    "joint": JointPrior(),
    "wide": WidePrior(),
    "positive": PositivePrior(),
}


# --- the same fit twice -----------------------------------------------------------------------------------------------


def scattered(model, **kwargs):
    """A mean-field guide with scales of different sizes."""
    return pb.MeanFieldGuide(model, init=pb.NormalInit(rho=-1.0, rho_scale=0.5), **kwargs)


def problem(prior="normal", likelihood="gaussian-fixed", make_guide=scattered, **kwargs):
    """A function that makes a model, its guide and their data."""

    def make():
        model, x, y = small_model(prior=MORE_PRIORS[prior], likelihood=likelihood, num_data=6, **kwargs)
        return model, make_guide(model), (x, y)

    return make


def linear(net=None, kind=pb.BayesianModel, prior=None, **kwargs):
    """A model of a network of four inputs and two outputs, and its guide; for six rows of data."""
    model = kind(
        net if net is not None else nn.Linear(4, 2),
        prior=prior or pb.NormalPrior(),
        likelihood=pb.GaussianLikelihood(1.0),
        num_data=6,
        **kwargs,
    )
    return model, pb.MeanFieldGuide(model)


def six_rows():
    """Data for :func:`linear`."""
    return torch.randn(6, 4), torch.randn(6, 2)


def fit_both(monkeypatch, make, **options):
    """Histories and parameters of the same fit on both paths."""
    found = []
    for path, recorded in PATHS.items():
        torch.manual_seed(3)
        model, guide, data = make()
        options = {"optimizer": functools.partial(torch.optim.Adam, lr=0.02), "num_epochs": 4, "seed": 1, **options}
        with monkeypatch.context() as patch:
            if path == "pyro":
                forbid_direct(patch)
            history = pb.fit_svi(model, data, guide, **options).history
        assert history.path == recorded
        found.append((history, {**dict(guide.named_parameters()), **dict(model.named_parameters())}))
    return found


def assert_same(found):
    (first, first_parameters), (second, second_parameters) = found
    assert_identical(first.expected_log_likelihood, second.expected_log_likelihood)
    torch.testing.assert_close(torch.tensor(first.kl), torch.tensor(second.kl), rtol=1e-9, atol=1e-9)
    assert list(first_parameters) == list(second_parameters)
    for name, parameter in first_parameters.items():
        torch.testing.assert_close(parameter, second_parameters[name], rtol=1e-9, atol=1e-11)
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, second_parameters[name].grad, rtol=1e-8, atol=1e-9)


class KilledError(Exception):
    """Stands in for the end of the process."""


class EndsAt:
    """A KL weight of 1 that ends the process before a step, counted from the beginning of the fit."""

    def __init__(self, step):
        self.step, self.count = step, 0

    def __call__(self, epoch, index, num_batches):
        self.count += 1
        if self.count > self.step:
            raise KilledError
        return 1.0
