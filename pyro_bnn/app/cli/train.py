"""`pyro-bnn train`.

The JSON of `train` has these items:

- `folder`, `config` (as in config.json), `status` (with `ok` and `message`), `seconds`, `classes`,
- `num_train`, `num_test` and `num_calibration` (numbers of rows), and `notes` (sentences for the user),
- `last_epoch`, an object with `epoch`, `kl_weight`, `learning_rate`, `seconds`, `elbo`, `expected_log_likelihood` and
  `kl` (the last three in nats for all training rows, in the units of the target), or null for chains,
- `accuracy`, which is null, or has lists `train` and `test` with a number for each epoch,
- `pictures` (file names).
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import recipes, specs
from ..config import LEVEL, settings
from ..numbers import in_series
from ..remedies import limit_in, quote
from ..specs import TABLES
from ..starting import check_given, columns_of, new_config
from . import options
from .output import MOST_ADVICE, Output
from .stopping import loading

EXAMPLES = (
    "pyro-bnn train houses.csv --target price --ignore id --out houses",
    "pyro-bnn train houses.csv --target price --calibrate 0.2 --out houses",
    "pyro-bnn train data.npz --net lenet.py:make --out own",
    "pyro-bnn train digits --out digits-run",
    "pyro-bnn train fashion-mnist --out garments --epochs 10 --download",
)


INDENT = 11  # of what stands beside the names of results


@options.with_settings
def train(
    dataset: Annotated[
        str | None,
        typer.Argument(
            help=settings()["dataset"].help,
            metavar="DATASET",
            show_default=False,
            autocompletion=options.one_of(*specs.DATA_SETS),
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to. Required, except with --resume.", show_default=False)
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A recipe has values for all options that you do not give. The recipes 'default' and 'fast' train "
            "cold posteriors, with a KL weight below 1. The recipe 'article' follows Blundell et al. (2015): mixture "
            "prior, KL weight 1, 20 epochs. The recipes 'tutorial' and 'tutorial-mixture' follow an MXNet tutorial: "
            "SGD, 10 epochs. Recipes are for image sets. This help shows the values of the recipe 'default'. The file "
            "config.json in the run's folder contains the values of the run.",
            show_default="default",
            autocompletion=options.one_of(*recipes.NAMES),
        ),
    ] = None,
    data: options.Data = None,
    download: options.Download = False,
    device: options.Device = "cpu",
    picture_format: options.Format = "png",
    as_json: options.Json = False,
    force: options.Force = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the unfinished variational run in this folder. The only other options allowed are --data, "
            "--download, --device, --format and --json.",
            show_default=False,
        ),
    ] = None,
    help_all: options.HelpAll = False,
    **typed: Any,
) -> None:
    """Train a Bayesian neural network on a table, arrays or images.

    Settings that you leave out are chosen by their scores on held-out training rows, or come from a recipe for image
    sets. Tables and arrays are fitted by default with chains: Markov chains, each of which draws many networks that
    agree with the data. Ctrl-C stops the training; only a variational run can be continued, with --resume. --help-all
    shows all options, also those for image sets and for a network of your own.
    """
    given = options.read_settings(typed)
    if resume is not None and (given or force or (dataset, out, recipe) != (None, None, None)):
        raise ValueError(
            "--resume takes the settings of the unfinished run; leave out all options but "
            "--data, --download, --device, --format and --json."
        )
    if given.get("time_limit", 1) <= 0:
        raise ValueError(
            f"--time-limit must be above 0 seconds, got {given['time_limit']:g}; leave it out to let the number of "
            "rows set the time."
        )
    if dataset is not None and not Path(dataset).suffix:
        recipes.find_recipe(dataset, recipe or "default")  # a mistake in the name is told first
    if dataset is not None and Path(dataset).suffix:
        options.check_rows(Path(dataset))  # first, since the kind of the data decides which options are right
    lacks_target = Path(dataset or "").suffix.lower() in TABLES and "target" not in given
    if resume is None and (dataset is None or out is None or lacks_target):
        raise ValueError(_what_is_missing(dataset, out, given, lacks_target=lacks_target))
    if dataset is not None:
        check_given(dataset, recipe, given)
        names = [given.get("target"), given.get("split_by"), *given.get("features", ()), *given.get("ignore", ())]
        if Path(dataset).suffix.lower() in TABLES:
            options.check_columns(Path(dataset), [*filter(None, names)], header=given.get("header", True))
    if out is not None:
        options.check_folder(out, force=force)
    with loading():
        from ..._core.summary import counted, in_time
        from ...auto.choosing import Budget, num_cores
        from ...inference.guides import GuidePosterior
        from .. import runs, sources
        from ..building import unused_globs
        from ..chains import in_plain_words
        from ..folders import resuming, updating
        from ..manifest import CHECKPOINT
        from ..own.network import own_code
        from ..own.reading import WARNING
        from ..processes import joined, run_folder, shared

        if "time_limit" in given:  # these take seconds, which do not count
            import_module("..reports.page", __package__)
            import_module("torch._dynamo")
    output = Output("train", as_json=as_json)
    with ExitStack() as stack:
        processes, device = stack.enter_context(joined(options.check_device(device)))
        notes: list[str] = []
        if dataset is None or out is None:
            assert resume is not None
            place = resume
            folder = stack.enter_context(shared(resuming(place), processes))
            config = runs.read_config(folder.path)
        else:
            config, notes = new_config(dataset, recipe, given)
            if config.kind != "images" and (data is not None or download):
                raise ValueError("--data and --download are for image sets; the file itself is the first argument.")
            place = out
            folder = stack.enter_context(shared(run_folder(place, force=force), processes))
        facts = runs.read_facts(folder.path) if (folder.path / CHECKPOINT).is_file() else None
        known = sources.load(config, root=data, download=download, facts=facts)
        unused = "" if facts is not None else unused_globs(config, known)
        if unused and "prior" in given:
            raise ValueError(f"{unused}; correct the glob, or leave it out.")
        if unused:
            notes.append(f"{unused[0].upper()}{unused[1:]}: choose another prior with --prior.")
        if processes.is_first:
            for note in sorted([*notes, *known.notes], key=lambda note: not note.startswith(WARNING)):
                output.say(note, style="yellow" if note.startswith(WARNING) else "")
            if config.method != "svi" and not config.time_limit and facts is None:
                cores = num_cores()
                wait = in_time(round(Budget.of_rows(known.facts.num_train).seconds / cores))
                output.say(
                    f"The fit takes about {wait} on {counted(cores, 'free core')}; --time-limit sets another time."
                )
        if resume is None:
            folder.write_json(runs.ASKED, {"recipe": recipe, **given})

        def tell(said: str) -> None:
            notes.append(said)
            if processes.is_first:
                output.say(said, style="yellow")

        model, posterior = runs.fit(config, known, folder, given=[*given], device=device, tell=tell)
        config = runs.read_config(folder.path) if processes.is_first else config  # including what was chosen
    if not processes.is_first:
        return
    seconds = posterior.seconds or 0.0
    lines: dict[str, str] = {}
    advice: list[str] = []
    is_image, style = config.kind == "images", ""
    if not is_image and len(known.x_test):
        from ..reports.trained import Trained

        draws, calibration = runs.num_draws(posterior, None), runs.calibration_of(place, config)
        trained = Trained(model, posterior, known, num_samples=draws, calibration=calibration)
        with own_code(config.net):
            lines, advice = _on_test_rows(trained, config.ignore, place)
    if isinstance(posterior, GuidePosterior):
        from ..reports.page.fit import of_length
        from ..reports.page.section import sentence

        history = known.facts.in_units(posterior.history)
        last, length = history.epochs[-1], of_length(config, history, posterior.status)
        remedy, is_bad = posterior.status.remedy, posterior.status.ok is False
        finding = "" if length.level == "good" else f"{sentence(length.short)}." if is_bad else length.text
        if said := f"{finding} {remedy if is_bad or limit_in(remedy) else ''}".strip():
            advice, style = [*advice, said], "yellow"
        epochs = f"{len(history.epochs):,} of {config.epochs:,} epochs"
        cost = f", negative ELBO {-last.elbo / len(known.x_train):.4f} nats per image" if is_image else ""
        lines["fit"] = f"{seconds:.0f} s, {epochs}{cost}"
    else:
        last, remedy = None, posterior.status.remedy
        if remedy:
            cut = "The time limit cut this run short. " if config.time_limit and limit_in(remedy) else ""
            advice, style = [*advice, f"{cut}{remedy}"], "yellow"
        lines |= {"fit": f"{seconds:.0f} s", "chains": in_plain_words(posterior)}
    notes += advice
    output.say(sources.trained_on(config, known))
    for number, (name, text) in enumerate(lines.items()):
        of_line = style if name in ("fit", "chains") else "" if number else "bold"
        output.say(f"{name:{INDENT}s}{text}", style=of_line, indent=INDENT)
    ending = [said for said in advice if limit_in(said)]
    for said in [said for said in advice if said not in ending][:MOST_ADVICE]:
        output.say(said, style="yellow")
    curve, pictures = runs.load_accuracy(place), []
    if curve is not None:
        from ...results import plotting
        from ..reports.pictures import save_picture

        with updating(place, command="train", picture_format=picture_format) as finished:
            axes = plotting.accuracy_curves(curve.train, curve.test)
            pictures = [save_picture(finished, "accuracy.png", axes)]
        output.table(f"\n{curve.table()}")
        test = f" (test: the {config.validation} validation images)" if config.validation else ""
        output.say(f"accuracy.csv, accuracy.json and {pictures[0]} in {place}{test}.")
    output.say(f"Saved in {place}; next: pyro-bnn evaluate {quote(place)}")
    for said in ending:
        output.say(said, style="yellow")
    output.document(
        folder=place,
        config=config.to_dict(),
        status=posterior.status,
        seconds=seconds,
        num_train=len(known.x_train),
        num_test=len(known.x_test),
        num_calibration=0 if known.held_out is None else len(known.held_out[0]),
        notes=[*notes, *known.notes],
        classes=known.classes,
        last_epoch=last,
        accuracy=curve,
        pictures=pictures,
    )


def _on_test_rows(run: Any, ignored: Sequence[str], place: Path) -> tuple[dict[str, str], list[str]]:
    """Return lines with the scores of a run and of baselines, and advice if the scores are suspicious."""
    from ..._core.summary import counted  # these are imported late: importing takes long
    from ..reports.drivers import hint_of_leak
    from ..reports.scores import scores_of, shown_name, shown_score

    target = run.rows.facts.target
    score, sign = ("accuracy", -1) if target.is_class else ("rmse", 1)
    own = scores_of(run.ensemble, target, run.calibration, levels=(LEVEL,))
    others = {name: scores_of(way, target)[score] for name, way in run.baselines.items()}
    best_first = sorted(others, key=lambda name: sign * others[name])
    lines = {
        shown_name(score): f"{shown_score(score, own[score])} on {counted(len(run.rows.x_test), 'test row')}",
        "baselines": ", ".join(f"{name} {shown_score(score, others[name])}" for name in best_first),
    }
    share = f"coverage_{100 * LEVEL:g}"
    if share in own:
        which = "" if run.calibration is None else "calibrated "
        held = f"{which}{100 * LEVEL:g} % {'sets of classes' if target.is_class else 'intervals'} hold"
        lines["coverage"] = f"{held} {shown_score(share, own[share])} of the targets"
    hint, guess = hint_of_leak(run, ignored), next(iter(others))
    guessed = "always guessing the most frequent class" if target.is_class else f"the {guess}"
    worse = f"The run predicts the test rows worse than {guessed}. For what may help: pyro-bnn report {quote(place)}"
    return lines, [*filter(None, [hint]), *([worse] if sign * own[score] > sign * others[guess] else [])]


def _what_is_missing(dataset: str | None, out: Path | None, given: Mapping[str, Any], *, lacks_target: bool) -> str:
    """Name the parts that the user's command lacks, and show the command with examples of these parts."""
    missing = {"the data set": dataset is None, "--target": lacks_target, "--out": out is None}
    names = in_series([name for name, is_missing in missing.items() if is_missing])
    columns = columns_of(str(dataset), header=given.get("header", True)) if lacks_target else ""
    start = ["pyro-bnn", "train", *(["digits"] if dataset is None else [])]
    target = ["--target", "COLUMN"] if lacks_target else []
    example = shlex.join([*start, *sys.argv[2:], *target, *(["--out", "FOLDER"] if out is None else [])])
    return f"Missing {names}.{columns} Example: {example}"
