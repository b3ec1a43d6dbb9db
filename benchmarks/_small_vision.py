"""The vision transformer of `benchmarks.small_networks`, its images and its scores."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

import pyro_bnn as pb
from pyro_bnn import metrics
from pyro_bnn.data import load_images

from ._images import quality
from ._methods import Fit, Method, Network, PointSetting
from ._methods_list import Deterministic, Ensemble, SmallEnsemble
from ._methods_posteriors import KroneckerLaplace, LastLayerLaplace, Natural, Sghmc, Swag
from ._results import Row

METHODS: tuple[type[Method], ...] = (Deterministic, Ensemble, Natural, LastLayerLaplace, KroneckerLaplace, Swag, Sghmc)

NUM_TRAIN, NUM_ASIDE, NUM_UNKNOWN = 10_000, 5_000, 1_000


class Attention(nn.Module):
    """Self-attention of the patches of an image, made of two linear layers, which can have Kronecker factors."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Patches that have looked at each other; both have shape (N, L, width)."""
        parts = self.inward(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.outward(functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, and a network for each patch; the normalisation has no weights."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width, num_heads)
        self.each = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Patches of shape (N, L, width) to the same shape."""
        x = x + self.attention(self.norm(x))
        return x + self.each(self.norm(x))


class Transformer(nn.Module):
    """Patches of 7 x 7 pixels, embedded with their places, two blocks, and the mean over the patches."""

    def __init__(self, mean: float, scale: float, width: int, num_heads: int = 4) -> None:
        super().__init__()
        self.mean, self.scale = mean, scale
        self.embed, self.place = nn.Linear(49, width), nn.Parameter(0.1 * torch.randn(16, width))
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (N, 10), of images, shape (N, 28, 28)."""
        x = (x - self.mean) / self.scale
        patches = x.unflatten(2, (4, 7)).unflatten(1, (4, 7)).transpose(2, 3).flatten(3).flatten(1, 2)  # (N, 16, 49)
        return self.head(self.norm(self.blocks(self.embed(patches) + self.place)).mean(1))


class VisionTransformer(Network):
    """The network with its prior, its budget and the settings that are compared."""

    natural_batch_size: ClassVar[int] = 128
    hessian_decay: ClassVar[float] = 0.995

    def build(self, x: Tensor, seed: int, *, dropout: float | None = None) -> nn.Module:
        """The network for inputs like x; the same seed gives the same start."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Transformer(float(x.mean()), float(x.std()), self.units)

    @property
    def last_layer(self) -> str:
        return "net.head.*"

    @property
    def factored(self) -> tuple[str, ...]:
        """All linear layers; the embeddings of the places stay at the point."""
        return ("net.embed.*", "net.blocks.**", "net.head.*")

    def grid(self, method: type[Method], point: PointSetting) -> Sequence[Method]:
        same = (point.prior_scale, point.lr)
        settings: dict[type[Method], Sequence[Method]] = {
            Deterministic: [Deterministic(scale, 3e-3) for scale in (None, 0.3, 0.1)],
            SmallEnsemble: [SmallEnsemble(*same)],
            Natural: [Natural(0.3, 0.1), Natural(0.1, 0.1)],
            Swag: [Swag(lr, point.prior_scale) for lr in (0.03, 0.1)],
            LastLayerLaplace: [LastLayerLaplace(*same, "evidence")],
            KroneckerLaplace: [KroneckerLaplace(*same, "evidence")],
            Sghmc: [Sghmc(*s) for s in ((0.03, 0.1), (0.1, 0.1))],
        }
        return settings[method]


NETWORK = VisionTransformer("vision", epochs=8, prior="normal:0.2", draws=16, units=36)


@dataclass(frozen=True)
class Pictures:
    """Images of shape (N, 28, 28) to train on and to measure on, with labels, and images of another data set."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    unknown: Tensor | None  # none in a validation


def load(root: Path | None, is_validation: bool, num_train: int | None, num_test: int | None) -> Pictures:
    """FashionMNIST and MNIST; for validation, other training images replace FashionMNIST's test images."""
    images = load_images("fashion-mnist", root=root)
    order = torch.randperm(len(images.x_train), generator=torch.Generator().manual_seed(0))
    kept, aside = order[: num_train or NUM_TRAIN], order[-NUM_ASIDE:]
    test = (images.x_train[aside], images.y_train[aside]) if is_validation else (images.x_test, images.y_test)
    unknown = (
        None if is_validation else load_images("mnist", root=root).x_test[: min(num_test or NUM_UNKNOWN, NUM_UNKNOWN)]
    )
    return Pictures(images.x_train[kept], images.y_train[kept], test[0][:num_test], test[1][:num_test], unknown)


def evaluate(fit: Fit, pictures: Pictures, key: Row) -> dict[str, Any]:
    """Scores of a posterior, from one set of draws."""
    predict = functools.partial(pb.predict, fit.model, fit.posterior, num_samples=fit.num_samples, seed=key["seed"])
    begin = time.process_time()
    known = predict(pictures.x_test)
    seconds = (time.process_time() - begin) * 10_000 / len(pictures.x_test)
    scores = {**quality(known.probs, pictures.y_test), "predict_seconds": seconds, "num_draws": fit.num_samples}
    if pictures.unknown is None:
        return scores
    unknown = predict(pictures.unknown)
    scores["auroc_entropy"] = metrics.ood_scores(known.total, unknown.total).auroc
    if fit.num_samples > 1:  # a single network has no disagreement to score
        scores["auroc_mutual_information"] = metrics.ood_scores(known.epistemic, unknown.epistemic).auroc
    return scores
