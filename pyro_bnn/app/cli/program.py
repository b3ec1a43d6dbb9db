"""The program behind `pyro-bnn`: its list of commands, and how a user's mistake is reported."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import typer

from .compare import compare
from .demo import demo
from .evaluate import evaluate
from .prune import prune
from .stopping import stoppable
from .train import train
from .weights import weights

__all__ = ["run"]

UsageError: Any = typer.BadParameter.__mro__[1]
"""The error that Typer raises for a wrong command line; Typer does not export the class itself."""

program = typer.Typer(
    help="Bayesian neural networks on Pyro: train, evaluate, and see what the network does not know.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _saying_why(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says what it was stopped at; Typer's own end after Ctrl-C is silent."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        with stoppable():
            command(*arguments, **options)

    return run


for command in (demo, train, evaluate, compare, prune, weights):
    program.command()(_saying_why(command))


def run() -> None:
    """Run the command line, and exit. A fault gives one line."""
    try:
        code = program(standalone_mode=False)
    except UsageError as error:
        _fail(f"{error.format_message().rstrip('.')}. Try --help.", 2)
    except Exception as error:
        from .faults import explained

        fault = explained(error)
        if fault is None:
            raise
        _fail(*fault)
    sys.exit(code)


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(code)
