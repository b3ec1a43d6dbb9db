"""One posterior of each kind that a file may contain."""

import functools
import warnings

import torch
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn import pruning
from pyro_bnn.inference.batch_norm import PinnedPosterior
from pyro_bnn.inference.mcmc import ChainStatistics
from pyro_bnn.inference.scale_maps import LogVariance

from .cases import small_model
from .chains import fit_briefly
from .fits import fit


def whole(dtype=torch.float64, likelihood="gaussian-latent", seed=0, **kwargs):
    """A model and all of its data. Another seed gives another network, with weights and data of its own."""
    torch.manual_seed(seed)
    torch.set_default_dtype(dtype)
    model, x, y = small_model(likelihood=likelihood, num_data=6, **kwargs)
    torch.set_default_dtype(torch.float64)
    return model, x, y


def batch_norm():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def fitted(make_guide):
    return lambda model, x, y: fit(model, make_guide(model), x, y, num_epochs=2)


def pruned(model, x, y):
    return pruning.prune(fitted(pb.MeanFieldGuide)(model, x, y), fraction=0.6, where="net.*.weight")


def points(model):
    return [pb.GuidePosterior(pb.DeltaGuide(model, init=pb.NormalInit(0.5))) for _ in range(2)]


def nested(model, x, y):
    low_rank = fitted(lambda model: pb.LowRankGuide(model, rank=2))(model, x, y)
    return pb.EnsemblePosterior([pb.EnsemblePosterior(points(model)), low_rank, pruned(model, x, y)])


def laplace(model, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # learnable parameters stay
        return pb.fit_laplace(model, (x, y), seed=0, max_iter=5)


def gauss_newton(structure, **kwargs):
    return lambda model, x, y: pb.fit_gauss_newton(model, (x, y), structure=structure, **kwargs)


def pinned(model, x, y):
    """Two members, whose networks differ in the statistics of batch normalisation and in biases that are not random."""
    members = []
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            model.network[1].running_mean.normal_()
            model.network[0].bias.normal_()
        members.append(PinnedPosterior(model, pb.DeltaGuide(model, init=pb.NormalInit(0.5))))
    return pb.EnsemblePosterior(members)


def stored(model, x, y):
    refreshed = pb.RefreshedPosterior(model, pb.MeanFieldGuide(model), x, batch_size=3)
    return pb.StoredPosterior.of(refreshed, 16, seed=0)


def refreshed(model, x, y):
    return pb.RefreshedPosterior(model, fitted(pb.MeanFieldGuide)(model, x, y), x, batch_size=3.0)


def pinned_and_pruned(model, x, y):
    return PinnedPosterior(model, pruned(model, x, y))


def nuts(model, x, y):
    return fit_briefly(model, x, y, seed=0)


def chains(samples, **statistics):
    """Chains of given draws, with given statistics only."""
    names = ("log_density", "energy", "accept", "diverging", "num_steps", "step_size", "inverse_mass", "seconds")
    reported = ChainStatistics(**{**dict.fromkeys(names), **statistics})
    return pb.MCMCPosterior(samples, reported, pb.Status(True, "by hand"), sampler="NUTS")


def stock(model, x, y):
    """Pyro's own AutoNormal, made on the whole model and complete after its first call."""
    guide = AutoNormal(model, init_scale=0.05)
    with pb._core.scope.own_parameters(guide):
        guide(x, y)
    return pb.GuidePosterior(guide)


# name -> (what makes the posterior from a model and its data, what makes the model)
POSTERIORS = {
    "mean-field": (fitted(pb.MeanFieldGuide), {}),
    "log-variance": (fitted(lambda model: pb.MeanFieldGuide(model, scale_map=LogVariance())), {}),
    "low-rank": (fitted(lambda model: pb.LowRankGuide(model, rank=3)), {}),
    "delta": (fitted(pb.DeltaGuide), {}),
    "batch-ensemble": (fitted(lambda model: pb.BatchEnsembleGuide(model, num_members=2)), {}),
    "pruned": (pruned, {}),
    "auto-normal": (fitted(functools.partial(pb.auto_guide, AutoNormal)), {}),
    "auto-full-rank": (fitted(functools.partial(pb.auto_guide, AutoMultivariateNormal)), {}),
    "auto-low-rank": (fitted(lambda model: pb.auto_guide(AutoLowRankMultivariateNormal, model, rank=2)), {}),
    "stock": (stock, {}),
    "batch-norm": (fitted(pb.MeanFieldGuide), {"net": batch_norm, "where": ["**.weight"]}),
    "learned-noise": (fitted(pb.MeanFieldGuide), {"likelihood": "gaussian-learned"}),
    "learned-prior": (fitted(pb.MeanFieldGuide), {"prior": pb.LearnedNormalPrior(0.7)}),
    "hierarchical": (fitted(pb.MeanFieldGuide), {"prior": pb.HierarchicalNormalPrior()}),
    "ensemble": (lambda model, x, y: pb.EnsemblePosterior(points(model)), {}),
    "nested": (nested, {}),
    "pinned": (pinned, {"net": batch_norm, "where": ["**.weight"]}),
    "pinned-pruned": (pinned_and_pruned, {}),
    "refreshed": (refreshed, {"net": batch_norm, "where": ["**.weight"]}),
    "stored": (stored, {"net": batch_norm, "where": ["**.weight"]}),
    "laplace": (laplace, {}),
    "kronecker": (gauss_newton("kronecker"), {"likelihood": "gaussian-learned"}),
    "last-layer": (gauss_newton("full", where="net.2.*"), {"likelihood": "gaussian-fixed"}),
    "diagonal": (gauss_newton("diagonal"), {"net": batch_norm, "likelihood": "gaussian-fixed"}),
    "nuts": (nuts, {}),
}


def make(name, dtype=torch.float64, seed=0):
    """A model, inputs, and a posterior of this name."""
    model, x, y = make_model(name, dtype, seed)
    return model, x, POSTERIORS[name][0](model, x, y)


def make_model(name, dtype=torch.float64, seed=0):
    """The model of a posterior, and its data, before any fit."""
    kwargs = dict(POSTERIORS[name][1])
    torch.set_default_dtype(dtype)
    net = {"net": kwargs.pop("net")()} if "net" in kwargs else {}
    torch.set_default_dtype(torch.float64)
    return whole(dtype, seed=seed, **net, **kwargs)


def same(a, b):
    """Whether two dictionaries of tensors are equal, in the same order."""
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)
