"""`pyro-bnn train`."""

import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from .. import recipes
from ..accuracy import AccuracyCurve
from ..config import RunConfig
from . import options
from .stopping import loading

EXAMPLES = (
    "pyro-bnn train digits --out digits-run",
    "pyro-bnn train fashion-mnist --out garments --epochs 10 --download",
    "pyro-bnn train mnist --recipe article --hidden 1200,1200 --prior laplace:0.1 --out wide",
)


def train(
    dataset: options.Dataset = None,
    out: options.TrainOut = None,
    recipe: options.Recipe = None,
    prior: options.PriorSpec = None,
    guide: options.GuideSpec = None,
    init: options.InitSpec = None,
    inputs: options.Inputs = None,
    hidden: options.Hidden = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    optimizer: options.Optimizer = None,
    lr: options.LearningRate = None,
    schedule: options.Schedule = None,
    num_particles: options.NumParticles = None,
    kl_weight: options.KLWeightSpec = None,
    hold_out: options.HoldOut = None,
    validation: options.Validation = None,
    accuracy: options.Accuracy = None,
    seed: options.TrainSeed = None,
    data: options.Data = None,
    download: options.Download = False,
    device: options.Device = "cpu",
    force: options.Force = False,
    resume: options.Resume = None,
) -> None:
    """Train a Bayesian network on images.

    Configuration, history and posterior are written to a folder. Settings that are not given come from the recipe. The
    default recipes train cold posteriors: their KL weight is below 1. A run that was stopped goes on with --resume.
    """
    settings: dict[str, Any] = {
        "prior": prior,
        "guide": guide,
        "init": init,
        "inputs": inputs,
        "hidden": None if hidden is None else options.read_numbers(int, hidden, "--hidden"),
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "lr": lr,
        "schedule": schedule,
        "num_particles": num_particles,
        "kl_weight": kl_weight,
        "hold_out": None if hold_out is None else options.read_numbers(int, hold_out, "--hold-out"),
        "validation": validation,
        "accuracy": accuracy,
        "seed": seed,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    config, place = _begun(dataset, out, recipe, given) if resume is None else (None, resume)
    if resume is not None and (given or force or (dataset, out, recipe) != (None, None, None)):
        raise ValueError(
            "--resume takes the settings of the unfinished run; leave out all but --data, --download, --device."
        )
    with loading():
        from .. import images, runs
        from ..folders import resuming
        from ..processes import going_on, joined, shared

    with ExitStack() as stack:
        processes, device = stack.enter_context(joined(options.check_device(device)))
        if config is None:
            folder = stack.enter_context(shared(resuming(place), processes))
            config = runs.read_config(folder.path)
        else:
            config.check()
            folder = stack.enter_context(shared(going_on(place, force=force), processes))
        known, _ = images.load_data(config, root=data, download=download)
        start = time.perf_counter()
        _, posterior = runs.fit(config, known, folder, device=device, progress=sys.stderr.isatty())
    if not processes.is_first:
        return
    last = posterior.history.epochs[-1]
    held_out = f" (classes {', '.join(map(str, config.hold_out))} are held out)" if config.hold_out else ""
    typer.echo(f"Trained on {len(known.x_train)} images of {len(known.classes)} classes{held_out}.")
    typer.echo(f"{posterior.status} {time.perf_counter() - start:.0f} s.")
    typer.echo(
        f"Last epoch, per image: NLL {-last.expected_log_likelihood / len(known.x_train):.4f} nats, "
        f"KL {last.kl / len(known.x_train):.4f} nats. Saved in {place}; next: pyro-bnn evaluate {place}"
    )
    curve = runs.load_accuracy(place)
    if curve is not None:
        _show_accuracy(curve, _published(config), place)
        test = f" (test: the {config.validation} set aside for validation)" if config.validation else ""
        typer.echo(f"accuracy.csv, accuracy.json and accuracy.png in {place}{test}.")


def _begun(
    dataset: str | None, out: Path | None, recipe: str | None, given: dict[str, Any]
) -> tuple[RunConfig | None, Path]:
    """The settings of a new run, and its folder."""
    if dataset is None or out is None:
        raise ValueError(f"Missing {'the data set' if dataset is None else 'option --out'}. Try --help.")
    return replace(recipes.find_recipe(dataset, recipe or "default"), **given), out


def _published(config: RunConfig) -> AccuracyCurve | None:
    """What was published for a recipe, if the run is one of its, of whatever length and seed."""
    for key, curve in recipes.PUBLISHED_ACCURACY.items():
        if replace(recipes.find_recipe(*key), epochs=config.epochs, seed=config.seed) == config:
            return curve
    return None


def _show_accuracy(curve: AccuracyCurve, published: AccuracyCurve | None, out: Path) -> None:
    """Print the accuracies as a table, and write them as a picture."""
    from ... import plotting
    from ..folders import updating

    pair = None if published is None else (published.train, published.test)
    with updating(out, command="train") as folder, folder.new("accuracy.png") as path:
        plotting.save(plotting.accuracy_curves(curve.train, curve.test, published=pair), path)
    typer.echo(f"\n{curve.table(published)}")
