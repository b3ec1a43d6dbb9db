"""`pyro-bnn demo`.

The JSON of `demo` has `folder`, `pictures` (file names), `seconds`, `digits` and `regression`. `digits` has the items
`rows`, `ood`, `num_test` and `num_unknown` of the JSON of `evaluate`. `regression` has these items:

- the standard deviations `epistemic_scale_inside`, `epistemic_scale_outside`, `aleatoric_scale_inside` and
  `noise_scale_true`,
- `truth_in_band`: the fraction of the true curve in the band of ± 2 epistemic standard deviations,
- `band_inside`: the mean width of the band over the range of the points,
- `band_at_end`: the width of the band at x = -1.
"""

import time
from pathlib import Path
from typing import Annotated

import typer

from ..remedies import quote
from . import options
from .output import Output
from .stopping import loading

EXAMPLES = ("pyro-bnn demo", "pyro-bnn demo --out pictures --format pdf")


def demo(
    out: options.Out = Path("pyro-bnn-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the noise, initial weights, batch order and draws.")] = 0,
    picture_format: options.Format = "png",
    as_json: options.Json = False,
    force: options.Force = False,
) -> None:
    """Run two demonstrations in half a minute.

    The demonstrations need no download. The first demonstration trains a classifier on scikit-learn's digits 0 to 6,
    and then shows the classifier the unknown digits 7, 8 and 9. The second demonstration fits a curve to noisy points
    of a sine.
    """
    options.check_folder(out, force=force)
    with loading():
        from ..demo import digits_demo, regression_demo
        from ..folders import creating

    output = Output("demo", as_json=as_json)
    start = time.perf_counter()
    with creating(out, command="demo", force=force, picture_format=picture_format) as folder:
        output.say("Training on the digits 0 to 6; 7, 8 and 9 stay unknown ...")
        digits = digits_demo(folder, seed=seed)
        false_alarms = digits.ood["entropy"].fpr95
        output.say(
            f"7, 8 and 9 were never shown. Flagging images by their entropy finds 95 % of them, with "
            f"{100 * false_alarms:.0f} % false alarms; open votes.{picture_format}.\n"
        )
        output.say("Fitting 92 noisy points of 10 sin(2 pi x) on [-0.5, 0.5] ...")
        regression = regression_demo(folder, seed=seed)
    seconds = time.perf_counter() - start
    pictures = sorted(path.name for path in out.glob(f"*.{picture_format}"))
    inside, at_end, share = (regression[name] for name in ("band_inside", "band_at_end", "truth_in_band"))
    output.say(
        f"The curve is uncertain where nothing was measured. Its band of ± 2 sd is {inside:.0f} wide on average where "
        f"the points are, and {at_end:.0f} wide at x = -1. {100 * share:.0f} % of the true curve lies in it; open "
        f"regression.{picture_format}.\n"
    )
    output.say("All scores of the digits:\n")
    output.table(f"{digits}\n")
    output.say(f"Done in {seconds:.0f} s, imports not counted. Pictures in {out}: {', '.join(pictures)}")
    output.say(f"Next: pyro-bnn report {quote(out)}; then pyro-bnn train TABLE.csv --target COLUMN --out RUN")
    output.document(folder=out, pictures=pictures, seconds=seconds, digits=digits, regression=regression)
