"""`pyro-bnn prune`.

The JSON of `prune` has `folder`, `pictures` (file names), and these items:

- `report`: the scores for each share of removed weights,
- `gains`: the file sizes in bytes and the times in seconds for these shares, and `change`: the change of the NLL that
  the first sentence of the output reports, with its share of removed weights and its standard error,
- `pruned`: the `folder` and the `status` of the pruned copy; null without --keep.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..remedies import quote
from . import options
from .output import Output
from .stopping import loading
from .weights import command_for_svi

EXAMPLES = (
    "pyro-bnn prune digits-run",
    "pyro-bnn prune digits-run --keep 0.25 --out digits-small",
    "pyro-bnn prune digits-run --fractions 0,.5,.9 --per layer",
)


def prune(
    run: options.Run,
    fractions: Annotated[
        str, typer.Option(help="Shares of the weights to remove, those of the lowest signal-to-noise ratios first.")
    ] = "0, .25, .5, .75, .8, .85, .9, .95, .98, .99, 1",
    per: Annotated[
        Literal["network", "layer"], typer.Option(help="Whether a share is of all weights, or of each layer's weights.")
    ] = "network",
    keep: Annotated[
        float | None,
        typer.Option(
            help="Write a pruned copy of the run to --out, in which this share of the weights stays.",
            min=0,
            max=1,
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the pruned copy (--keep).", show_default=False)] = None,
    num_samples: Annotated[int, typer.Option(help="Number of draws of the weights.", min=1)] = 100,
    seed: options.DrawSeed = 0,
    data: options.Data = None,
    download: options.Download = False,
    device: options.Device = "cpu",
    picture_format: options.Format = "png",
    as_json: options.Json = False,
    force: options.Force = False,
) -> None:
    """Measure how removing weights changes scores, file size and speed. Tables need `train --method svi`.

    For each share of removed weights, the command prints scores, the file size and the speed. The weights with the
    lowest signal-to-noise ratio |mean| / sd are removed first. Tables and pictures are written into the run's folder.
    The run keeps all its weights. Only runs on images, and runs with `train --method svi`, can be pruned.

    The columns "mean" have the scores of the network with the mean weights, and the columns "draws" have the scores of
    the mean prediction of drawn networks. Weights can be removed if the NLL rises by at most 0.01. The speed is the
    time with dense layers divided by the time with sparse layers. A layer with more than 10 % of its weights left stays
    dense.
    """
    if (keep is None) != (out is None):
        raise ValueError("--keep and --out go together: the share of weights to keep, and the folder for the copy.")
    shares = options.read_numbers(float, fractions, "--fractions")
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"--fractions must be numbers from 0 to 1, got {fractions!r}.")
    options.check_run(run)
    with loading():
        from .. import datasets, runs, sources
        from ..folders import creating, updating
        from ..own.network import own_code
        from ..reports.pictures import pictures_of
        from ..reports.weights import PRUNING_FILES, report_pruning, save_pruned_run
        from .pruned import conclusions_of, table_of

    output = Output("prune", as_json=as_json)
    device = options.check_device(device)
    config = runs.load_config(run)
    if out is not None:
        runs.check_apart(out, run)
    opened = updating(run, command="prune", writes=PRUNING_FILES, picture_format=picture_format)
    making = nullcontext() if out is None else creating(out, command="prune", force=force)
    with opened as folder, making as copy, own_code(config.net):
        known = sources.load(config, root=data, download=download, facts=runs.read_facts(run))
        if config.kind == "images":
            datasets.check_unseen("test", known.x_test, known.x_train)
        model, trained = runs.load_run(run, known, device=device)
        posterior = runs.variational(trained, "prune", command_for_svi(run, config))
        report, gains = report_pruning(
            model, posterior, known, folder, fractions=shares, num_samples=num_samples, per=per, seed=seed
        )
        pictures = pictures_of(folder, PRUNING_FILES)
        pruned = None
        if keep is not None and copy is not None:
            status = save_pruned_run(run, copy, model, posterior, known, fraction=1 - keep, per=per)
            pruned = {"folder": out, "status": status}
    if conclusions := conclusions_of(report, gains):
        output.say(f"{conclusions}\n", style="bold")
    output.table(table_of(report, gains))
    output.say(f"\npruning.csv, pruning.json, {' and '.join(pictures)} in {run}.")
    if pruned is not None and out is not None:
        output.say(f"{pruned['status']} Saved in {out}; next: pyro-bnn evaluate {quote(out)}")
    output.document(folder=run, pictures=pictures, report=report, gains=gains, pruned=pruned)
