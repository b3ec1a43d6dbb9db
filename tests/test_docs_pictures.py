"""The pictures of the documentation are made by a command, and none is missing or left over."""

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageColor

from benchmarks._results import save_small
from pyro_bnn import plotting

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = DOCS / "pictures"
LARGEST_FILE = 60_000
"""Pictures are in the repository and on every page that is loaded: bytes."""

MADE_ELSEWHERE = ("active_learning",)
"""Pictures of results whose pages have no table with all numbers: scripts of `benchmarks` make them."""


sys.path.insert(0, str(PICTURES))  # as if `make.py` were run


def maker():
    spec = importlib.util.spec_from_file_location("make_pictures", PICTURES / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NAMES = sorted(maker().PICTURES)


def test_every_picture_has_a_maker_and_is_shown():
    committed = {path.stem for path in PICTURES.glob("*.png")}
    shown = set()
    for page in DOCS.rglob("*.md"):
        shown |= set(re.findall(r"\]\([./]*pictures/(\w+)\.png\)", page.read_text()))
    assert committed == {*NAMES, *MADE_ELSEWHERE, "regression_phone", "front", "front_dark"}  # the last two: front.py
    from _phone import ROWS  # the maker has added its folder

    assert shown == {*NAMES, *MADE_ELSEWHERE} == {*ROWS, "regression"}  # each has a version for phones


@pytest.mark.parametrize("name", [*NAMES, *MADE_ELSEWHERE])
def test_pictures_are_small_and_not_blank(name):
    path = PICTURES / f"{name}.png"
    assert path.stat().st_size < LARGEST_FILE
    with Image.open(path) as picture:
        assert 1600 <= picture.width <= 1900  # twice the width of a column of text, for sharp screens
        assert len(picture.convert("RGB").getcolors(2**24)) > 10


PAGES = {"cost": "methods", "cost_lenet": "lenet5", "hmc_images": "approximations"}
"""Pages whose names differ from those of their pictures."""


@pytest.mark.parametrize("name", ["cost", "cost_lenet", "coverage", "hmc_images", "optimisation", "serving", "uci"])
def test_the_table_beside_a_picture_has_the_rows_that_were_drawn(name):
    with Image.open(PICTURES / f"{name}.png") as picture:
        lines = picture.text["table"].splitlines()
    assert len(lines) > 5
    assert {*lines} <= {*(DOCS / "results" / f"{PAGES.get(name, name)}.md").read_text().splitlines()}


def test_the_front_page_divides_its_picture_between_the_halves():
    css = (DOCS / "_static" / "custom.css").read_text()
    sizes = [(int(width), int(height)) for width, height in re.findall(r"aspect-ratio: (\d+) / (\d+)", css)]
    with Image.open(PICTURES / "front.png") as picture:
        assert picture.size == (sum(width for width, _ in sizes), sizes[0][1])
        cut = picture.convert("L").crop((sizes[0][0] - 2, 0, sizes[0][0] + 2, picture.height))
    assert cut.getextrema() == (255, 255)


@pytest.mark.daily("priors", "width")
@pytest.mark.parametrize("name", NAMES)
def test_the_maker_of_a_picture_runs(name, tmp_path, capsys):
    torch.set_default_dtype(torch.float32)
    maker().PICTURES[name](tmp_path, True)
    torch.set_default_dtype(torch.float64)
    with Image.open(tmp_path / f"{name}.png") as made, Image.open(PICTURES / f"{name}.png") as committed:
        assert made.size == committed.size
    heading = capsys.readouterr().out.splitlines()[0]
    page = next(page for page in DOCS.rglob("*.md") if f"pictures/{name}.png" in page.read_text())
    if name not in ("trust", "regression", "width"):  # no table: what the chains say, or figures left to the picture
        assert heading.rstrip() in page.read_text()  # the figures beside it are those that the maker prints


@pytest.mark.nightly
@pytest.mark.usefixtures("short_chains", "short_fits")
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_the_maker_of_the_front_picture_shows_its_effect(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["front.py", "--data", "nowhere", "--out", str(tmp_path)])
    torch.set_default_dtype(torch.float32)
    runpy.run_path(str(PICTURES / "front.py"), run_name="__main__")
    torch.set_default_dtype(torch.float64)
    shown = r"(?s)true curve at (100|9\d)% .*digits are used instead.*AUROC 0\.[89]"
    assert re.search(shown, capsys.readouterr().out)
    assert (tmp_path / "front_dark.png").is_file()


def test_colors_of_the_palette_and_white_stay_as_they_are(tmp_path):
    with plotting.style():
        ax = plotting.new_axes(1, 1, size=("page", 2.0))[0, 0]
        for height, color in enumerate(plotting.PALETTE):
            ax.plot([0, 1], [height, height + 0.5], color=color, linewidth=1)
            ax.plot([0, 1], [height, height], color=color, linewidth=3, alpha=0.97)
    save_small(ax, tmp_path / "small.png", num_colors=24)
    with Image.open(tmp_path / "small.png") as picture:
        colors = {color for _, color in picture.convert("RGB").getcolors()}
    assert {(255, 255, 255), *map(ImageColor.getrgb, plotting.PALETTE)} <= colors


@pytest.mark.parametrize("page", [page for page in DOCS.rglob("*.md") if "](../pictures/" in page.read_text()])
def test_a_caption_has_one_emphasis(page):
    """The style sheet makes only the first emphasis of a caption upright."""
    for caption in re.findall(r"\]\(\.\./pictures/\w+\.png\)\n\n(\*[^*].*?)(?:\n\n|\Z)", page.read_text(), re.DOTALL):
        assert re.fullmatch(r"\*[^*]+\*", caption)
