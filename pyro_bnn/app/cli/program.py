"""The program behind `pyro-bnn`: its list of commands, and how a user's mistake is reported."""

import sys
from typing import Any

import typer

from ...svi import NonFiniteError
from .compare import compare
from .demo import demo
from .evaluate import evaluate
from .prune import prune
from .train import train
from .weights import weights

__all__ = ["main"]

UsageError: Any = typer.BadParameter.__mro__[1]
"""The error that Typer raises for a wrong command line; Typer does not export the class itself."""

program = typer.Typer(
    help="Bayesian neural networks on Pyro: train, evaluate, and see what the network does not know.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (demo, train, evaluate, compare, prune, weights):
    program.command()(command)


def main() -> None:
    """Run the command line; a user's mistake gives one line and exit code 2."""
    try:
        code = program(standalone_mode=False)
    except UsageError as error:
        _fail(f"{error.format_message().rstrip('.')}. Try --help.")
    except (ValueError, OSError, NonFiniteError) as error:
        _fail(str(error))
    sys.exit(code)


def _fail(message: str) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(2)
