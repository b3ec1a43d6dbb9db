"""`pyro-bnn report`.

The JSON of `report` has `folder`, `page` (the path of the page), `headline` (the first line of the report), `usability`
(a key of `DECISIONS`, which says whether the run is usable), and the list `verdicts`. Each verdict has these items:

- `level` (good, note or problem), `about` (such as predictions, uncertainty or fit), `short`, `text` and `rule`,
- `is_beaten`: whether another method predicts better,
- `rivals`: the simpler methods that the network does not clearly beat,
- `relation`: words for how the network compares with them,
- `is_cause`: whether the fault can have caused others,
- `is_named`: whether the first line names the fault before other notes,
- `changes`: settings that may mend the fault; may be empty,
- `command`: the command that trains with the changes of all verdicts; may be empty.
"""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .output import STYLES, Output
from .stopping import loading

GENERATOR = b'<meta name="generator" content="pyro_bnn">'  # in the head of each report
EXAMPLES = ("pyro-bnn report digits-run", "pyro-bnn report digits-run --out report.html")


def report(
    run: options.Run,
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="report.html in the run's folder")
    ] = None,
    ood: options.Unknown = None,
    num_samples: options.EvaluateDraws = None,
    seed: options.DrawSeed = 0,
    data: options.Data = None,
    download: options.Download = False,
    device: options.Device = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --out if it is not a report.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write a report on a training run as one HTML page that can be read offline.

    The first line of the page says whether the run is usable. Below this line are verdicts with their thresholds, and
    the scores of the network and of baselines. Then come sections on calibration, unknown images, examples, the
    training curves, the weights and the settings.
    """
    if out is not None and out.resolve() == (run / "report.html").resolve():
        out = None
    options.check_run(run)
    if out is not None:
        options.check_file(out, force=force or _is_report(out))
    with loading():
        from ..._core.files import write_atomically
        from .. import runs
        from ..folders import updating
        from ..own.network import own_code
        from ..reports.page import level_of, report_on, usability
        from ..reports.page.subject import subject_of
        from ..reports.trained import load_trained

    config = runs.load_config(run)
    if out is not None:
        runs.check_foreign(out, config)
        if out.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"--out must end in .html, since the report is an HTML page, got {out}; print it as PDF.")
    with own_code(config.net):
        device = options.check_device(device)
        trained = load_trained(
            run, config, ood, num_samples=num_samples, seed=seed, data=data, download=download, device=device
        )
        headline, verdicts, page = report_on(subject_of(run, config, trained))
    if out is None:
        with updating(run, command="report", writes=("report.html", runs.VERDICT)) as folder:
            folder.write_text("report.html", page)
            runs.write_verdict(folder, headline)
    else:
        write_atomically(out, lambda file: file.write(page.encode()))
    output = Output("report", as_json=as_json)
    output.say(headline, style=STYLES[level_of(verdicts)])
    for verdict in verdicts:
        output.say(f"{verdict.word + ':':9s} {verdict.text}", indent=10)
    command = next((verdict.command for verdict in verdicts if verdict.command), "")
    if command:
        output.say("\nTo train again with the next changes to try:")
        output.say(command, wraps=False)
    page_file = out or run / "report.html"
    output.say(f"\nReport, with the thresholds of each verdict, in {page_file}.")
    output.document(folder=run, page=page_file, headline=headline, usability=usability(verdicts), verdicts=verdicts)


def _is_report(page: Path) -> bool:
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return GENERATOR in file.read(1000)
