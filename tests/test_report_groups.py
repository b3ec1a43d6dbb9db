"""The report holds errors against predicted standard deviations, and says where rows are too few to judge."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2
from torch.distributions import Normal, StudentT

from pyro_bnn.app.reports.calibrated import limits_by_draws
from pyro_bnn.app.reports.page import page_of
from pyro_bnn.app.reports.page.calibration import calibration_section
from pyro_bnn.app.reports.page.classifier import accuracy_section
from pyro_bnn.app.reports.page.drivers import surprises_section
from pyro_bnn.app.reports.page.intervals import intervals_section, of_groups, ranking_of
from pyro_bnn.app.reports.page.regression import errors_section
from pyro_bnn.app.reports.page.section import Headline, first_line
from pyro_bnn.app.reports.trained import TREES

from .test_report import Page
from .test_report_classifier import classifier, labelled
from .test_report_verdicts import Measured, predicted, regressed


@pytest.mark.parametrize(
    ("factors", "short"),
    [
        ((1.0, 1.0, 1.0, 1.0), ""),
        ((0.96, 0.96, 1.04, 1.04), ""),  # clear for so many rows, but too small to matter
        ((0.6, 1.0, 1.0, 1.0), "predicted sd too large in 1 of 4 quarters of the rows"),
        ((0.6, 1.0, 1.5, 1.5), "predicted sd too large in 1 of 4 and too small in 2 of 4 quarters of the rows"),
        ((1.5, 1.5, 1.5, 1.5), "predicted sd too small"),
    ],
)
def test_the_rmse_of_each_group_is_held_against_its_predicted_sd(factors, short):
    """Errors are Gaussian quantiles times the predicted sd times a factor for each quarter of the rows."""
    num = 2000
    z = torch.special.ndtri((torch.arange(num) + 0.5) / num)
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0]).repeat_interleave(num)[:, None]
    y = scale * torch.tensor(factors).repeat_interleave(num)[:, None] * z.repeat(4)[:, None]
    network = predicted(torch.zeros_like(y), scale, y, num_draws=4, epistemic=1e-6)
    groups, _ = ranking_of(replace(regressed().regressed, y=y, prediction=network), seed=0)
    assert [group["ratio"] for group in groups[1:]] == pytest.approx(factors, rel=0.01)
    verdict = of_groups(groups)
    assert (verdict.short, verdict.level) == (short, "note" if short else "good")
    assert ("from the surest rows to the least sure" in verdict.text) == ("quarters" in short)
    assert verdict.text.startswith(
        short.replace("predicted sd", "The predicted sd is") or "The sizes of the predicted sd are right within chance"
    )


def test_few_rows_that_are_too_few_by_quarter_are_judged_together():
    """Twelve rows allow ratios from 0.5 to 1.55 in a quarter, but fifty rows together show that the sd is too small."""
    group, whole = {"ratio": 1.5, "limits": (0.5, 1.55)}, {"ratio": 1.5, "limits": (0.74, 1.26)}
    verdict = of_groups([whole] + [group] * 4)
    assert (verdict.level, verdict.short) == ("note", "predicted sd too small")
    assert verdict.text.endswith("RMSE / predicted sd is 1.50, and chance allows 0.74 to 1.26.")
    verdict = of_groups([{**whole, "ratio": 1.1}] + [{**group, "ratio": 1.1}] * 4)
    assert verdict.word == "unclear"
    assert verdict.text.endswith("RMSE / predicted sd is 1.10, and chance allows 0.74 to 1.26.")


@pytest.mark.parametrize("shape", ["equal", "varying", "heavy tails"])
@pytest.mark.parametrize("number", [15, 50, 500])
def test_right_sds_are_within_the_limits_of_chance_as_often_as_promised(number, shape):
    """Targets that follow the predictions are inside in 99 % of the cases; those with 1.7 times the sd are not."""
    generator, trials = np.random.default_rng(0), 4000
    scale = np.exp(generator.standard_normal((number, 1))) if shape == "varying" else np.ones((number, 1))
    freedom = 8.0 if shape == "heavy tails" else math.inf
    components = Normal(torch.zeros(1, number, 1), torch.tensor(scale)[None])
    if shape == "heavy tails":
        components = StudentT(freedom, 0.0, torch.tensor(scale)[None])
    y = 0.1 * torch.ones(number, 1)  # any targets: the limits do not depend on them
    network = SimpleNamespace(mean=0 * y, total=components.variance[0], components=components)
    found = replace(regressed().regressed, y=y, prediction=network)
    low, high = ranking_of(found, seed=1)[0][0]["limits"]
    unit = generator.standard_normal if math.isinf(freedom) else lambda shape: generator.standard_t(freedom, shape)
    errors, sd = scale[:, 0] * unit((trials, number)), float(network.total.mean().sqrt())
    ratios = np.sqrt(np.square(errors).mean(1)) / sd
    inside = ((low <= ratios) & (ratios <= high)).mean()
    assert inside > 0.98 if number == 500 else 0.98 < inside < 0.998  # of many rows, small differences are allowed
    assert ((low <= 1.7 * ratios) & (1.7 * ratios <= high)).mean() < 0.95
    if shape == "equal" and number < 500:
        assert (low, high) == pytest.approx(np.sqrt(np.array(chi2.interval(0.99, number)) / number), abs=0.04)


@pytest.mark.parametrize(("shared", "is_binomial"), [(0.0, True), (0.5, False)])
def test_limits_of_coverage_have_the_error_that_all_rows_share(shared, is_binomial):
    """Sixty rows have Gaussian noise and the error of one network. Binomial limits are too narrow if it matters."""
    generator, number = torch.Generator().manual_seed(0), 60
    loc = shared * torch.randn(400, 1, 1, generator=generator).expand(-1, number, 1)
    components = Normal(loc, 0.5)
    end = 1.645 * math.hypot(shared, 0.5) * torch.ones(number, 1)
    [(low, high)] = limits_by_draws(SimpleNamespace(mean=0 * end, components=components), [(-end, end)])

    def kept(low, high, factor=1.0):
        errors = shared * torch.randn(4000, 1, generator=generator) + 0.5 * torch.randn(4000, 60, generator=generator)
        inside = (factor * errors.abs() <= end[:, 0]).double().mean(1)
        return float(((low <= inside) & (inside <= high)).double().mean())

    assert kept(low, high) > 0.975
    assert kept(low, high, factor=3.0) < 0.9  # predictions that are three times as sure as is right
    alone = [float(part) / number for part in binom.interval(0.99, number, 0.9)]
    assert kept(*alone) > 0.98 if is_binomial else kept(*alone) < 0.8


def few_rows(number, *, scale=1.0):
    """A regression with Gaussian errors of the size 1, and with predicted sds of the given size."""
    y = torch.linspace(-30, 30, number)[:, None]
    error = torch.special.ndtri((torch.arange(number) + 0.5) / number)
    error = error[torch.randperm(number, generator=torch.Generator().manual_seed(0)), None]
    network = predicted(y - error, scale * torch.ones_like(y), y, num_draws=2)
    baselines = {"mean of the targets": predicted(0 * y, 18 + 0 * y, y), TREES: predicted(y + error, 1 + 0 * y, y)}
    found = replace(regressed().regressed, y=y, prediction=network, single=("mean weights", network))
    return Measured(regressed=replace(found, baselines=baselines, rows=range(number)))


@pytest.mark.parametrize("number", [12, 150])
def test_no_check_of_few_rows_is_called_good_that_could_not_fail(number):
    subject = few_rows(number)
    intervals, *others = intervals_section(subject).verdicts
    of_trees = [verdict for verdict in errors_section(subject).verdicts if "trees" in verdict.text]
    assert (bool(of_trees), bool(others), intervals.level == "good") == (number == 150,) * 3
    if number == 12:
        assert intervals.text.startswith(
            "Too few rows to judge the intervals: on 12 test rows, chance gives 66.7 % to "
        )
        assert first_line([intervals], "").reasons == "Too few rows to judge the intervals."


def test_an_sd_that_is_far_too_large_is_found_in_few_rows_too():
    """The 90 % intervals hold all rows, as correct ones may, but the errors are a tenth of the predicted sd."""
    section = intervals_section(few_rows(12, scale=10.0))
    verdict, (low, high) = section.verdicts[1], section.values["groups"][0]["limits"]
    assert f"chance allows {low:.2f} to {high:.2f}" in verdict.text  # as in the table
    assert (verdict.short, "sd is 0.09, and" in verdict.text) == ("predicted sd too large", True)


def test_few_rows_do_not_say_whether_probabilities_are_calibrated_or_a_class_is_found():
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    probs = torch.nn.functional.one_hot(y, 2) * 0.8 + 0.1
    subject = classifier(probs, y, torch.full((8, 2), 0.5))
    [calibration], [tile] = calibration_section(subject).verdicts, calibration_section(subject).tiles
    assert (tile.value, tile.is_unclear) == ("10.0 %", True)
    assert tile.remark.startswith("too few rows to judge; ")
    page = page_of("", "", Headline(""), [], [calibration_section(subject)])
    assert '<dd class="value unclear">' in page
    assert "minus accuracy is \N{MINUS SIGN}10.0" in page
    assert "mean confidence minus accuracy is -10.0 ± 10.6 points" in calibration.text
    assert calibration.text.endswith("On average, the probabilities are right within chance.")
    assert (calibration.level, calibration.short) == ("note", "too few rows to judge the calibration")
    recall = accuracy_section(classifier(probs[3:5], y[3:5], torch.full((2, 2), 0.5))).verdicts[1]
    assert (recall.level, recall.short) == ("note", "too few rows of “a” to judge")


def test_residuals_stand_between_lines_at_two_predicted_deviations():
    found = regressed().regressed
    ax = intervals_section(Measured(regressed=found)).values["picture"].ax
    lines = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[-1] / line.get_xdata()[-1] for line in lines] == [2, -2]
    sd = found.prediction.total[:, 0].sqrt()
    assert [lines[0].get_xdata()[end] for end in (0, -1)] == pytest.approx([float(sd.min()), float(sd.max())])
    assert next(text.get_text() for text in ax.get_legend().get_texts()) == "± 2 predicted sd"
    y = found.y.clone()
    y[3] = 1e6  # far from all others
    far = Measured(regressed=replace(found, y=y))
    for picture in (intervals_section(far).values["picture"], errors_section(far).values["pictures"][0]["address"]):
        assert picture.ax.get_ylim()[1] < 1e3
        assert "beyond the axes" in [text.get_text() for text in picture.ax.get_legend().get_texts()]


def test_the_cards_name_the_target_and_units_and_intervals_have_one_level():
    subject = Measured(regressed=replace(regressed().regressed, names=("price",)))
    sections = [errors_section(subject), intervals_section(subject)]
    names = [tile.name for section in sections for tile in section.tiles]
    assert names == ["RMSE of price", "NLL of price", "Inside their 90 % interval"]
    remarks = [tile.remark for section in sections for tile in section.tiles]
    assert remarks[0].startswith("smaller is better; best baseline (")
    assert remarks[1].startswith("negative log-likelihood per row, ")
    assert remarks[2] == "of 600 observed values of price; chance gives 86.7 % to 93.0 %"
    labels = labelled("good")
    labels.classified = replace(labels.classified, target="kind")
    accuracy = accuracy_section(labels)
    assert [tile.name for tile in accuracy.tiles] == ["Accuracy of kind", "Balanced accuracy of kind", "NLL of kind"]
    words = Page(page_of("", "", Headline(""), [], [*sections, accuracy])).words
    assert "90 % interval" in words
    assert "95 % interval" not in words


def test_of_few_rows_a_quarter_is_surprising():
    subject = few_rows(12)
    subject.drivers, subject.inputs, subject.config = None, None, SimpleNamespace(kind="table")
    assert len(surprises_section(subject).values["rows"]) == 3


@pytest.mark.parametrize(("shift", "level"), [(4.0, "note"), (40.0, "problem")])
def test_two_rows_do_not_show_that_a_network_is_worse_than_the_mean(shift, level):
    """Two differences of similar size are far from 0 by the standard error of their mean, but not by Student's t."""
    y, found = torch.tensor([[3.0], [-3.5]]), regressed().regressed
    network = predicted(y + shift, torch.ones(2, 1), y, num_draws=2)
    plain = {"mean of the targets": predicted(0 * y, torch.ones(2, 1), y)}
    few = replace(found, y=y, prediction=network, single=("mean weights", network), baselines=plain)
    assert errors_section(Measured(regressed=few)).verdicts[0].level == level
