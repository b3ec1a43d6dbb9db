"""Output of a command: sentences and tables for people, and with `--json` one document for programs."""

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TextIO

import typer

import pyro_bnn


class Output:
    """The two output streams of a command.

    Without `--json`, all words go to standard output. With it, they go to standard error, and standard output holds one
    JSON document. On a terminal, rich colours the words; the text is the same without colours.
    """

    def __init__(self, command: str, *, as_json: bool) -> None:
        self._command, self._as_json = command, as_json

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._as_json else sys.stdout

    def say(self, text: str = "", *, style: str = "") -> None:
        """Write lines of text; on a terminal with colours, in one of rich's styles."""
        if not has_colours(self._stream):
            typer.echo(text, file=self._stream)
            return
        from rich.console import Console  # imported late: importing takes long
        from rich.text import Text

        Console(file=self._stream, soft_wrap=True, highlight=False).print(Text(text, style=style))

    def table(self, text: str) -> None:
        """Write blocks with an empty line between them: tables, with bold headings, and dim notes."""
        for number, block in enumerate(text.split("\n\n")):
            if number:
                self.say()
            heading, _, rows = block.partition("\n")
            is_table = "  " in heading.strip() or heading.endswith(":")
            self.say(heading, style="bold" if is_table else "dim")
            if rows:
                self.say(rows, style="" if is_table else "dim")

    def document(self, **content: Any) -> None:
        """Write the JSON document, if it was requested: command, version, and plain data, dataclasses and paths.

        Numbers that are not finite become null.
        """
        if self._as_json:
            whole = {"command": self._command, "version": pyro_bnn.__version__, **content}
            typer.echo(json.dumps(_plain(whole), indent=1, ensure_ascii=False, allow_nan=False))


def has_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal that has colours, and `NO_COLOR` (https://no-color.org) is unset."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
