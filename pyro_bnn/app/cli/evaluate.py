"""`pyro-bnn evaluate`.

Its JSON is that of metrics.json with `folder`, and `pictures` (names of files). `rows`: a list with `name`,
`accuracy`, `nll` (nats), `ece` and `brier` of each way to predict. `ood`: `auroc`, `aupr` and `fpr95` by name of the
score. `num_test` and `num_unknown`: numbers of images.
"""

from . import options
from .output import Output
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
    picture_format: options.Format = "png",
    as_json: options.Json = False,
) -> None:
    """Measure accuracy, calibration and detection of the unknown.

    Results are printed; metrics and pictures are written into the run's folder.
    """
    with loading():
        from .. import images, runs, sources
        from ..folders import updating
        from ..own.network import own_code
        from ..reports.evaluation import FILES, report_evaluation
        from ..reports.pictures import in_format, pictures_of
        from ..reports.scores import FILES as SCORE_FILES
        from ..reports.scores import report_scores

    output = Output("evaluate", as_json=as_json)
    device = options.check_device(device)
    config = runs.load_config(run)
    if config.kind != "images":
        if ood is not None or download:
            raise ValueError("--ood and --download are for image sets; leave them out.")
        with (
            updating(run, command="evaluate", writes=in_format(SCORE_FILES, picture_format)) as folder,
            own_code(config.net),
        ):
            rows = sources.load(config, root=data, facts=runs.read_facts(run))
            model, posterior = runs.load_run(run, rows, device=device)
            scores = report_scores(
                model, posterior, rows, folder, num_samples=num_samples, seed=seed, picture_format=picture_format
            )
            pictures = pictures_of(folder, SCORE_FILES, picture_format)
        output.table(f"{scores}")
        output.say(f"\nMetrics and pictures in {run}.")
        output.document(folder=run, pictures=pictures, **vars(scores))
        return
    with updating(run, command="evaluate", writes=in_format(FILES, picture_format)) as folder, own_code(config.net):
        known, held_out = images.load_data(config, root=data, download=download)
        unknown = images.load_unknown(ood, config, known, root=data, download=download)
        unknown = held_out if unknown is None else unknown
        images.check_unseen("test", known.x_test, known.x_train)
        images.check_unseen("unknown", unknown, known.x_train)
        model, posterior = runs.load_run(run, known, device=device)
        if config.validation:
            output.say(f"(test images: the {config.validation} that were set aside for validation)")
        report = report_evaluation(
            model,
            posterior,
            known,
            unknown,
            folder,
            num_samples=num_samples,
            seed=seed,
            picture_format=picture_format,
        )
        pictures = pictures_of(folder, FILES, picture_format)
    output.table(f"{report}")
    output.say(f"\nMetrics and pictures in {run}.")
    output.document(folder=run, pictures=pictures, **vars(report))
