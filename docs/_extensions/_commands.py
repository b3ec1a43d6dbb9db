"""The page of the command line: the help of each command, taken from the program."""

import re
from itertools import groupby
from operator import attrgetter
from typing import Any

import typer
from sphinx.application import Sphinx

from pyro_bnn.app.cli.program import program

PAGE = "commands"
CODE = re.compile(r'(`[^`]*`|""|--[a-z][a-z-]*)')


def marked(text: str) -> str:
    """The text as Markdown in which options are code, and other signs stand for themselves."""
    parts = CODE.split(text)
    parts[::2] = [
        re.sub(r"([\\*_\[\]<>|$~])", r"\\\1", part) for part in parts[::2]
    ]
    parts[1::2] = [f"`{part.strip('`')}`" for part in parts[1::2]]
    return "".join(parts)


def definition(parameter: Any) -> str:
    """The names of an option or argument, what it does, and its default."""
    names = [*parameter.opts, *parameter.secondary_opts]
    shown, value = parameter.show_default, parameter.default
    if not isinstance(shown, str):
        has_none = not shown or value is None or value is False
        shown = "" if has_none else str(value)
    default = f" Default: {marked(shown)}." if shown else ""
    term = ", ".join(f"`{parameter.metavar or name}`" for name in names)
    return f"{term}\n: {marked(parameter.help)}{default}"


def section(name: str, command: Any) -> str:
    """Usage, text, examples and options of a command."""
    words = [
        p.metavar if p.required else f"[{p.metavar}]"
        for p in command.params
        if p.param_type_name == "argument"
    ]
    usage = f"pyro-bnn {name} [OPTIONS] {' '.join(words)}".strip()
    examples = "\n".join(map(str.strip, command.epilog.split("\n")[1:]))
    block = "```text\n{}\n```".format
    parts = [f"## {name}", block(usage), marked(command.help)]
    parts += ["Examples:", block(examples)]
    panels = groupby(command.params, attrgetter("rich_help_panel"))
    for panel, parameters in panels:
        parts += [f"### {marked(panel)}"] if panel else []
        parts += map(definition, parameters)
    return "\n\n".join(parts)


def list_commands(app: Sphinx, page: str, source: list[str]) -> None:
    """Add a section for each command to the page of the command line."""
    if page == PAGE:
        commands = typer.main.get_command(program).commands.items()
        sections = (section(name, command) for name, command in commands)
        source[0] += "\n\n" + "\n\n".join(sections)
