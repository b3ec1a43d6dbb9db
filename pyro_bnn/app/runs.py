"""Training runs: a folder with configuration, history and posterior, which can be repeated and evaluated later."""

import functools
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pyro.infer import Trace_ELBO
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

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
from .accuracy import AccuracyCurve, AccuracyTracker
from .config import RunConfig
from .files import check_target, write_json
from .specs import make_init, make_inputs, make_kl_weight, make_prior

__all__ = ["build", "load_accuracy", "load_config", "load_run", "train"]


def build(config: RunConfig, images: Images) -> tuple[BayesianModel, nn.Module]:
    """The untrained model and guide of a run; the same seed gives the same start.

    Raises:
        ValueError: If the configuration names something that does not exist.
    """
    if config.guide not in ("mean-field", "auto-normal"):
        raise ValueError(f"unknown guide {config.guide!r}; choose mean-field or auto-normal.")
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
    """Train as the configuration says, and write configuration, history, posterior and accuracies to a folder.

    Args:
        config: Settings of the run.
        images: Images of the run, from :func:`~pyro_bnn.app.images.load_data`.
        out: Folder to create.
        device: Where to compute.
        force: Replace an existing folder.
        progress: Show a progress bar.

    Raises:
        FileExistsError: If the folder exists and `force` is not given.
    """
    out = Path(out)
    check_target(out, force)
    model, guide = build(config, images)
    model.to(device)
    guide.to(device)
    num_weights = sum(model.initial_value(name).numel() for name in model.site_names)
    schedules: dict[str, Any] = {"constant": None, "cosine": functools.partial(CosineAnnealingLR, T_max=config.epochs)}
    if config.schedule not in schedules:
        raise ValueError(f"unknown schedule {config.schedule!r}; choose constant or cosine.")
    optimizer, schedule = _optimizer(config, len(images.x_train)), schedules[config.schedule]
    test = images.x_test, images.y_test
    tracker = AccuracyTracker(model, guide, (images.x_train, images.y_train), test) if config.accuracy else None
    posterior = fit_svi(
        model,
        guide,
        (images.x_train, images.y_train),
        optimizer=optimizer if schedule is None else scheduled(optimizer, schedule),
        num_epochs=config.epochs,
        batch_size=config.batch_size,
        elbo=Trace_ELBO(num_particles=config.num_particles),
        kl_weight=make_kl_weight(config.kl_weight, num_weights),
        callbacks=() if tracker is None else (tracker,),
        progress=progress,
        seed=config.seed,
    )
    if out.exists():
        shutil.rmtree(out)
    out.mkdir()
    write_json(out / "config.json", asdict(config))
    write_json(out / "history.json", posterior.history.to_dict())
    save_posterior(out / "posterior.pt", model, posterior)
    if tracker is not None:
        write_json(out / "accuracy.json", tracker.curve.to_dict())
        (out / "accuracy.csv").write_text(tracker.curve.to_csv())
    return model, posterior


def _optimizer(config: RunConfig, num_data: int) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """The optimizer, with a learning rate for `fit_svi`.

    `fit_svi` minimises the loss of the whole data set, which is that of one batch times the number of batches. For SGD
    the learning rate is divided by that number; Adam's steps do not depend on the scale of the loss.
    """
    if config.optimizer == "adam":
        return functools.partial(torch.optim.Adam, lr=config.lr, fused=True)
    if config.optimizer == "sgd":
        num_batches = math.ceil(num_data / max(config.batch_size, 1))  # `fit_svi` refuses a smaller one
        return functools.partial(torch.optim.SGD, lr=config.lr / num_batches, fused=True)
    raise ValueError(f"unknown optimizer {config.optimizer!r}; choose adam or sgd.")


def load_config(run: str | Path) -> RunConfig:
    """The configuration of a run.

    Raises:
        FileNotFoundError: If the folder holds no run.
    """
    path = Path(run) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{run} holds no training run: there is no {path}; make one with `pyro-bnn train`.")
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        values |= {name: tuple(values[name]) for name in ("hidden", "hold_out")}
        return RunConfig(**values)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no configuration of this version of pyro-bnn: {error}") from error


def load_run(run: str | Path, images: Images, *, device: str = "cpu") -> tuple[BayesianModel, GuidePosterior]:
    """The trained model and posterior of a run.

    Args:
        run: Folder that :func:`train` wrote.
        images: Images of the run, from :func:`~pyro_bnn.app.images.load_data`.
        device: Where to put model and posterior.

    Raises:
        FileNotFoundError: If the folder holds no run.
    """
    model, guide = build(load_config(run), images)
    load_posterior(Path(run) / "posterior.pt", model, guide=guide)
    try:
        history = History.from_dict(json.loads((Path(run) / "history.json").read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{Path(run) / 'history.json'} is no history of this version of pyro-bnn: {error!r}"
        ) from error
    return model.to(device), GuidePosterior(guide.to(device), Status(True, f"loaded from {run}."), history)


def load_accuracy(run: str | Path) -> AccuracyCurve | None:
    """The accuracies that a run recorded during training, or None if it recorded none."""
    path = Path(run) / "accuracy.json"
    if not path.is_file():
        return None
    return AccuracyCurve(**{name: tuple(values) for name, values in json.loads(path.read_text()).items()})
