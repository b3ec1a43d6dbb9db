"""Results as JSON, to which a resumed run adds, tables and pictures."""

import argparse
import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from PIL import Image, ImageColor
from PIL.PngImagePlugin import PngInfo

from pyro_bnn import plotting
from pyro_bnn._core.files import write_atomically

Row = dict[str, Any]


def read_rows(file: Path) -> list[Row]:
    """The rows of a file; none if it does not exist."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def add_row(file: Path, row: Row) -> None:
    """Write a row to the end of a file."""
    with file.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def by_cell(rows: Iterable[Row], method: str = "method") -> dict[tuple[str, str], list[Row]]:
    """The rows of fits that did not fail, by data set and method, or by another column."""
    cells: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.get("log_likelihood", 0.0) is not None:
            cells.setdefault((row["dataset"], row[method]), []).append(row)
    return cells


def write_json(path: Path, value: object) -> None:
    """Write plain data as readable JSON, whole or not at all."""
    text = json.dumps(value, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def read_record(path: Path, task: Row) -> Row:
    """The record of a task in a file, or a new one; a `ValueError` if the file is of another task."""
    record: Row = json.loads(path.read_text()) if path.exists() else {"task": task}
    if record["task"] != task:
        raise ValueError(f"{path} was made with other settings; choose another --out, or delete it.")
    return record


def machine(device: str = "cpu") -> str:
    """Version of torch, threads, and the kind of processor or GPU."""
    gpu = f", {torch.cuda.get_device_name()}" if device.startswith("cuda") else ""
    threads = f"{torch.get_num_threads()} thread(s) on {os.cpu_count()} cores"
    return f"torch {torch.__version__}, {threads}, {platform.machine()}{gpu}"


def processor_seconds() -> float:
    """Processor seconds of this process and of the programs that it has started, such as a compiler."""
    return sum(os.times()[:4])


NUM_COLORS = 128
"""Colours of a picture: those of seventeen methods, and the greys of the letters."""


NEAR = 8
"""Pillow finds the nearest of some colours in steps of this size: a mean must be farther from a colour that is kept."""


def save_small(ax: Axes, path: Path, table: Iterable[str] = (), *, num_colors: int = NUM_COLORS) -> None:
    """Write a picture in few colours, which makes the file a third of the size.

    They are those of the library's palette, those of the largest areas, and means of clusters. The file also holds the
    lines of the table that is beside the picture; a test compares them with the page.
    """
    plotting.save(ax, path)
    with Image.open(path) as opened:
        drawn = opened.convert("RGB")
    shown = [color for _, color in sorted(drawn.getcolors(drawn.width * drawn.height) or (), reverse=True)]
    kept = [*{*shown[:8], *({*map(ImageColor.getrgb, plotting.PALETTE)} & {*shown})}]
    means = drawn.quantize(num_colors - len(kept), kmeans=2, dither=Image.Dither.NONE).getpalette("RGB") or []
    others = np.array(means).reshape(-1, 3)
    is_far = np.abs(others[:, None] - np.array(kept)).max(2).min(1) > NEAR
    colors = Image.new("P", (1, 1))
    colors.putpalette(np.concatenate([kept, others[is_far]]).ravel().tolist())
    small = drawn.quantize(palette=colors, dither=Image.Dither.NONE)
    notes = PngInfo()
    notes.add_text("table", "\n".join(table), zip=True)
    small.save(path, optimize=True, pnginfo=notes)


def parser_of(name: str, description: str | None, *, data: str = "") -> argparse.ArgumentParser:
    """A parser with the folder of results, --out, and if `data` says what is in it, the folder --data."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m benchmarks.{name}", description=description, formatter_class=layout)
    if data:
        parser.add_argument("--data", type=Path, help=f"folder with {data}; default $PYRO_BNN_DATA")
    parser.add_argument("--out", type=_made, required=True, metavar="FOLDER", help="where results go")
    return parser


def _made(text: str) -> Path:
    Path(text).mkdir(parents=True, exist_ok=True)
    return Path(text)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error; None for the error of a single value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def with_error(mean: float, error: float | None, digits: int) -> str:
    """A mean with its standard error, if it has one."""
    return f"{mean:.{digits}f}" if error is None else f"{mean:.{digits}f} ± {error:.{digits}f}"


def cell_of(values: Sequence[float], digits: int) -> str:
    """The mean of values with its standard error, or a single value; empty without values."""
    return with_error(*mean_and_error(values), digits) if values else ""


def line_of(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def head_of(titles: Sequence[str], num_names: int = 1) -> list[str]:
    """The first two lines of a table in Markdown, with columns of names before those of numbers."""
    return [line_of(titles), "|---" * num_names + "|--:" * (len(titles) - num_names) + "|"]
