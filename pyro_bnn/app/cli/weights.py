"""`pyro-bnn weights`.

The JSON of `weights` has `folder`, `pictures` (file names) and the list `sites`. Each item describes a tensor of
weights by `site` (its name), `num_weights`, `num_removed`, `mean_size`, `median_scale`, and `decibel` (the 5 %, 50 %
and 95 % quantiles of the signal-to-noise ratio). If all weights were removed, `mean_size`, `median_scale` and `decibel`
are null.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from ..config import RunConfig
from . import options
from .output import Output
from .stopping import loading

EXAMPLES = ("pyro-bnn weights digits-run", "pyro-bnn weights digits-run --site net.3.weight --index 0,5 --format svg")


def weights(
    run: options.Run,
    site: Annotated[
        str | None,
        typer.Option(
            help="Site of the weight to show, such as net.1.weight. The message for a wrong name lists all sites.",
            show_default="the first site",
        ),
    ] = None,
    index: Annotated[
        str,
        typer.Option(
            help="Index of the weight in its site, such as 3,100.",
            show_default="the weight of highest signal-to-noise ratio",
        ),
    ] = "",
    data: options.Data = None,
    download: options.Download = False,
    picture_format: options.Format = "png",
    as_json: options.Json = False,
) -> None:
    """Show the posterior of a trained network's weights. Tables need `train --method svi`.

    The command prints a summary of each tensor of weights, and writes pictures of all tensors and of one weight into
    the run's folder. The run must be variational. Runs on images, and runs with `train --method svi`, are
    variational.
    """
    place = options.read_numbers(int, index, "--index")
    options.check_run(run)
    with loading():
        from .. import datasets, runs
        from ..folders import updating
        from ..own.network import own_code
        from ..reports.pictures import pictures_of
        from ..reports.weights import LEGEND, WEIGHT_FILES, SiteSummary, least_certain, report_weights

    output = Output("weights", as_json=as_json)
    config = runs.load_config(run)
    opened = updating(run, command="weights", writes=WEIGHT_FILES, picture_format=picture_format)
    with opened as folder, own_code(config.net):
        is_image = config.kind == "images"
        known = datasets.load_data(config, root=data, download=download)[0] if is_image else None
        model, trained = runs.load_run(run, known)
        posterior = runs.variational(trained, "weights", command_for_svi(run, config))
        rows = report_weights(model, posterior, folder, site=site, index=place)
        pictures = pictures_of(folder, WEIGHT_FILES)
    output.table("\n".join([SiteSummary.header(), *map(str, rows)]))
    output.say(f"\n{LEGEND}", style="dim")
    output.say(least_certain(rows, run))
    output.say(f"\n{' and '.join(pictures)} in {run}.")
    output.document(folder=run, pictures=pictures, sites=rows)


def command_for_svi(run: Path, config: RunConfig) -> str:
    """Return the command that trains a variational run with the options of this run; "" if these are unknown."""
    from .. import runs  # these are imported late: importing takes long
    from ..reports.page.fit import training_command

    subject: Any = SimpleNamespace(run=run, config=config, asked=runs.load_asked(run))
    return training_command(subject, "svi", {"method": "svi"}) if subject.asked else ""
