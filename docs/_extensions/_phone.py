"""Pictures in a second version for phones: fewer panels in a row, and larger letters."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator
from PIL import Image

Box = tuple[int, int, int, int]
"""Left, top, right and bottom edge of a part of a picture, in pixels."""

SPACE = 8
"""Least width of a space between words, in pixels."""

MARGIN = 18
"""Least distance of text from the left and right edge, in pixels."""


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

PANELS_OF_PRIORS = (112, 655, 1205, 1744)

ROWS: dict[str, list[list[Box]]] = {
    "uci": [
        [(0, 0, 640, 60)],
        [(640, 0, 1350, 60)],
        *beside((300, 600), (300, 770, 1230, 1750), 60, 650),
        [(0, 650, 1750, 700)],
    ],
    "cost": [
        *OF_DOTS,
        *beside((298, 640), (298, 773, 1274, 1750), 110, 725),
    ],
    "cost_lenet": [
        *OF_DOTS,
        *beside((412, 780), (412, 854, 1306, 1750), 110, 867),
    ],
    "hmc_images": [
        *OF_DOTS,
        [(0, 110, 770, 820)],
        *beside((298, 735), (770, 1275, 1750), 110, 820),
    ],
    "serving": [
        [(0, 0, 490, 60)],
        [(490, 0, 950, 60)],
        [(950, 0, 1560, 60)],
        *beside((316, 664), (316, 1030, 1750), 60, 750),
    ],
    "active_learning": [
        [(0, 0, 1750, 58)],
        [(0, 58, 770, 112)],
        [(770, 58, 1435, 112)],
        *beside((88, 725), (88, 916, 1750), 112, 725),
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
        [(0, 0, 1750, 58)],
        [(0, 58, 757, 108)],
        [(757, 58, 1290, 108)],
        *beside((182, 643), (182, 966, 1745), 108, 725),
    ],
    "trust": [
        [(0, 0, 803, 58)],
        [(803, 0, 1380, 58)],
        *beside((96, 593), (96, 919, 1745), 58, 675),
    ],
    "kl_weight": [
        [(0, 0, 580, 58)],
        [(580, 0, 1228, 58)],
        [(1228, 0, 1470, 58)],
        *beside((72, 593), (72, 628, 1189, 1745), 58, 675),
    ],
    "priors": [
        [(0, 0, 326, 60)],
        [(326, 0, 818, 60)],
        [(818, 0, 1440, 60)],
        *beside((112, 490), PANELS_OF_PRIORS, 60, 532),
        *beside((112, 964), PANELS_OF_PRIORS, 532, 1050),
    ],
    "optimisation": [
        [(0, 0, 1750, 57)],
        [(0, 57, 712, 108)],
        [(712, 57, 1160, 108)],
        [(0, 108, 905, 578)],
        [(0, 108, 45, 578), (905, 108, 1750, 578)],
        [(0, 578, 905, 1049)],
        [(0, 108, 45, 578), (905, 578, 1750, 1049)],
        [(0, 1049, 1750, 1100)],
    ],
}
"""For each picture the rows of its version, each a list of parts. A part as wide as the picture is text: it goes on in
the next line if it is too wide, and stays at the left or in the middle."""


def lines(text: Image.Image, width: int) -> list[tuple[Image.Image, int]]:
    """Parts of a line of text that are at most `width` pixels wide, and their left edges."""
    used = (np.asarray(text) != text.getpixel((0, 0))).any(0).nonzero()[0]
    found, start = [], int(used[0])
    ends = used[np.diff(used, append=10**6) > SPACE] + 1
    while start < ends[-1]:
        end = int(
            ends[(ends > start) & (ends <= start + width - 2 * MARGIN)].max()
        )
        left = min(int(used[0]), (width - end + start) // 2)
        found.append((text.crop((start, 0, end, text.height)), left))
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
            for line, left in lines(parts[0], width):
                placed.append((line, left, top))
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
            ax.tick_params(labelleft=True)
        if column == 0 and not ax.get_ylabel():
            ax.set_ylabel(left.get_ylabel())
        if type(ax.xaxis.get_major_locator()) is AutoLocator:
            ax.locator_params(axis="x", nbins=5)  # numbers do not touch
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
    figure.draw_without_rendering()  # the layout is exact only when it is found twice
    figure.savefig(target)
