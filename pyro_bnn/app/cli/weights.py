"""`pyro-bnn weights`."""

import typer

from . import options
from .stopping import loading

EXAMPLES = (
    "pyro-bnn weights digits-run",
    "pyro-bnn weights digits-run --site net.3.weight --index 0,5 --format svg",
)


def weights(
    run: options.Run,
    site: options.SiteName = None,
    index: options.Index = "",
    data: options.Data = None,
    download: options.Download = False,
) -> None:
    """Show the posterior of a trained network's weights.

    A summary of each site is printed. Pictures of all sites, and of one weight, are written into the run's folder.
    """
    place = options.read_numbers(int, index, "--index")
    with loading():
        from .. import images, runs
        from ..folders import updating
        from ..reports.weights import FILES, SiteSummary, report_weights

    config = runs.load_config(run)
    with updating(run, command="weights", writes=FILES) as folder:
        if config.kind == "images":
            known, _ = images.load_data(config, root=data, download=download)
            model, posterior = runs.load_run(run, known)
        else:
            model, posterior = runs.load_trained(run)
        rows = report_weights(model, posterior, folder, site=site, index=place)
    typer.echo("\n".join([SiteSummary.header(), *map(str, rows)]))
    typer.echo(f"\nweight.png and weights.png in {run}.")
