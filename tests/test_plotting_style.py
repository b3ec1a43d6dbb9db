"""The style of the pictures: settings restored, sizes, colours, fonts, common axes."""

import re
import threading

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

import pyro_bnn as pb
from pyro_bnn import metrics, plotting
from pyro_bnn.inference.history import EpochRecord, History

from .cases import small_model


@pytest.fixture
def settings():
    """Matplotlib's settings, which no picture may change."""
    before = dict(matplotlib.rcParams)
    yield before
    assert dict(matplotlib.rcParams) == before


def scores(seed=0, num=50):
    generator = torch.Generator().manual_seed(seed)
    return {"entropy (nats)": torch.rand(num, generator=generator)}


def linear(color):
    """The parts of a colour as amounts of light (IEC 61966-2-1)."""
    return np.array([part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)])


def luminance(color):
    """Relative luminance of a colour, from 0 to 1."""
    return float(linear(color) @ [0.2126, 0.7152, 0.0722])


COLOUR_BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
"""Linear RGB as the colour-blind see it: Machado, Oliveira and Fernandes (2009), severity 1."""


def seen(color, kind):
    """A colour as colour-blind people see it, in CIELAB, where distances match perceived differences."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(np.array(COLOUR_BLIND[kind]) @ linear(color), 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def smallest_distance(colors, kind):
    found = [seen(color, kind) for color in colors]
    return min(np.linalg.norm(a - b) for i, a in enumerate(found) for b in found[:i])


def bands(**options):
    model, x, y = small_model(likelihood="gaussian-learned", net=pb.nets.mlp([1, 5, 1]))
    grid = torch.linspace(-1, 1, 20)[:, None]
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    prediction = pb.predict(model, guide, grid, num_samples=20, seed=0)
    return plotting.regression_bands(grid, prediction, data=(x[:, :1], y), **options)


def test_pictures_leave_the_settings_as_they_were(settings, tmp_path):
    plotting.save(plotting.detection_curves(scores(), scores(1))[0], tmp_path / "picture.png")
    with pytest.raises(ValueError, match="`width` must"):
        plotting.detection_curves(scores(), scores(1), width="wide")
    with plotting.style():
        assert matplotlib.rcParams["axes.labelsize"] != settings["axes.labelsize"]


def test_threads_leave_the_settings_as_they_were(settings):
    threads = [threading.Thread(target=lambda: [plotting.detection_curves(scores(), scores(1))]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("width", "inches"), [("column", 3.4), ("page", 7.0)])
def test_pictures_have_the_width_of_a_column_or_a_page(width, inches, tmp_path):
    axes = plotting.detection_curves(scores(), scores(1), width=width)
    assert axes[0].figure.get_figwidth() == inches
    assert bands(width=width).figure.get_figwidth() == inches
    assert plotting.new_axes(1, 1, size=(width, 2))[0, 0].figure.get_size_inches().tolist() == [inches, 2]
    plotting.save(axes[0], tmp_path / "picture.png")
    pixels = int.from_bytes((tmp_path / "picture.png").read_bytes()[16:20], "big")  # of the header
    assert pixels == round(250 * inches)


def test_no_letter_is_smaller_than_seven_points():
    figure = plotting.detection_curves(scores(), scores(1), width="column")[0].figure
    vote_figure = plotting.vote_histograms(torch.rand(2, 3, 3), torch.ones(2, 2), ["a", "b"], titles=["x", "y"])
    for each in (figure, vote_figure[0, 0].figure, bands().figure):
        each.draw_without_rendering()
        sizes = [text.get_fontsize() for text in each.findobj(matplotlib.text.Text) if text.get_text()]
        assert len(sizes) >= 8
        assert min(sizes) >= 7


@pytest.mark.nightly
def test_pdf_has_its_fonts_and_svg_needs_none(tmp_path):
    ax = bands()
    plotting.save(ax, tmp_path / "picture.pdf")
    plotting.save(ax, tmp_path / "picture.svg")
    pdf = (tmp_path / "picture.pdf").read_bytes()
    assert b"/FontFile2" in pdf  # an embedded TrueType font
    assert b"/Type3" not in pdf
    assert "<text" not in (tmp_path / "picture.svg").read_text()


def test_bands_differ_in_print_without_colours():
    ax = bands()
    light, dark = (luminance(band.get_facecolor()[0]) for band in ax.collections)
    assert light - dark > 0.3
    assert light < 0.95  # not lost on white
    outer, inner = ax.patches  # in the legend
    assert outer.get_linestyle() != inner.get_linestyle()
    assert [line.get_linestyle() for line in ax.lines[:4]] == ["--", "--", "-", "-"]  # their lower and upper edges
    assert luminance("#0072B2") - luminance("#D55E00") < 0.3  # two colours that would not do


def test_colours_differ_for_the_colour_blind():
    for kind in ("protan", "deutan"):
        assert smallest_distance(plotting.PALETTE, kind) > 15
        assert smallest_distance([f"C{i}" for i in range(8)], kind) < 8  # matplotlib's own


def test_lines_differ_without_colours():
    with plotting.style():
        ax = plotting.new_axes(1, 1, size=("column", 2))[0, 0]
        lines = [ax.plot([0, 1], [0, index])[0] for index in range(8)]
    assert len({line.get_color() for line in lines}) == 8
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 8


def test_every_picture_says_what_its_axes_are():
    for ax in (*plotting.detection_curves(scores(), scores(1)), bands()):
        assert re.search(r"\w", ax.get_xlabel())


@pytest.mark.parametrize("width", ["column", "page"])
def test_the_legend_of_bands_covers_nothing_and_leaves_no_empty_space(width):
    ax = bands(width=width)
    ax.figure.draw_without_rendering()
    legend = ax.get_legend().get_window_extent()
    highest = max(ax.transData.transform(line.get_xydata())[:, 1].max() for line in ax.lines)
    assert highest < legend.y0 + 2
    assert highest > legend.y0 - 0.1 * ax.get_window_extent().height


def test_points_of_a_reliability_diagram_have_enough_inputs_and_its_axis_begins_with_them():
    probs = torch.rand(60, 2).softmax(-1)
    y = torch.arange(60) % 2
    accuracy, counts = plotting.reliability_diagram(probs, y)
    bins = metrics.calibration_bins(probs, y).joined(20)
    assert bins.counts.min() >= 20
    np.testing.assert_allclose(accuracy.containers[0].lines[0].get_xdata(), bins.confidence)
    assert accuracy.get_xlim() == (0.5, 1)  # two classes
    assert [bar.get_height() for bar in counts.patches] == metrics.calibration_bins(probs, y).counts.tolist()
    assert len(plotting.reliability_diagram(probs, y, min_inputs=61)[0].containers[0].lines[0].get_xdata()) == 1
    assert plotting.reliability_diagram(torch.eye(2), torch.arange(2))[0].get_xlim() == (0.9, 1)


@pytest.mark.parametrize("last_kl", [5.0, float("inf")])
def test_loss_curves_begin_at_the_same_epoch_and_have_moving_averages(last_kl):
    kls = [5.0] * 399 + [last_kl]
    records = [EpochRecord(e, -100 * 0.9**e - kl, -100 * 0.9**e, kl, 1.0, 0.01, 0.0) for e, kl in enumerate(kls)]
    axes = plotting.loss_curves(History(1, epochs=records))
    assert len({(ax.get_xlabel(), ax.get_xlim()) for ax in axes}) == 1
    assert re.fullmatch(r"epoch \(from \d+0 on\)", axes[0].get_xlabel())
    raw, smooth = axes[1].lines
    assert len(raw.get_xdata()) == 400
    place = list(smooth.get_xdata()).index(100)
    np.testing.assert_allclose(smooth.get_ydata()[place], np.mean(raw.get_ydata()[94:105]))
