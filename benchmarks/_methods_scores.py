"""What `benchmarks.methods` measures of a posterior: quality, calibration, unknown and corrupted images."""

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pyro_bnn as pb
from pyro_bnn import metrics
from pyro_bnn.data import load_images

from ._images import CORRUPTIONS, quality
from ._methods import Fit
from ._results import Row

STRENGTHS = (1, 2, 3, 4, 5)
NUM_ASIDE = 10_000


@dataclass(frozen=True)
class Pictures:
    """Images to train on and to measure on, shape (N, 28, 28), and their labels."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    unknown: Tensor | None  # images of another data set; None in a validation
    num_corrupted: int  # number of test images, from the first, that are corrupted


def load(root: Path | None, *, is_validation: bool, num_train: int | None, num_test: int | None) -> Pictures:
    """FashionMNIST and MNIST; for validation the same 10,000 training images replace FashionMNIST's test images."""
    images = load_images("fashion-mnist", root=root)
    order = torch.randperm(len(images.x_train), generator=torch.Generator().manual_seed(0))
    aside, kept = order[:NUM_ASIDE], order[NUM_ASIDE:] if is_validation else order
    kept = kept[:num_train].sort().values
    x, y = images.x_train[kept], images.y_train[kept]
    test = (images.x_train[aside], images.y_train[aside]) if is_validation else (images.x_test, images.y_test)
    unknown = None if is_validation else load_images("mnist", root=root).x_test[:num_test]
    return Pictures(x, y, test[0][:num_test], test[1][:num_test], unknown, num_corrupted=1000)


def evaluate(fit: Fit, pictures: Pictures, key: Row) -> dict[str, Any]:
    """All scores of a posterior, from one set of draws."""
    predict = functools.partial(pb.predict, fit.model, fit.posterior, num_samples=fit.num_samples, seed=key["seed"])
    y = pictures.y_test
    begin = time.process_time()
    known = predict(pictures.x_test)
    seconds = time.process_time() - begin
    scores: dict[str, Any] = {
        **quality(known.probs, y),
        "predict_seconds": seconds * 10_000 / len(y),
        "num_draws": fit.num_samples,
    }
    if pictures.unknown is None:
        return scores
    unknown = predict(pictures.unknown)
    scores["auroc_entropy"] = metrics.ood_scores(known.total, unknown.total).auroc
    if fit.num_samples > 1:  # a single network has no disagreement to score
        scores["auroc_mutual_information"] = metrics.ood_scores(known.epistemic, unknown.epistemic).auroc
    clean, y = pictures.x_test[: pictures.num_corrupted], y[: pictures.num_corrupted]
    scores["corrupted"] = {
        name: [quality(predict(corrupt(clean, strength)).probs, y) for strength in STRENGTHS]
        for name, corrupt in CORRUPTIONS.items()
    }
    return scores
