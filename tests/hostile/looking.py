"""Bad arguments of functions that show results: a model's methods, predictions, and pictures."""

import torch

import pyro_bnn as pb
from pyro_bnn import plotting, pruning
from pyro_bnn.inference.history import History

from .table import (
    NAN_ROWS,
    NO_VALUES,
    NOT_A_COUNT,
    NOT_A_NUMBER,
    NOT_A_TENSOR,
    NOT_AN_OBJECT,
    NOT_FINITE,
    NOT_POSITIVE,
    Late,
    bad,
    plain,
    unseen,
    without,
)

NO_FOLDER = {"in no folder": "/nonexistent/picture.png"}
NOT_ROWS = {
    "None": None,
    "a fraction": 0.5,
    "a list of text": ["a"],
    "backwards": slice(None, None, -1),
    "of text": slice("a", "b"),
    "without a step": slice(0, 2, 0),
    "beyond the end": Late(lambda w: torch.tensor([7])),
    "a short mask": Late(lambda w: torch.ones(5, dtype=torch.bool)),
    "fractions": Late(lambda w: torch.tensor([1.0])),
    "meta": Late(lambda w: torch.ones(6, dtype=torch.bool, device="meta")),
}
NOT_LEVELS = {
    "None": None,
    "text": "a",
    "True": True,
    "zero": 0.0,
    "one": 1.0,
    "NaN": float("nan"),
    "a list of texts": ["a"],
    "a list with None": [0.5, None],
    "empty": [],
}
NOT_A_NAME = {"None": None, "a number": 3, "another site": "net.9.weight"}
Y = {**NOT_A_TENSOR, **NO_VALUES, **NAN_ROWS}


def bands(w, **arguments):
    x, prediction = w.grid
    return plotting.regression_bands(**{"x": x, "prediction": prediction, **arguments})


def votes(w, **arguments):
    options = {"images": torch.ones(2, 4, 4), "votes": torch.ones(2, 3), "classes": "abc"}
    return plotting.vote_histograms(**{**options, **arguments})


MODEL = [
    *bad(
        "prior_of", lambda w, name: w.model.prior_of(name), "name", NOT_A_NAME, "`name` must be a site of the network"
    ),
    *bad(
        "parents_of",
        lambda w, name: w.model.parents_of(name),
        "name",
        NOT_A_NAME,
        "`name` must be a site of the network",
    ),
    *bad("initial_value", lambda w, name: w.model.initial_value(name), "name", NOT_A_NAME, "`name` must be a site"),
    *bad("check_latents", lambda w, values: w.model.check_latents(values), "values", NOT_AN_OBJECT, "`values`|lacks"),
    *bad(
        "network_weights", lambda w, values: w.model.network_weights(values), "values", NOT_AN_OBJECT, "`values` must"
    ),
    *bad(
        "log_likelihood",
        lambda w, values: w.model.log_likelihood(values, w.x, w.y),
        "values",
        NOT_AN_OBJECT,
        "`values` must",
    ),
    *bad(
        "model()",
        unseen(lambda w, y: w.model(w.x, y)),
        "y",  # a Pyro model draws its weights first
        {**NOT_A_TENSOR, "sparse": NO_VALUES["sparse"]},
        "`y` must be",
    ),
]

PREDICTIONS = [
    *[
        row
        for kind in ("numbers", "classes")
        for row in [
            *bad(
                kind,
                lambda w, rows, k=kind: getattr(w, k)[rows],
                "rows",
                NOT_ROWS,
                "rows of a prediction are chosen with",
            ),
            *bad(kind, lambda w, y, k=kind: getattr(w, k).score(y), "y", Y, "`y`|same shape as the targets"),
        ]
    ],
    *bad("quantile", lambda w, q: w.numbers.quantile(q), "q", NOT_LEVELS, "`q` must be a probability strictly between"),
    *bad("quantile", lambda w, q: w.numbers.quantile(q), "q", {"meta": NO_VALUES["meta"]}, "`q` must have values"),
    *[
        row
        for method in ("crps", "log_prob", "cdf")
        for row in bad(method, lambda w, y, m=method: getattr(w.numbers, m)(y), "y", {"None": None, **Y}, "`y`")
    ],
    *bad(
        "prediction.sample", lambda w, n: w.numbers.sample(n), "n", NOT_A_COUNT, "`num_samples` must be a whole number"
    ),
]

PICTURES = [
    *bad(
        "new_axes",
        plain(plotting.new_axes, columns=1, size=(2, 2)),
        "rows",
        NOT_A_COUNT,
        "`rows` must be a whole number",
    ),
    *bad(
        "new_axes",
        plain(plotting.new_axes, rows=1, columns=1),
        "size",
        {"None": None, "a number": 3, "three numbers": (1, 2, 3), "a zero": (0, 1), "text": ("wide", 1)},
        "`size` must be|`width` must be",
    ),
    *bad("save", plain(plotting.save, path="picture.png"), "ax", NOT_AN_OBJECT, "`ax` must be axes"),
    *bad(
        "save",
        lambda w, path: plotting.save(plotting.new_axes(1, 1, size=(2, 2))[0, 0], path),
        "path",
        {"None": None, "a number": 3, "empty": "", "of another kind": "picture.zzz", "without an ending": "picture"},
        "`path` must",
    ),
    *(
        row
        for name, write in {
            "save": lambda w, path: plotting.save(plotting.new_axes(1, 1, size=(2, 2))[0, 0], path),
            "save_posterior": lambda w, path: pb.save_posterior(w.posterior, path, w.model),
        }.items()
        for row in [
            *bad(name, write, "path", NO_FOLDER, "must lie in an existing folder, got .*; make", FileNotFoundError),
            *bad(name, write, "path", {"a folder": "/tmp"}, "must be a file, got the folder /tmp", IsADirectoryError),
        ]
    ),
    *bad("loss_curves", plain(plotting.loss_curves), "history", NOT_AN_OBJECT, "`history` must be a History"),
    *bad("loss_curves", plain(plotting.loss_curves), "history", {"empty": History()}, "at least one epoch, got none"),
    *bad(
        "accuracy_curves", plain(plotting.accuracy_curves, test=[0.1]), "train", NOT_AN_OBJECT, "`train` must be a list"
    ),
    *bad("comparison", plain(plotting.comparison), "result", NOT_AN_OBJECT, "`result` must be a Comparison"),
    *bad("regression_bands", bands, "x", {**NOT_A_TENSOR, **NO_VALUES, "wide": Late(lambda w: w.x)}, "`x` must"),
    *bad("regression_bands", bands, "prediction", NOT_AN_OBJECT, "`prediction` must be a prediction of numbers"),
    *bad(
        "regression_bands",
        bands,
        "prediction",
        {"of classes": Late(lambda w: w.classes)},
        "must be a prediction of numbers",
    ),
    *bad(
        "regression_bands", bands, "prediction", {"of two": Late(lambda w: w.numbers)}, "one number for each row, got"
    ),
    *bad(
        "regression_bands",
        bands,
        "data",
        {"a number": 3, "one tensor": Late(lambda w: (w.x,))},
        "`data` must be a pair",
    ),
    *bad("regression_bands", bands, "num_scales", NOT_POSITIVE, "above 0, got"),
    *bad("regression_bands", bands, "ax", without(NOT_AN_OBJECT, "None"), "`ax` must be axes of matplotlib"),
    *bad(
        "detection_curves",
        lambda w, scores: plotting.detection_curves({"s": scores}, {"s": torch.arange(5.0)}),
        "scores",
        {**NOT_A_TENSOR, **NAN_ROWS, "empty": Late(lambda w: torch.zeros(0)), "a matrix": Late(lambda w: w.x)},
        "`known` must",
    ),
    *bad(
        "detection_curves",
        lambda w, known: plotting.detection_curves(known, {"s": torch.arange(5.0)}),
        "known",
        {**NOT_AN_OBJECT, "other": {"t": torch.arange(5.0)}, "empty": {}},
        "`known` and `unknown` must|`known` must",
    ),
    *bad(
        "regression_bands",
        bands,
        "width",
        {"None": None, "a number": 3, "text": "wide"},
        "`width` must be 'column' or 'page'",
    ),
    *bad(
        "vote_histograms",
        votes,
        "images",
        {**NOT_A_TENSOR, "three": Late(lambda w: torch.ones(3, 4, 4))},
        "`images` must",
    ),
    *bad("vote_histograms", votes, "classes", {"None": None, "two names": "ab", "empty": []}, "classes"),
    *bad("vote_histograms", votes, "titles", {"None": None, "one": ["a"]}, "`titles` must be"),
    *bad("plot snr", plain(plotting.signal_to_noise), "ratios", NOT_AN_OBJECT, "`ratios` must"),
    *bad("pruning_curve", plain(plotting.pruning_curve), "report", NOT_AN_OBJECT, "`report` must be a PruningReport"),
    *bad(
        "weight_density",
        plain(plotting.weight_density, scale=1.0),
        "loc",
        {**NOT_A_NUMBER, **NOT_FINITE},
        "finite number",
    ),
    *bad(
        "weight_density", plain(plotting.weight_density, loc=0.0), "scale", NOT_POSITIVE, "finite number above 0, got"
    ),
    *bad(
        "weight_histograms",
        lambda w, scales: plotting.weight_histograms(w.guide.locations(), scales),
        "scales",
        NOT_AN_OBJECT,
        "`scales` must",
    ),
    *bad("signal_to_noise", plain(pruning.signal_to_noise), "guide", NOT_AN_OBJECT, "`guide` must be a MeanFieldGuide"),
]

ROWS = [*MODEL, *PREDICTIONS, *PICTURES]
