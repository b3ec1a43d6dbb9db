"""Verdicts of `pyro-bnn report` on synthetic classifiers, each with one known fault; and its numbers on ten rows."""

import base64
import math
import re
from dataclasses import replace

import pytest
import torch

from pyro_bnn import metrics
from pyro_bnn.app.reports.evaluation import ClassifierScores, Evaluation
from pyro_bnn.app.reports.page import page_of
from pyro_bnn.app.reports.page.calibration import calibration_of, calibration_section, of_calibration
from pyro_bnn.app.reports.page.classifier import accuracy_section, all_right
from pyro_bnn.app.reports.page.examples import examples_section
from pyro_bnn.app.reports.page.section import Headline
from pyro_bnn.app.reports.page.subject import Classified
from pyro_bnn.scores.uncertainty import ClassificationPrediction

from .test_report import Page
from .test_report_verdicts import NUM_ROWS, Measured, judged

ONE_DRAW = {"name": "component 0", "accuracy": 0.5, "nll": 1.0, "ece": 0.1, "brier": 0.5}


def classes(probs, y):
    """A prediction of 10 draws that agree."""
    probs = probs.double()
    return ClassificationPrediction(
        num_samples=10,
        log_density=probs.gather(-1, y[:, None]).flatten().log(),
        targets=y,
        probs=probs,
        aleatoric=-torch.special.xlogy(probs, probs).sum(-1),
        votes=10 * torch.nn.functional.one_hot(probs.argmax(-1), probs.shape[-1]),
        mutual_information=torch.zeros(len(y)),
        variance_of_logits=torch.zeros(len(y)),
        logits=None,
    )


def classifier(probs, y, baseline):
    network = classes(probs, y)
    report = ClassifierScores([ONE_DRAW], {}, len(y), 0)
    evaluation = Evaluation(report, network, ("mean weights", network), None, {})
    names = tuple("abcdefgh"[: probs.shape[-1]])
    baselines = {"logistic regression": classes(baseline, y)}
    return Measured(classified=Classified(y, names, "row", "test rows", evaluation, baselines))


def labelled(kind):
    """Labels that are drawn from known probabilities, and a prediction of them that is right or wrong."""
    generator = torch.Generator().manual_seed(8)
    logits = 4 * torch.randn(NUM_ROWS, 3, generator=generator).double()
    if kind in ("imbalanced", "a class missed"):
        logits[:, 2] -= 30
    y = torch.multinomial(logits.softmax(-1), 1, generator=generator).flatten()
    probs, baseline = logits.softmax(-1), (0.3 * logits).softmax(-1)
    if kind == "too sure":
        probs = (4 * logits).softmax(-1)
    elif kind == "too unsure":
        probs = (0.4 * logits).softmax(-1)
    elif kind == "useless uncertainty":  # the right class for most, with the certainty of another row
        sizes = logits[torch.randperm(NUM_ROWS, generator=generator)].sort(-1).values
        places = logits.argsort(-1).argsort(-1)
        probs = sizes.gather(-1, places).softmax(-1)
    elif kind == "beaten":
        probs, baseline = (logits + 4 * torch.randn(logits.shape, generator=generator)).softmax(-1), logits.softmax(-1)
    elif kind == "tied":
        baseline = probs
    elif kind == "imbalanced":
        y = torch.zeros(NUM_ROWS, dtype=torch.long)
        y[:8] = 1
        probs = torch.tensor([8e2, 9.0, 1.0]).expand(NUM_ROWS, 3) / 810
        baseline = torch.tensor([1.0, 1.0, 1.0]).expand(NUM_ROWS, 3) / 3
    elif kind == "a class missed":
        y[:40] = 2
    return classifier(probs, y, baseline)


@pytest.mark.parametrize(
    ("kind", "start", "short", "level"),
    [
        ("good", "Usable. ", None, None),
        ("too sure", "Usable for predictions, not", "the probabilities are too high", "problem"),
        ("too unsure", "Usable for predictions, not", "the probabilities are too low", "problem"),
        ("useless uncertainty", "Not usable as it is. ", "uncertainty does not point at errors", "problem"),
        ("beaten", "Not usable as it is. ", "beaten by logistic regression", "problem"),
        (
            "tied",
            "Usable, with notes. Not clearly better than logistic",
            "not clearly better than logistic regression",
            "note",
        ),
        ("imbalanced", "Not usable as it is. No better than", "no better than always saying “a”", "problem"),
        ("imbalanced", "Not usable as it is. ", "mostly misses “b”", "problem"),
        ("a class missed", "Not usable as it is. ", "mostly misses “c”", "problem"),
    ],
)
def test_the_faults_of_a_classifier_are_named(kind, start, short, level):
    verdicts, line = judged(labelled(kind))
    found = {(verdict.short.partition(" (")[0], verdict.level) for verdict in verdicts if verdict.level != "good"}
    if short is None:
        assert not found
    else:
        assert (short, level) in found
        assert short[1:] in line
    assert line.startswith(start), line


def test_the_numbers_of_a_classifier_are_those_of_its_rows():
    """Ten rows whose numbers can be counted by hand; the surest rows are the right ones."""
    y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 2])
    sure, half, wrong = [0.98, 0.01, 0.01], [0.6, 0.3, 0.1], [0.3, 0.4, 0.3]
    probs = torch.tensor([sure, sure, sure, sure, half, wrong, wrong, wrong, half, half])
    section = accuracy_section(classifier(probs, y, torch.tensor([[0.4, 0.3, 0.3]]).expand(10, 3)))
    rows = {row["name"]: row for row in section.values["classes"]}
    assert {name: (row["hits"], row["rows"]) for name, row in rows.items()} == {"a": (5, 6), "b": (2, 3), "c": (0, 1)}
    assert [row["mistake"] for row in rows.values()] == ["b (1)", "a (1)", "a (1)"]
    tied = classifier(torch.tensor([sure, sure[::-1]]), torch.tensor([1, 1]), probs[:2])
    assert accuracy_section(tied).values["classes"][1]["mistake"] == "a and c (1 each)"
    assert [rows[name]["recall"] for name in "abc"] == pytest.approx([5 / 6, 2 / 3, 0])
    assert [rows[name]["precision"] for name in "ab"] == pytest.approx([5 / 7, 2 / 3])
    assert math.isnan(rows["c"]["precision"])
    assert section.values["matrix"].tolist() == [[5, 1, 0], [1, 2, 0], [1, 0, 0]]
    assert [(row["share"], row["rows"]) for row in section.values["certainty"]] == [
        (1.0, 10),
        (0.95, 10),
        (0.9, 9),
        (0.8, 8),
        (0.5, 5),
    ]
    assert section.values["certainty"][-1]["right"] == pytest.approx(1.0)
    assert section.values["certainty"][0]["right"] == pytest.approx(0.7)
    text = section.verdicts[0].text
    assert "70.0 % of 10 test rows are right" in text
    assert "always saying “a” would be right for 60.0 %" in text
    assert "lowest recall 0.0 % (“c”, 0 of 1)" in section.verdicts[1].text
    assert (
        section.usable == "7 of 10 right (logistic regression: 60.0 %)"
    )  # with three errors, the uncertainty cannot be judged
    own = (4 * math.log(0.98) + math.log(0.6) + math.log(0.3) + 2 * math.log(0.4) + math.log(0.3) + math.log(0.1)) / 10
    theirs = (6 * math.log(0.4) + 4 * math.log(0.3)) / 10
    assert f"NLL {-own:.3f} against {-theirs:.3f}; " in section.verdicts[2].text


def test_a_class_that_is_often_missed_is_not_said_to_be_found():
    y = torch.tensor([0] * 32 + [1] * 28).repeat(3)
    labels = torch.tensor([0] * 31 + [1] + [0] * 10 + [1] * 18).repeat(3)
    probs = torch.nn.functional.one_hot(labels, 2) * 0.8 + 0.1
    few, verdict = (
        accuracy_section(classifier(probs[:end], y[:end], torch.full((end, 2), 0.5))).verdicts[1] for end in (60, 180)
    )
    assert "misses" not in few.short  # 18 of 28 may be chance, if the worse of two classes is chosen
    assert (verdict.level, verdict.short) == ("note", "misses 36 % of “b”")
    assert verdict.text.startswith("36 % of “b” are missed, and 3 % of “a”; lowest recall 64.3 %")


def test_a_missed_class_with_few_rows_is_named_too():
    y = torch.tensor([0] * 40 + [1] * 18 + [2] * 2)
    probs = torch.tensor([0.7, 0.1, 0.1, 0.1]).expand(60, 4)
    section = accuracy_section(classifier(probs, y, torch.full((60, 4), 1 / 4)))
    assert [row["rows"] for row in section.values["classes"]] == [40, 18, 2, 0]  # a class without test rows is listed
    assert "dno test rownever predicted" in Page(page_of("", "", Headline(""), [], [section])).words.replace(
        "0no", "no"
    )
    verdict = section.verdicts[1]
    assert verdict.text.startswith("Mostly missed: “b” (0 of 18 found). Too few rows to tell about “c” (0 of 2 found).")


def test_of_many_classes_those_of_the_lowest_recall_are_listed():
    y = torch.arange(25).repeat(4)
    probs = torch.nn.functional.one_hot(y, 25) * 0.9 + 0.004
    probs[y == 7] = probs[y == 8]
    names = tuple(f"class {i}" for i in range(25))
    network = classes(probs, y)
    evaluation = Evaluation(ClassifierScores([ONE_DRAW], {}, 100, 0), network, ("mean weights", network), None, {})
    found = Classified(y, names, "row", "test rows", evaluation, {"logistic regression": network})
    values = accuracy_section(Measured(classified=found)).values
    assert values["classes"][0]["name"] == "class 7"
    assert len(values["classes"]) == 20
    assert values["matrix"] is None


def test_calibration_is_judged_by_what_chance_gives():
    generator = torch.Generator().manual_seed(1)
    probs = (2 * torch.randn(3000, 4, generator=generator)).softmax(-1)
    y = torch.multinomial(probs, 1, generator=generator).flatten()

    def verdict(power):
        powered = probs**power / (probs**power).sum(-1, keepdim=True)
        return of_calibration(calibration_of(powered, y, seed=0))

    assert verdict(1).level == "good"
    assert verdict(2).level == "problem"
    assert "they are too high on average" in verdict(2).text
    assert "they are too low on average" in verdict(0.5).text


def test_probabilities_that_are_all_too_low_fail_although_chance_gives_as_large_an_error():
    found = {
        "error": 0.136,
        "usual": 0.097,
        "limit": 0.152,
        "confidence": 0.72,
        "accuracy": 0.856,
        "gap_error": 0.045,
        "rows": 61,
    }
    assert of_calibration(found).level == "problem"
    assert "minus accuracy is -13.60 ± 4.50 points): they are too low on average" in of_calibration(found).text
    untold = of_calibration({**found, "gap_error": 0.053})
    assert (untold.level, untold.word) == ("note", "unclear")  # chance alone gives an error above 10 %
    assert of_calibration({**found, "gap_error": 0.053, "error": 0.08, "limit": 0.09}).level == "good"
    coarse = of_calibration({**found, "gap_error": 0.053, "limit": 0.2})
    assert (coarse.level, coarse.short) == ("note", "too few rows to judge the calibration")


def test_the_examples_are_the_extremes_of_all():
    certainty = torch.tensor([0.9, 0.5, 0.99, 0.7, 0.8, 0.6])
    probs, y = torch.stack([certainty, 1 - certainty], -1), torch.tensor([0, 0, 1, 1, 0, 0])
    subject = classifier(probs, y, probs)
    foreign = classes(probs[[1, 0, 2]], y[:3])
    found = subject.classified
    evaluation = replace(found.evaluation, foreign=foreign)
    images = torch.zeros(6, 2, 2)
    subject.classified = replace(
        found, evaluation=evaluation, images=images, unknown=images[:3], unknown_name="hats", noun="image"
    )
    section = examples_section(subject)
    groups = dict(section.values["groups"])
    entropy = classes(probs, y).total
    for title, rows in {
        "Surest, and right": [0, 4],
        "Surest, and wrong": [2, 3],
        "Least certain": [1, 5],
        "Unknown, and noticed best": [1, 0],
        "Unknown, and noticed least": [2, 0],
    }.items():
        assert [card["entropy"] for card in groups[title]] == pytest.approx(entropy[rows].tolist()), title
        names = ["unknown (hats)"] * 2 if "Unknown" in title else [f"truly {'ab'[y[row]]}" for row in rows]
        assert [card["truth"] for card in groups[title]] == names
    assert 'alt="An image, truly b, taken for a."' in page_of("", "", Headline(""), [], [section])
    assert groups["Surest, and wrong"][0]["votes"] == [("a", 1.0)]


def test_the_best_baseline_counts():
    subject = labelled("tied")
    best = subject.classified.baselines["logistic regression"]
    flat = classes(torch.full_like(best.probs, 1 / 3), best.targets)
    for baselines in ({"first": flat, "second": best}, {"second": best, "first": flat}):
        subject.classified = replace(subject.classified, baselines=baselines)
        assert "ot clearly better than second" in judged(subject)[1]


@pytest.mark.parametrize(
    ("num_rows", "level", "short"),
    [
        (40, "note", "too few errors to tell whether the uncertainty points at them"),
        (4000, "problem", "uncertainty does not point at errors"),
    ],
)
def test_errors_that_are_too_few_are_no_problem(num_rows, level, short):
    """Every fifth row is wrong, whatever its confidence: only many rows show that the confidence says nothing."""
    confidence = torch.linspace(0.6, 0.99, 8).repeat(num_rows // 8)
    y = (torch.arange(num_rows) % 5 == 0).long()
    section = accuracy_section(
        classifier(torch.stack([confidence, 1 - confidence], -1), y, torch.full((num_rows, 2), 0.5))
    )
    detection = section.verdicts[-1]
    assert (detection.level, detection.short) == (level, short)
    assert (
        section.usable.replace("32 of 40", "80.0 %") == "AUROC 0.50, 80.0 % right (logistic regression: 80.0 %)"
    )  # without advice to defer by this uncertainty


def test_deferring_is_advised_if_errors_are_among_the_least_certain_rows():
    usable = accuracy_section(labelled("good")).usable
    said = r"[0-9.]+ % right \(logistic regression: [0-9.]+ %\); defer the least certain 20 % and the rest are "
    assert re.fullmatch(rf"{said}[0-9.]+ % right \(480 rows\)", usable)


@pytest.mark.parametrize(("num_wrong", "level"), [(0, "good"), (1, "note")])
def test_a_few_rows_that_are_all_right_need_no_warning(num_wrong, level):
    y = torch.arange(36) % 3
    probs = 0.1 + 0.7 * torch.nn.functional.one_hot(y, 3)
    y[:num_wrong] = 2
    subject = classifier(probs, y, probs)
    verdicts = all_right(
        subject.classified, [*accuracy_section(subject).verdicts, *calibration_section(subject).verdicts]
    )
    assert {verdict.level for verdict in verdicts if verdict.word == "unclear"} == {level}
    assert accuracy_section(subject).usable.startswith(f"{36 - num_wrong} of 36 right")


def test_the_calibration_error_is_on_the_page_once():
    """The text has the error of `evaluate`, the table has bins of equal count, and the picture has no number."""
    subject = labelled("too sure")
    probs, y = subject.classified.prediction.probs, subject.classified.y
    section = calibration_section(subject)
    error = metrics.expected_calibration_error(probs, y)
    assert section.values["found"]["error"] == pytest.approx(error)
    assert [counts for counts, _, _ in section.values["bins"]] == [len(y) / 15] * 15
    gaps = sum(counts * abs(confidence - accuracy) for counts, confidence, accuracy in section.values["bins"])
    assert gaps / len(y) == pytest.approx(error, rel=0.1)
    words = Page(page_of("", "", Headline(""), [], [section])).words
    most = max(confidence - accuracy for _, confidence, accuracy in section.values["bins"])
    assert f"{most:+.3f}" in words  # the network is too sure: one sign in the table and in the text
    few = classifier(probs[:36], y[:36], probs[:36])
    assert len(calibration_section(few).values["bins"]) == 3
    assert calibration_section(labelled("good")).tiles[0].value == "within chance"
    picture = base64.b64decode(str(section.values["picture"]).partition(",")[2])
    assert b"perfectly calibrated" in picture
    assert b"expected calibration error" not in picture


@pytest.mark.parametrize("is_useful", [True, False])
def test_a_rare_class_is_judged_by_its_probabilities(is_useful):
    """No probability reaches 50 %, so each row is taken for "a"; nevertheless the probabilities may be useful."""
    generator = torch.Generator().manual_seed(9)
    p = 0.45 * torch.rand(NUM_ROWS, generator=generator).double() ** 5
    y = (torch.rand(NUM_ROWS, generator=generator) < p).long()
    share = torch.full_like(p, float(y.double().mean()))
    p, share = (torch.stack([1 - part, part], -1) for part in (p, share))
    subject = classifier(p if is_useful else p[torch.randperm(NUM_ROWS, generator=generator)], y, p)
    subject.classified = replace(subject.classified, baselines={"shares of the classes": classes(share, y)})
    rarer = {"shares of the classes": classes(share.flip(-1), y)}  # in the training rows, which decide
    assert (
        accuracy_section(Measured(classified=replace(subject.classified, baselines=rarer))).values["of_two"]["class"]
        == "a"
    )
    verdicts, line = judged(subject)
    found = {verdict.short.partition(" (")[0]: verdict.level for verdict in verdicts}
    if is_useful:
        assert found["rarely predicts “b”: choose rows by probability"] == "note"
        assert any("exceeds a threshold that you choose" in verdict.text for verdict in verdicts)
        assert line.startswith("Usable, with notes. ")
    else:
        assert found["mostly misses “b”"] == "problem"
    flagged = accuracy_section(subject).values["of_two"]["flagged"]
    chosen = subject.classified.prediction.probs[:, 1].argsort(descending=True)[: NUM_ROWS // 20]
    hits = float(y[chosen].sum())
    assert flagged[0][0] == 0.05
    assert flagged[0][3:] == pytest.approx((hits / float(y.sum()), hits / len(chosen)))


def test_two_classes_have_the_auroc_and_the_average_precision_of_the_rarer_class():
    generator = torch.Generator().manual_seed(9)
    rarer = torch.rand(NUM_ROWS, generator=generator).double() * 0.6
    y = (torch.rand(NUM_ROWS, generator=generator) < rarer).long()
    probs = torch.stack([1 - rarer, rarer], -1)
    found = classifier(probs, y, torch.full_like(probs, 0.5))
    found.classified = replace(found.classified, classes=("no", "yes"))
    values = accuracy_section(found).values
    areas, precisions = zip(*values["of_two"]["rows"], strict=True)
    assert values["of_two"]["class"] == "yes"
    own = [score["is_main"] for score in values["scores"]].index(True)
    pairs = (rarer[y == 1][:, None] > rarer[y == 0]).double().mean()
    assert areas[own] == pytest.approx(float(pairs))
    assert areas[-1] == pytest.approx(0.5)  # the baseline gives each row the same probability
    assert precisions[-1] == pytest.approx(float(y.double().mean()))
    assert precisions[own] > precisions[-1]
    assert accuracy_section(labelled("good")).values["of_two"] is None  # three classes
