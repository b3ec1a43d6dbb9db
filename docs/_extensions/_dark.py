"""Each picture of the pages in a second version for the dark theme: light on dark, with the same hues.

Colours are changed in OKLab (Ottosson 2020, https://bottosson.github.io/posts/oklab), whose lightness is the perceived
one: colours that are equally light in a picture stay so.
"""

from pathlib import Path
from shutil import copyfile

import numpy as np
from _phone import ROWS, restack
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx

FOLDER = "generated/dark"
FOR_PHONES = {
    "only-light": "generated/phone",
    "only-dark": "generated/phone/dark",
}
DARKEST, LIGHTEST = 0.19, 0.94  # of the theme's background and of its text
OF_COLORS = 0.68  # least lightness of a full colour: a contrast of 5 or more
OF_BANDS = (
    0.08  # how much lighter pale bands are than greys, so that they differ
)
OF_AREA = 0.02
"""Share of a picture from which on a tint is an area, such as a band: lines are lighter than areas."""

TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
"""Linear red, green and blue to the responses of the three kinds of cones."""

TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
"""Cube roots of the responses to lightness and two axes of hue."""


def to_oklab(colors: np.ndarray) -> np.ndarray:
    """OKLab of colours in sRGB from 0 to 1, shape (N, 3)."""
    linear = np.where(
        colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4
    )
    return np.cbrt(linear @ TO_CONES.T) @ TO_LAB.T


def to_srgb(lab: np.ndarray) -> np.ndarray:
    """Colours in sRGB, shape (N, 3); those that a screen cannot show are outside of 0 to 1."""
    linear = (lab @ np.linalg.inv(TO_LAB).T) ** 3 @ np.linalg.inv(TO_CONES).T
    curved = 1.055 * np.maximum(linear, 0.0031308) ** (1 / 2.4) - 0.055
    return np.where(linear <= 0.0031308, 12.92 * linear, curved)


def dark_colors(colors: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Colours with reversed lightness, shape (N, 3), from 0 to 1.

    A full colour is at least as light as `OF_COLORS`. A colour that a screen cannot show loses saturation.

    Args:
        colors: Colours in sRGB, shape (N, 3), from 0 to 1.
        shares: Share of each colour in the picture, shape (N,); tints of areas become darker than other tints.
    """
    lightness, *axes = to_oklab(colors).T
    # powers make greys lighter, and pale grounds visible
    power = 2 + ((lightness - 0.75) / 0.15).clip(0, 1)
    new = LIGHTEST - (LIGHTEST - DARKEST) * lightness**power
    chroma = np.hypot(*axes)
    # 0 for greys and pale bands, 1 for full colours
    fullness = ((chroma - 0.09) / 0.025).clip(0, 1)
    is_pale = ((chroma - 0.015) / 0.015).clip(0, 1) * (1 - fullness)
    new += OF_BANDS * is_pale + fullness * (OF_COLORS - new).clip(0)
    is_area = (shares > OF_AREA) & (chroma > 0.015) & (fullness == 0)
    new = np.where(is_area, 0.34 + 0.62 * (0.94 - lightness), new)
    found = np.repeat(new[:, None], 3, axis=1)
    for share in np.linspace(0, 1, 21):
        lab = np.stack([new, share * axes[0], share * axes[1]], axis=1)
        tried = to_srgb(lab)
        is_shown = ((tried > -0.002) & (tried < 1.002)).all(1)
        found[is_shown] = tried[is_shown]
    return found.clip(0, 1)


def darken(picture: Path, target: Path) -> None:
    """Write the dark version: the lightness of each colour is reversed, its hue stays.

    Args:
        picture: The picture, with a white background and at most 256 colours.
        target: The file to write.
    """
    with Image.open(picture) as opened:
        dark = opened.convert("P")
    colors = np.array(dark.getpalette("RGB"), dtype=float).reshape(-1, 3) / 255
    counts = np.bincount(np.asarray(dark).ravel(), minlength=len(colors))
    new = dark_colors(colors, counts / counts.sum())
    dark.putpalette((255 * new).round().astype(int).ravel().tolist())
    target.parent.mkdir(parents=True, exist_ok=True)
    dark.save(target, optimize=True)


def add_dark_pictures(app: Sphinx, document: nodes.document) -> None:
    """Show each picture in the light theme only, and beside it the dark version in the dark theme only.

    Pictures in `ROWS`, and those with a file `NAME_phone.png`, have other versions for phones.
    """
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
        of_phone = source.with_stem(f"{picture.stem}_phone")
        if picture.stem in ROWS or of_phone.is_file():
            for shown in (light, dark):
                folder = FOR_PHONES[shown["classes"][-1]]
                made = app.srcdir / folder / picture.name
                made.parent.mkdir(parents=True, exist_ok=True)
                if shown is dark:
                    darken(of_phone, made)
                elif of_phone.is_file():
                    copyfile(of_phone, made)
                else:
                    restack(source, made)
                of_phone = made
                phone = shown.deepcopy()
                phone["uri"] = f"/{folder}/{picture.name}"
                phone["classes"] += ["on-phone"]
                shown["classes"] += ["restacked"]
                light.parent.append(phone)
