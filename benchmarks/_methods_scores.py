"""What `benchmarks.methods` measures of a posterior: quality, calibration, unknown and corrupted images."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

import pyro_bnn as pb
from pyro_bnn import metrics
from pyro_bnn.data import load_images
from pyro_bnn.scores.uncertainty import ClassAccumulator, ClassificationPrediction

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
    is_mirrored: bool = False  # whether a draw predicts the mean over an image and its mirror image


def load(
    root: Path | None, *, is_validation: bool, num_train: int | None, num_test: int | None, is_mirrored: bool = False
) -> Pictures:
    """FashionMNIST and MNIST; for validation the same 10,000 training images replace FashionMNIST's test images."""
    images = load_images("fashion-mnist", root=root)
    order = torch.randperm(len(images.x_train), generator=torch.Generator().manual_seed(0))
    aside, kept = order[:NUM_ASIDE], order[NUM_ASIDE:] if is_validation else order
    kept = kept[:num_train].sort().values
    x, y = images.x_train[kept], images.y_train[kept]
    test = (images.x_train[aside], images.y_train[aside]) if is_validation else (images.x_test, images.y_test)
    unknown = None if is_validation else load_images("mnist", root=root).x_test[:num_test]
    x_test, y_test = (part[:num_test] for part in test)
    return Pictures(x, y, x_test, y_test, unknown, num_corrupted=1000, is_mirrored=is_mirrored)


def mean_of_views(views: Sequence[ClassificationPrediction]) -> ClassificationPrediction:
    """The prediction whose draws are the mean probabilities over views; each view has its draws."""
    if len(views) == 1:
        return views[0]
    log_probs = torch.stack([view.logits for view in views]).logsumexp(0) - math.log(len(views))
    mean = ClassAccumulator()
    mean.add_draws(Categorical(logits=log_probs, validate_args=False), keep=False)
    return mean.prediction(None)


def evaluate(fit: Fit, pictures: Pictures, key: Row) -> dict[str, Any]:
    """All scores of a posterior, from one set of draws."""
    options = {"num_samples": fit.num_samples, "keep_draws": pictures.is_mirrored, "seed": key["seed"]}
    y = pictures.y_test.to(fit.model.device)

    def views_of(x: Tensor) -> list[ClassificationPrediction]:
        x = x.to(fit.model.device)
        views = [x, x.flip(-1)] if pictures.is_mirrored else [x]
        return [pb.predict(fit.model, fit.posterior, view, **options) for view in views]

    begin = time.process_time()
    views = views_of(pictures.x_test)
    known = mean_of_views(views)
    seconds = time.process_time() - begin
    scores: dict[str, Any] = {
        **quality(known.probs, y),
        "predict_seconds": seconds * 10_000 / len(y),
        "num_draws": fit.num_samples,
    }
    if pictures.is_mirrored:
        scores["one_view"] = quality(views[0].probs, y)
    if pictures.unknown is None:
        return scores
    unknown = mean_of_views(views_of(pictures.unknown))
    scores["auroc_entropy"] = metrics.ood_scores(known.total, unknown.total).auroc
    if fit.num_samples > 1:  # a single network has no disagreement to score
        scores["auroc_mutual_information"] = metrics.ood_scores(known.epistemic, unknown.epistemic).auroc
    clean, y = pictures.x_test[: pictures.num_corrupted], y[: pictures.num_corrupted]
    scores["corrupted"] = {
        name: [quality(mean_of_views(views_of(corrupt(clean, strength))).probs, y) for strength in STRENGTHS]
        for name, corrupt in CORRUPTIONS.items()
    }
    return scores
