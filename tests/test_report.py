"""`pyro-bnn report`: one page that needs no other files, with verdicts that follow from the run."""

import base64
import json
import math
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pyro_bnn import metrics
from pyro_bnn.app import recipes
from pyro_bnn.app.numbers import number
from pyro_bnn.app.remedies import MORE_EPOCHS, TOO_EARLY
from pyro_bnn.app.reports.page import minus, page_of
from pyro_bnn.app.reports.page.fit import has_settled, of_length, training_command
from pyro_bnn.app.reports.page.section import Headline, Section, Tile, Verdict
from pyro_bnn.app.reports.pictures import pixels
from pyro_bnn.app.runs import load_asked, load_config
from pyro_bnn.inference.history import History
from pyro_bnn.inference.posterior import Status
from pyro_bnn.results.plotting import _figures

from .test_cli import pyro_bnn  # noqa: F401  # a fixture
from .tolerances import STANDARD_ERRORS

EMPTY = {"meta", "img", "br"}
"""Tags that have no end."""


class Page(HTMLParser):
    """The contents of a page. Raises if tags are not balanced."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    def find(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def words(self):
        return " ".join("".join(self.text).replace("\xa0", " ").split())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that is trained as it should be, and one that is hardly trained, each with its report."""
    return tmp_path_factory.mktemp("runs")


def report(pyro_bnn, runs, name, *options):  # noqa: F811
    run = runs / name
    if not run.exists():
        assert pyro_bnn("train", "digits", "--out", run, *options)[0] == 0
        code, out, err = pyro_bnn("report", run, "--num-samples", 20)
        assert (code, err) == (0, "")
        (runs / f"{name}.txt").write_text(out)
    return (run / "report.html").read_text(encoding="utf-8"), (runs / f"{name}.txt").read_text()


@pytest.fixture
def good(pyro_bnn, runs, monkeypatch):  # noqa: F811
    monkeypatch.setitem(_figures.SETTINGS, "savefig.dpi", 250)  # the page has a user's pictures, and so their size
    return report(pyro_bnn, runs, "good", "--epochs", 60)


@pytest.fixture
def bad(pyro_bnn, runs):  # noqa: F811
    return report(pyro_bnn, runs, "bad", "--epochs", 1, "--lr", "1e-5")


def test_the_page_needs_nothing_but_itself(good):
    found = Page(good[0])
    addresses = [value for _, attributes in found.tags for name, value in attributes.items() if name in ("src", "href")]
    assert len(addresses) > 10
    assert all(address.startswith(("data:image/", "#")) for address in addresses)
    assert not re.search(r"https?:|url\(|@import|<script|<link", good[0])
    assert len(good[0]) < 2_000_000


def test_the_page_can_be_read_without_seeing_it(good):
    found = Page(good[0])
    assert all(len(attributes.get("alt", "")) > 10 for attributes in found.find("img"))
    assert len(found.find("table")) == len(found.find("caption"))
    assert all(attributes["scope"] in ("row", "col") for attributes in found.find("th"))
    assert [attributes["lang"] for attributes in found.find("html")] == ["en"]
    assert len(found.find("h1")) == 1
    anchors = {attributes["href"] for attributes in found.find("a")}
    assert anchors == {f"#{attributes['id']}" for attributes in found.find("h2")}


def test_the_page_has_a_part_for_each_question(good):
    words = Page(good[0]).words
    for title in ("Accuracy", "Calibration", "Unknown images", "Examples", "Training", "Weights", "Configuration"):
        assert f'">{title}</h2>' in good[0]
    for part in (
        "Surest, and wrong",
        "Least certain",
        "Unknown, and noticed least",
        "net.1.weight",
        "SHA-256",
        "torch",
    ):
        assert part in words


def test_the_numbers_are_those_of_evaluate(good, pyro_bnn, runs):  # noqa: F811
    assert pyro_bnn("evaluate", runs / "good", "--num-samples", 20)[0] == 0
    found = json.loads((runs / "good" / "metrics.json").read_text())
    words = Page(good[0]).words
    last = found["rows"][-1]
    assert f"{100 * last['accuracy']:.1f} % of {found['num_test']} test images are right" in words
    numbers = (f"{100 * last['accuracy']:.1f} %", number(last["nll"]), number(last["brier"]))
    assert f"mean of 20 draws{' '.join(numbers)}".replace(" ", "") in words.replace(" ", "")
    assert f"AUROC {found['ood']['entropy']['auroc']:.4f} ± 0.00" in words


def test_a_good_run_is_praised_and_a_bad_one_is_not(good, bad):
    words, printed = Page(good[0]).words, good[1]
    assert printed.startswith("Usable")
    assert "problem:" not in printed
    assert "All weights learned from the data." in words
    words, printed = Page(bad[0]).words, bad[1]
    assert printed.startswith("Not usable as it is. ")
    assert "problem:  Logistic regression predicts better (this run: NLL " in printed
    assert "The training had 1 epoch (15 steps): too few to tell" in words


def test_what_is_printed_is_what_the_page_says(good):
    words = Page(good[0]).words
    for line in good[1].splitlines()[1:]:
        if line and not line.startswith("Report, with"):
            assert minus(" ".join(line.split()[1:])) in words


def test_thresholds_stand_beside_the_verdicts(good):
    num_verdicts = sum(line.startswith(("good:", "unclear:", "note:", "problem:")) for line in good[1].splitlines())
    assert good[0].count("<summary>Thresholds</summary>") == num_verdicts > 0


def test_a_file_of_ones_own_is_not_replaced(good, pyro_bnn, runs, tmp_path):  # noqa: F811
    out = tmp_path / "page.html"
    out.write_text("mine")
    code, _, err = pyro_bnn("report", runs / "good", "--num-samples", 2, "--out", out)
    assert code == 2
    assert "exists; choose another --out, or pass --force" in err
    assert out.read_text() == "mine"
    for wrong in (tmp_path, tmp_path / "nowhere" / "page.html"):
        code, _, err = pyro_bnn("report", runs / "good", "--num-samples", 2, "--out", wrong)
        assert code == 2
        assert "--out must" in err
    code, _, err = pyro_bnn("report", runs / "good", "--out", tmp_path / "page.pdf")
    assert (code, "--out must end in .html" in err) == (2, True)
    out.write_text(good[0], encoding="utf-8")  # a report can be made again, so this needs no --force
    code, printed, _ = pyro_bnn("report", runs / "good", "--num-samples", 2, "--out", out, "--json")
    assert (code, out.read_text(encoding="utf-8") == good[0]) == (0, False)
    document = json.loads(printed)
    assert document["page"] == str(out)
    assert {verdict["level"] for verdict in document["verdicts"]} <= {"good", "note", "problem"}
    assert Page(out.read_text(encoding="utf-8")).words


def test_names_that_look_like_html_are_text():
    verdict = Verdict("note", "fit", "<s>", "<i> & 5 %", "<em>")
    values = {"settings": {"<del>": "<u>"}, "data": {}}
    section = Section("<b>", "configuration.html", values, tiles=(Tile("<p>", "<q>", "<a>"),))
    found = Page(page_of("<script>", "<h3>", Headline("<h4>"), [verdict], [section]))
    for tag in ("script", "h3", "h4", "s", "i", "em", "del", "u", "b", "q"):
        assert not found.find(tag), tag
        assert f"<{tag}>" in found.words or tag == "s"
    assert "<i> & 5 %" in found.words


@pytest.mark.parametrize(
    "typed",
    [(), ("--epochs", "3", "--hidden", "", "--hold-out", ""), ("--recipe", "fast", "--accuracy", "--lr", "1e-4")],
)
def test_the_command_to_repeat_is_the_command_as_typed(typed, pyro_bnn, tmp_path):  # noqa: F811
    given = ("--epochs", "1", *typed[typed[:1] == ("--epochs",) and 2 :])
    assert pyro_bnn("train", "digits", *given, "--out", tmp_path / "run")[0] == 0
    config = load_config(tmp_path / "run")
    subject = SimpleNamespace(config=config, run=tmp_path / "run", asked=load_asked(tmp_path / "run"))
    command = shlex.split(training_command(subject, "again"))
    assert pyro_bnn(*command[1:])[0] == 0
    assert load_config(tmp_path / "run-again") == config


# --- verdicts ---------------------------------------------------------------------------------------------------------


def history_of(losses):
    history = History(num_data=10)
    for loss in losses:
        history.add_step(-loss, 0.0, 1.0)
        history.end_epoch([10], 0.1, 1.0)
    return history


def test_a_loss_that_still_falls_is_not_settled():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(40, generator=generator).tolist()
    settling = [100 * math.exp(-epoch / 3) + 0.1 * noise[epoch] for epoch in range(40)]
    falling = [100 - epoch + 0.1 * noise[epoch] for epoch in range(40)]
    assert has_settled(history_of(settling)).level == "good"
    assert has_settled(history_of(falling)).level == "note"
    assert has_settled(history_of(falling)).text.startswith("The training stopped too early: the loss still fell")
    assert "too few to tell" in has_settled(history_of(falling[:5])).text


def test_a_fit_whose_elbo_still_rises_stopped_too_early_for_train_and_for_the_report():
    """The finding of the fit counts, also where its epochs are too few for a line through the loss."""
    status = Status(False, f"{TOO_EARLY}: the objective still rises.", remedy=MORE_EPOCHS)
    config = replace(recipes.RECIPES["digits", "default"], epochs=2)
    verdict = of_length(config, history_of([3.0, 2.0]), status)
    assert (verdict.short, verdict.changes) == (TOO_EARLY, {"epochs": 8})
    assert verdict.text == "The training stopped too early: the objective still rises. Raise --epochs, or --lr."
    subject = SimpleNamespace(config=config, asked={"recipe": None}, run=Path("digits-run"))
    command = "pyro-bnn train digits --seed 0 --epochs 8 --out digits-run-2"
    assert training_command(subject, "2", verdict.changes) == command
    well = Status(True, "well.")
    assert "too few epochs" in of_length(config, history_of([3.0, 2.0]), well).short
    table = replace(recipes.OWN, method="svi", epochs=2)
    assert of_length(table, history_of([3.0, 2.0]), well).changes == {"epochs": 3000}  # as many steps as the default


def test_a_short_training_with_a_lowered_learning_rate_is_not_said_to_have_settled():
    history = History(num_data=10)
    for epoch in range(40):
        history.add_step(-100 * math.exp(-epoch / 3), 0.0, 1.0)
        history.end_epoch([10], 0.1 * (1 - epoch / 40), 1.0)
    short = has_settled(history, usual_steps=3000)
    assert (short.level, short.short) == ("note", "the training had only 40 epochs (40 steps; the default is 3,000)")
    assert short.text.endswith("Raise --epochs, or --lr.")
    assert has_settled(history, usual_steps=80).level == "good"


def test_the_calibration_error_by_chance_is_that_of_calibrated_labels():
    """Its mean is the mean error of labels drawn from the probabilities, but not of labels drawn from sharper ones."""
    generator = torch.Generator().manual_seed(2)
    probs = torch.randn(500, 3, generator=generator).softmax(-1)
    chance = metrics.calibration_error_by_chance(probs, num_samples=400)

    def errors(true):
        labels = torch.multinomial(true, 400, replacement=True, generator=generator).T
        return torch.tensor([metrics.expected_calibration_error(probs, y) for y in labels])

    def agrees(other):
        error = math.sqrt(float(chance.var() + other.var()) / 400)
        return abs(float(chance.mean() - other.mean())) < STANDARD_ERRORS * error

    assert agrees(errors(probs))
    assert not agrees(errors(probs.square() / probs.square().sum(-1, keepdim=True)))
    assert torch.equal(chance, metrics.calibration_error_by_chance(probs, num_samples=400))
    assert not torch.equal(chance, metrics.calibration_error_by_chance(probs, num_samples=400, seed=1))


def test_an_image_is_written_as_it_is(tmp_path):
    from matplotlib.image import imread

    grey = torch.tensor([[0.0, 1.0, 0.2], [0.4, 0.6, 0.8]])
    content = pixels(grey).partition(",")[2]
    (tmp_path / "image.png").write_bytes(base64.b64decode(content))
    found = torch.from_numpy(imread(tmp_path / "image.png")).double()
    torch.testing.assert_close(1 - found, grey, rtol=0, atol=1e-6)
