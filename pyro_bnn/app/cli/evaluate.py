"""`pyro-bnn evaluate`."""

import typer

from . import options
from .stopping import loading

EXAMPLES = (
    "pyro-bnn evaluate digits-run",
    "pyro-bnn evaluate digits-run --num-samples 200 --json",
    "pyro-bnn evaluate garments --ood mnist --format pdf",
)


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
    if num_samples < 2:
        raise ValueError(f"--num-samples must be at least 2 to speak of uncertainty, got {num_samples}.")
    with loading():
        from .. import images, runs, sources
        from ..folders import updating
        from ..reports.evaluation import FILES, report_evaluation
        from ..reports.scores import FILES as SCORE_FILES
        from ..reports.scores import report_scores

    device = options.check_device(device)
    config = runs.load_config(run)
    if config.kind != "images":
        if ood is not None or download:
            raise ValueError("--ood and --download are for image sets; leave them out.")
        with updating(run, command="evaluate", writes=SCORE_FILES) as folder:
            rows = sources.load(config, root=data, facts=runs.read_facts(run))
            model, posterior = runs.load_run(run, rows, device=device)
            scores = report_scores(model, posterior, rows, folder, num_samples=num_samples, seed=seed)
        typer.echo(f"{scores}\n\nMetrics and pictures in {run}.")
        return
    with updating(run, command="evaluate", writes=FILES) as folder:
        known, held_out = images.load_data(config, root=data, download=download)
        unknown = images.load_unknown(ood, config, known, root=data, download=download)
        unknown = held_out if unknown is None else unknown
        images.check_unseen("test", known.x_test, known.x_train)
        images.check_unseen("unknown", unknown, known.x_train)
        model, posterior = runs.load_run(run, known, device=device)
        if config.validation:
            typer.echo(f"(test images: the {config.validation} that were set aside for validation)")
        report = report_evaluation(model, posterior, known, unknown, folder, num_samples=num_samples, seed=seed)
    typer.echo(f"{report}\n\nMetrics and pictures in {run}.")
