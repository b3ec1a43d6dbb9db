"""Each picture of the pages in a second version for the dark theme: light on dark, with the same hues."""

from pathlib import Path

import numpy as np
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx

FOLDER = "generated/dark"
DARKEST, LIGHTEST = 0.075, 0.93  # of the theme's background and of its text
OF_COLORS = (
    0.5  # least lightness of a full colour, which must differ from the ground
)


def darken(picture: Path, target: Path) -> None:
    """Write the dark version: the lightness of each colour is reversed, its hue stays.

    Args:
        picture: The picture, with a white background.
        target: The file to write.
    """
    with Image.open(picture) as opened:
        colors = np.asarray(opened.convert("RGB"), dtype=np.float32) / 255
    high, low = (end(-1, keepdims=True) for end in (colors.max, colors.min))
    lightness = (high + low) / 2
    reversed_ = LIGHTEST - (LIGHTEST - DARKEST) * lightness
    # 0 for greys and pale bands, 1 for full colours
    fullness = ((high - low - 0.2) / 0.2).clip(0, 1)
    reversed_ += fullness * (OF_COLORS - reversed_).clip(0)
    dark = (colors - lightness + reversed_).clip(0, 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((255 * dark).round().astype(np.uint8)).quantize(
        64, dither=Image.Dither.NONE
    ).save(target, optimize=True)


def add_dark_pictures(app: Sphinx, document: nodes.document) -> None:
    """Show each picture in the light theme only, and beside it the dark version in the dark theme only."""
    for light in [*document.findall(nodes.image)]:
        picture = Path(light["uri"])
        source = app.srcdir / "pictures" / picture.name
        if picture.parent.name != "pictures" or not source.is_file():
            continue
        target = app.srcdir / FOLDER / picture.name
        darken(source, target)
        dark = light.deepcopy()
        dark["uri"] = f"/{FOLDER}/{picture.name}"
        dark["classes"] += ["only-dark"]
        light["classes"] += ["only-light"]
        light.parent.insert(light.parent.index(light) + 1, dark)
