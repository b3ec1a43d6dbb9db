"""Training runs: a folder with configuration, history and posterior, which can be repeated and evaluated later."""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pyro.infer import Trace_ELBO
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from .._files import DamagedFileError
from .._scope import seeded
from ..checkpoint import load_posterior, save_posterior
from ..data import Images
from ..guides import GuidePosterior, MeanFieldGuide, auto_normal
from ..history import History
from ..likelihoods import CategoricalLikelihood
from ..model import BayesianModel
from ..nets import mlp
from ..posterior import Status
from ..svi import fit_svi, scheduled
from .accuracy import AccuracyCurve
from .config import RunConfig
from .exchange import CHECKPOINT
from .folders import Folder, creating, find_run
from .images import fingerprint
from .manifest import Manifest, verified
from .specs import make_init, make_inputs, make_kl_weight, make_prior
from .tracking import AccuracyTracker

__all__ = [
    "ACCURACY",
    "CONFIG",
    "HISTORY",
    "IMAGES",
    "POSTERIOR",
    "build",
    "fit",
    "load_accuracy",
    "load_config",
    "load_run",
    "read_config",
    "train",
]

CONFIG, HISTORY, IMAGES, POSTERIOR = "config.json", "history.json", "images.json", "posterior.pt"
"""Files of each run: settings, record of the fit, fingerprint of the training images, and posterior."""

ACCURACY = "accuracy.json"
"""File of a run that recorded its accuracy."""


def build(config: RunConfig, images: Images) -> tuple[BayesianModel, nn.Module]:
    """The untrained model and guide of a run; the same seed gives the same start.

    Raises:
        ValueError: If a setting is wrong, or does not fit the network.
    """
    config.check()
    first = [nn.Flatten(), *make_inputs(config.inputs, images.x_train.flatten(1))]
    with seeded(config.seed):
        net = mlp([images.x_train[0].numel(), *config.hidden, len(images.classes)], first=first)
        for layer in net.modules():
            if isinstance(layer, nn.Linear):  # He et al. (2015), https://arxiv.org/abs/1502.01852
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        model = BayesianModel(
            net, prior=make_prior(config.prior), likelihood=CategoricalLikelihood(), num_data=len(images.x_train)
        )
        init = make_init(config.init)
        guide = MeanFieldGuide(model, init=init) if config.guide == "mean-field" else auto_normal(model, init=init)
    return model, guide


def train(
    config: RunConfig,
    images: Images,
    out: str | Path,
    *,
    device: str = "cpu",
    force: bool = False,
    progress: bool = False,
) -> tuple[BayesianModel, GuidePosterior]:
    """Train as the configuration says, and write a folder, which is there only if the training ends well.

    Args:
        config: Settings of the run.
        images: Images of the run, from :func:`~pyro_bnn.app.images.load_data`.
        out: Folder to create.
        device: Where to compute.
        force: Replace an earlier folder.
        progress: Show a progress bar.

    Raises:
        FileExistsError: If the folder exists and `force` is not given.
        OSError: If the folder cannot be written.
    """
    config.check()
    with creating(out, command="train", force=force) as folder:
        return fit(config, images, folder, device=device, progress=progress)


def fit(
    config: RunConfig, images: Images, folder: Folder, *, device: str = "cpu", progress: bool = False
) -> tuple[BayesianModel, GuidePosterior]:
    """Train as the configuration says, and write configuration, history, posterior and accuracies.

    While it trains, the folder holds a checkpoint. If there is one to begin with, the training goes on from it.

    Args:
        config: Settings of the run.
        images: Images of the run, from :func:`~pyro_bnn.app.images.load_data`.
        folder: Folder that is being made.
        device: Where to compute.
        progress: Show a progress bar.

    Raises:
        ValueError: If the images are not those with which the training began.
        OSError: If the disk is full.
    """
    model, guide = build(config, images)
    folder.require(SPACE * sum(value.nbytes for value in guide.state_dict().values()))
    checkpoint = folder.claim(CHECKPOINT)
    is_resumed = checkpoint.is_file()
    if is_resumed:
        _check_images(folder.path, folder.place.shown, config, images)
    else:
        folder.write_json(CONFIG, config.to_dict())
        folder.write_json(IMAGES, fingerprint(images))
        folder.record()  # so that another process can go on from here
        folder.claim(CHECKPOINT)
    model.to(device)
    guide.to(device)
    num_weights = sum(model.initial_value(name).numel() for name in model.site_names)
    schedules: dict[str, Any] = {"constant": None, "cosine": functools.partial(CosineAnnealingLR, T_max=config.epochs)}
    optimizer, schedule = _optimizer(config, len(images.x_train)), schedules[config.schedule]
    test = images.x_test, images.y_test
    tracker = AccuracyTracker(model, guide, (images.x_train, images.y_train), test) if config.accuracy else None
    noting = _noting(folder, config.epochs)
    posterior = fit_svi(
        model,
        guide,
        (images.x_train, images.y_train),
        optimizer=optimizer if schedule is None else scheduled(optimizer, schedule),
        num_epochs=config.epochs,
        batch_size=config.batch_size,
        elbo=Trace_ELBO(num_particles=config.num_particles),
        kl_weight=make_kl_weight(config.kl_weight, num_weights),
        callbacks=(noting,) if tracker is None else (tracker, noting),
        progress=progress,
        checkpoint=checkpoint,
        resume=checkpoint if is_resumed else None,
        seed=config.seed,
    )
    folder.write_json(HISTORY, posterior.history.to_dict())
    with folder.new(POSTERIOR) as path:
        save_posterior(path, model, posterior)
    if tracker is not None:
        folder.write_json(ACCURACY, tracker.curve.to_dict())
        folder.write_text("accuracy.csv", tracker.curve.to_csv())
    return model, posterior


SPACE = 4
"""Files of a run over its guide: the posterior, and a checkpoint with the optimizer's two moments."""


def _noting(folder: Folder, num_epochs: int) -> Callable[[History], None]:
    """A callback that says to other commands how far the training has come."""
    return lambda history: folder.note(f"{len(history.epochs)} of {num_epochs} epochs")


def _optimizer(config: RunConfig, num_data: int) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """The optimizer, with a learning rate for `fit_svi`.

    `fit_svi` minimises the loss of the whole data set, which is that of one batch times the number of batches. For SGD
    the learning rate is divided by that number; Adam's steps do not depend on the scale of the loss.
    """
    if config.optimizer == "adam":
        return functools.partial(torch.optim.Adam, lr=config.lr, fused=True)
    num_batches = math.ceil(num_data / config.batch_size)
    return functools.partial(torch.optim.SGD, lr=config.lr / num_batches, fused=True)


def load_config(run: str | Path) -> RunConfig:
    """The configuration of a run.

    Raises:
        FileNotFoundError: If the folder holds no run.
        DamagedFileError: If the configuration was edited or damaged.
        ValueError: If it is of a later version.
    """
    folder = find_run(run)
    if CONFIG not in Manifest.read(folder).files:
        raise FileNotFoundError(f"{run} holds no training run: it has no {CONFIG}; make one with `pyro-bnn train`.")
    return read_config(folder)


def read_config(folder: Path) -> RunConfig:
    """The configuration in a folder, of a finished run or of one that is being made.

    Raises:
        DamagedFileError: If the configuration was edited or damaged.
        ValueError: If it is of a later version.
    """
    path = verified(folder, CONFIG)
    try:
        return RunConfig.from_dict(json.loads(path.read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path} is no configuration of this version of pyro-bnn: {error}") from error


def load_run(run: str | Path, images: Images, *, device: str = "cpu") -> tuple[BayesianModel, GuidePosterior]:
    """The trained model and posterior of a run.

    Args:
        run: Folder that :func:`train` wrote.
        images: Images of the run, from :func:`~pyro_bnn.app.images.load_data`.
        device: Where to put model and posterior.

    Raises:
        FileNotFoundError: If the folder holds no run.
        DamagedFileError: If one of its files was edited or damaged.
        ValueError: If the images are not those that the run was trained on.
    """
    config = load_config(run)
    _check_images(Path(run), Path(run), config, images)
    model, guide = build(config, images)
    load_posterior(verified(run, POSTERIOR), model, guide=guide)
    path = verified(run, HISTORY)
    try:
        history = History.from_dict(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} is no history of this version of pyro-bnn; train the run anew.") from error
    return model.to(device), GuidePosterior(guide.to(device), Status(True, f"loaded from {run}."), history)


def _check_images(folder: Path, run: Path, config: RunConfig, images: Images) -> None:
    """Raise if images are not those that a run is trained on."""
    if fingerprint(images) != json.loads(verified(folder, IMAGES).read_bytes()):
        raise ValueError(
            f"the {config.dataset} images are not those that {run} was trained on (their checksums differ); pass the "
            "folder of those (--data, or $PYRO_BNN_DATA)."
        )


def load_accuracy(run: str | Path) -> AccuracyCurve | None:
    """The accuracies that a run recorded during training, or None if it recorded none.

    Raises:
        FileNotFoundError: If the folder holds no run.
        DamagedFileError: If the file was edited or damaged.
    """
    if ACCURACY not in Manifest.read(find_run(run)).files:
        return None
    return AccuracyCurve.from_dict(json.loads(verified(run, ACCURACY).read_bytes()))
