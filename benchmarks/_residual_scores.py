"""What `benchmarks.cifar` measures of a posterior: quality, calibration, unknown and corrupted images, batch norm."""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import pyro_bnn as pb
from pyro_bnn import metrics
from pyro_bnn.scores.uncertainty import ClassificationPrediction

from ._images import CORRUPTIONS, quality
from ._residual import BATCH_SIZE, Pictures, Problem, Setting, augmented, pixels

STRENGTHS = (1, 3, 5)
NUM_CORRUPTED = 500
"""Number of images that are corrupted, evenly spaced in the file."""

NUM_REFRESHING = 2000
"""Number of augmented training images from which statistics of batch normalisation are computed."""

NUM_COMPARED = 1000
"""Number of images on which statistics of batch normalisation are compared, evenly spaced in the file."""


def evaluate(
    posterior: pb.Posterior, setting: Setting, problem: Problem, images: Pictures, *, num_samples: int, seed: int
) -> dict[str, Any]:
    """All scores of an ensemble of draws; a point estimate has one draw.

    Draws of SWAG (as in its article) and of refreshed posteriors have their own statistics of batch normalisation; all
    others use the statistics of the fit.
    """
    draws = 1 if setting.is_point else num_samples
    found: dict[str, Any] = {"num_samples": draws}
    if setting.method in ("natural", "swag"):
        found["statistics"] = statistics(posterior, setting, problem, images, draws, seed)
    begin = time.process_time()
    if setting.method in ("swag", "refreshed"):
        posterior = refreshed(posterior, setting, problem, images, draws, seed)
    predict = functools.partial(_predict, posterior, problem, draws, seed)
    known = predict(images.x_test)
    found["cpu_seconds"] = time.process_time() - begin
    y = images.y_test
    found |= quality(known.probs.cpu(), y)
    if images.unknown is not None:
        unknown = predict(images.unknown)
        found["auroc_entropy"] = metrics.ood_scores(known.total, unknown.total).auroc
        if draws > 1:  # a single network has no disagreement to score
            found["auroc_mutual_information"] = metrics.ood_scores(known.epistemic, unknown.epistemic).auroc
    found["corrupted"] = under_corruption(predict, images)
    return found


def under_corruption(
    predict: Callable[[Tensor], ClassificationPrediction], images: Pictures
) -> dict[str, list[dict[str, float]]]:
    """Quality on some test images, for each kind and strength of corruption."""
    rows = spread(len(images.x_test), NUM_CORRUPTED)
    clean, y = images.x_test[rows].float() / 255, images.y_test[rows]

    def under(corrupt: Callable[[Tensor, int], Tensor], strength: int) -> dict[str, float]:
        return quality(predict((corrupt(clean, strength) * 255).round().byte()).probs.cpu(), y)

    return {name: [under(corrupt, s) for s in STRENGTHS] for name, corrupt in CORRUPTIONS.items()}


def spread(num_rows: int, count: int) -> Tensor:
    """Indices of at most `count` evenly spaced rows; the first rows of a file may all be of one class."""
    return torch.arange(min(count, num_rows)) * num_rows // min(count, num_rows)


def _predict(
    posterior: pb.Posterior, problem: Problem, num_samples: int, seed: int, x: Tensor
) -> ClassificationPrediction:
    inputs = problem.inputs(x)
    return pb.predict(problem.model, posterior, inputs, num_samples=num_samples, batch_size=BATCH_SIZE, seed=seed)


def refreshed(
    posterior: pb.Posterior, setting: Setting, problem: Problem, images: Pictures, num_samples: int, seed: int
) -> pb.StoredPosterior:
    """Draws, each with its own statistics of batch normalisation."""
    x = _seen(setting, images, seed).to(problem.model.device)
    each = pb.RefreshedPosterior(problem.model, posterior, x, batch_size=setting.batch_size)
    return pb.StoredPosterior.of(each, num_samples, seed=seed)


def _seen(setting: Setting, images: Pictures, seed: int) -> Tensor:
    """Training images as a fit sees them."""
    found, count = [], 0
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for x, _ in augmented(images, setting, seed, images.x_train.device):
            found.append(x)
            count += len(x)
            if count >= NUM_REFRESHING:
                break
    return torch.cat(found)[:NUM_REFRESHING]


def statistics(
    posterior: pb.Posterior, setting: Setting, problem: Problem, images: Pictures, num_samples: int, seed: int
) -> dict[str, dict[str, float]]:
    """Scores with statistics of the fit, of the mean weights, averaged over draws, and of each draw."""
    rows = spread(len(images.x_test), NUM_COMPARED)
    x, y = images.x_test[rows], images.y_test[rows]
    model = problem.model
    own = {name: value.clone() for name, value in model.network.state_dict().items()}
    seen = _seen(setting, images, seed).to(model.device)
    refresh = functools.partial(pb.refresh_batch_norm, model, x=seen, batch_size=setting.batch_size, seed=seed)
    assert isinstance(posterior, pb.GuidePosterior)
    sources = {"mean weights": posterior.median(), "mean over draws": posterior}

    def scores(posterior: pb.Posterior) -> dict[str, float]:
        return quality(_predict(posterior, problem, num_samples, seed, x).probs.cpu(), y)

    found = {"fit": scores(posterior)}
    for name, source in sources.items():
        refresh(source)
        found[name] = scores(posterior)
    model.network.load_state_dict(own)
    found["each draw"] = scores(refreshed(posterior, setting, problem, images, num_samples, seed))
    point = pb.predict_point(model, posterior.median(), pixels(x).to(model.device))
    return {**found, "fit, mean weights alone": quality(point.probs.cpu(), y)}
