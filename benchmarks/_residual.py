"""ResNet-20 by several methods: the images of `cifar`, what is trained, and how."""

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

import pyro_bnn as pb
from pyro_bnn import metrics
from pyro_bnn.data import load_images, read_packed_images
from pyro_bnn.inference.history import History

from . import _memory
from ._images import Augmented, OnDevice

WEIGHTS = ("**.conv.weight", "**.conv1.weight", "**.conv2.weight", "**.linear.*")
"""All weights except those of batch normalisation, which are not random."""

BATCH_SIZE = 1000
"""Number of images in a run of the network without gradients."""

NUM_UNKNOWN = 2000
"""Number of images of unknown classes."""

MOMENTUM = 0.9

SWAG_START, SWAG_RATE, SWAG_RANK = 0.75, 0.2, 10
"""SWAG records points in the last quarter of the training, as in its article; the learning rate there is this fraction
of `lr`. Rate and rank are heuristic."""

PADDING = 4
"""Width of the frame of black pixels from which crops are taken, as in He et al. (2016)."""


@dataclass(frozen=True)
class Setting:
    """How one network is trained."""

    # ``point``, ``natural``, ``swag``, ``last-layer`` or ``laplace``; the last two make only the last layer random
    method: str
    # learning rate; it rises during `warm_up`, and falls to 0 along a cosine. For SGD it is the rate for the mean loss
    # of an image
    lr: float
    # whether a point estimate is found by SGD with momentum 0.9; otherwise it is found by Adam
    has_momentum: bool = False
    prior_scale: float = 1.0  # standard deviation of the weights' Gaussian prior
    # weight of the divergence from the prior; for a point estimate, 0 is maximum likelihood and 1 the posterior mode
    kl_weight: float = 1.0
    initial_hessian: float = 0.5  # initial Hessian of natural gradients
    # decay of the averaged Hessian. Its memory is longer than these trainings, so Hessian and scales stay near their
    # initial values
    hessian_decay: float = 1 - 1e-4
    # number of steps from one estimate of the Gauss-Newton diagonal to the next; 0 estimates the Hessian from the noise
    gauss_newton_every: int = 0
    clip: float = 0.0  # largest change of a mean in a step, divided by the learning rate; 0 is no limit
    # learning rate of SGD with momentum for the parameters of batch normalisation beside natural gradients, for the
    # mean loss of an image; 0 uses Adam with a learning rate of 2e-3
    others_lr: float = 0.1
    batch_size: int = 64  # images per step
    epochs: int = 6  # passes over the training set
    warm_up: float = 0.5  # length of the rise of the learning rate, in passes
    # parts of a pass. Within a part the learning rate is constant. An epoch of `fit_svi` is one part
    parts: int = 8
    in_bfloat16: bool = False  # whether the network computes in bfloat16 where torch considers this safe

    @property
    def is_point(self) -> bool:
        return self.method == "point"

    @property
    def starts_from_point(self) -> bool:
        return self.method in ("last-layer", "laplace")


@dataclass(frozen=True)
class Pictures:
    """Images for training, of dtype uint8, shape (N, C, H, W), and for the report; labels; unknown images."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    unknown: Tensor | None = None

    @property
    def num_classes(self) -> int:
        return 1 + int(self.y_train.max())


def in_colour(x: Tensor, height: int, width: int) -> Tensor:
    """Grey images with values in [0, 1], shape (N, H, W), converted to three colours, another size and dtype uint8."""
    resized = F.interpolate(x[:, None].float(), (height, width), mode="bilinear", align_corners=False)
    return (resized * 255).round().byte().expand(-1, 3, -1, -1).contiguous()


def load(folder: Path | None, *, num_train: int | None, validation: int, unknown: Path | None = None) -> Pictures:
    """The images in a folder: two packed archives, or torchvision's CIFAR-10.

    With `validation` this number of training images replaces the test images. If `unknown` is a folder with
    FashionMNIST, its first test images are the images of unknown classes.
    """
    if folder is not None and (folder / "train.npz").is_file():
        (x_train, y_train), (x_test, y_test) = (
            read_packed_images(folder / f"{part}.npz") for part in ("train", "test")
        )
    else:
        images = load_images("cifar10", root=folder)
        x_train, x_test = ((x * 255).round().byte() for x in (images.x_train, images.x_test))
        y_train, y_test = images.y_train, images.y_test
    order = torch.randperm(len(x_train), generator=torch.Generator().manual_seed(0))
    if validation:
        aside, order = order[:validation], order[validation:]
        x_test, y_test = x_train[aside], y_train[aside]
    kept = order[:num_train].sort().values
    others = None
    if unknown is not None:
        clothes = load_images("fashion-mnist", root=unknown)
        others = in_colour(clothes.x_test[:NUM_UNKNOWN], *x_test.shape[2:])
    return Pictures(x_train[kept], y_train[kept], x_test, y_test, others)


def crops(x: Tensor) -> Tensor:
    """Images, each flipped or not, and shifted by up to four pixels in each direction; new pixels are black."""
    count, _, height, width = x.shape
    padded = F.pad(x, (PADDING,) * 4)
    there = functools.partial(torch.arange, device=x.device)
    top, left = torch.randint(2 * PADDING + 1, (2, count, 1), device=x.device)
    is_flipped = torch.randint(2, (count, 1), device=x.device).bool()
    rows = top + there(height)
    columns = left + torch.where(is_flipped, there(width - 1, -1, -1), there(width))
    channels = there(x.shape[1])[:, None, None]
    return padded[there(count)[:, None, None, None], channels, rows[:, None, :, None], columns[:, None, None, :]]


def pixels(x: Tensor) -> Tensor:
    """Values in [0, 1] with the channels last in memory, which is the faster layout for convolutions on a CPU."""
    return x.float().div_(255).contiguous(memory_format=torch.channels_last)


def augmented(images: Pictures, setting: Setting, seed: int, device: torch.device) -> Iterable[tuple[Tensor, Tensor]]:
    """Augmented batches on a device. Each pass over them has one of the parts of the images."""
    num_images = max(len(images.x_train) // setting.parts, 1)
    if device.type == "cpu":
        data = Augmented(images.x_train, images.y_train, lambda x: pixels(crops(x)))
        return data.batches(setting.batch_size, seed, num_images)
    x, y = images.x_train.to(device), images.y_train.to(device)
    return OnDevice(x, y, crops, pixels, batch_size=setting.batch_size, seed=seed, num_images=num_images)


def network(images: Pictures, width: int, seed: int) -> nn.Sequential:
    """ResNet-20 on standardised pixels; the same seed gives the same initial weights."""
    x = pixels(images.x_train[:10_000])
    shape = (-1, 1, 1)
    scale = x.std((0, 2, 3)).view(shape)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = pb.nets.resnet20(num_classes=images.num_classes, in_channels=x.shape[1], width=width)
    return nn.Sequential(pb.nets.Standardize(x.mean((0, 2, 3)).view(shape), scale), net)


@dataclass(frozen=True)
class Problem:
    """A model, its guide, and the way from images to inputs of the model."""

    model: pb.BayesianModel  # the model
    guide: nn.Module  # its guide
    # the frozen layers before the last one, whose outputs are the model's inputs; None if the inputs are images
    body: nn.Module | None = None

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs of the model from images of dtype uint8; the body runs once."""
        device = self.model.device
        if self.body is None:
            return pixels(x).to(device)
        with torch.no_grad():
            return torch.cat([self.body(pixels(part).to(device)) for part in x.split(BATCH_SIZE)])

    def give_weights(self, posterior: pb.Posterior, net: nn.Module) -> None:
        """Give a network the weights and buffers of a point estimate of this model."""
        weights = {name.removeprefix("net."): value for name, value in posterior.sample(1).items()}
        weights = {name: value[0] for name, value in weights.items()}
        net.load_state_dict({**self.model.network.state_dict(), **weights})


def build(setting: Setting, images: Pictures, net: nn.Sequential) -> Problem:
    """Model and guide for a network, or for the last layer of one."""
    body: nn.Module | None = None
    random: nn.Module = net
    if setting.starts_from_point:
        standardize, residual = net
        body, random = nn.Sequential(standardize, residual[:-1]).eval(), residual[-1]
    model = pb.BayesianModel(
        random,
        prior=pb.NormalPrior(setting.prior_scale),
        likelihood=pb.CategoricalLikelihood(),
        num_data=len(images.x_train),
        where="**" if setting.starts_from_point else WEIGHTS,
    )
    if setting.method in ("point", "swag", "laplace"):
        return Problem(model, pb.DeltaGuide(model), body)
    scale_map = pb.scale_maps.Precision() if setting.method == "natural" else None
    return Problem(model, pb.MeanFieldGuide(model, **({"scale_map": scale_map} if scale_map else {})), body)


class Meter:
    """CPU time of a fit, which other programs affect less than they affect wall time; checkpoints save it."""

    def __init__(self, echo: Callable[[History], None]) -> None:
        self._echo = echo
        self.seconds, self._last = 0.0, time.process_time()

    def __call__(self, history: History) -> None:
        now = time.process_time()
        self.seconds, self._last = self.seconds + now - self._last, now
        self._echo(history)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds, self._last = state_dict["seconds"], time.process_time()


def train(
    setting: Setting,
    problem: Problem,
    images: Pictures,
    *,
    seed: int,
    checkpoint: Path,
    echo: Callable[[History], None],
) -> tuple[pb.Posterior, dict[str, float]]:
    """Fit, or continue from the checkpoint, if any. Returns the posterior; times, memory and last ELBO terms."""
    if setting.method == "laplace":
        return _train_laplace(problem, images)
    adam = functools.partial(torch.optim.Adam, fused=True)
    optimizer: Any = functools.partial(adam, lr=setting.lr)
    sgd = functools.partial(torch.optim.SGD, momentum=MOMENTUM, fused=True)
    if setting.has_momentum:  # the loss of `fit_svi` is a sum over all images
        optimizer = functools.partial(sgd, lr=setting.lr / len(images.x_train))
    if setting.method == "natural":
        others = functools.partial(adam, lr=2e-3)
        if setting.others_lr:
            others = functools.partial(sgd, lr=setting.others_lr / len(images.x_train))
        optimizer = pb.optim.natural_gradient(
            setting.lr,
            initial_hessian=setting.initial_hessian,
            hessian_decay=setting.hessian_decay,
            gauss_newton_every=setting.gauss_newton_every or None,
            clip=setting.clip or None,
            others=others,
        )

    parts = 1 if setting.starts_from_point else setting.parts

    def rate(part: int) -> float:
        """The learning rate in the middle of a part, as a fraction of `lr`."""
        done = (part + 0.5) / parts
        rise = min(1.0, done / setting.warm_up) if setting.warm_up else 1.0
        fall = (1 + math.cos(math.pi * done / setting.epochs)) / 2
        return rise * max(fall, SWAG_RATE if setting.method == "swag" else 0.0)

    options: dict[str, Any] = {}
    meter = Meter(echo)
    callbacks: list[Any] = [meter]
    if setting.method == "swag":
        callbacks.append(pb.SWAG(problem.guide, rank=SWAG_RANK, start=int(SWAG_START * setting.epochs * parts)))
    device = problem.model.device.type
    before = _memory.start(device)
    if setting.starts_from_point:  # without augmentation, so that the frozen layers run only once
        data: Any = problem.inputs(images.x_train), images.y_train.to(problem.model.device)
        estimator = pb.LocalReparameterization()
        options = {"batch_size": setting.batch_size, "elbo": TraceMeanField_ELBO(), "estimator": estimator}
    else:
        data = augmented(images, setting, seed, problem.model.device)
    with warnings.catch_warnings():  # the loader gives only a part of the data set
        warnings.filterwarnings("ignore", message="`num_data` is .* but an epoch has")
        posterior = pb.fit_svi(
            problem.model,
            data,
            problem.guide,
            optimizer=pb.optim.scheduled(optimizer, functools.partial(LambdaLR, lr_lambda=rate)),
            num_epochs=setting.epochs * parts,
            kl_weight=setting.kl_weight,
            callbacks=callbacks,
            checkpoint=pb.Checkpoint(checkpoint, minutes=3),
            resume=checkpoint if checkpoint.exists() else None,
            execution=pb.Execution(
                cuda_graph=device == "cuda", autocast=torch.bfloat16 if setting.in_bfloat16 else None
            ),
            seed=seed,
            **options,
        )
    last, num_data = posterior.history.epochs[-1], len(images.x_train)
    measured = {
        "wall_seconds": sum(record.seconds for record in posterior.history.epochs),
        "cpu_seconds": meter.seconds,
        "num_steps": len(posterior.history.elbo),
        "memory": _memory.peak(device) - before,
        "train_nll": -last.expected_log_likelihood / num_data,
        "kl_per_image": last.kl / num_data if setting.method in ("natural", "last-layer") else 0.0,
    }
    return callbacks[-1].posterior(problem.model) if setting.method == "swag" else posterior, measured


def _train_laplace(problem: Problem, images: Pictures) -> tuple[pb.Posterior, dict[str, float]]:
    device = problem.model.device.type
    start, before = time.process_time(), _memory.start(device)
    x, y = problem.inputs(images.x_train), images.y_train.to(problem.model.device)
    posterior = pb.fit_laplace(problem.model, (x, y))
    measured = {
        "wall_seconds": posterior.seconds or 0.0,
        "cpu_seconds": time.process_time() - start,
        "num_steps": 0,
        "memory": _memory.peak(device) - before,
    }
    point = pb.predict_point(problem.model, posterior.median(), x)
    nll = metrics.negative_log_likelihood(point.probs, y)
    return posterior, {**measured, "train_nll": nll, "kl_per_image": 0.0}
