"""Pictures in a second version for phones: fewer panels in a row, and larger letters."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

Box = tuple[int, int, int, int]
"""Left, top, right and bottom edge of a part of a picture, in pixels."""

SPACE = 8
"""Least width of a space between words, in pixels."""


def beside(
    names: tuple[int, int], edges: tuple[int, ...], top: int, bottom: int
) -> list[list[Box]]:
    """A row for each panel, with the names or numbers of the first panel at its left.

    Args:
        names: Right and lower edge of the names.
        edges: Left edge of each panel, and the right edge of the last one.
        top: Upper edge of the panels.
        bottom: Lower edge of the panels.
    """
    return [
        [(0, top, *names), (x, top, end, bottom)] for x, end in pairwise(edges)
    ]


OF_DOTS = [[(0, 0, 1750, 58)], [(0, 58, 660, 108)], [(660, 58, 1460, 108)]]
"""Title and legend of pictures with three panels and names at the left."""

PANELS_OF_PRIORS = (104, 650, 1200, 1744)

ROWS: dict[str, list[list[Box]]] = {
    "uci": [
        [(0, 0, 640, 60)],
        [(640, 0, 1050, 60)],
        *beside((300, 600), (300, 770, 1230, 1750), 60, 650),
        [(0, 650, 1750, 700)],
    ],
    "cost": [
        *OF_DOTS,
        *beside((258, 636), (258, 748, 1258, 1750), 110, 725),
    ],
    "cost_lenet": [
        *OF_DOTS,
        *beside((354, 778), (354, 813, 1290, 1750), 110, 867),
    ],
    "hmc_images": [
        *OF_DOTS,
        [(0, 110, 745, 820)],
        *beside((258, 732), (745, 1260, 1750), 110, 820),
    ],
    "serving": [
        [(0, 0, 490, 60)],
        [(490, 0, 950, 60)],
        [(950, 0, 1560, 60)],
        *beside((274, 662), (274, 1010, 1750), 60, 750),
    ],
    "active_learning": [
        [(0, 0, 770, 62)],
        [(770, 0, 1435, 62)],
        *beside((88, 675), (88, 916, 1750), 62, 675),
    ],
    "width": [
        [(0, 0, 880, 60)],
        [(0, 60, 880, 700)],
        [(880, 60, 1750, 700)],
    ],
    "estimators": [
        [(0, 0, 670, 60)],
        [(670, 0, 1250, 60)],
        *beside((110, 660), (110, 929, 1750), 60, 725),
    ],
    "coverage": [
        [(0, 0, 757, 60)],
        [(757, 0, 1290, 60)],
        *beside((159, 593), (159, 951, 1745), 60, 675),
    ],
    "trust": [
        [(0, 0, 803, 58)],
        [(803, 0, 1380, 58)],
        *beside((96, 593), (96, 919, 1745), 58, 675),
    ],
    "kl_weight": [
        [(0, 0, 803, 58)],
        [(803, 0, 1470, 58)],
        *beside((72, 593), (72, 628, 1189, 1745), 58, 675),
    ],
    "priors": [
        [(0, 0, 818, 60)],
        [(818, 0, 1440, 60)],
        *beside((104, 494), PANELS_OF_PRIORS, 60, 532),
        *beside((104, 968), PANELS_OF_PRIORS, 532, 1050),
    ],
    "optimisation": [
        [(0, 0, 1750, 57)],
        [(0, 57, 712, 108)],
        [(712, 57, 1160, 108)],
        [(0, 108, 904, 578)],
        [(904, 108, 1748, 578)],
        [(0, 578, 904, 1049)],
        [(904, 578, 1748, 1049)],
        [(0, 1049, 1750, 1100)],
    ],
}
"""For each picture the rows of its version, each a list of parts. A part as wide as the picture is text: it goes on in
the next line if it is too wide, and is in the middle."""


def lines(text: Image.Image, width: int) -> list[Image.Image]:
    """Parts of a line of text that are at most `width` pixels wide."""
    used = (np.asarray(text) != text.getpixel((0, 0))).any(0).nonzero()[0]
    found, start = [], int(used[0])
    ends = used[np.diff(used, append=10**6) > SPACE] + 1
    while start < ends[-1]:
        end = int(ends[(ends > start) & (ends <= start + width)].max())
        found.append(text.crop((start, 0, end, text.height)))
        start = int(used[used >= end].min(initial=ends[-1]))
    return found


def restack(picture: Path, target: Path) -> None:
    """Write the version for phones, from the parts in `ROWS`.

    Args:
        picture: The picture, with at most 256 colours; its first pixel has the colour of the ground.
        target: The file to write; its name is that of the picture.
    """
    with Image.open(picture) as opened:
        whole = opened.convert("P")
    widths = [
        [right - left for left, _, right, _ in row] for row in ROWS[target.stem]
    ]
    width = max(sum(row) for row in widths if row != [whole.width])
    placed, top = [], 0
    for row in ROWS[target.stem]:
        parts = [whole.crop(box) for box in row]
        if parts[0].width == whole.width:
            for line in lines(parts[0], width):
                placed.append((line, (width - line.width) // 2, top))
                top += line.height
            continue
        left = 0
        for part in parts:
            placed.append((part, left, top))
            left += part.width
        top += max(part.height for part in parts)
    stacked = Image.new("P", (width, top), whole.getpixel((0, 0)))
    stacked.putpalette(whole.getpalette())
    for part, *place in placed:
        stacked.paste(part, tuple(place))
    target.parent.mkdir(parents=True, exist_ok=True)
    stacked.save(target, optimize=True)


def redraw(figure: Figure, target: Path) -> None:
    """Write a figure at half its width, with at most half as many panels in a row.

    Args:
        figure: The figure of a script, which is changed.
        target: The file to write.
    """
    panels = [ax for ax in figure.axes if ax.get_subplotspec()]
    grid = panels[0].get_subplotspec().get_gridspec()
    columns = max(1, grid.ncols // 2)
    blocks = -(-grid.ncols // columns)
    shares = grid.get_height_ratios() or [1] * grid.nrows
    shares = np.repeat(shares, blocks) if columns == 1 else shares * blocks
    new = figure.add_gridspec(len(shares), columns, height_ratios=shares)
    first = {}
    for ax in panels:
        place = ax.get_subplotspec()
        row, column = place.rowspan.start, place.colspan.start
        block, column = divmod(column, columns)
        left = first.setdefault(row, ax)
        if column == 0 and not any(t.get_text() for t in ax.get_yticklabels()):
            ax.set_yticks(left.get_yticks(), left.get_yticklabels())
            ax.set_ylabel(left.get_ylabel())
        number = (
            row * blocks + block if columns == 1 else block * grid.nrows + row
        )
        ax.set_subplotspec(new[number, column])
    for legend in [*figure.legends]:
        names = [text.get_text() for text in legend.texts]
        legend.remove()
        figure.legend(
            legend.legend_handles, names, loc="outside upper left", ncols=2
        )
    width, height = figure.get_size_inches()
    figure.set_size_inches(width / 2, height * blocks)
    figure.savefig(target)
