"""`pyro-bnn demo`.

Its JSON: `folder`, `pictures` (file names), `seconds`, `digits` (as in the JSON of `evaluate`: `rows`, `ood`,
`num_test`, `num_unknown`), and `regression` (standard deviations: `epistemic_scale_inside`, `epistemic_scale_outside`,
`aleatoric_scale_inside`, `noise_scale_true`).
"""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .output import Output
from .stopping import loading

EXAMPLES = ("pyro-bnn demo", "pyro-bnn demo --out pictures --format pdf")


def demo(
    out: options.Out = Path("pyro-bnn-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the noise, initial weights, batch order and weight draws.")] = 0,
    picture_format: options.Format = "png",
    as_json: options.Json = False,
    force: options.Force = False,
) -> None:
    """Run two demonstrations in under a minute.

    Neither needs a download. The first trains on scikit-learn's digits, with 7, 8 and 9 held out as the unknown. The
    second is a regression on a noisy sine.
    """
    with loading():
        from ..demo import digits_demo, regression_demo
        from ..folders import creating

    output = Output("demo", as_json=as_json)
    start = time.perf_counter()
    with creating(out, command="demo", force=force, picture_format=picture_format) as folder:
        output.say("Training on the digits 0 to 6; 7, 8 and 9 are the unknown ...")
        digits = digits_demo(folder, seed=seed, progress=sys.stderr.isatty())
        output.table(f"{digits}\n")
        output.say("Fitting 92 noisy points of 10 sin(2 pi x) on [-0.5, 0.5] ...")
        regression = regression_demo(folder, seed=seed)
        for name, value in regression.items():
            output.say(f"{name.replace('_', ' '):30s} {value:9.2f}")
    seconds = time.perf_counter() - start
    pictures = sorted(path.name for path in out.glob(f"*.{picture_format}"))
    output.say(f"\nDone in {seconds:.0f} s. Pictures in {out}: {', '.join(pictures)}")
    output.document(folder=out, pictures=pictures, seconds=seconds, digits=digits, regression=regression)
