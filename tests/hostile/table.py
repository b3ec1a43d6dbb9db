"""The format of a row of bad input, and what rows share: values of the wrong type, and objects to call."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import pyro_bnn as pb


@dataclass(frozen=True)
class Row:
    """One bad call. `sentence` is a regular expression; `error` is the class of the error."""

    name: str
    call: Callable[["World"], object]
    sentence: str
    error: type = ValueError


@dataclass(frozen=True)
class Late:
    """A value that is made in the test, when the default dtype is that of the tests."""

    make: Callable[["World"], object]


class World:
    """A small model, its guide, data and predictions; all made once, since no bad call may change them."""

    def __init__(self):
        torch.manual_seed(0)
        self.x, self.y = torch.randn(6, 4), torch.randn(6, 2)
        self.net = nn.Linear(4, 2)
        self.model = self.model_of(self.net)
        self.guide = pb.MeanFieldGuide(self.model)
        self.posterior = pb.GuidePosterior(self.guide)
        self.labels = torch.arange(6) % 3
        self.classifier = self.model_of(nn.Linear(4, 3), likelihood=pb.CategoricalLikelihood())
        self.class_guide = pb.MeanFieldGuide(self.classifier)
        self.other_guide = pb.MeanFieldGuide(self.model_of(nn.Sequential(nn.Linear(4, 2))))

    def model_of(self, net, *, likelihood=None, num_data=6):
        likelihood = likelihood or pb.GaussianLikelihood(1.0)
        return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=num_data)

    @functools.cached_property
    def numbers(self):
        return pb.predict(self.model, self.posterior, self.x, y=self.y, num_samples=3, keep_draws=True, seed=0)

    @functools.cached_property
    def classes(self):
        options = {"num_samples": 3, "keep_draws": True, "seed": 0}
        return pb.predict(self.classifier, self.class_guide, self.x, y=self.labels, **options)

    @functools.cached_property
    def grid(self):
        """One-dimensional inputs, and the prediction at these."""
        x = torch.linspace(0, 1, 6).unsqueeze(-1)
        model = self.model_of(nn.Linear(1, 1))
        return x, pb.predict(model, pb.MeanFieldGuide(model), x, num_samples=3, keep_draws=True, seed=0)

    @functools.cached_property
    def laplace(self):
        return pb.fit_laplace(self.model, (self.x, self.y), seed=0)

    def values(self, change):
        """The mean weights, each changed."""
        return {name: change(value) for name, value in self.guide.median().items()}


NOT_A_NUMBER = {"None": None, "text": "a", "a list": [1], "an object": object(), "a complex number": 1j, "True": True}
NOT_FINITE = {"NaN": float("nan"), "infinity": float("inf")}
NOT_POSITIVE = {**NOT_A_NUMBER, **NOT_FINITE, "minus one": -1, "zero": 0}
NOT_A_COUNT = {**NOT_POSITIVE, "a fraction": 1.5, "more than 64 bits": 10**30}
NOT_A_SEED = {
    "text": "a",
    "a list": [1],
    "a negative number": -5,
    "a fraction": 1.5,
    "NaN": float("nan"),
    "True": True,
    "a generator": np.random.default_rng(0),
    "more than 63 bits": 2**63,
}
NOT_A_FLAG = {"None": None, "text": "a", "a number": 3}
NOT_AN_OBJECT = {"None": None, "text": "a", "a number": 3, "a class": int, "a dict": {}}
NOT_A_TENSOR = {"text": "a", "a number": 3, "an object": object()}
NO_VALUES = {
    "meta": Late(lambda w: torch.zeros(6, 4, device="meta")),
    "sparse": Late(lambda w: torch.eye(6, 4).to_sparse()),
}
NAN_ROWS = {
    "NaN": Late(lambda w: torch.full((6, 4), float("nan"))),
    "infinity": Late(lambda w: torch.full((6, 4), float("inf"))),
}


def unseen(function):
    """A function that prepares the call under test, and leaves torch's generator unchanged."""

    @functools.wraps(function)
    def made(*args, **kwargs):
        with torch.random.fork_rng(devices=[]):
            return function(*args, **kwargs)

    return made


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


def bad(where, call, argument, values, sentence, error=ValueError):
    """One row for each bad value of one argument of `call`, a function of the world and of keyword arguments."""

    def of(value):
        return lambda w: call(w, **{argument: unseen(value.make)(w) if isinstance(value, Late) else value})

    return [Row(f"{where}: {argument} is {name}", of(value), sentence, error) for name, value in values.items()]


def plain(function, **options):
    """A function that uses only its arguments, and not the world."""
    return lambda w, **arguments: function(**{**options, **arguments})
