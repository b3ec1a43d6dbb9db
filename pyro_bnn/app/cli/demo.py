"""`pyro-bnn demo`."""

import sys
import time
from pathlib import Path

import typer

from . import options
from .stopping import loading

EXAMPLES = (
    "pyro-bnn demo",
    "pyro-bnn demo --out pictures --format pdf",
)


def demo(out: options.Out = Path("pyro-bnn-demo"), seed: options.DemoSeed = 0, force: options.Force = False) -> None:
    """Run two demonstrations in under a minute.

    Neither needs a download. The first trains on scikit-learn's digits, with 7, 8 and 9 held out as the unknown. The
    second is a regression on a noisy sine.
    """
    with loading():
        from ..demo import digits_demo, regression_demo
        from ..folders import creating

    start = time.perf_counter()
    with creating(out, command="demo", force=force) as folder:
        typer.echo("Training on the digits 0 to 6; 7, 8 and 9 are the unknown ...")
        typer.echo(f"{digits_demo(folder, seed=seed, progress=sys.stderr.isatty())}\n")
        typer.echo("Fitting 92 noisy points of 10 sin(2 pi x) on [-0.5, 0.5] ...")
        for name, value in regression_demo(folder, seed=seed).items():
            typer.echo(f"{name.replace('_', ' '):30s} {value:9.2f}")
    pictures = ", ".join(sorted(path.name for path in out.glob("*.png")))
    typer.echo(f"\nDone in {time.perf_counter() - start:.0f} s. Pictures in {out}: {pictures}")
