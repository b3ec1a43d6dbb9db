"""The program behind `pyro-bnn`: its list of commands, and how a user's mistake is reported."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import typer

from ..._files import DamagedFileError
from ...svi import NonFiniteError
from .compare import compare
from .demo import demo
from .evaluate import evaluate
from .prune import prune
from .report import report
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


def _stoppable(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says what it was stopped at; Typer's own end after Ctrl-C is silent."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt as error:
            _fail(str(error) or "stopped.", INTERRUPTED)

    return run


for command in (demo, train, evaluate, report, compare, prune, weights):
    program.command()(_stoppable(command))


def main() -> None:
    """Run the command line. A fault gives one line; exit code 2 stands for wrong use, 1 for other faults."""
    try:
        code = program(standalone_mode=False)
    except UsageError as error:
        _fail(f"{error.format_message().rstrip('.')}. Try --help.", 2)
    except MISUSE as error:
        _fail(_sentence(error), 1 if isinstance(error, DamagedFileError) else 2)
    except (OSError, NonFiniteError) as error:
        _fail(_sentence(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        _fail("the memory is exhausted; make --hidden, --batch-size or --num-samples smaller.", 1)
    sys.exit(code)


MISUSE = (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
INTERRUPTED = 130
"""Exit code of a program that Ctrl-C has stopped, as shells have it."""


def _sentence(error: Exception) -> str:
    """The message of an error; that of the system as a sentence."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror.lower()}."
    return str(error)


def _is_of_memory(error: Exception) -> bool:
    """Whether memory is short; on the CPU, torch says so in words only."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return any(words in str(error) for words in ("can't allocate memory", "Storage size calculation overflowed"))


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(code)
