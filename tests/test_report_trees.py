"""Verdicts of the report on bias, on intervals below 0, and on gradient-boosted trees; its pictures in the dark."""

import re
from dataclasses import replace

import pytest
import torch

from pyro_bnn.app.own.targets import Target
from pyro_bnn.app.reports.drivers import Leak
from pyro_bnn.app.reports.page import page_of
from pyro_bnn.app.reports.page.classifier import accuracy_section
from pyro_bnn.app.reports.page.intervals import intervals_section
from pyro_bnn.app.reports.page.regression import errors_section
from pyro_bnn.app.reports.page.section import Headline, Verdict, first_line, usability
from pyro_bnn.app.reports.page.verdicts import of_baseline
from pyro_bnn.app.reports.scores import scores_of
from pyro_bnn.app.reports.trained import LINEAR, TREES
from pyro_bnn.scores.uncertainty import RegressionPrediction

from .test_report import Page
from .test_report_classifier import classes, labelled
from .test_report_verdicts import Measured, predicted, regressed


def verdict_on(section, start):
    [verdict] = [verdict for verdict in section.verdicts if verdict.rule.startswith(start)]
    return verdict


def with_trees(mean):
    found = regressed().regressed
    trees = RegressionPrediction(
        num_samples=1,
        log_density=None,
        targets=found.y,
        mean=mean,
        aleatoric=torch.full_like(mean, torch.nan),
        variance_of_means=None,
        components=None,
    )
    return Measured(regressed=replace(found, baselines={**found.baselines, TREES: trees}))


def test_a_linear_model_with_smaller_errors_is_named_instead_of_trees():
    subject = with_trees(regressed().regressed.prediction.mean)
    found = subject.regressed
    better = replace(found.prediction, mean=found.y + 0.5 * (found.prediction.mean - found.y))
    subject = Measured(regressed=replace(found, baselines={**found.baselines, LINEAR: better}))
    assert verdict_on(errors_section(subject), "Linear regression of").is_beaten
    assert not any(verdict.rule.startswith("Trees of") for verdict in errors_section(subject).verdicts)


@pytest.mark.parametrize(
    ("share", "level", "text"),
    [
        (0.5, "note", "Gradient-boosted trees are more accurate here: RMSE"),  # half the error of the network
        (1.0, "good", "The network is as accurate as gradient-boosted trees, within chance (RMSE"),
        (2.0, "good", "The network is more accurate than gradient-boosted trees (RMSE"),
    ],
)
def test_trees_are_compared_by_their_errors(share, level, text):
    found = regressed().regressed
    subject = with_trees(found.y + share * (found.prediction.mean - found.y))
    section = errors_section(subject)
    verdict = verdict_on(section, "Trees of scikit-learn")
    assert (verdict.level, verdict.text.startswith(text)) == (level, True)
    line = first_line(section.verdicts, section.usable)
    if level == "note":
        assert line.reasons.startswith("Gradient-boosted trees predict better (RMSE ")
        assert re.search(r"RMSE [\d.]+ \(gradient-boosted trees: 0\.\d+\)", line.scores)
        least = line.scores.partition("trees: ")[2].partition(")")[0]
        assert section.tiles[0].remark == f"smaller is better; best baseline ({TREES}): {least}"
    else:
        assert line.decision == "Usable."
    words = Page(page_of("", "", Headline(""), [], [section])).words
    assert f"baseline: {TREES}" in words
    assert "HistGradientBoostingRegressor with default settings, which predicts no uncertainty" in words


def test_trees_are_compared_by_their_mistakes():
    subject = labelled("good")
    found = subject.classified
    right = torch.nn.functional.one_hot(found.y, len(found.classes)).double() * 0.9 + 0.03
    trees = classes(right / right.sum(-1, keepdim=True), found.y)
    subject.classified = replace(found, baselines={**found.baselines, TREES: trees})
    section = accuracy_section(subject)
    verdict = verdict_on(section, "Trees of scikit-learn")
    assert verdict.level == "note"
    assert verdict.text.startswith("Gradient-boosted trees are more accurate here: accuracy 100.0 %, this run ")
    assert "HistGradientBoostingClassifier" in Page(page_of("", "", Headline(""), [], [section])).words
    assert "better than those of logistic regression" in " ".join(v.text for v in section.verdicts)
    assert "Their probabilities are better, too (NLL " in verdict.text
    assert "gradient-boosted trees: 0." in section.tiles[-1].remark


@pytest.mark.parametrize(("power", "is_found"), [(1.0, False), (4.0, True)])
def test_trees_with_as_few_mistakes_but_better_probabilities_are_named(power, is_found):
    """The network's probabilities are right, or too sure of the same classes."""
    found = labelled("good").classified
    network = classes(torch.nn.functional.normalize(found.prediction.probs**power, p=1, dim=-1), found.y)
    evaluation = replace(found.evaluation, ensemble=network, single=("mean weights", network))
    trees = {TREES: found.prediction}
    found = replace(found, evaluation=evaluation, baselines={**found.baselines, **trees})
    verdict = verdict_on(accuracy_section(Measured(classified=found)), "Trees of scikit-learn")
    assert verdict.short.startswith("gradient-boosted trees predict better (NLL ") == is_found
    assert (verdict.relation, verdict.is_beaten) == ("beaten in NLL by", False)
    assert verdict.rivals == ((TREES,) if is_found else ())


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_run_with_wrong_uncertainty_that_trees_beat_is_not_usable(share):
    found = regressed().regressed
    section = errors_section(with_trees(found.y + share * (found.prediction.mean - found.y)))
    wide = Verdict("problem", "uncertainty", "95 % intervals too wide", "", "")
    beaten = verdict_on(section, "Trees of").is_beaten
    assert beaten == (share == 0.5)
    assert usability([wide, *section.verdicts]) == ("not usable" if beaten else "usable for predictions only")


@pytest.mark.parametrize("unbeaten", ["", "RMSE"])
def test_a_run_with_wrong_uncertainty_that_a_baseline_beats_in_its_errors_is_not_usable(unbeaten):
    little = of_baseline("a line", -5.46, -5.4, 0.01, points="", is_nearer=False, unbeaten=unbeaten)
    wide = Verdict("problem", "uncertainty", "95 % intervals too wide", "", "")
    assert usability([wide, little]) == ("usable for predictions only" if unbeaten else "not usable")


def test_an_nll_above_that_of_the_mean_of_the_targets_names_both():
    numbers = {"points": "RMSE 2 against 3", "is_nearer": True}
    worse = of_baseline("linear regression", -4.5, -2.5, 0.1, **numbers, guess=("the mean of the targets", -3.3))
    said = "robabilities worse than those of linear regression and of the mean of the targets (NLL 4.500 against 2.500"
    line = str(first_line([worse], "RMSE 2"))
    assert line == f"Usable for predictions, not for uncertainty. P{said} and 3.300). RMSE 2."
    better = of_baseline("linear regression", -3.2, -2.5, 0.1, **numbers, guess=("the mean of the targets", -3.3))
    assert "and of the mean of the targets" not in better.short


@pytest.mark.parametrize(("shift", "said"), [(0.5, "too high"), (-0.5, "too low"), (0.0, None)])
def test_a_bias_is_said_in_words(shift, said):
    found = regressed().regressed
    mean = found.prediction.mean + shift - (found.prediction.mean - found.y).mean()
    network = predicted(mean, found.prediction.aleatoric.sqrt(), found.y, num_draws=4, epistemic=1e-3)
    verdict = verdict_on(errors_section(Measured(regressed=replace(found, prediction=network))), "Note: the mean error")
    if said is None:
        assert verdict.level == "good"
    else:
        assert (verdict.level, verdict.short) == ("note", f"the predictions are {said} on average")
        assert f"The predictions are {said} on average, by 0.5" in verdict.text
        assert "% of the RMSE)." in verdict.text


def test_of_several_targets_the_biased_one_is_named():
    found = regressed(num_outputs=2).regressed
    shift = torch.tensor([0.0, 2.0]) - (found.prediction.mean - found.y).mean(0)
    network = predicted(
        found.prediction.mean + shift, found.prediction.aleatoric.sqrt(), found.y, num_draws=4, epistemic=1e-3
    )
    verdict = verdict_on(errors_section(Measured(regressed=replace(found, prediction=network))), "Note: the mean error")
    assert verdict.text.startswith("The predictions of target 1 are too high on average, by ")
    assert "target 0" not in verdict.text


@pytest.mark.parametrize(
    ("least", "remedy"),
    [(0.0, "log(1 + target), and take exp(...) - 1"), (0.5, "log(target), and take exp(...)"), (-1.0, None)],
)
def test_intervals_below_zero_of_a_target_that_is_not(least, remedy):
    found = replace(regressed().regressed, train_least=torch.tensor([least]))
    low = found.interval(0.9)[0]
    share = float((low < 0).double().mean())
    section = intervals_section(Measured(regressed=found))
    found_fault = [verdict for verdict in section.verdicts if verdict.short == "intervals reach below 0"]
    assert share > 0.05
    if remedy is None:
        assert not found_fault
    else:
        [verdict] = found_fault
        assert f"the 90 % intervals of {100 * share:.0f} % of the test rows reach below 0" in verdict.text
        assert f"Train on a column {remedy} of" in verdict.text
        assert not verdict.changes
        whole = replace(found, y=found.y.round() + 1e-6)  # standardised in single precision
        [verdict] = [v for v in intervals_section(Measured(regressed=whole)).verdicts if v.short == verdict.short]
        assert "If the targets are counts, train with --likelihood poisson. Otherwise, train on" in verdict.text
        assert verdict.changes == {"likelihood": "poisson"}


def test_a_rounding_error_of_the_smallest_target_is_zero():
    """Targets are standardised in single precision: 0 may come back as -1e-7."""
    found = replace(regressed().regressed, train_least=torch.tensor([-1e-7]))
    texts = [verdict.text for verdict in intervals_section(Measured(regressed=found)).verdicts]
    assert any("log(1 + target)" in text for text in texts)


def test_pictures_are_dark_where_the_page_is():
    page = page_of("", "", Headline(""), [], [])
    dark = page[page.index("prefers-color-scheme: dark") :]
    assert "invert(1)" in dark[: dark.index("* {")]
    assert "#fff;" not in dark[: dark.index("* {")]


@pytest.mark.parametrize(
    ("share", "leak", "short", "remedy"),
    [
        (1e-4, None, "columns probably contain the target", "train without them (--ignore)."),
        (
            1e-4,
            Leak(("old", "new one"), True),
            "columns old and new one add up to the target (leave them out: --ignore 'id,old,new one')",
            "train without them (--ignore 'id,old,new one').",
        ),
        (1e-4, Leak(("a",), True), "column a equals the target (leave it out: --ignore id,a)", "--ignore id,a)."),
        (1e-4, Leak(("a",), False), "column a gives the target by a linear formula (leave it out: --ignore id,a)", ""),
        (1e-2, Leak(("a",), True), None, ""),
    ],
)
def test_a_linear_baseline_that_is_almost_exact_is_told(share, leak, short, remedy):
    found = regressed().regressed
    exact = predicted(found.y + share * found.y.std(), torch.ones_like(found.y), found.y)
    found = replace(found, baselines={**found.baselines, LINEAR: exact}, leak=leak, ignored=("id",))
    rule = "Problem: the RMSE of linear regression is at most"
    verdicts = errors_section(Measured(regressed=found)).verdicts
    told = [verdict for verdict in verdicts if verdict.rule.startswith(rule)]
    assert [verdict.short for verdict in told] == ([] if short is None else [short])
    for verdict in told:
        assert verdict.level == "problem"
        assert verdict.text.endswith(remedy)
        assert usability([verdict]) == "not usable"


def test_the_terminal_and_the_page_judge_the_same_levels():
    found = regressed().regressed
    scored = {name for name in scores_of(found.prediction, Target("y", [], [0.0], [1.0])) if "coverage" in name}
    rows = intervals_section(Measured(regressed=found)).values["levels"]
    assert {f"coverage_{100 * row['level']:g}" for row in rows} == scored


@pytest.mark.parametrize("num_rows", [600, 150])
def test_a_picture_of_some_rows_says_which(num_rows):
    found = regressed().regressed
    some = replace(found, y=found.y[:num_rows], prediction=found.prediction[:num_rows])
    some = replace(some, baselines={name: way[:num_rows] for name, way in found.baselines.items()})
    some = replace(some, single=("mean weights", found.single[1][:num_rows]))
    words = Page(page_of("", "", Headline(""), [], [errors_section(Measured(regressed=some))])).words
    said = "100 of 600 test rows, evenly spaced in the order of the predictions."
    assert (said in words) == (num_rows == 600)
    assert ("100 of 150 test rows" in words) == (num_rows == 150)
