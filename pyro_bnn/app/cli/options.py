"""Options and arguments that several commands share, and functions that parse and check their values."""

import copy
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from .. import recipes, specs
from ..config import IMAGE_SETS, PANELS, RunConfig, option_of, settings
from ..remedies import MANIFEST, no_run
from ..specs import TABLES

MOST_NAMED = 5  # largest number of files in an error message


def one_of(*choices: str) -> Callable[[str], list[str]]:
    """Return a function that the shell calls to complete a half-typed word to one of the choices."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


Run = Annotated[Path, typer.Argument(help="Folder that `train` wrote.", metavar="RUN")]
Out = Annotated[Path, typer.Option(help="Folder to write to.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder that holds MNIST/raw and FashionMNIST/raw.", show_default="$PYRO_BNN_DATA, else ./data"),
]
Download = Annotated[bool, typer.Option("--download", help="Download missing data into the data folder.")]
Device = Annotated[
    str,
    typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...", autocompletion=one_of("cpu", "cuda")),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace a folder that pyro-bnn made. Files in it from other programs are kept."),
]
DrawSeed = Annotated[int, typer.Option(help="Seed of the draws of the weights.")]
Format = Annotated[Literal["png", "pdf", "svg"], typer.Option("--format", help="Format of pictures.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the results, or the error, as JSON, and the text to standard error.")
]
Unknown = Annotated[
    str | None,
    typer.Option(
        help="Data set of the unknown images.",
        show_default="the run's held-out classes; if it has none, mnist for a run on fashion-mnist, and fashion-mnist "
        "for a run on mnist",
        autocompletion=one_of(*specs.DATA_SETS),
    ),
]
EvaluateDraws = Annotated[
    int | None,
    typer.Option(help="Number of draws of the weights.", min=2, show_default="100; for chains 800, or all if fewer"),
]


BRIEF = (
    *("out", "target", "header", "ignore", "calibrate", "split_by", "hidden", "prior", "method", "time_limit"),
    "help_all",
)
OF_TRAIN = {"out": "", "help_all": "", "recipe": IMAGE_SETS, "data": IMAGE_SETS, "download": IMAGE_SETS}
"""Headings in the help of `train` for options that are no settings; the last heading is for all others."""
OF_COLUMNS = ("--target", "--features", "--ignore", "--keep")  # `prune --keep` takes a share
ALL = "pyro_bnn.help_all"  # key in the `meta` dictionary of Typer's context, present if `--help-all` was given


class PlainFlags:
    """Base class of commands whose help omits the types of flags, and shows defaults in words without parentheses."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's parameters. The help shows their defaults, but no types of flags."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the command
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            words = getattr(parameter, "show_default", None)
            if isinstance(words, str):
                parameter.help = rf"{parameter.help} [dim]\[default: {words}][/dim]"
                parameter.show_default = False
        return parameters


class PlainCommand(PlainFlags, TyperCommand):
    """A command of the program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line. Raise if an option is given twice, as Typer would silently ignore the first value."""
        given = [part.partition("=")[0] for part in args]
        if twice := next((name for name in OF_COLUMNS if given.count(name) > 1), ""):
            once = "train once for each target" if twice == "--target" else "separate several columns by commas"
            once = "choose one share" if self.name == "prune" else once
            ctx.fail(f"{twice} is given twice; {once}.")
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the examples after the first sentence."""
        before = self.help, self.epilog
        first, _, rest = (self.help or "").partition("\n\n")
        self.help, self.epilog = f"{first}\n\n{self.epilog}\n\n{rest}", None
        try:
            super().format_help(ctx, formatter)
        finally:
            self.help, self.epilog = before


class PlainGroup(PlainFlags, TyperGroup):
    """The program, which is a group of commands."""


class BriefHelp(PlainCommand):
    """The command `train`. `--help` shows only the options in `BRIEF`, and `--help-all` shows all options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: all of it for `--help-all`, or else `BRIEF` without the defaults of image sets."""
        others = [option for option in self.params if option.name not in BRIEF and not ctx.meta.get(ALL)]
        options = [option for option in others if isinstance(option, TyperOption) and not option.hidden]
        helps = {option: option.help for option in self.get_params(ctx) if isinstance(option, TyperOption)}
        for option in options:
            option.hidden = True
        for option in () if ctx.meta.get(ALL) else helps:
            option.help = re.sub("images .*; tables and arrays ", "", option.help or "")
        try:
            super().format_help(ctx, formatter)
        finally:
            for option in options:
                option.hidden = False
            for option, words in helps.items():
                option.help = words


def _tell_all(ctx: typer.Context, is_asked: bool) -> None:
    if is_asked:
        ctx.meta[ALL] = True
        typer.echo(ctx.get_help(), nl=False)
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", help="Show all options and exit.", callback=_tell_all, is_eager=True)
]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option to the command for each setting of a run. An option that the user leaves out is None."""
    hints = get_type_hints(RunConfig)
    signature = inspect.signature(command)
    dataset, *others = (part for part in signature.parameters.values() if part.kind is not part.VAR_KEYWORD)
    panels: dict[str, list[inspect.Parameter]] = {panel: [] for panel in PANELS}
    for name, setting in settings().items():
        if name == dataset.name:
            continue
        kind = hints[name]
        option = typer.Option(
            help=setting.help,
            show_default=recipes.default(name) if setting.shown is None else setting.shown or False,
            autocompletion=one_of(*(setting.choices or (get_args(kind) if get_origin(kind) is Literal else ()))),
            rich_help_panel=setting.panel or None,
        )
        typed: Any = kind if kind in (int, float, bool) else str
        annotation = Annotated[typed | None, option]
        part = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        panels[setting.panel].append(part)
    for part in others:
        panel = OF_TRAIN.get(part.name, PANELS[-1])
        kind, option = get_args(part.annotation)
        option = copy.copy(option)
        option.rich_help_panel = panel or None
        panels[panel].append(part.replace(kind=part.KEYWORD_ONLY, annotation=Annotated[kind, option]))
    parameters = [dataset, *(part for parts in panels.values() for part in parts)]
    command.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return command


def read_settings(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the user typed. If a setting needs a list, its text is split at commas."""
    hints = get_type_hints(RunConfig)
    given = {name: value for name, value in typed.items() if value is not None}
    for name, value in given.items():
        if hints[name] == tuple[int, ...]:
            given[name] = read_numbers(int, value, option_of(name))
        elif hints[name] == tuple[str, ...]:
            given[name] = read_names(value)
    return given


Number = TypeVar("Number", int, float)


def read_numbers(kind: type[Number], text: str, name: str) -> tuple[Number, ...]:
    """Return the numbers in a text such as ``400,400``."""
    try:
        return tuple(kind(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        expected, example = ("whole numbers", "50,50") if kind is int else ("numbers", "0.5,0.9")
        raise ValueError(f"`{name}` must be {expected} separated by commas, such as {example}, got {text!r}.") from None


def read_names(text: str) -> tuple[str, ...]:
    """Return the names in a text such as ``id,name``, without spaces around the names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def check_run(run: Path) -> None:
    """Raise if a path is not the folder of a finished or unfinished run. The check is fast."""
    if run.is_file():
        is_of_run = (run.parent / MANIFEST).is_file()
        folder = f"the folder: {run.parent}" if is_of_run else "a folder that `pyro-bnn train` wrote"
        raise NotADirectoryError(f"{run} is a file; pass {folder}.")
    if os.path.lexists(run.parent / f".{run.name}.part"):
        return
    if not os.path.lexists(run):
        runs = [path.parent.name for path in run.parent.glob(f"*/{MANIFEST}")]
        raise no_run(run, f": there is no such folder{specs.near(run.name, runs)}")
    if run.is_dir() and not (run / MANIFEST).is_file():
        raise no_run(run, f": there is no {run / MANIFEST}")


def check_rows(rows: Path) -> None:
    """Raise if the file with the rows does not exist. The check is fast."""
    if os.path.lexists(rows):
        return
    if not rows.parent.is_dir():
        raise FileNotFoundError(f"there is no file {rows}, since there is no folder {rows.parent}; correct the path.")
    files = sorted(path.name for path in rows.parent.iterdir() if path.is_file())
    tables = [name for name in files if Path(name).suffix.lower() in (*TABLES, ".npz")]
    others = f"{', '.join(tables[:MOST_NAMED])}{', ...' if len(tables) > MOST_NAMED else ''}"
    found = (
        f"; its folder holds {others}: name one of them" if tables else " and no table in its folder; correct the path"
    )
    raise FileNotFoundError(f"there is no file {rows}{specs.near(rows.name, files) or found}.")


def check_columns(table: Path, names: Sequence[str], *, header: bool = True) -> None:
    """Raise if a table in a text file lacks a column in `names`.

    The whole table is read only if its first line does not contain all the names.
    """
    if table.suffix.lower() == ".parquet" or not table.is_file():
        return
    with table.open(encoding="utf-8-sig", errors="replace") as file:
        first = next((line for line in file if line.strip()), "")
    is_known = header and all(name in first for name in names)
    if not is_known:  # a name with quotes or a line break may still be in the table
        from ..own.reading import read_table

        read_table(table, header=header).require(names)


def check_file(out: Path, *, force: bool) -> None:
    """Raise if the file `out` cannot be written or must not be replaced. Call this before a long computation."""
    from ..._core.checks import file_to_write  # imported late: loads torch

    file_to_write("--out", out)
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists; choose another --out, or pass --force to replace it.")


def check_folder(out: Path, *, force: bool) -> None:
    """Raise if `out` is a folder with files that must not be replaced. The check is fast."""
    is_readable = out.is_dir() and os.access(out, os.R_OK | os.X_OK)
    if is_readable and not force and out.resolve() not in [Path.cwd(), *Path.cwd().parents] and any(out.iterdir()):
        raise FileExistsError(f"{out} exists; choose another --out, or pass --force to replace it.")


def check_device(name: str) -> str:
    """Return the name of a device; raise if there is no such device, or if torch cannot use it."""
    if not re.fullmatch(r"(cpu|cuda)(:\d+)?", name):
        meant = "" if name != "gpu" else " (did you mean 'cuda'?)"
        raise ValueError(f"unknown device {name!r}{meant}; choose cpu or cuda.")
    import torch  # imported late: importing takes long

    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name} needs a GPU that torch can use, and there is none here; choose cpu.")
    return name
