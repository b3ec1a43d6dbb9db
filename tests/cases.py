"""One row per member: every generic test runs over these tables."""

import functools
import inspect
import itertools
import math

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn import pruning, scale_maps
from pyro_bnn.inference.guides import UniformInit

FIXED_PRIORS = {
    "normal": pb.NormalPrior(0.7),
    "mixture": pb.ScaleMixturePrior(),
    "laplace": pb.LaplacePrior(0.5),
    "network": pb.NetworkNormalPrior(0.3),
    "fan-in": pb.FanInNormalPrior(math.sqrt(2)),
    "by-name": pb.PriorByName({"net.**.bias": pb.NormalPrior(1.0), "**": pb.LaplacePrior(0.2)}),
}

HIERARCHICAL_PRIORS = {
    "hierarchical": pb.HierarchicalNormalPrior(),
    "hierarchical-per-parameter": pb.HierarchicalNormalPrior(dist.Gamma(2.0, 3.0), per="parameter"),
    "horseshoe": pb.HorseshoePrior(0.5),
    "horseshoe-per-weight": pb.HorseshoePrior(local="weight", slab_scale=2.0, per="parameter"),
    "hierarchical-by-name": pb.PriorByName({"**.bias": pb.NormalPrior(1.0), "**": pb.HierarchicalNormalPrior()}),
}

LEARNED_PRIORS = {
    "learned": pb.LearnedNormalPrior(0.7),
    "learned-per-parameter": pb.LearnedNormalPrior(per="parameter"),
}

PRIORS = {**FIXED_PRIORS, **HIERARCHICAL_PRIORS, **LEARNED_PRIORS}


def two_numbers(n):
    return torch.randn(n, 2)


def given_latent_scale(outputs, draws):
    scale = torch.stack([draw["likelihood.scale"].reshape(1, -1) for draw in draws])
    return dist.Normal(outputs, scale)


def laplace_of_two_parts(loc, width, scale):
    """Not a lambda, which cannot be pickled."""
    return dist.Laplace(loc, scale * nn.functional.softplus(width))


def overdispersed(outputs, draws):
    dispersion = torch.stack([draw["likelihood.dispersion"].reshape(1, 1) for draw in draws])
    return dist.NegativeBinomial(1 / dispersion, logits=outputs + dispersion.log())


def mixture_of_three(outputs, draws):
    logits, loc, rho = outputs.unflatten(-1, (3, 2, 3)).unbind(2)  # (S, N, O, M)
    gaussians = dist.Normal(loc, 1e-6 + nn.functional.softplus(rho))
    return dist.MixtureSameFamily(dist.Categorical(logits=logits), gaussians)


# name -> (likelihood, number of network outputs, targets for n rows, and by hand the distribution of a number, given
# the outputs, shape (S, N, ...), and the S draws that they come from; None for classes)
LIKELIHOODS = {
    "categorical": (pb.CategoricalLikelihood(), 3, lambda n: torch.arange(n) % 3, None),
    "bernoulli": (pb.BernoulliLikelihood(), 2, lambda n: torch.rand(n, 2).round(), None),
    "gaussian-fixed": (pb.GaussianLikelihood(0.5), 2, two_numbers, lambda outputs, _: dist.Normal(outputs, 0.5)),
    "gaussian-learned": (
        pb.GaussianLikelihood(None),
        1,
        lambda n: torch.randn(n, 1),
        lambda outputs, _: dist.Normal(outputs, 1.0),
    ),
    "gaussian-latent": (pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0)), 2, two_numbers, given_latent_scale),
    "gaussian-latent-vector": (
        pb.GaussianLikelihood(dist.Gamma(torch.full((2,), 2.0), 1.0).to_event(1)),
        2,
        two_numbers,
        given_latent_scale,
    ),
    "heteroscedastic": (
        pb.HeteroscedasticGaussianLikelihood(),
        4,
        two_numbers,
        lambda outputs, _: dist.Normal(outputs[..., :2], (outputs[..., 2:] / 2).exp()),
    ),
    "mixture-density": (pb.MixtureDensityLikelihood(3), 18, two_numbers, mixture_of_three),
    "poisson": (
        pb.PoissonLikelihood(),
        1,
        lambda n: torch.randint(5, (n, 1)).double(),
        lambda outputs, _: dist.Poisson(outputs.exp()),
    ),
}

LIKELIHOODS |= {
    "own": (
        pb.likelihoods.DistributionLikelihood(
            laplace_of_two_parts,
            num_parts=2,
            latent={"scale": dist.LogNormal(0.0, 1.0)},
        ),
        4,
        two_numbers,
        lambda outputs, draws: dist.Laplace(
            outputs[..., :2],
            given_latent_scale(outputs[..., :2], draws).scale * nn.functional.softplus(outputs[..., 2:]),
        ),
    ),
    "overdispersed": (
        pb.likelihoods.NegativeBinomial(dist.LogNormal(0.0, 1.0)),
        2,
        lambda n: torch.randint(5, (n, 2)).double(),
        overdispersed,
    ),
    "zero-inflated": (
        pb.likelihoods.ZeroInflatedNegativeBinomial(),
        2,
        lambda n: torch.randint(5, (n, 1)).double(),
        lambda outputs, _: dist.ZeroInflatedNegativeBinomial(
            total_count=torch.tensor(1.0), logits=outputs[..., :1], gate_logits=outputs[..., 1:]
        ),
    ),
    "ordinal": (
        pb.likelihoods.Ordinal(4, pb.likelihoods.Ordinal.prior(4, 0.5)),
        1,
        lambda n: torch.arange(n) % 4,
        None,
    ),
}

IN_C = [name for name in LIKELIHOODS if name not in ("overdispersed", "ordinal")]
"""Likelihoods whose operations are written in C; the others need the digamma function and cumulative sums."""

SCALE_MAPS = {
    kind.name: kind(1e10) if kind is scale_maps.Capped else kind()
    for kind in (getattr(scale_maps, name) for name in scale_maps.__all__)
    if not inspect.isabstract(kind)
}

GUIDES = {
    "uniform": lambda model: pb.MeanFieldGuide(model, init=UniformInit()),
    "normal": lambda model: pb.MeanFieldGuide(model, init=pb.NormalInit(rho_scale=0.1)),
    "network": lambda model: pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.05)),
    "prior-fraction": lambda model: pb.MeanFieldGuide(model, init=pb.NetworkInit(prior_fraction=0.1)),
    "weight-fraction": lambda model: pb.MeanFieldGuide(model, init=pb.NetworkInit(weight_fraction=0.1)),
    "capped": lambda model: pb.MeanFieldGuide(model, scale_map=scale_maps.Capped(0.02)),
    "frozen": lambda model: pb.MeanFieldGuide(model, learn_locations=False),
    **{name: functools.partial(pb.MeanFieldGuide, scale_map=scale_map) for name, scale_map in SCALE_MAPS.items()},
    "low-rank": lambda model: pb.LowRankGuide(model, rank=3),
    "pruned": lambda model: pruning.prune(pb.MeanFieldGuide(model), fraction=0.4).guide,
    "auto-normal": functools.partial(pb.auto_guide, AutoNormal),
    "auto-delta": pb.DeltaGuide,
    "batch-ensemble": lambda model: pb.BatchEnsembleGuide(model, num_members=2),
    "auto-full-rank": functools.partial(pb.auto_guide, AutoMultivariateNormal),
    "auto-low-rank": lambda model: pb.auto_guide(AutoLowRankMultivariateNormal, model, rank=3),
}

POINTS = ("auto-delta", "batch-ensemble")
"""Guides without any width, which refuse learned priors."""

ESTIMATORS = {
    "lrt": pb.LocalReparameterization(),
    "flipout": pb.Flipout(),
}

# name -> (sampler, draws of each of four chains that make a few hundred independent ones of a Gaussian)
SAMPLERS = {
    "NUTS": (pb.NUTS(), 600),
    "HMC": (pb.HMC(max_steps=8), 600),
}


def small_net(num_outputs=3):
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, num_outputs))


def small_model(*, prior=None, likelihood="categorical", num_data=20, net=None, **kwargs):
    """A model of four inputs, with six rows of data that fit it."""
    member, num_outputs, targets, _ = LIKELIHOODS[likelihood]
    model = pb.BayesianModel(
        net if net is not None else small_net(num_outputs),
        prior=prior or pb.NormalPrior(0.7),
        likelihood=member,
        num_data=num_data,
        **kwargs,
    )
    x = torch.randn(6, 4)
    return model, x, targets(6)


class Tied(nn.Module):
    """Two layers that share a matrix, for four inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())[:, :3]


class Recurrent(nn.Module):
    """Reads each row as a sequence of numbers."""

    def __init__(self, num_outputs=3):
        super().__init__()
        self.cell, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, num_outputs)

    def forward(self, x):
        return self.head(self.cell(x.unsqueeze(-1))[0][:, -1])


def log_joint(model, *args):
    """The trace of a model, and its log-density."""
    trace = poutine.trace(model).get_trace(*args)
    return trace, trace.log_prob_sum()


def pairs(first, second, *, daily):
    """All pairs from two tables as parameters of a test; those without a `daily` member are left to the nightly run.

    Most behaviour of two members is tested with each alone; a pair adds little, and there are many pairs.
    """
    return [
        pytest.param(one, other, marks=() if {one, other} & daily else pytest.mark.nightly)
        for one, other in itertools.product(first, second)
    ]


PRIORS_AND_LIKELIHOODS = pytest.mark.parametrize(
    ("prior", "likelihood"), pairs(PRIORS, LIKELIHOODS, daily={"normal", "categorical"})
)
