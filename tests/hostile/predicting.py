"""Bad arguments of posteriors, predictions, comparisons and pruning."""

import torch

import pyro_bnn as pb
from pyro_bnn import pruning, uncertainty

from .table import (
    NAN_ROWS,
    NO_VALUES,
    NOT_A_COUNT,
    NOT_A_FLAG,
    NOT_A_NUMBER,
    NOT_A_SEED,
    NOT_A_TENSOR,
    NOT_AN_OBJECT,
    NOT_FINITE,
    Late,
    bad,
    plain,
    unseen,
    without,
)

SEED = "`seed` must be a whole number from 0"
SAMPLES = "`num_samples` must be a whole number of at least"
OTHER_X = {
    **NO_VALUES,
    **NAN_ROWS,
    "one number": Late(lambda w: torch.tensor(1.0)),
    "narrow": Late(lambda w: w.y),
    "empty": Late(lambda w: w.x[:0]),
    "half precision": Late(lambda w: w.x.half()),
}
OTHER_Y = {
    "text": "a",
    "a number": 3,
    **NO_VALUES,
    **NAN_ROWS,
    "one number": Late(lambda w: torch.tensor(1.0)),
    "short": Late(lambda w: w.y[:3]),
    "of integers": Late(lambda w: w.y.long()),
    "complex": Late(lambda w: w.y.to(torch.complex128)),
}
OTHER_LABELS = {
    "too large": Late(lambda w: w.labels + 1),
    "negative": Late(lambda w: -w.labels),
    "floating point": Late(lambda w: w.labels.double()),
    "boolean": Late(lambda w: w.labels > 0),
}
OTHER_VALUES = {
    "without tensors": Late(lambda w: w.values(lambda value: None)),
    "with an axis": Late(lambda w: w.values(lambda value: value[None])),
    "NaN": Late(lambda w: w.values(lambda value: value * float("nan"))),
    "meta": Late(lambda w: w.values(lambda value: value.to("meta"))),
}


def predict(w, **arguments):
    return pb.predict(
        **{"model": w.model, "posterior": w.posterior, "x": w.x, "num_samples": 2, "seed": 0, **arguments}
    )


@unseen
def point(w, **arguments):
    """A call without a seed: it draws one from torch's generator before it checks x."""
    return pb.predict_point(**{"model": w.model, "values": w.guide.median(), "x": w.x, **arguments})


def compare(w, **arguments):
    both = {"a": w.posterior, "b": w.posterior}
    return pb.compare(**{"model": w.model, "posteriors": both, "x": w.x, "num_samples": 40, "seed": 0, **arguments})


def prune(w, **arguments):
    return pruning.prune(**{"guide": w.guide, "fraction": 0.5, **arguments})


def report(w, **arguments):
    options = {"model": w.model, "guide": w.guide, "x": w.x, "y": w.y, "fractions": [0.5], "num_samples": 2}
    return pruning.snr_report(**{**options, **arguments})


def sparse(w, **arguments):
    return pruning.sparse_network(**{"model": w.model, "values": w.guide.median(), **arguments})


POSTERIORS = [
    *bad(
        "GuidePosterior", plain(pb.GuidePosterior), "guide", NOT_AN_OBJECT, "the guide of a posterior must be .*, got"
    ),
    *bad(
        "GuidePosterior",
        plain(pb.GuidePosterior),
        "guide",
        {"a model": Late(lambda w: w.model)},
        "got a model, which draws",
    ),
    *bad(
        "GuidePosterior",
        lambda w, status: pb.GuidePosterior(w.guide, status),
        "status",
        {"text": "a"},
        "must be a Status",
    ),
    *bad("sample", lambda w, num_samples: w.posterior.sample(num_samples), "num_samples", NOT_A_COUNT, SAMPLES),
    *bad("sample", lambda w, seed: w.posterior.sample(2, seed=seed), "seed", NOT_A_SEED, SEED),
    *bad("moments", lambda w, seed: w.laplace.moments(seed=seed), "seed", NOT_A_SEED, SEED),
    *bad("draws", lambda w, num_samples: list(w.guide.draws(num_samples)), "num_samples", NOT_A_COUNT, SAMPLES),
    *bad("Laplace", lambda w, num_samples: list(w.laplace.draws(num_samples)), "num_samples", NOT_A_COUNT, SAMPLES),
    *bad("EnsemblePosterior", plain(pb.EnsemblePosterior), "members", NOT_AN_OBJECT, "`members` must"),
    *bad(
        "EnsemblePosterior",
        plain(pb.EnsemblePosterior),
        "members",
        {"a posterior": Late(lambda w: w.posterior), "a list of guides": Late(lambda w: [w.guide]), "a list": []},
        "`members` must",
    ),
    *bad(
        "EnsemblePosterior",
        lambda w, num_samples: list(pb.EnsemblePosterior([w.posterior] * 2).draws(num_samples)),
        "num_samples",
        NOT_A_COUNT,
        SAMPLES,
    ),
    *bad(
        "MCMCPosterior",
        lambda w, chains: pb.MCMCPosterior(chains, None, None, sampler="NUTS"),
        "chains",
        {**NOT_AN_OBJECT, "flat": Late(lambda w: {"a": torch.zeros(2)}), "without draws": {"a": None}},
        "`chains",
    ),
]

PREDICT = [
    *bad("predict", predict, "model", NOT_AN_OBJECT, "`model` must be a BayesianModel, got"),
    *bad("predict", predict, "posterior", NOT_AN_OBJECT, "(`posterior`|the guide of a posterior) must be .*, got"),
    *bad(
        "predict", predict, "posterior", {"of another model": Late(lambda w: w.class_guide)}, "belongs to another model"
    ),
    *bad("predict", predict, "posterior", {"with other sites": Late(lambda w: w.other_guide)}, "the posterior lacks"),
    *bad("predict", predict, "x", {"None": None, "a number": 3, **OTHER_X}, "`x`"),
    *bad("predict", predict, "y", OTHER_Y, "`y`|targets"),
    *bad("predict", predict, "num_samples", without(NOT_A_COUNT, "None"), SAMPLES),
    *bad("predict", predict, "batch_size", without(NOT_A_COUNT, "None"), "`batch_size` must be a whole number"),
    *bad("predict", predict, "seed", NOT_A_SEED, SEED),
    *bad("predict", predict, "keep_draws", without(NOT_A_FLAG, "None"), "`keep_draws` must be True or False, got"),
    *bad(
        "predict classes",
        lambda w, y: pb.predict(w.classifier, w.class_guide, w.x, y=y, num_samples=2, seed=0),
        "y",
        OTHER_LABELS,
        "class labels must",
    ),
    *bad(
        "predict_point", point, "values", without(NOT_AN_OBJECT, "a dict"), "`values` must be a dict of values by site"
    ),
    *bad("predict_point", point, "values", {"empty": {}}, "the posterior lacks the latent variables"),
    *bad("predict_point", point, "values", OTHER_VALUES, "values|the posterior's"),
    *bad("predict_point", point, "x", OTHER_X, "`x`"),
]

COMPARE = [
    *bad("compare", compare, "posteriors", without(NOT_AN_OBJECT, "a dict"), "`posteriors` must be a dict"),
    *bad(
        "compare", compare, "posteriors", {"a list": Late(lambda w: [w.posterior] * 2)}, "`posteriors` must be a dict"
    ),
    *bad("compare", compare, "posteriors", {"one method": Late(lambda w: {"a": w.guide})}, "at least two methods"),
    *bad(
        "compare",
        compare,
        "posteriors",
        {"by number": Late(lambda w: {1: w.guide, 2: w.guide})},
        "whose keys are names",
    ),
    *bad(
        "compare",
        compare,
        "posteriors",
        {"with None": Late(lambda w: {"a": w.guide, "b": None})},
        "must be a posterior",
    ),
    *bad("compare", compare, "model", NOT_AN_OBJECT, "must be a BayesianModel"),
    *bad("compare", compare, "x", {"None": None, "a number": 3, **OTHER_X}, "`x`"),
    *bad("compare", compare, "y", OTHER_Y, "`y`|targets"),
    *bad("compare", compare, "seed", NOT_A_SEED, SEED),
    *bad("compare", compare, "num_samples", {**NOT_A_COUNT, "too few": 39}, "`num_samples` must be a whole number"),
    *bad("compare", compare, "regions", {"a list": [1], "text": "a", "a number": 3}, "`regions` must be a dict"),
    *bad("compare", compare, "regions", {"without a mask": {"a": None}, "meta": {"a": 3}}, r"`regions\['a'\]` must be"),
]

PRUNING = [
    *bad("prune", prune, "guide", NOT_AN_OBJECT, "`guide` must be a MeanFieldGuide"),
    *bad("prune", prune, "fraction", {**NOT_A_NUMBER, **NOT_FINITE, "minus one": -1, "two": 2}, "`fraction`"),
    *bad("prune", prune, "where", {"None": None, "a number": 3, "a list of numbers": [3]}, "`where` must be a glob"),
    *bad("prune", prune, "where", {"another name": "zzz"}, "`where` glob .* matches none"),
    *bad("prune", prune, "per", NOT_A_FLAG, "`per` must be one of 'network', 'layer', got"),
    *bad("decibel", plain(pruning.decibel), "ratio", {**NOT_A_TENSOR, **NO_VALUES}, "`ratio` must"),
    *bad(
        "decibel", plain(pruning.decibel), "ratio", {"negative": Late(lambda w: -torch.ones(2))}, "at least 0, got -1"
    ),
    *bad("snr_report", report, "fractions", {"None": None, "text": "a", "a number": 3}, "`fractions` must be a list"),
    *bad(
        "snr_report",
        report,
        "fractions",
        {"with text": ["a"], "with None": [None], "NaN": [float("nan")]},
        "finite number",
    ),
    *bad("snr_report", report, "x", {"None": None, "one number": OTHER_X["one number"], **NO_VALUES}, "`x` must"),
    *bad("sparse_network", sparse, "model", NOT_AN_OBJECT, "`model` must be a BayesianModel"),
    *bad("sparse_network", sparse, "values", {"None": None, "empty": {}, **OTHER_VALUES}, "`values"),
    *bad(
        "sparse_network",
        sparse,
        "max_density",
        {**without(NOT_A_NUMBER, "None"), **NOT_FINITE, "two": 2},
        "`max_density` must lie",
    ),
    *bad(
        "SparseLinear",
        lambda w, weight: pruning.SparseLinear(weight, None),
        "weight",
        {**NOT_A_TENSOR, **NO_VALUES, **NAN_ROWS, "of integers": Late(lambda w: w.labels)},
        "`weight` must",
    ),
    *bad(
        "SparseLinear",
        lambda w, bias: pruning.SparseLinear(torch.eye(3), bias),
        "bias",
        {**NOT_A_TENSOR, **NO_VALUES, "long": Late(lambda w: torch.ones(4))},
        "`bias` must",
    ),
]

ENTROPIES = [
    row
    for function in (uncertainty.expected_entropy, uncertainty.predictive_entropy, uncertainty.mutual_information)
    for row in bad(
        function.__name__,
        plain(function),
        "logits",
        {**NOT_A_TENSOR, **NO_VALUES, "NaN": NAN_ROWS["NaN"], "empty": Late(lambda w: torch.zeros(2, 0, 3))},
        "`logits` must",
    )
]

ROWS = [*POSTERIORS, *PREDICT, *COMPARE, *PRUNING, *ENTROPIES]
