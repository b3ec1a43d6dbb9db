"""The program `pyro-bnn`, which runs the commands and reports errors."""

import inspect
import platform
import re
import shlex
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any

import typer

import pyro_bnn

from ..._core.names import nearest
from . import compare, demo, evaluate, options, predict, prune, report, train, weights
from .output import Output
from .stopping import INTERRUPTED, stoppable

COMMANDS: tuple[tuple[Callable[..., None], tuple[str, ...]], ...] = (
    (demo.demo, demo.EXAMPLES),
    (train.train, train.EXAMPLES),
    (evaluate.evaluate, evaluate.EXAMPLES),
    (report.report, report.EXAMPLES),
    (predict.predict, predict.EXAMPLES),
    (compare.compare, compare.EXAMPLES),
    (prune.prune, prune.EXAMPLES),
    (weights.weights, weights.EXAMPLES),
)
"""The commands in the order in which the help lists them, each with the examples in its help."""

OTHERWISE = {"fit": "train", "learn": "train", "run": "train", "score": "evaluate", "test": "evaluate"}
"""Names that users try for commands, and the commands that they mean."""

MISUSE = ValueError | FileNotFoundError | FileExistsError | NotADirectoryError | IsADirectoryError
EXHAUSTED = "the memory is exhausted; make --hidden, --batch-size or --num-samples smaller."

UsageError: Any = typer.BadParameter.__mro__[1]  # for a wrong command line; Typer does not export it by name
program = typer.Typer(
    cls=options.PlainGroup,
    help="Bayesian neural networks on Pyro: train and evaluate a network, and see what it does not know.",
    epilog="pyro-bnn COMMAND --help shows examples. Start with: pyro-bnn demo",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"pyro-bnn {pyro_bnn.__version__}")
        for title, package in (("torch", "torch"), ("Pyro", "pyro-ppl")):
            typer.echo(f"{title} {metadata.version(package)}")
        typer.echo(f"Python {platform.python_version()} on {platform.platform()}")
        raise typer.Exit


@program.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the versions, also of torch, Pyro and Python, and exit.",
            callback=_tell_version,
            is_eager=True,
        ),
    ] = False,
) -> None: ...


for command, examples in COMMANDS:
    paragraphs = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")  # Typer would show the line breaks
    lines = "\n".join(["Examples:", *(f"  {example}" for example in examples)])
    shape = options.BriefHelp if command is train.train else options.PlainCommand
    program.command(help=paragraphs, epilog=lines, cls=shape)(stoppable()(command))  # Typer writes nothing after Ctrl-C


def run() -> None:
    """Run the command line, and exit. After an error, print one line. Without a command, print the help."""
    try:
        code = program(["--help"] if len(sys.argv) < 2 else None, standalone_mode=False, prog_name="pyro-bnn")
        if code == INTERRUPTED:  # Typer returns this after a Ctrl-C outside of the commands
            raise KeyboardInterrupt
    except UsageError as error:
        _fail(f"{_in_plain_words(error)} Try --help.", 2)
    except Exception as error:
        fault = _explained(error)
        if fault is None:
            raise
        _fail(*fault)
    sys.exit(code)


def _in_plain_words(error: Any) -> str:
    message = str(error.format_message())
    if option := getattr(error, "option_name", ""):
        near = nearest(option, getattr(error, "possibilities", None) or ())
        if message.startswith("No such option"):
            found = "; the separator of a table is recognised: leave it out."
            return f"No such option: {option}{found if option[2:5] in ('sep', 'del') else _did_you_mean(near)}"
    if unknown := re.match("No such command '(.*?)'", message):
        near = OTHERWISE.get(unknown[1]) or nearest(unknown[1], [command.__name__ for command, _ in COMMANDS])
        return f"No such command: {unknown[1]}{_did_you_mean(near)}"
    if message.startswith("Missing argument") and error.ctx is not None:
        return f"{message.rstrip('.')}; write {_usage(error)}."
    extra = re.match(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", message)
    command = error.ctx.info_name if extra and error.ctx is not None else ""
    if extra and command == "train":
        column = re.sub(r"^\W*target[ =]", "", extra[1])
        hint = "; leave it out." if "--target" in sys.argv else _did_you_mean(f"--target {shlex.quote(column)}")
        return f"train takes one argument, the data set, and got also {extra[1]}{hint}"
    if extra and command == "compare":
        return (
            f"compare takes one run, which it compares with NUTS, and got also {extra[1]}. To compare runs with each "
            "other, call `pyro-bnn evaluate` for each, and look at the NLL, and at the RMSE or accuracy, in the row "
            "`mean of draws`."
        )
    if extra:
        return f"got one argument too many, {extra[1]}; write {_usage(error)}."
    faults: list[Any] = getattr(error.__context__, "errors", list)()  # of Pydantic, with which Typer reads numbers
    limit = "Input should be (greater|less) than or equal to |(.*) is not in the range x>="  # recent and older Typer
    far = re.match(rf"Invalid value for (.*): (?:{limit})(\d+)", message)
    if far:
        side = "most" if far[2] == "less" else "least"
        return f"{far[1]} must be at {side} {far[4]}, got {far[3] or faults[0]['input']}."
    choice = re.match("Invalid value for (.*): (?:Value error, )?('.*') is not one of (.*?)\\.?$", message)
    if choice:
        meant = nearest(choice[2].strip("'"), re.findall("'(.*?)'", choice[3]))
        return f"{choice[1]} must be one of {choice[3]}, got {choice[2]}{_did_you_mean(meant)}"
    number = "a valid (integer|number|float)"
    wrong = re.match(rf"(Invalid value for .*): (?:Input should be|('.*') is not) {number}", message)
    if wrong:
        kind = "whole number" if wrong[3] == "integer" else "number"
        typed = wrong[2] or (repr(faults[0]["input"]) if faults else "another text")
        return f"{wrong[1]}: it must be a {kind}, got {typed}."
    return message if message.endswith(("?", ".")) else f"{message}."


def _usage(error: Any) -> str:
    """Return how to call the command of an error, such as "pyro-bnn predict [OPTIONS] RUN ROWS"."""
    return re.sub("Usage:|[{}]", "", str(error.ctx.command.get_usage(error.ctx))).strip()  # recent Typer writes {RUN}


def _did_you_mean(near: str) -> str:
    return f"; did you mean {near}?" if near else "."


def _fail(message: str, code: int) -> None:
    message = "\n- ".join(" ".join(item.split()) for item in message.split("\n- "))  # a list has a line for each item
    message = re.sub(r"(['`])(--[a-z][a-z-]*)\1", r"\2", message)  # Typer quotes options
    message = re.sub(r"\(`[a-z]+(=True)?`(, | or )--", "(--", message)  # the name in Python stands before the option
    is_json = "--json" in sys.argv
    name = next(iter(sys.argv[1:]), "")
    output = Output("" if name.startswith("-") else name, as_json=is_json, only_notes=True)
    output.say(f"error: {message}", style="red")
    output.document(error=message)
    sys.exit(code)


def _explained(error: Exception) -> tuple[str, int] | None:
    """Return the message and the exit code for an error, or None if the error is a bug."""
    if "torch" in sys.modules:  # if torch is not loaded, the library did not raise the error
        from ..._core.extras import MissingExtraError
        from ..._core.files import DamagedFileError
        from ...inference.svi import NonFiniteError

        if isinstance(error, DamagedFileError | MissingExtraError | NonFiniteError):
            return str(error), 1
    words = ("out of memory", "can't allocate memory", "Storage size calculation overflowed")  # of torch
    is_of_memory = isinstance(error, RuntimeError) and any(part in str(error) for part in words)
    if is_of_memory or isinstance(error, MemoryError):
        return EXHAUSTED, 1
    if not isinstance(error, MISUSE | OSError):
        return None
    message = str(error)
    if isinstance(error, OSError) and error.strerror:  # an error of the system
        message = f"{f'{error.filename}: ' if error.filename else ''}{error.strerror.lower()}."
    return message, 2 if isinstance(error, MISUSE) else 1
