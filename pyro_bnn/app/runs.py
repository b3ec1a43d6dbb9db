"""Training runs: a folder with configuration, history and posterior, which can be repeated and evaluated later."""

import functools
import math
from collections.abc import Callable
from pathlib import Path

from pyro.infer import Trace_ELBO
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler, SequentialLR

from .._core.files import DamagedFileError
from .._core.records import plain, record
from ..inference.checkpoint import load_posterior, save_posterior
from ..inference.guides import GuidePosterior
from ..inference.history import History
from ..inference.posterior import Status
from ..inference.svi import fit_svi, scheduled
from ..modelling.model import BayesianModel
from .building import build, rebuild
from .config import RunConfig
from .datasets import Dataset, Facts
from .exchange import CHECKPOINT
from .folders import Folder, creating, find_run
from .manifest import Manifest, has_manifest, verified
from .own.network import own_code
from .specs import make_estimator, make_kl_weight, make_optimizer
from .tracking import AccuracyCurve, AccuracyTracker
from .validation import checked, parsed

__all__ = [
    "ACCURACY",
    "CONFIG",
    "DATA",
    "HISTORY",
    "POSTERIOR",
    "begun_facts",
    "build",
    "check_foreign",
    "fit",
    "load_accuracy",
    "load_config",
    "load_run",
    "load_trained",
    "read_config",
    "read_facts",
    "train",
]

CONFIG, DATA, HISTORY, POSTERIOR = "config.json", "data.json", "history.json", "posterior.pt"
"""Files of each run: settings, what is to be known of the data, record of the fit, and posterior."""

ACCURACY = "accuracy.json"
"""File of a run that recorded its accuracy."""


def train(
    config: RunConfig,
    data: Dataset,
    out: str | Path,
    *,
    device: str = "cpu",
    force: bool = False,
    progress: bool = False,
) -> tuple[BayesianModel, GuidePosterior]:
    """Train as the configuration says, and write a folder, which is there only if the training ends well.

    Args:
        config: Settings of the run.
        data: Data of the run, from :func:`~pyro_bnn.app.sources.load`.
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
        return fit(config, data, folder, device=device, progress=progress)


def fit(
    config: RunConfig, data: Dataset, folder: Folder, *, device: str = "cpu", progress: bool = False
) -> tuple[BayesianModel, GuidePosterior]:
    """Train as the configuration says, and write configuration, history, posterior and accuracies.

    While it trains, the folder holds a checkpoint. If there is one to begin with, the training goes on from it.

    Args:
        config: Settings of the run.
        data: Data of the run, from :func:`~pyro_bnn.app.sources.load`.
        folder: Folder that is being made.
        device: Where to compute.
        progress: Show a progress bar.

    Raises:
        ValueError: If the data are not those with which the training began.
        OSError: If the disk is full.
    """
    model, guide = build(config, data)
    folder.require(SPACE * sum(value.nbytes for value in guide.state_dict().values()))
    checkpoint = folder.claim(CHECKPOINT)
    is_resumed = checkpoint.is_file()
    if is_resumed:
        _check_data(folder.path, folder.place.shown, config, data)
    else:
        folder.write_json(CONFIG, config.to_dict())
        folder.write_json(DATA, plain(data.facts))
        folder.record()  # so that another process can go on from here
        folder.claim(CHECKPOINT)
    model.to(device)
    guide.to(device)
    num_weights = sum(model.initial_value(name).numel() for name in model.site_names)
    schedule = _schedule(config)
    optimizer = make_optimizer(config.optimizer, config.lr, math.ceil(len(data.x_train) / config.batch_size))
    train_rows, test_rows = (data.x_train, data.y_train), (data.x_test, data.y_test)
    tracker = AccuracyTracker(model, guide, train_rows, test_rows) if config.accuracy else None
    noting = _noting(folder, config.epochs)
    with own_code(config.net):
        posterior = fit_svi(
            model,
            guide,
            train_rows,
            optimizer=optimizer if schedule is None else scheduled(optimizer, schedule),
            num_epochs=config.epochs,
            batch_size=config.batch_size,
            elbo=Trace_ELBO(num_particles=config.num_particles),
            estimator=make_estimator(config.estimator),
            kl_weight=make_kl_weight(config.kl_weight, num_weights),
            callbacks=(noting,) if tracker is None else (tracker, noting),
            progress=progress,
            checkpoint=checkpoint,
            resume=checkpoint if is_resumed else None,
            seed=config.seed,
        )
    folder.write_json(HISTORY, posterior.history.to_dict())
    with folder.new(POSTERIOR) as path:
        save_posterior(posterior, path, model)
    if tracker is not None:
        folder.write_json(ACCURACY, tracker.state_dict())
        folder.write_text("accuracy.csv", tracker.curve.to_csv())
    return model, posterior


SPACE = 4
"""Files of a run over its guide: the posterior, and a checkpoint with the optimizer's two moments."""


def _noting(folder: Folder, num_epochs: int) -> Callable[[History], None]:
    """A callback that says to other commands how far the training has come."""
    return lambda history: folder.note(f"{len(history.epochs)} of {num_epochs} epochs")


def _schedule(config: RunConfig) -> Callable[[Optimizer], LRScheduler] | None:
    """A function that makes the schedule of the learning rate; None keeps it constant."""
    if config.schedule == "constant":
        return None
    if config.schedule == "cosine":
        return functools.partial(CosineAnnealingLR, T_max=config.epochs)

    def schedule(optimizer: Optimizer) -> LRScheduler:
        warm = ConstantLR(optimizer, factor=WARM, total_iters=1)
        cosine = CosineAnnealingLR(optimizer, T_max=max(config.epochs - 1, 1))
        return SequentialLR(optimizer, [warm, cosine], milestones=[1])

    return schedule


WARM = 0.1
"""Heuristic: learning rate of the first epoch of `warm-cosine`, as a fraction of the next."""


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
        return RunConfig.from_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no configuration of this version of pyro-bnn: {error}") from error


def check_foreign(out: Path, config: RunConfig, *inputs: Path) -> None:
    """Check that a file to be written is none that a run consists of, or is made of.

    Args:
        out: The file.
        config: Settings of the run that is used; neither its data nor its network's code may be written over.
        inputs: Files that are read.

    Raises:
        FileExistsError: If it is, even where a link leads there.
    """
    real = out.resolve()
    if has_manifest(real.parent) and Manifest.read(real.parent).lists(real.name):
        raise FileExistsError(f"{out} is a file of the run {real.parent}; choose another --out.")
    code = [Path(config.net.rpartition(":")[0])] if config.net != "mlp" else []
    for path in (*inputs, Path(config.dataset), *code):
        if path.is_file() and real == path.resolve():
            raise FileExistsError(f"{out} is a file that the run is made of or reads; choose another --out.")


def load_run(run: str | Path, data: Dataset, *, device: str = "cpu") -> tuple[BayesianModel, GuidePosterior]:
    """The trained model and posterior of a run, whose data are at hand.

    Args:
        run: Folder that :func:`train` wrote.
        data: Data of the run, from :func:`~pyro_bnn.app.sources.load`.
        device: Where to put model and posterior.

    Raises:
        FileNotFoundError: If the folder holds no run.
        DamagedFileError: If one of its files was edited or damaged.
        ValueError: If the data are not those that the run was trained on.
    """
    config = load_config(run)
    _check_data(Path(run), Path(run), config, data)
    return _loaded(run, config, build(config, data), device)


def load_trained(run: str | Path, *, device: str = "cpu") -> tuple[BayesianModel, GuidePosterior]:
    """The trained model and posterior of a run, without its data.

    Args:
        run: Folder that :func:`train` wrote.
        device: Where to put model and posterior.

    Raises:
        FileNotFoundError: If the folder holds no run.
        DamagedFileError: If one of its files was edited or damaged.
    """
    config = load_config(run)
    return _loaded(run, config, rebuild(config, read_facts(Path(run))), device)


def _loaded(
    run: str | Path, config: RunConfig, built: tuple[BayesianModel, nn.Module], device: str
) -> tuple[BayesianModel, GuidePosterior]:
    model, guide = built
    try:
        load_posterior(verified(run, POSTERIOR), model, guide=guide)
    except DamagedFileError:
        raise
    except ValueError as error:
        if config.net == "mlp":
            raise
        raise ValueError(f"the network of {config.net} has changed since {run} was trained: {error}") from error
    path = verified(run, HISTORY)
    try:
        history = History.from_dict(parsed(path.read_bytes()))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} is no history of this version of pyro-bnn; train the run anew.") from error
    return model.to(device), GuidePosterior(guide.to(device), Status(True, f"loaded from {run}."), history)


def read_facts(folder: Path) -> Facts:
    """What a folder says of a run's data; the folder is that of a finished run or of one that is being made.

    Raises:
        DamagedFileError: If the file was edited or damaged.
        ValueError: If it is of another version.
    """
    path = verified(folder, DATA)
    try:
        return record(Facts, parsed(path.read_bytes()), "data")
    except ValueError as error:
        raise ValueError(f"{path} is not of this version of pyro-bnn: {error}") from error


def begun_facts(folder: Folder) -> Facts | None:
    """What a folder that is being made says of its data; None if its training has not begun."""
    return read_facts(folder.path) if (folder.path / CHECKPOINT).is_file() else None


def _check_data(folder: Path, run: Path, config: RunConfig, data: Dataset) -> None:
    """Raise if data are not those that a run is trained on."""
    if read_facts(folder).sha256 == data.facts.sha256:
        return
    if config.kind == "images":
        raise ValueError(
            f"the {config.dataset} images are not those that {run} was trained on (their checksums differ); pass the "
            "folder of those (--data, or $PYRO_BNN_DATA)."
        )
    raise ValueError(
        f"{config.dataset} is not what {run} was trained on: its rows have changed since; pass a copy of the file as "
        "it was (--data FILE), or see new rows by `pyro-bnn predict`."
    )


def load_accuracy(run: str | Path) -> AccuracyCurve | None:
    """The accuracies that a run recorded during training, or None if it recorded none.

    Raises:
        FileNotFoundError: If the folder holds no run.
        DamagedFileError: If the file was edited or damaged.
    """
    if ACCURACY not in Manifest.read(find_run(run)).files:
        return None
    path = verified(run, ACCURACY)
    try:
        return checked(AccuracyCurve, parsed(path.read_bytes()))
    except ValueError as error:
        raise DamagedFileError(f"{path} is not of this version of pyro-bnn: {error}") from error
