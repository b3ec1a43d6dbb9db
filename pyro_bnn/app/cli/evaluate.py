"""`pyro-bnn evaluate`.

The JSON of `evaluate` has the items of metrics.json, and these items:

- `folder` and `pictures` (file names),
- `headline`, the first line of `pyro-bnn report`; null for image sets,
- `usability`, a key of `DECISIONS`, which says whether the run is usable; null for image sets.

For image sets, metrics.json has `num_test` and `num_unknown` (numbers of images), `rows` and `ood`. Each item of `rows`
describes one kind of prediction, such as a mean of draws, and has `name`, `accuracy`, `nll` (nats), `ece` and `brier`.
Each item of `ood` describes one score that should detect unknown images, and has `auroc`, `aupr` and `fpr95`.

For tables and arrays, metrics.json has `target`, `num_test`, `is_class`, `rows` and `calibration`. Each item of `rows`
has the `name` and the `scores` of one kind of prediction. Without --calibrate, `calibration` is null. With --calibrate,
`calibration` is an object with `num_calibration` and another list `rows`. Each item of this second list has `level`,
`name`, `inside` (the share of the targets inside), `width`, and `thirds` (the share in each third of the test rows).
"""

from ..remedies import quote
from . import options
from .output import STYLES, Output
from .stopping import loading

EXAMPLES = (
    "pyro-bnn evaluate digits-run",
    "pyro-bnn evaluate digits-run --num-samples 200 --json",
    "pyro-bnn evaluate garments --ood mnist --format pdf",
)


def evaluate(
    run: options.Run,
    ood: options.Unknown = None,
    num_samples: options.EvaluateDraws = None,
    seed: options.DrawSeed = 0,
    data: options.Data = None,
    download: options.Download = False,
    device: options.Device = "cpu",
    picture_format: options.Format = "png",
    as_json: options.Json = False,
) -> None:
    """Measure the accuracy and the calibration of a run's predictions for its test rows or images.

    The command prints the results, and writes metrics and pictures into the run's folder. For tables and arrays, the
    line below the scores says whether the run is usable. For images, `pyro-bnn report` says whether the run is usable.

    The row "mean of draws" has the scores of the Bayesian prediction. The row above it has the scores of single
    networks. These scores are better if they are smaller: NLL (negative log-likelihood per row), RMSE and CRPS (both in
    units of the target), ECE (calibration error) and the Brier score. "in 90 %" is the share of the targets in 90 %
    intervals. It should be 90 %. Trees predict numbers without an uncertainty, so they have no such share.

    After `train --calibrate`, the first table has these shares instead, before ("network") and after calibration, with
    the mean width of the intervals, and the share for each third of the rows, sorted by the predicted sd.
    """
    options.check_run(run)
    with loading():
        from ..._core.summary import counted
        from .. import runs
        from ..folders import updating
        from ..own.network import own_code
        from ..reports import evaluation, scores
        from ..reports.page import leading, level_of, usability, verdicts_on
        from ..reports.page.section import sentence
        from ..reports.page.subject import subject_of
        from ..reports.pictures import pictures_of
        from ..reports.trained import load_trained

    output = Output("evaluate", as_json=as_json)
    device = options.check_device(device)
    config = runs.load_config(run)
    is_image = config.kind == "images"
    files = evaluation.FILES if is_image else (*scores.FILES, runs.VERDICT)
    opened = updating(run, command="evaluate", writes=files, picture_format=picture_format)
    with opened as folder, own_code(config.net):
        trained = load_trained(
            run, config, ood, num_samples=num_samples, seed=seed, data=data, download=download, device=device
        )
        if config.validation:
            output.say(f"(scores are for the {config.validation} validation images)")
        report = evaluation.report_evaluation(trained, folder) if is_image else scores.report_scores(trained, folder)
        pictures = pictures_of(folder, files)
        headline, usable, level, said = None, None, "good", []
        if not is_image:
            found, verdicts, _ = verdicts_on(subject_of(run, config, trained, has_drivers=False))
            headline, usable, level = str(found), usability(verdicts), level_of(verdicts)
            shown = [sentence(verdict.short) for verdict in leading(verdicts)]
            others = sum(verdict.level != "good" for verdict in verdicts) - len(shown)
            shown += [f"{counted(others, 'more finding')} in the report"] if others else []
            said = [found.decision, *(f"- {finding}." for finding in shown)]
            runs.write_verdict(folder, headline)
    output.table(f"{report}")
    if isinstance(report, scores.OwnDataScores) and report.calibration is not None:
        spread = report.calibration.spread
        output.say(
            f"\nsmallest, middle and largest {spread}: the share inside in each third of the test rows, sorted by the "
            f"predicted {spread}. The calibrated share is right on average, not in each third.",
            style="dim",
        )
    output.say()
    for finding in said:
        output.say(finding, style="" if finding.startswith("-") else STYLES[level], indent=2)
    output.say(f"Metrics and pictures in {run}; next: pyro-bnn report {quote(run)}")
    output.document(folder=run, pictures=pictures, headline=headline, usability=usable, **vars(report))
