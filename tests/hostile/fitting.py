"""Bad arguments of fits, steps and samplers."""

import functools

import pyro
import torch
from torch import nn

import pyro_bnn as pb

from .table import (
    NO_VALUES,
    NOT_A_COUNT,
    NOT_A_FLAG,
    NOT_A_NUMBER,
    NOT_A_SEED,
    NOT_AN_OBJECT,
    NOT_FINITE,
    Late,
    bad,
    plain,
    without,
)

ADAM = functools.partial(torch.optim.Adam, lr=0.01)
SEED = "`seed` must be a whole number from 0"
DTYPES = {"text": "float64", "a number": 3, "half": torch.float16, "integers": torch.int64, "a class": int}
NOT_A_WEIGHT = {
    **NOT_A_NUMBER,
    **NOT_FINITE,
    "minus one": -1,
    "of nothing": lambda *_: None,
    "of NaN": lambda *_: float("nan"),
}
NOT_A_MAKER = {
    **NOT_AN_OBJECT,
    "made by nobody": lambda parameters: None,
    "a pair of numbers": lambda parameters: (1, 2),
    "of Pyro": Late(lambda w: pyro.optim.Adam({})),
}


def fit(w, **arguments):
    options = {"model": w.model, "guide": w.guide, "data": (w.x, w.y), "optimizer": ADAM, "num_epochs": 1, "seed": 0}
    return pb.fit_svi(**{**options, **arguments})


def step(w, x=None, y=None, kl=None, **arguments):
    with pb.svi_step(**{"model": w.model, "guide": w.guide, "optimizer": ADAM, **arguments}) as made:
        return made(w.x if x is None else x, w.y if y is None else y, kl_weight=kl)


def nuts(w, **arguments):
    pair = arguments.pop("x", w.x), arguments.pop("y", w.y)
    options = {"model": w.model, "data": pair, "num_samples": 4, "num_warmup": 4, "num_chains": 1, "seed": 0}
    return pb.fit_nuts(**{**options, **arguments})


def laplace(w, **arguments):
    data = (arguments.pop("x", w.x), arguments.pop("y", w.y))
    return pb.fit_laplace(**{"model": w.model, "data": data, "seed": 0, **arguments})


BATCH = {**NO_VALUES, "one number": Late(lambda w: torch.tensor(1.0)), "empty": Late(lambda w: w.x[:0])}

SVI = [
    *bad("fit_svi", fit, "model", without(NOT_AN_OBJECT, "a class"), "`model` must be a module or a function, got"),
    *bad("fit_svi", fit, "model", {"a guide": Late(lambda w: w.guide)}, "must be different modules|got the guide"),
    *bad(
        "fit_svi",
        fit,
        "guide",
        without(NOT_AN_OBJECT, "None"),
        "`guide` must be (a module or a function|an instance), got",
    ),
    *bad(
        "fit_svi",
        fit,
        "guide",
        {"a model": Late(lambda w: w.classifier)},
        "`guide` must be a guide, got a BayesianModel",
    ),
    *bad("fit_svi", fit, "guide", {"a network": Late(lambda w: nn.Linear(2, 2))}, "must be a Pyro guide that takes"),
    *bad(
        "fit_svi", fit, "guide", {"with other sites": Late(lambda w: w.other_guide)}, "made for another model: it lacks"
    ),
    *bad("fit_svi", fit, "optimizer", NOT_A_MAKER, "`optimizer` must make a torch optimizer from parameters"),
    *bad("fit_svi", fit, "optimizer", {"LBFGS": torch.optim.LBFGS}, "must work with noisy gradients, got LBFGS"),
    *bad(
        "fit_svi",
        fit,
        "optimizer",
        {"SparseAdam": torch.optim.SparseAdam},
        "must work with the dense gradients of the KL, got SparseAdam",
    ),
    *bad(
        "fit_svi",
        fit,
        "optimizer",
        {"of others": lambda parameters: torch.optim.Adam([nn.Parameter(torch.zeros(2))])},
        "parameters of the guide or the model only, got 1 of 1 foreign",
    ),
    *bad(
        "fit_svi",
        fit,
        "optimizer",
        {"of one parameter": lambda parameters: torch.optim.Adam(parameters[:1])},
        "must have all parameters of guide and model, got 1 of 4",
        UserWarning,
    ),
    *bad("fit_svi", fit, "num_epochs", without(NOT_A_COUNT, "None"), "`num_epochs` must be a whole number"),
    *bad("fit_svi", fit, "batch_size", without(NOT_A_COUNT, "None"), "`batch_size` must be a whole number"),
    *bad(
        "fit_svi",
        fit,
        "elbo",
        {"a class": pyro.infer.Trace_ELBO, "text": "a", "a number": 3},
        "`elbo` must be an instance",
    ),
    *bad(
        "fit_svi",
        fit,
        "estimator",
        {"a class": pb.Flipout, "text": "a", "a number": 3},
        "`estimator` must be an Estimator",
    ),
    *bad("fit_svi", fit, "kl_weight", NOT_A_WEIGHT, "a KL weight must be a finite number of at least 0, got"),
    *bad(
        "fit_svi", fit, "callbacks", {**NOT_AN_OBJECT, "a function": print}, "`callbacks` must be a list of functions"
    ),
    *bad(
        "fit_svi", fit, "callbacks", {"of numbers": [3], "of None": [None]}, "`callbacks` must be a list of functions"
    ),
    *bad(
        "fit_svi",
        fit,
        "callbacks",
        {"of classes": [pb.interop.TensorBoard]},
        "got the class TensorBoard; pass TensorBoard",
    ),
    *bad("fit_svi", fit, "progress", without(NOT_A_FLAG, "None"), "`progress` must be True or False"),
    *bad("fit_svi", fit, "execution", {"text": "fast", "True": True, "class": pb.Execution}, "must be an Execution"),
    *bad("fit_svi", fit, "seed", NOT_A_SEED, SEED),
]

STEP = [
    *bad("svi_step", step, "optimizer", NOT_A_MAKER, "`optimizer` must make a torch optimizer"),
    *bad(
        "svi_step", step, "optimizer", {"LBFGS": Late(lambda w: torch.optim.LBFGS(w.guide.parameters()))}, "got LBFGS"
    ),
    *bad(
        "svi_step",
        step,
        "optimizer",
        {"of one parameter": Late(lambda w: torch.optim.Adam(list(w.guide.parameters())[:1]))},
        "must have all parameters of guide and model, got 1 of 4",
        UserWarning,
    ),
    *bad("svi_step", step, "kl_weight", NOT_A_WEIGHT, "a KL weight must be"),
    *bad("step", step, "kl", without(NOT_A_WEIGHT, "None"), "a KL weight must be"),
    *bad("step", step, "x", BATCH, "`x`"),
    *bad("step", step, "y", BATCH, "`y`"),
    *bad(
        "clipped",
        plain(pb.optim.clipped, max_norm=1.0),
        "optimizer",
        without(NOT_AN_OBJECT, "a class"),
        "`optimizer` must be a",
    ),
    *bad(
        "clipped",
        plain(pb.optim.clipped, optimizer=ADAM),
        "max_norm",
        {**NOT_A_NUMBER, **NOT_FINITE, "zero": 0},
        "above 0, got",
    ),
    *bad(
        "scheduled",
        plain(pb.optim.scheduled, optimizer=ADAM),
        "schedule",
        without(NOT_AN_OBJECT, "a class"),
        "`schedule` must be",
    ),
    *[
        row
        for estimator in (pb.Flipout(), pb.LocalReparameterization())
        for row in bad(
            type(estimator).__name__,
            lambda w, guide, e=estimator: e.applied(w.model, guide),
            "guide",
            {**NOT_AN_OBJECT, "of another model": Late(lambda w: w.class_guide)},
            "`guide` must be a MeanFieldGuide|made for another model",
        )
    ],
]

SAMPLERS = [
    *bad("fit_nuts", nuts, "model", NOT_AN_OBJECT, "`model` must be a"),
    *bad(
        "fit_nuts",
        nuts,
        "data",
        {
            "None": None,
            "text": "ab",
            "one tensor": Late(lambda w: w.x),
            "one part": Late(lambda w: (w.x,)),
            "three parts": Late(lambda w: (w.x, w.y, w.y)),
            "a dictionary": Late(lambda w: {"x": w.x, "y": w.y}),
            "a loader": Late(lambda w: torch.utils.data.DataLoader([(w.x[0], w.y[0])])),
        },
        r"`data` must be a pair \(x, y\) with all rows, got",
    ),
    *bad("fit_nuts", nuts, "x", {"None": None, "text": "a", **BATCH}, "`x`"),
    *bad("fit_nuts", nuts, "y", {"None": None, "text": "a", **BATCH}, "`y`"),
    *bad(
        "fit_nuts",
        nuts,
        "num_samples",
        {**NOT_A_COUNT, "three": 3},
        "`num_samples` must be a whole number of at least 4",
    ),
    *bad("fit_nuts", nuts, "num_warmup", without(NOT_A_COUNT, "zero"), "`num_warmup` must be a whole number"),
    *bad("fit_nuts", nuts, "num_chains", NOT_A_COUNT, "`num_chains` must be a whole number"),
    *bad("fit_nuts", nuts, "max_tree_depth", NOT_A_COUNT, "`max_tree_depth` must be a whole number"),
    *bad("fit_nuts", nuts, "target_accept", {**NOT_A_NUMBER, **NOT_FINITE, "one": 1}, "strictly between 0 and 1, got"),
    *bad(
        "fit_nuts",
        nuts,
        "init",
        {"text": "a", "a guide": Late(lambda w: w.guide)},
        '`init` must be "prior", an Init, a Posterior',
    ),
    *bad("fit_nuts", nuts, "dtype", DTYPES, "`dtype` must be torch.float64, torch.float32 or None"),
    *bad("fit_nuts", nuts, "compile", NOT_A_FLAG, '`compile` must be True, False or "auto"'),
    *bad("fit_nuts", nuts, "progress", without(NOT_A_FLAG, "None"), "`progress` must be True or False"),
    *bad("fit_nuts", nuts, "seed", NOT_A_SEED, SEED),
    *bad("HMC", plain(pb.HMC), "max_steps", NOT_A_COUNT, "`max_steps` must be a whole number"),
    *bad("fit_laplace", laplace, "model", NOT_AN_OBJECT, "`model` must be a BayesianModel"),
    *bad("fit_laplace", laplace, "x", {"None": None, "text": "a", **BATCH}, "`x`"),
    *bad("fit_laplace", laplace, "y", {"None": None, "text": "a", **BATCH}, "`y`"),
    *bad(
        "fit_laplace", laplace, "init", {"text": "a", "a guide": Late(lambda w: w.guide)}, "`init` must be a Posterior"
    ),
    *bad("fit_laplace", laplace, "max_iter", NOT_A_COUNT, "`max_iter` must be a whole number"),
    *bad("fit_laplace", laplace, "dtype", DTYPES, "`dtype` must be torch.float64, torch.float32 or None"),
    *bad("fit_laplace", laplace, "seed", NOT_A_SEED, SEED),
]

ROWS = [*SVI, *STEP, *SAMPLERS]
