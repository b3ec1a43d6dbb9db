"""`pyro-bnn evaluate`."""

import typer

from .. import images, runs
from . import options


def evaluate(
    run: options.Run,
    ood: options.Unknown = None,
    num_samples: options.EvaluateDraws = 100,
    seed: options.DrawSeed = 0,
    data: options.Data = None,
    download: options.Download = False,
    device: options.Device = "cpu",
) -> None:
    """Measure accuracy, calibration and detection of the unknown.

    Results are printed; metrics and pictures are written into the run's folder.
    """
    from ..reports.evaluation import report_evaluation  # late: loads matplotlib

    if num_samples < 2:
        raise ValueError(f"--num-samples must be at least 2 to speak of uncertainty, got {num_samples}.")
    config = runs.load_config(run)
    device = options.check_device(device)
    known, held_out = images.load_data(config, root=data, download=download)
    unknown = images.load_unknown(ood, config, known, root=data, download=download)
    model, posterior = runs.load_run(run, known, device=device)
    if config.validation:
        typer.echo(f"(test images: the {config.validation} that were set aside for validation)")
    unknown = held_out if unknown is None else unknown
    typer.echo(str(report_evaluation(model, posterior, known, unknown, run, num_samples=num_samples, seed=seed)))
    typer.echo(f"\nMetrics and pictures in {run}.")
