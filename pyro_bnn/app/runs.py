"""Training runs: fits that are stored in a folder."""

import functools
import math
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pyro.infer import Trace_ELBO
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler, SequentialLR
from typing_extensions import TypeIs

from .._core.files import DamagedFileError
from .._core.processes import Processes
from .._core.records import plain, record
from ..auto.choosing import Deadline, UnsuitableError
from ..auto.fitting import TimeLimit
from ..inference.checkpoint import load_posterior, save_posterior
from ..inference.guides import GuidePosterior
from ..inference.history import History
from ..inference.mcmc import MCMCPosterior
from ..inference.posterior import Status
from ..inference.svi import LONGER, Execution, fit_svi, scheduled
from ..modelling.likelihoods import PoissonLikelihood
from ..modelling.model import BayesianModel
from ..results.calibration import ConformalIntervals, ConformalSets, load_calibration
from ..results.prediction import predict
from ..scores.uncertainty import ClassificationPrediction, RegressionPrediction
from .building import build, rebuild
from .chains import Choice, fit_chains, on_choice
from .config import RunConfig
from .datasets import Dataset, Facts, check_same
from .folders import Folder, find_run
from .manifest import CHECKPOINT, Manifest, has_manifest, verified
from .own.network import own_code
from .recipes import CHOSEN
from .remedies import MORE_EPOCHS, TOO_EARLY, more_time, no_run
from .specs import make_estimator, make_kl_weight, make_optimizer
from .tracking import AccuracyCurve, AccuracyTracker, FitProgress
from .validation import parsed

T = TypeVar("T")
RunPosterior = GuidePosterior | MCMCPosterior
RunCalibration = ConformalIntervals | ConformalSets

CONFIG, DATA, HISTORY, POSTERIOR = "config.json", "data.json", "history.json", "posterior.safetensors"  # files of a run
CHOICE = "choice.json"  # what was chosen for a run of chains
ASKED = "asked.json"  # the options of `train` that the user gave, and the recipe
VERDICT = "verdict.json"  # the first line of the report by `evaluate` or `report`, which `predict` quotes
ACCURACY = "accuracy.json"  # the accuracy after each epoch, if it was recorded


def fit(
    config: RunConfig,
    data: Dataset,
    folder: Folder,
    *,
    given: Collection[str] = CHOSEN,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[BayesianModel, RunPosterior]:
    """Train a model, and write a run to the folder. If the folder has a checkpoint, the training continues from it.

    The method "auto" chooses the settings in `CHOSEN` that are not in `given`, and writes them into the configuration.
    The function calls `tell` with a sentence if chains are not possible, and if the time did not suffice to compare all
    networks.
    """
    deadline = Deadline.after(config.time_limit or None)
    fit_svi_run = functools.partial(_fit_svi, data=data, folder=folder, deadline=deadline, device=device)
    if config.method == "svi":
        return fit_svi_run(config)
    try:
        fixed = CHOSEN if config.method == "mclmc" else given
        found, choice, model, chains = fit_chains(config, data, given=fixed, deadline=deadline, device=device)
    except UnsuitableError as error:
        if config.method == "mclmc":
            longer = f"pass --time-limit {error.enough}, or " if error.enough else ""
            raise ValueError(f"{error}; {longer}choose --method svi.") from error
        reason = f"The fit is variational, since {error}."
        better = f"For chains, which are often more accurate, pass --time-limit {error.enough}."
        tell(reason)
        return fit_svi_run(replace(config, method="svi"), reason=reason, remedy=better if error.enough else "")
    if said := on_choice(found, choice):
        tell(said)
    folder.write_json(CONFIG, found.to_dict())
    folder.write_json(DATA, plain(data.facts))
    folder.write_json(CHOICE, plain(choice))
    with own_code(config.net):
        write_posterior(folder, model, chains, data)
    return model, chains


def write_posterior(folder: Folder, model: BayesianModel, posterior: RunPosterior, data: Dataset) -> None:
    """Write a posterior to its file. If rows were held out, the file also gets a calibration from the held-out rows."""
    calibration = calibrated(model, posterior, data)
    with folder.new(POSTERIOR) as path:
        save_posterior(posterior, path, model, calibration=calibration)


def calibrated(model: BayesianModel, posterior: RunPosterior, data: Dataset) -> RunCalibration | None:
    """Make a conformal calibration of class sets or intervals from held-out rows; None without held-out rows.

    The conformal scores of classes are randomised. Otherwise the least probable class of a row would always have the
    score 1. If this class were the label of a few calibration rows, the bound for the scores would be 1, and every set
    would contain all classes.
    """
    if data.held_out is None:
        return None
    x, y = (part.to(model.device) for part in data.held_out)
    prediction = predict(model, posterior, x, num_samples=num_draws(posterior, None), seed=DRAW_SEED)
    if isinstance(prediction, ClassificationPrediction):
        return ConformalSets(prediction, y, seed=DRAW_SEED)
    is_count = isinstance(model.likelihood, PoissonLikelihood)
    return ConformalIntervals(prediction.as_kind(RegressionPrediction), y, is_count=is_count)


def _fit_svi(
    config: RunConfig,
    data: Dataset,
    folder: Folder,
    *,
    deadline: Deadline | None,
    device: str,
    reason: str = "",
    remedy: str = "",
) -> tuple[BayesianModel, GuidePosterior]:
    model, guide = build(config, data)
    folder.require(SPACE * sum(value.nbytes for value in guide.state_dict().values()))
    checkpoint = folder.path / CHECKPOINT
    is_resumed = checkpoint.is_file()
    if is_resumed:
        check_same(config, read_facts(folder.path), data.facts.sha256, folder.place.shown)
    else:
        folder.write_json(CONFIG, config.to_dict())
        folder.write_json(DATA, plain(data.facts))
    model.to(device)
    guide.to(device)
    num_weights = sum(model.initial_value(name).numel() for name in model.site_names)
    schedule = _schedule(config)
    optimizer = make_optimizer(config.optimizer, config.lr, math.ceil(len(data.x_train) / config.batch_size))
    tracker = AccuracyTracker(model, guide, data) if config.accuracy else None
    shown = FitProgress(config, data, deadline, shown=Processes.present().is_first)
    limits = [] if deadline is None else [TimeLimit(deadline.at(1.0))]

    ends: list[float] = []  # of the epochs

    def note(history: History) -> None:
        ends.append(time.perf_counter())
        folder.note(f"{len(history.epochs)} of {config.epochs} epochs")

    with own_code(config.net), shown:
        posterior = fit_svi(
            model,
            (data.x_train, data.y_train),
            guide,
            optimizer=optimizer if schedule is None else scheduled(optimizer, schedule),
            num_epochs=config.epochs,
            batch_size=config.batch_size,
            elbo=Trace_ELBO(num_particles=config.num_particles),
            estimator=make_estimator(config.estimator),
            kl_weight=make_kl_weight(config.kl_weight, num_weights),
            callbacks=[note, *([] if tracker is None else [tracker]), shown, *limits],
            progress=False,
            execution=Execution(cuda_graph=None),  # the callbacks do not change the model
            checkpoint=checkpoint,
            resume=checkpoint if is_resumed else None,
            seed=config.seed,
        )
    if words := cut_short(config, posterior.history):
        assert deadline is not None
        num_before, last = len(ends) - 1, posterior.history.epochs[-1].seconds
        seconds = (ends[-1] - ends[0]) / num_before if num_before else last  # of an epoch and its callbacks
        posterior.status = Status(False, f"{words}.", remedy=more_time(config, ends[0] - deadline.begin, seconds))
    elif posterior.status:
        done = f"completed after {len(posterior.history.epochs)} of {config.epochs} epochs{posterior.status.detail}."
        posterior.status = Status(True, done)  # without the ELBO, which `train` prints in the units of the target
    elif posterior.status.ok is None:
        posterior.status = replace(posterior.status, message=posterior.status.finding, remedy=MORE_EPOCHS)
    elif posterior.status.remedy == LONGER:
        early = f"{TOO_EARLY}: {posterior.status.message}"
        posterior.status = replace(posterior.status, message=early, remedy=MORE_EPOCHS)
    if reason:  # why there are no chains, and what would allow them
        status = posterior.status
        said = f"{reason} {status.message[:1].upper()}{status.message[1:]}"
        posterior.status = replace(status, message=said, remedy=remedy or status.remedy)
    folder.write_json(HISTORY, posterior.history.to_dict())
    with own_code(config.net):
        write_posterior(folder, model, posterior, data)
    if tracker is not None:
        folder.write_json(ACCURACY, tracker.state_dict())
        folder.write_text("accuracy.csv", tracker.curve.to_csv())
    return model, posterior


DRAW_SEED = 0  # default seed of the draws of the weights in predictions
NUM_DRAWS, MOST_STORED = 100, 800  # heuristic: default draws of the weights, for variational posteriors and for chains
SPACE = 4  # disk space of a run in sizes of its guide: posterior, and checkpoint with Adam's two moments
WARM = 0.1  # heuristic: learning rate of the first epoch of `warm-cosine`, relative to the second


def _schedule(config: RunConfig) -> Callable[[Optimizer], LRScheduler] | None:
    """Return a function that makes the learning-rate schedule, or None if the learning rate is constant."""
    if config.schedule == "constant":
        return None
    if config.schedule == "cosine":
        return functools.partial(CosineAnnealingLR, T_max=config.epochs)

    def schedule(optimizer: Optimizer) -> LRScheduler:
        warm = ConstantLR(optimizer, factor=WARM, total_iters=1)
        cosine = CosineAnnealingLR(optimizer, T_max=max(config.epochs - 1, 1))
        return SequentialLR(optimizer, [warm, cosine], milestones=[1])

    return schedule


def load_config(run: str | Path) -> RunConfig:
    """Load the configuration of a run."""
    folder = find_run(run)
    if CONFIG not in Manifest.read(folder).files:
        raise no_run(run, f": it has no {CONFIG}")
    return read_config(folder)


def read_config(folder: Path) -> RunConfig:
    """Read the configuration in the folder of a finished or unfinished run."""
    return _read(folder, CONFIG, RunConfig.from_json)


def read_facts(folder: Path) -> Facts:
    """Read the facts about the data in the folder of a finished or unfinished run."""
    return _read(folder, DATA, lambda text: record(Facts, parsed(text), "data"))


def load_choice(run: str | Path) -> Choice:
    """Load the :class:`Choice` of settings from the folder of a run that drew Markov chains."""
    return _read(Path(run), CHOICE, lambda text: record(Choice, parsed(text), "choice"))


def load_asked(run: str | Path) -> dict[str, Any]:
    """Load the options that the user gave to `train`; {} for a run that was made without the command line."""
    if ASKED not in Manifest.read(find_run(run)).files:
        return {}
    return _read(find_run(run), ASKED, lambda text: dict(parsed(text)))


def load_accuracy(run: str | Path) -> AccuracyCurve | None:
    """Load the accuracies that a run recorded during training; None if the run did not record them."""
    folder = find_run(run)
    if ACCURACY not in Manifest.read(folder).files:
        return None
    return _read(folder, ACCURACY, lambda text: record(AccuracyCurve, parsed(text), "accuracy"))


def write_verdict(folder: Folder, headline: str) -> None:
    """Write the first line of the report on a run, so that `predict` can quote it."""
    folder.write_json(VERDICT, {"headline": headline})


def known_verdict(run: str | Path) -> str:
    """Return the first line of the report on a run, or "" if neither `evaluate` nor `report` has judged the run."""
    folder = find_run(run)
    if VERDICT not in Manifest.read(folder).files or not (folder / VERDICT).is_file():
        return ""
    return _read(folder, VERDICT, lambda text: str(parsed(text)["headline"]))


def _read(folder: Path, name: str, make: Callable[[bytes], T]) -> T:
    path = verified(folder, name)
    try:
        return make(path.read_bytes())
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not fit this version of pyro-bnn: {error}") from error


def check_foreign(out: Path, config: RunConfig, *inputs: Path) -> None:
    """Raise if the file `out` belongs to a run, or if the program reads it.

    The program reads `inputs`, and the files with the data and with the user's network that `config` names.
    """
    real = out.resolve()
    if has_manifest(real.parent) and Manifest.read(real.parent).owns(real):
        raise FileExistsError(f"{out} is a file of the run {real.parent}; choose another --out.")
    code = [Path(config.net.rpartition(":")[0])] if config.net != "mlp" else []
    for path in (*inputs, Path(config.dataset), *code):
        if path.is_file() and real == path.resolve():
            raise FileExistsError(f"{out} is a file that the run needs; choose another --out.")


def check_apart(out: Path, run: Path) -> None:
    """Raise if `out` is the folder of the run, or contains the folder of the run."""
    if out.resolve() in (run.resolve(), *run.resolve().parents):
        raise FileExistsError(f"{out} is the run itself, or contains it; choose another --out.")


def load_run(
    run: str | Path, data: Dataset | None = None, *, device: str = "cpu"
) -> tuple[BayesianModel, RunPosterior]:
    """Load the trained model and the posterior of a run. Raise a ValueError if the run was not trained on `data`."""
    config, facts = load_config(run), read_facts(Path(run))
    if data is not None:
        check_same(config, facts, data.facts.sha256, Path(run))
    model, guide = rebuild(config, facts)
    model.to(device)
    try:
        loaded = load_posterior(verified(run, POSTERIOR), model, guide=None if guide is None else guide.to(device))
    except DamagedFileError:
        raise
    except ValueError as error:
        if config.net == "mlp":
            raise
        raise ValueError(f"the network of {config.net} has changed since {run} was trained: {error}") from error
    if isinstance(loaded, MCMCPosterior):
        return model, loaded
    assert guide is not None
    history = _read(Path(run), HISTORY, lambda text: History.from_dict(parsed(text)))
    return model, GuidePosterior(guide, loaded.status, history)


def calibration_of(run: str | Path, config: RunConfig) -> RunCalibration | None:
    """Load the calibration of a run's predictions; None if the run was trained without --calibrate."""
    if not config.calibrate:
        return None
    found = load_calibration(verified(run, POSTERIOR))
    kind = ConformalSets if config.likelihood == "categorical" else ConformalIntervals
    if not isinstance(found, kind):
        raise ValueError(
            f"the calibration in {run} must be one of {kind.__name__}, got {type(found).__name__}; train the run again."
        )
    return found


def is_chains(posterior: RunPosterior) -> TypeIs[MCMCPosterior]:
    """Return whether a posterior consists of chains. If not, it is variational."""
    return isinstance(posterior, MCMCPosterior)


def cut_short(config: RunConfig, history: History) -> str:
    """If the time limit ended a variational fit before its last epoch, return words that say so; else return ""."""
    num_epochs = len(history.epochs)
    is_early = config.time_limit > 0 and num_epochs < config.epochs
    return f"the time limit ended the training after {num_epochs:,} of {config.epochs:,} epochs" if is_early else ""


def num_draws(posterior: RunPosterior, wanted: int | None) -> int:
    """Return the number of draws of the weights in a prediction: at most the number of stored draws."""
    if posterior.num_stored is None:
        return NUM_DRAWS if wanted is None else wanted
    return min(MOST_STORED if wanted is None else wanted, posterior.num_stored)


def variational(posterior: RunPosterior, command: str, again: str) -> GuidePosterior:
    """Return the posterior if it is variational; raise a ValueError if it holds chains, which `command` cannot use.

    The message tells the user to train with the command `again`.
    """
    if isinstance(posterior, MCMCPosterior):
        raise ValueError(
            f"`pyro-bnn {command}` needs one distribution for each weight, but this run holds chains, whose weights "
            f"differ from mode to mode; train with --method svi{f': {again}' if again else '.'}"
        )
    return posterior
