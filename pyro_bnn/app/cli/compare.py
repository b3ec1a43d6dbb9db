"""`pyro-bnn compare`."""

import sys
import warnings
from pathlib import Path

import typer

from . import options
from .stopping import loading

EXAMPLES = (
    "pyro-bnn compare",
    "pyro-bnn compare --num-draws 150 --compile --out quick",
)


def compare(
    out: options.Out = Path("pyro-bnn-compare"),
    num_draws: options.ChainDraws = 500,
    num_steps: options.Steps = 3000,
    compile: options.Compile = False,
    seed: options.CompareSeed = 0,
    force: options.Force = False,
) -> None:
    """Compare seven approximate methods with NUTS.

    The problem is a noisy sine with a gap in its data. Prints how far each method is from the exact posterior where
    there are data, in the gap and outside, and writes a table and a picture. Takes some minutes.
    """
    with loading():
        from ...mcmc import ConvergenceWarning
        from ..folders import creating
        from ..study import RegressionStudy

    with creating(out, command="compare", force=force) as folder:
        study = RegressionStudy(
            seed=seed, num_steps=num_steps, num_draws=num_draws, compile=compile, progress=sys.stderr.isatty()
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # its message is printed as the status
            result = study.run(typer.echo)
        study.save(result, folder)
    typer.echo(f"\n{result}")
    typer.echo(f"\ncomparison.csv, comparison.json and comparison.png in {out}.")
