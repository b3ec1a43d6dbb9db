"""`pyro-bnn predict`.

The JSON of `predict` has `folder`, `file` (null without --out), `num_rows`, `scores` (of the rows with known targets),
`notes` (on the run and on the rows) and `predictions`. Without --out, `predictions` is a list with an object for each
row. The keys of each object are the names of the columns in the CSV. With --out, `predictions` is null.
"""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import LEVEL
from ..remedies import CAUSE, quote
from . import options
from .output import Output, for_terminal
from .stopping import loading

if TYPE_CHECKING:  # they load torch, which `pyro-bnn --help` must not
    from ..config import RunConfig
    from ..datasets import Facts
    from ..runs import RunPosterior

EXAMPLES = (
    "pyro-bnn predict houses new.csv --out predictions.csv",
    "pyro-bnn predict houses new.csv --level 0.5,0.95 --keep id",
)


IS_CALIBRATED = {
    False: "The intervals (lower and upper) are calibrated; the mean and the standard deviations (sd) are not.",
    True: "The sets of classes are calibrated; the probabilities and the entropy are not.",
}


def predict(
    run: options.Run,
    rows: Annotated[
        Path,
        typer.Argument(
            help="Rows to predict: a table with the columns that the run was trained on, or arrays (*.npz) with x.",
            show_default=False,
            metavar="ROWS",
        ),
    ],
    out: Annotated[
        str, typer.Option(help="File for the predictions, as CSV; - is standard output.", show_default="-")
    ] = "-",
    level: Annotated[
        str | None,
        typer.Option(
            help="Probabilities of the intervals around predicted numbers, separated by commas. If the run was trained "
            "with --calibrate, they also apply to the sets of classes.",
            show_default=f"{LEVEL}",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Columns of the table to copy beside the predictions, such as identifiers. A column that has the name "
            "of a prediction, such as mean, gets the ending (input).",
            show_default="those in --ignore, and those that name the rows",
        ),
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out rows that lack a value which all training rows had.")
    ] = False,
    allow_unseen: Annotated[
        bool,
        typer.Option("--allow-unseen", help="Predict rows with categories that do not occur in the training data."),
    ] = False,
    num_samples: options.EvaluateDraws = None,
    seed: options.DrawSeed = 0,
    device: options.Device = "cpu",
    as_json: options.Json = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of predictions if it exists.")] = False,
) -> None:
    """Predict new rows, with intervals and the sources of uncertainty.

    If the target is a number, the prediction has a mean, a standard deviation (sd) and intervals, in the units of the
    target. The parts of the standard deviation are aleatoric_sd (from the noise) and epistemic_sd (from the uncertainty
    about the weights). If the target is a class, the prediction has the most probable class, the probability of each
    class, and the entropy with its two parts, aleatoric and epistemic, in nats. If the run was trained with
    --calibrate, the intervals are conformal, and each class has a column that says whether the class is in the
    conformal set (1) or not (0).

    Rows keep their order. The first column has the row numbers, unless a copied column identifies the rows. In rows of
    a table, the last column, outside, names the columns with new categories, and those whose numbers or dates are more
    than three times as far from the mean as in any training row: do not trust such rows. If the file contains the
    target, the command also prints scores. With --json and without --out, the JSON document contains the predictions.
    """
    levels = options.read_numbers(float, f"{LEVEL}" if level is None else level, "--level")
    if not levels or not all(0 < share < 1 for share in levels):
        percent = bool(levels) and all(10 <= share < 100 for share in levels)
        hint = f"; did you mean {','.join(f'{share / 100:g}' for share in levels)}?" if percent else "."
        raise ValueError(f"--level must be probabilities strictly between 0 and 1, got {level!r}{hint}")
    if run.is_file() and (rows / options.MANIFEST).is_file():
        raise ValueError(f"the run comes before the rows: pyro-bnn predict {quote(rows)} {quote(run)}")
    options.check_run(run)
    options.check_rows(rows)
    with loading():
        if out != "-":
            options.check_file(Path(out), force=force)
        from ..._core.files import write_atomically
        from ..._core.summary import counted
        from .. import runs, sources
        from ..own.network import own_code
        from ..reports.scores import as_csv, note_on_unlike_rows, shown_name, shown_score, table_of_predictions

    output = Output("predict", as_json=as_json, only_notes=True)
    device = options.check_device(device)
    config, facts = runs.load_config(run), runs.read_facts(run)
    if out != "-":
        runs.check_foreign(Path(out), config, rows)
    calibration = runs.calibration_of(run, config)
    if level is not None and facts.target.is_class and calibration is None:
        raise ValueError(
            "--level is for intervals around predicted numbers, but this run predicts classes; leave it out, or train "
            "with --calibrate for sets of classes that contain the true one with this probability."
        )
    names = () if keep is None else options.read_names(keep)
    sample = sources.read_sample(config, facts, rows, keep=names, drop_missing=drop_missing, allow_unseen=allow_unseen)
    model, posterior = runs.load_run(run, device=device)
    num_samples = runs.num_draws(posterior, num_samples)
    with own_code(config.net):
        table, scores = table_of_predictions(
            model,
            posterior,
            sample,
            facts.target,
            levels=levels,
            num_samples=num_samples,
            seed=seed,
            calibration=calibration,
        )
    on_unlike = note_on_unlike_rows(table, facts.target)
    if any(all(cells) and len({*cells}) == len(cells) for cells in sample.kept.values()):
        table = table.drop(columns="row")  # one identification is enough
    is_listed = as_json and out == "-"
    if out != "-":
        write_atomically(out, lambda file: file.write(as_csv(table).encode()))
    elif not as_json:
        text = as_csv(table)
        typer.echo(for_terminal(text) if sys.stdout.isatty() else text, nl=False)
    notes = [*_note_on(run, config, facts, posterior), *sample.notes]
    if config.likelihood != "poisson":  # the noise of counts grows with their mean
        notes += on_unlike
    if calibration is not None:
        notes.append(IS_CALIBRATED[facts.target.is_class])
    for note in notes:
        output.say(note)
    if scores:
        said = ", ".join(
            f"{shown_name(name)}{':' if name.startswith('coverage') else ''} {shown_score(name, value)}"
            for name, value in scores.items()
        )
        output.say(f"Scores of {counted(int(sample.has_target.sum()), 'row')}: {said}.")
        num_known = sources.num_trained_on(config, facts, sample)
        if num_known:
            output.say(
                f"The run was trained on {num_known:,} of these rows, so new rows will have worse scores; `pyro-bnn "
                f"evaluate {quote(run)}` has the scores of the test rows."
            )
    if out != "-":
        output.say(f"{len(sample.x):,} predictions in {out}.")
    output.document(
        folder=run,
        file=None if is_listed else out,
        num_rows=len(sample.x),
        scores=scores,
        notes=notes,
        predictions=table.to_dict("records") if is_listed else None,
    )


def _note_on(run: Path, config: "RunConfig", facts: "Facts", posterior: "RunPosterior") -> list[str]:
    """Return a list with a note on the fault of a run, or [] if the run is good.

    If `evaluate` or `report` has judged the run, the note has their verdict, the worst fault, and its possible cause.
    """
    from .. import chains, runs  # imported late: importing takes long

    level: str = "note"
    if runs.is_chains(posterior):
        level, fault = chains.fault_of(posterior)
    else:
        from ..reports.page.fit import of_length  # imported late: it also loads what draws pictures

        fault = of_length(config, facts.in_units(posterior.history), posterior.status).short
    decision, _, reasons = runs.known_verdict(run).partition(".")
    if decision == "Usable" or (decision and posterior.status.is_slight):
        fault = ""  # the report has it
    if decision and (fault or decision not in ("Usable", "Usable, with notes")):
        first, *others = re.split(r"; (?![^()]*\))|\.(?: |$)", reasons.strip())
        reason = "; ".join([first, *(other for other in others if other.startswith(CAUSE))][:2])
        return [
            f"Verdict on the test rows: {decision}; {reason[:1].lower()}{reason[1:]}. Why: pyro-bnn report {quote(run)}"
        ]
    if not fault:
        return []
    unusable = ", so the run is not usable as it is" if level == "problem" else ""
    why = "Why" if unusable else "To see whether the predictions are usable"
    return [f"{fault[0].upper()}{fault[1:]}{unusable}. {why}: pyro-bnn report {quote(run)}"]
