"""Bad arguments of the parts of a model: networks, priors, likelihoods, initialisations, guides."""

import functools

import pyro.distributions as dist
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import distributions, kl, nets, scale_maps
from pyro_bnn.inference.guides import UniformInit
from pyro_bnn.inference.guides._auto import KINDS

from .table import (
    NAN_ROWS,
    NO_VALUES,
    NOT_A_COUNT,
    NOT_A_NUMBER,
    NOT_A_SEED,
    NOT_A_TENSOR,
    NOT_AN_OBJECT,
    NOT_FINITE,
    NOT_POSITIVE,
    Late,
    bad,
    plain,
    without,
)

POSITIVE = r"must be a finite number above 0, got"
NOT_A_RANGE = {
    "None": None,
    "upside down": (1.0, 0.0),
    "of three": (0.0, 1.0, 2.0),
    "of texts": ("a", "b"),
    "NaN": (0.0, float("nan")),
}
NOT_A_PROBABILITY = {**NOT_POSITIVE, "one": 1.0, "two": 2}


def model(w, **arguments):
    options = {"net": w.net, "prior": pb.NormalPrior(), "likelihood": pb.GaussianLikelihood(1.0), "num_data": 6}
    return pb.BayesianModel(**{**options, **arguments})


def guide(make):
    return lambda w, **arguments: make(**{"model": w.model, **arguments})


MODEL = [
    *bad("BayesianModel", model, "net", NOT_AN_OBJECT, "`net` must be a torch.nn.Module, got"),
    *bad("BayesianModel", model, "prior", NOT_AN_OBJECT, "`prior` must be a Prior, such as .*, got"),
    *bad("BayesianModel", model, "likelihood", NOT_AN_OBJECT, "`likelihood` must be a Likelihood, got"),
    *bad("BayesianModel", model, "num_data", NOT_A_COUNT, "`num_data` must be a whole number of at least 1"),
    *bad(
        "BayesianModel",
        model,
        "where",
        {"None": None, "a number": 3, "a list of numbers": [3], "bytes": b"**", "a dict": {}},
        "`where` must be a glob on site names or a list of them",
    ),
    *bad("BayesianModel", model, "where", {"an empty list": []}, "`where` is empty and selects no parameter"),
    *bad("BayesianModel", model, "where", {"another name": "zzz"}, "matches none of the network's parameters"),
]

PRIORS = [
    *bad("NormalPrior", plain(pb.NormalPrior), "scale", NOT_POSITIVE, POSITIVE),
    *bad("LaplacePrior", plain(pb.LaplacePrior), "scale", NOT_POSITIVE, POSITIVE),
    *bad("FanInNormalPrior", plain(pb.FanInNormalPrior), "gain", NOT_POSITIVE, POSITIVE),
    *bad("LearnedNormalPrior", plain(pb.LearnedNormalPrior), "scale", NOT_POSITIVE, POSITIVE),
    *bad(
        "ScaleMixturePrior", plain(pb.ScaleMixturePrior), "mixing", NOT_A_PROBABILITY, "strictly between 0 and 1, got"
    ),
    *bad("ScaleMixturePrior", plain(pb.ScaleMixturePrior), "scale2", NOT_POSITIVE, POSITIVE),
    *bad("HorseshoePrior", plain(pb.HorseshoePrior), "global_scale", NOT_POSITIVE, POSITIVE),
    *bad("HorseshoePrior", plain(pb.HorseshoePrior), "slab_scale", without(NOT_POSITIVE, "None"), POSITIVE),
    *bad(
        "from_weight_decay",
        plain(pb.NormalPrior.from_weight_decay, num_data=5),
        "weight_decay",
        NOT_POSITIVE,
        POSITIVE,
    ),
    *bad(
        "HierarchicalNormalPrior",
        plain(pb.HierarchicalNormalPrior),
        "scale_prior",
        {**NOT_AN_OBJECT, "a torch distribution": Late(lambda w: torch.distributions.Gamma(1.0, 1.0))},
        "must be one of `pyro.distributions`, got",
    ),
    *bad(
        "HierarchicalNormalPrior",
        plain(pb.HierarchicalNormalPrior),
        "scale_prior",
        {"real": Late(lambda w: dist.Normal(0.0, 1.0))},
        "must live on positive numbers, got",
    ),
    *bad("PriorByName", plain(pb.PriorByName), "priors", without(NOT_AN_OBJECT, "a dict"), "`priors` must be a dict"),
    *bad(
        "PriorByName", plain(pb.PriorByName), "priors", {"empty": {}}, "`priors` must hold at least one glob, got none"
    ),
    *bad(
        "PriorByName", plain(pb.PriorByName), "priors", {"of numbers": {"**": 3}}, r"`priors\['\*\*'\]` must be a Prior"
    ),
    *bad(
        "PriorByName",
        plain(pb.PriorByName),
        "priors",
        {"by number": {3: pb.NormalPrior()}},
        "must be a glob .*, got int",
    ),
]

LIKELIHOODS = [
    *bad("GaussianLikelihood", plain(pb.GaussianLikelihood), "scale", without(NOT_POSITIVE, "None"), POSITIVE),
    *bad("MixtureDensity", plain(pb.MixtureDensityLikelihood), "num_components", NOT_A_COUNT, "of at least 1.*, got"),
    *bad("MixtureDensity", plain(pb.MixtureDensityLikelihood, num_components=2), "min_scale", NOT_POSITIVE, POSITIVE),
    *bad(
        "MixtureDensity.initial_bias",
        plain(pb.MixtureDensityLikelihood(2).initial_bias),
        "y",
        {**NOT_A_TENSOR, **NO_VALUES, **NAN_ROWS, "labels": Late(lambda w: w.labels)},
        "`y` must",
    ),
    *[
        row
        for kind, like in (
            ("Categorical", pb.CategoricalLikelihood()),
            ("Bernoulli", pb.BernoulliLikelihood()),
            ("Poisson", pb.PoissonLikelihood()),
            ("Heteroscedastic", pb.HeteroscedasticGaussianLikelihood()),
            ("Gaussian", pb.GaussianLikelihood(1.0)),
        )
        for row in [
            *bad(kind, plain(like.forward), "output", {"None": None}, "`output` must be a tensor"),
            *bad(
                kind,
                plain(like.forward),
                "output",
                {"of integers": Late(lambda w: torch.ones(6, 4).long()), "sparse": NO_VALUES["sparse"]},
                "needs a dense network output in floating point, got",
            ),
        ]
    ],
]

NETS = [
    *bad("MCDropout", plain(nets.MCDropout), "p", NOT_A_PROBABILITY, "`p` must lie strictly between 0 and 1, got"),
    *bad(
        "Standardize",
        lambda w, mean: nets.Standardize(mean, torch.ones(4)),
        "mean",
        {**NOT_A_TENSOR, **NO_VALUES, **NAN_ROWS, "empty": Late(lambda w: torch.zeros(0))},
        "`mean` must",
    ),
    *bad(
        "Standardize",
        lambda w, scale: nets.Standardize(torch.zeros(4), scale),
        "scale",
        {**NOT_A_TENSOR, **NO_VALUES, **NAN_ROWS, "negative": Late(lambda w: -torch.ones(4))},
        "`scale` must",
    ),
    *bad(
        "Standardize.of",
        plain(nets.Standardize.of),
        "x",
        {
            **NOT_A_TENSOR,
            **NO_VALUES,
            **NAN_ROWS,
            "one row": Late(lambda w: w.x[:1]),
            "labels": Late(lambda w: w.labels),
        },
        "`x` must",
    ),
    *bad(
        "Standardize.of",
        lambda w, floor: nets.Standardize.of(w.x, floor=floor),
        "floor",
        {**NOT_A_NUMBER, **NOT_FINITE, "negative": -1.0},
        "`floor` must be a finite number of at least 0, got",
    ),
    *bad(
        "Standardize()", lambda w, x: nets.Standardize.of(w.x)(x), "x", {"narrow": Late(lambda w: w.y)}, "features of"
    ),
    *bad(
        "mlp", plain(nets.mlp), "sizes", {"None": None, "a number": 3, "a dict": {}}, "`sizes` must be a list of whole"
    ),
    *bad("mlp", plain(nets.mlp), "sizes", {"one size": [3]}, "`sizes` must name inputs and outputs at least"),
    *bad(
        "mlp",
        plain(nets.mlp),
        "sizes",
        {"a zero": [3, 0], "a text": [3, "a"], "True": [3, True]},
        "`sizes.1.` must be a",
    ),
    *bad(
        "mlp",
        plain(nets.mlp, sizes=[4, 5, 2]),
        "activation",
        {**NOT_AN_OBJECT, "a module": nn.ReLU()},
        "`activation` must be a function that makes a module",
    ),
    *bad(
        "mlp",
        plain(nets.mlp, sizes=[4, 2]),
        "first",
        {**NOT_AN_OBJECT, "a module": nn.ReLU(), "a list of classes": [nn.ReLU]},
        "`first` must be a list of modules",
    ),
]

INITS = [
    *bad("UniformInit", plain(UniformInit), "loc", NOT_A_RANGE, "`loc` must be a"),
    *bad("UniformInit", plain(UniformInit), "rho", NOT_A_RANGE, "`rho` must be a"),
    *bad(
        "NormalInit",
        plain(pb.NormalInit),
        "loc_scale",
        {**NOT_A_NUMBER, **NOT_FINITE, "minus one": -1},
        "at least 0, got",
    ),
    *bad(
        "NormalInit", plain(pb.NormalInit), "rho", {**NOT_A_NUMBER, **NOT_FINITE}, "`rho` must be a finite number, got"
    ),
    *bad("NetworkInit", plain(pb.NetworkInit), "scale", NOT_POSITIVE, POSITIVE),
    *bad("NetworkInit", plain(pb.NetworkInit), "prior_fraction", without(NOT_POSITIVE, "None"), POSITIVE),
]

MAPS = [
    row
    for scale_map in (scale_maps.Softplus(), scale_maps.LogVariance())
    for row in [
        *bad(scale_map.name, plain(scale_map), "parameter", {**NOT_A_TENSOR, **NO_VALUES}, "`parameter` must"),
        *bad(
            scale_map.name, plain(scale_map.inverse), "scale", {"zero": Late(lambda w: torch.zeros(2))}, "above 0, got"
        ),
    ]
]

KL = [
    *bad(
        "kl.constant",
        plain(kl.constant),
        "weight",
        {**NOT_A_NUMBER, **NOT_FINITE, "minus one": -1},
        "a KL weight must be",
    ),
    *bad("kl.per_weight", plain(kl.per_weight), "num_weights", NOT_A_COUNT, "`num_weights` must be a whole number"),
    *bad("kl.linear_warmup", plain(kl.linear_warmup), "num_epochs", NOT_A_COUNT, "`num_epochs` must be a whole number"),
    *[
        row
        for is_closed in (True, False)
        for row in bad(
            f"kl.divergence, {'closed' if is_closed else 'Monte Carlo'}",
            lambda w, seed, c=is_closed: kl.divergence(
                dist.Normal(0.0, 1.0), dist.Normal(1.0, 1.0), closed_form=c, seed=seed
            ),
            "seed",
            NOT_A_SEED,
            r"`seed` must be a whole number from 0 to 2\*\*63 - 1, or None, got",
        )
    ],
    *bad(
        "kl.divergence",
        lambda w, p: kl.divergence(p, dist.Normal(0.0, 1.0)),
        "p",
        NOT_AN_OBJECT,
        "`p` must be a torch or",
    ),
]

GUIDES = [
    *bad("MeanFieldGuide", guide(pb.MeanFieldGuide), "model", without(NOT_AN_OBJECT, "a class"), "`model` must be"),
    *bad(
        "MeanFieldGuide",
        guide(pb.MeanFieldGuide),
        "init",
        {"a class": pb.NetworkInit, "text": "a"},
        "`init` must be an",
    ),
    *bad(
        "MeanFieldGuide", guide(pb.MeanFieldGuide), "scale_map", {"a class": scale_maps.Softplus}, "must be a ScaleMap"
    ),
    *bad("BatchEnsembleGuide", guide(pb.BatchEnsembleGuide), "num_members", NOT_A_COUNT, "`num_members` must be"),
    *bad("BatchEnsembleGuide", guide(pb.BatchEnsembleGuide), "factor_scale", {"less than 0": -1.0}, "`factor_scale`"),
    *bad("LowRankGuide", guide(pb.LowRankGuide), "rank", {**NOT_A_COUNT, "too many": 100}, "`rank` must be"),
    *[
        row
        for name, make in {
            "DeltaGuide": pb.DeltaGuide,
            "BatchEnsembleGuide": pb.BatchEnsembleGuide,
            **{f"auto_guide({kind.__name__})": functools.partial(pb.auto_guide, kind) for kind in KINDS},
        }.items()
        for row in [
            *bad(name, guide(make), "model", NOT_AN_OBJECT, "`model` must be a BayesianModel, got"),
            *bad(name, guide(make), "init", {"a class": pb.NetworkInit, "text": "a"}, "`init` must be an Init"),
        ]
    ],
    *bad("auto_guide", lambda w, kind: pb.auto_guide(kind, w.model), "kind", {"text": "a"}, "`kind` must be one of"),
]

MIXTURES = [
    *bad(
        "ScaleMixtureNormal",
        plain(distributions.ScaleMixtureNormal, mixing=0.5, scale1=1.0, scale2=0.1, validate_args=True),
        "scale1",
        {"None": None, "text": "a", "NaN": float("nan"), "zero": 0.0},
        "`scale1` must",
    ),
    *bad(
        "NormalMixture",
        lambda w, loc: distributions.NormalMixture(torch.zeros(2, 3), loc, torch.ones(2, 3), validate_args=True),
        "loc",
        {"None": None, "text": "a", "wide": Late(lambda w: torch.zeros(2, 4)), "NaN": NAN_ROWS["NaN"]},
        "`loc`",
    ),
]

ROWS = [*MODEL, *PRIORS, *LIKELIHOODS, *NETS, *INITS, *MAPS, *KL, *GUIDES, *MIXTURES]
