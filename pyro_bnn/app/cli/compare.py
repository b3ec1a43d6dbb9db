"""`pyro-bnn compare`.

The JSON of `compare` has these items:

- `folder`, `seed`, `num_samples` (draws of each chain) and `pictures` (file names),
- `statuses` (the status of each fit, by the name of the method) and `verdict` (the result in words),
- `rows`, whose items have `reference` ("" for a score of a single method), `method`, `region`, `score`, `value`,
  `standard_error`, `quantile_10` and `quantile_90` (quantiles of a ratio over test rows or points).
"""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .output import Output
from .stopping import loading

EXAMPLES = (
    "pyro-bnn compare",
    "pyro-bnn compare --num-samples 300 --out quick",
    "pyro-bnn compare houses",
)

NUM_STEPS, NUM_SAMPLES, NUM_SAMPLES_OF_RUN, FEWEST_SAMPLES = 3000, 500, 400, 40
SHORT, LONG, FEWER = 10.0, 120.0, 4
"""Heuristic: if NUTS takes less than `SHORT` seconds, the command says "a few seconds", since preparations take most of
the time. If NUTS takes more than `LONG` seconds, the command suggests dividing the number of draws by `FEWER`."""


def compare(
    run: Annotated[
        Path | None,
        typer.Argument(help="Folder that `train` wrote.", metavar="RUN", show_default="a noisy sine, and no run"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to.", show_default="RUN/compare, or pyro-bnn-compare without a run"),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(
            help="Number of draws in each of the four NUTS chains. Each warm-up has the same number of draws.",
            min=FEWEST_SAMPLES,
            show_default=f"{NUM_SAMPLES_OF_RUN}, or {NUM_SAMPLES} without a run",
        ),
    ] = None,
    num_steps: Annotated[
        int | None,
        typer.Option(help="Optimisation steps of each fit to the sine.", min=1, show_default=f"{NUM_STEPS}"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise, the initial weights, the fits and the draws.")] = 0,
    data: options.Data = None,
    download: options.Download = False,
    picture_format: options.Format = "png",
    as_json: options.Json = False,
    force: options.Force = False,
) -> None:
    """Compare approximate posteriors with NUTS.

    With a run, the command draws chains of NUTS for the run's network. The command then predicts the
    test rows with the chains and with the run, and compares the predictions. NUTS uses all rows in every step, so it
    suits at most a few thousand rows and a few thousand weights. The command first says how long NUTS takes at most,
    and what to do if that is too long. The progress bar shows the time that is left.

    Without a run, the command compares seven methods with NUTS on a noisy sine with a gap in its data. The command
    prints how far the predictions of each method are from those of NUTS, separately near the data, in the gap, and
    outside the range of the data. This takes some minutes.

    The command writes tables, and a picture if there are curves to show. NUTS runs in C if there is a C compiler.
    """
    if run is not None and num_steps is not None:
        raise ValueError("--num-steps is for the sine; leave it out with a run.")
    if run is None and (data is not None or download):
        raise ValueError("--data and --download need a run; name its folder, or leave out both options.")
    if run is not None:
        options.check_run(run)
    out = out or Path("pyro-bnn-compare" if run is None else run / "compare")
    options.check_folder(out, force=force)
    with loading():
        from ..._core.scope import silent_fits
        from ...inference.mcmc import LARGEST_R_HAT, LARGEST_WITHIN, SMALLEST_ESS_PER_CHAIN
        from ...inference.posterior import Status
        from .. import beside, runs, sources
        from ..beside import NUM_CHAINS, agreement, compare_with_chains, side_by_side, units_of, without_unknown_errors
        from ..demo import RegressionStudy, save_comparison
        from ..folders import creating
        from ..own.network import own_code
        from ..remedies import MORE

    output = Output("compare", as_json=as_json)
    statuses: dict[str, str] = {}

    def tell(method: str, status: Status) -> None:
        statuses[method] = str(status)
        if method == "nuts":
            finding = str(status).partition(". ")[0]  # without remedies, which name arguments of Python
            output.say(f"{finding.rstrip('.')}.")
            if not status:
                output.say(
                    f"{status.finding.partition(':')[0].rstrip('.')}, so the chains have not converged. The limits "
                    f"(R-hat {LARGEST_R_HAT}, and an effective sample size, ESS, of {SMALLEST_ESS_PER_CHAIN} a chain) "
                    f"are stricter than in `train` (R-hat {LARGEST_WITHIN}), since NUTS is the yardstick here."
                )
        elif run is None:
            output.say(f"{method}: {status}")

    count = num_samples or (NUM_SAMPLES if run is None else NUM_SAMPLES_OF_RUN)
    chains = f"four chains of {count} draws each (and as many of warm-up)"
    config = None if run is None else runs.load_config(run)
    if run is not None:
        runs.check_apart(out, run)
    opened = creating(out, command="compare", force=force, picture_format=picture_format)
    with opened as folder, own_code("mlp" if config is None else config.net), silent_fits():  # `tell` prints statuses
        if run is None or config is None:
            output.say(f"Fitting NUTS and seven methods to a noisy sine, with seed {seed}. NUTS: {chains} ...")
            study = RegressionStudy(seed=seed, num_steps=num_steps or NUM_STEPS, num_samples=count)
            result, shown = without_unknown_errors(study.run(tell)), (study.x, study.y)
            verdict = result.differences
            text = f"{result.tables}\n\n{verdict}"
        else:
            rows = sources.load(config, root=data, download=download, facts=runs.read_facts(run))
            output.say(f"NUTS draws {chains} for {len(rows.x_train):,} rows, with seed {seed} ...")
            if config.method == "svi" and config.kl_weight != "1":
                output.say(
                    f"The run has a cold posterior (--kl-weight {config.kl_weight}), but the chains have KL weight 1."
                )
            result = compare_with_chains(
                run,
                config,
                rows,
                num_samples=count,
                seed=seed,
                expect=lambda seconds: output.say(expected_time(seconds, count)),
                report=tell,
            )
            verdict, text = agreement(result, NUM_CHAINS), side_by_side(result)
            result = without_unknown_errors(result)
            shown = rows.x_train, rows.facts.target.in_units(rows.y_train)
        pictures = save_comparison(result, folder, shown)
    if config is not None:
        output.say()
        decision, _, details = verdict.partition("\n")
        output.say(decision, style="bold")
        if details:
            output.say(details)
    output.table(f"\n{text}")
    output.say()
    if config is None:
        output.say("NLL is in nats per point. The ELBO of a fit, and the log evidence, are in nats for all 92 points.")
    else:
        output.say(units_of(rows.facts.target))
        others = f" and all {len(rows.x_test):,} test rows" if len(rows.x_test) > beside.MOST_POINTS else ""
        output.say(f"The NLL of the run may differ from that of `evaluate`, which uses other draws{others}.")
    output.say(
        "± is a standard error: of the draws for differences between methods, and of the mean over rows or points "
        "for scores of one method."
    )
    if not result.status:
        output.say("Numbers from NUTS have no ±: its chains have not converged, so their errors are not known.")
        doubt = "NUTS did not converge, so small distances from it are not certain. " if config is None else ""
        smaller = ", or compare a run with a smaller network" if config is not None and config.hidden else ""
        output.say(
            f"{doubt}For a more exact reference, draw more (--num-samples {MORE * count}: about {MORE} times the time)"
            f"{smaller}."
        )
    output.say(f"\n{', '.join(['comparison.csv', 'comparison.json', *pictures])} in {out}.")
    output.document(
        folder=out,
        num_samples=count,
        seed=seed,
        pictures=pictures,
        statuses=statuses,
        verdict=verdict,
        rows=result.rows(),
    )


def expected_time(seconds: float, num_samples: int) -> str:
    """Say how long the chains of NUTS take at most and, if that is long, how to save time."""
    from ..._core.summary import in_time  # imported late: importing takes long

    if seconds < SHORT:
        return "This takes a few seconds."
    said = f"This takes at most about {in_time(float(f'{seconds:.2g}'))} at the present speed of this machine."
    if seconds <= LONG:
        return said
    fewer = max(num_samples // FEWER, FEWEST_SAMPLES)
    draws = f"draw less (--num-samples {fewer}), or " if fewer < num_samples else ""
    return (
        f"{said} If that is too long, stop with Ctrl-C; then {draws}compare a run with fewer training rows: "
        "`pyro-bnn train --test-fraction 0.9` trains on a tenth of the rows."
    )
