"""Networks, likelihoods, Pyro models and steps that do what is forbidden, although each has the right type."""

import copy
import functools
import pickle
import warnings

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from torch import nn
from torch.utils.checkpoint import checkpoint

import pyro_bnn as pb

from .table import Row, unseen

ADAM = functools.partial(torch.optim.Adam, lr=0.01)


class Net(nn.Module):
    """A network whose forward pass is a function of a linear layer and the input."""

    def __init__(self, use):
        super().__init__()
        self.layer, self.use = nn.Linear(4, 2), use

    def forward(self, x):
        return self.use(self.layer, x)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def clamped(layer, x):
    layer.weight.clamp_(-1, 1)
    return layer(x)


def recomputed(layer, x):
    return checkpoint(lambda part: torch.tanh(layer(part)), x, use_reentrant=False)


NETS = {
    "that changes its input": (lambda layer, x: layer(x.add_(5.0)), "must leave its input `x` as it is"),
    "that changes its weights": (clamped, "the network must not change its weights in place"),
    "that checkpoints": (recomputed, "must not use activation checkpointing"),
    "that reverses gradients": (lambda layer, x: Reversed.apply(layer(x)), "Intended surrogate gradients"),
    "that detaches": (lambda layer, x: layer(x).detach(), "the network hides or changes the gradient"),
    "that returns a dict": (lambda layer, x: {"output": layer(x)}, "the network must return one tensor, got dict"),
    "that returns one row": (lambda layer, x: layer(x).mean(0), "`net` must return one row per input, got"),
}


def fit(w, net, *, likelihood=None, guide=pb.MeanFieldGuide, **arguments):
    model = w.model_of(net, likelihood=likelihood)
    options = {"optimizer": ADAM, "num_epochs": 2, "seed": 0}
    return pb.fit_svi(model, (w.x, w.y), guide(model), **{**options, **arguments})


def nuts(w, net):
    options = {"num_samples": 4, "num_warmup": 4, "num_chains": 1, "seed": 0}
    return pb.fit_nuts(w.model_of(net), (w.x, w.y), **options)


def laplace(w, net):
    return pb.fit_laplace(w.model_of(net), (w.x, w.y), seed=0)


WAYS = {
    "fit_svi": fit,
    "fit_svi of an autoguide": functools.partial(fit, guide=functools.partial(pb.auto_guide, AutoNormal)),
    "fit_nuts": nuts,
    "fit_laplace": laplace,
}

OF_NETS = [
    Row(f"{way}: a network {name}", lambda w, r=run, u=use: r(w, unseen(Net)(u)), sentence)
    for way, run in WAYS.items()
    for name, (use, sentence) in NETS.items()
]


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that scripting is deprecated
        return torch.jit.script(nn.Linear(4, 2))


def with_nan():
    net = nn.Linear(4, 2)
    net.weight.data[0, 0] = float("nan")
    return net


def normalised():
    return nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))


WRAPPED = {
    "scripted": (scripted, "`net` must be a plain module, got a scripted or traced one"),
    "partly scripted": (lambda: nn.Sequential(scripted()), "`net.0` must be a plain module, got a scripted"),
    "data parallel": (lambda: nn.DataParallel(nn.Linear(4, 2)), "`net` must be a plain module, got DataParallel"),
    "lazy": (lambda: nn.LazyLinear(2), "`net` must have weights, but `weight` has no shape yet"),
    "on the device meta": (
        lambda: nn.Linear(4, 2, device="meta"),
        "must have weights, but `weight` is on the device meta",
    ),
    "with NaN": (with_nan, "must have finite weights, got NaN or infinity in `weight`"),
    "without parameters": (nn.ReLU, "must have a parameter that can be random"),
}

OF_WRAPPERS = [
    Row(f"BayesianModel: a network {name}", lambda w, m=make: w.model_of(unseen(m)()), sentence)
    for name, (make, sentence) in WRAPPED.items()
]


class Shifted(pb.GaussianLikelihood):
    """Changes the targets in place."""

    def as_targets(self, y, dtype):
        return y.add_(1.0)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(5, 2)

    def forward(self, x):
        return self.bag(x.abs().long().clamp(max=4))


class Line(PyroModule):
    def forward(self, x, y=None):
        w, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "wb")
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Normal(w * x[:, 0] + b, 1.0), obs=y)


class Part(PyroModule):
    """A guide of some of the variables."""

    def __init__(self, names):
        super().__init__()
        self.names, self.loc = names, nn.Parameter(torch.zeros(()))

    def forward(self, x, y=None):
        for name in self.names:
            pyro.sample(name, dist.Normal(self.loc, 1.0))


def one_step(model, guide, *batch):
    with pb.svi_step(model, guide, ADAM) as step:
        return step(*batch)


def in_context(w, change):
    """A second step, after a change of model, guide and step."""
    model = copy.deepcopy(w.model)
    guide = pb.MeanFieldGuide(model)
    with pb.svi_step(model, guide, ADAM) as step:
        generator = torch.get_rng_state()
        step(w.x, w.y)
        torch.set_rng_state(generator)
        change(model, guide, step)
        step(w.x.to(model.dtype), w.y.to(model.dtype))


def to_single(model, guide, step):
    model.to(torch.float32)


OTHERS = [
    Row(
        "fit_svi: a likelihood that changes targets",
        lambda w: fit(w, w.net, likelihood=Shifted(1.0)),
        "must not change `y` in place",
    ),
    Row("fit_laplace: EmbeddingBag", lambda w: laplace(w, unseen(Bag)()), "needs second derivatives in all weights"),
    Row(
        "fit_svi: batch norm on one row",
        lambda w: fit(w, unseen(normalised)(), batch_size=5),
        "needs at least two rows in a batch",
    ),
    Row(
        "step: Pyro model, guide lacks b",
        lambda w: one_step(Line(), Part("w"), w.x, w.y[:, 0]),
        r"but it lacks \['b'\]",
    ),
    Row(
        "step: Pyro model without y",
        lambda w: one_step(Line(), Part("wb"), w.x),
        r"but it lacks \['obs'\]; make a guide",
    ),
    Row(
        "step: Pyro model without a batch",
        lambda w: one_step(Line(), Part("wb"), w.x, w.x, w.x),
        "3 tensors of a batch",
    ),
    Row(
        "step: pickle",
        lambda w: in_context(w, lambda m, g, s: pickle.dumps(s)),
        "a SVIStep cannot be copied or pickled",
    ),
    Row(
        "step: deepcopy",
        lambda w: in_context(w, lambda m, g, s: copy.deepcopy(s)),
        "a SVIStep cannot be copied or pickled",
    ),
    Row(
        "step: copy",
        lambda w: in_context(w, lambda m, g, s: copy.copy(s)),
        "a SVIStep cannot be copied or pickled",
    ),
    Row("step: model.to alone", lambda w: in_context(w, to_single), "the model was moved from cpu and torch.float64"),
    Row(
        "step: a late hook on the model",
        lambda w: in_context(w, lambda m, g, s: m.register_forward_hook(print)),
        "hooks of the model or the guide must be set before the first step",
    ),
    Row(
        "step: a late hook on the guide",
        lambda w: in_context(w, lambda m, g, s: g.register_forward_pre_hook(print)),
        "hooks of the model or the guide must be set before the first step",
    ),
    Row("predict: a network that changes its input", lambda w: moved(w), "must leave its input `x` as it is"),
]


def moved(w):
    model = w.model_of(unseen(Net)(NETS["that changes its input"][0]))
    return pb.predict(model, pb.MeanFieldGuide(model), w.x.clone(), num_samples=1, seed=0)


ROWS = [*OF_NETS, *OF_WRAPPERS, *OTHERS]
