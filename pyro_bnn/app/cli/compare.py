"""`pyro-bnn compare`.

Its JSON: `folder`, `pictures` (file names), `statuses` (of the fits, by method), and `rows`, one for each number, with
`reference` ("" for the score of a single method), `method`, `region`, `score`, `value` and `standard_error`.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .output import Output
from .stopping import loading

EXAMPLES = ("pyro-bnn compare", "pyro-bnn compare --num-samples 150 --compile --out quick")


def compare(
    out: options.Out = Path("pyro-bnn-compare"),
    num_samples: Annotated[
        int, typer.Option(help="Draws of each of the four chains of NUTS, after equally many of warm-up.", min=40)
    ] = 500,
    num_steps: Annotated[int, typer.Option(help="Optimisation steps of each fit.", min=1)] = 3000,
    compile: Annotated[bool, typer.Option("--compile", help="Draw in C: needs a C compiler.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of noise, initial weights, fits and draws.")] = 0,
    picture_format: options.Format = "png",
    as_json: options.Json = False,
    force: options.Force = False,
) -> None:
    """Compare seven approximate methods with NUTS.

    The problem is a noisy sine with a gap in its data. Prints how far each method is from the exact posterior near the
    data, in the gap and outside, and writes a table and a picture. Takes some minutes.
    """
    with loading():
        from ..._core.scope import silent_fits
        from ..folders import creating
        from ..study import RegressionStudy

    output = Output("compare", as_json=as_json)
    statuses: dict[str, str] = {}

    def tell(line: str) -> None:
        method, _, status = line.partition(": ")
        statuses[method] = status
        output.say(line)

    with creating(out, command="compare", force=force, picture_format=picture_format) as folder:
        study = RegressionStudy(
            seed=seed, num_steps=num_steps, num_samples=num_samples, compile=compile, progress=sys.stderr.isatty()
        )
        with silent_fits():  # `tell` prints the statuses
            result = study.run(tell)
        picture = study.save(result, folder)
    output.table(f"\n{result}")
    output.say(f"\ncomparison.csv, comparison.json and {picture} in {out}.")
    output.document(folder=out, pictures=[picture], statuses=statuses, rows=result.rows())
