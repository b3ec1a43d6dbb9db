"""Guides to prune, and the weights that were removed from them."""

import functools

import torch
from torch import nn

import pyro_bnn as pb

ADAM = functools.partial(torch.optim.Adam, lr=0.02)
SITES = ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")


def scattered(model, *, scale_map=None):
    """A guide with ratios of all sizes."""
    return pb.MeanFieldGuide(model, init=pb.NormalInit(loc_scale=1.0, rho=-1.0, rho_scale=0.5), scale_map=scale_map)


def removed(draw, masks):
    return torch.cat([draw[site][~mask] for site, mask in masks.items()])


def masks_of(guide):
    return {site: guide.kept(site) for site in SITES}


def two_weights(loc, scale):
    """A linear layer with two weights and no bias, and its guide."""
    model = pb.BayesianModel(
        nn.Linear(2, 1, bias=False), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=10
    )
    guide = pb.MeanFieldGuide(model)
    with torch.no_grad():
        guide.loc.get_parameter("net.weight").copy_(torch.tensor([loc]))
        guide.rho.get_parameter("net.weight").copy_(torch.tensor([scale]).expm1().log())
    return model, guide
