"""Verdicts of `pyro-bnn report` on synthetic regressions with one fault each, on baselines, training and weights."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.distributions import Laplace, Normal, Poisson

from pyro_bnn.app.numbers import with_error
from pyro_bnn.app.reports.page.calibration import calibration_section
from pyro_bnn.app.reports.page.classifier import accuracy_section
from pyro_bnn.app.reports.page.fit import of_temperature, of_weights
from pyro_bnn.app.reports.page.intervals import intervals_section, of_ranking, ranking_of
from pyro_bnn.app.reports.page.regression import errors_section
from pyro_bnn.app.reports.page.section import first_line
from pyro_bnn.app.reports.page.subject import Regressed
from pyro_bnn.app.reports.page.verdicts import of_baseline, of_rivals
from pyro_bnn.inference.guides import Diagnosis, SiteDiagnosis
from pyro_bnn.inference.history import History
from pyro_bnn.results.calibration import ConformalIntervals
from pyro_bnn.scores.uncertainty import RegressionPrediction

NUM_ROWS = 600


class Measured:
    """The part of a subject that the sections look at."""

    seed, config = 0, SimpleNamespace(calibrate=0.2)

    def __init__(self, *, classified=None, regressed=None):
        self.classified, self.regressed = classified, regressed


def judged(subject):
    """All verdicts on predictions, by the beginning of their rule; and the first line."""
    makers = (accuracy_section, calibration_section, errors_section, intervals_section)
    sections = [section for make in makers if (section := make(subject)) is not None]
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    return verdicts, str(first_line(verdicts, ", and ".join(section.usable for section in sections if section.usable)))


def check(subject, start, faults):
    """Assert the beginning of the first line, and that exactly these short verdicts are not good."""
    verdicts, line = judged(subject)
    assert line.startswith(start), line
    assert {
        verdict.short.partition(" (")[0]: verdict.level for verdict in verdicts if verdict.level != "good"
    } == faults
    assert all(verdict.rule and (not verdict.short) == (verdict.level == "good") for verdict in verdicts)


# --- regressions ------------------------------------------------------------------------------------------------------


def predicted(mean, scale, y, *, num_draws=1, epistemic=0.0):
    """Gaussians of the given means and scales, shape (N, O)."""
    generator = torch.Generator().manual_seed(4)
    loc = mean + epistemic * torch.randn(num_draws, *mean.shape, generator=generator)
    components = Normal(loc, scale.expand_as(loc))
    return RegressionPrediction(
        num_samples=num_draws,
        log_density=components.log_prob(y).sum(-1).logsumexp(0) - math.log(num_draws),
        targets=y,
        mean=loc.mean(0),
        aleatoric=scale.square(),
        variance_of_means=loc.var(0) if num_draws > 1 else None,
        components=components,
    )


def regressed(kind="good", *, num_outputs=1):
    """Targets with noise of varying size around a mean that varies much more; and their prediction, right or wrong."""
    generator = torch.Generator().manual_seed(3)
    shape = (NUM_ROWS, num_outputs)
    mean = 10 * torch.randn(shape, generator=generator)
    truth = (0.5 * torch.randn(NUM_ROWS, 1, generator=generator)).exp().expand(shape)
    torch.manual_seed(5)
    unit = Laplace(0.0, 0.714).sample(shape).double() if kind == "wrong shape" else torch.randn(shape)
    y, order = mean + truth * unit, torch.randperm(NUM_ROWS, generator=generator)
    centre, scale = mean, truth
    if kind == "too wide":
        scale = 3 * truth
    elif kind == "too narrow":
        scale = 0.3 * truth
    elif kind == "useless ranking":
        scale = truth[order]
    elif kind == "wrong way round":
        scale = 1 / truth
    elif kind == "other rows":
        centre = mean[order]
    elif kind == "noisy":
        centre, scale = mean + 3 * torch.randn(shape, generator=generator), (truth.square() + 9).sqrt()
    right = predicted(mean, truth, y)
    plain = predicted(torch.zeros_like(mean), torch.full_like(mean, 10.0), y)
    baselines = {"mean of the targets": plain}
    if kind in ("noisy", "tied"):
        baselines["linear regression"] = right
    network = predicted(centre, scale, y, num_draws=4, epistemic=1e-3)
    names = tuple(f"target {i}" for i in range(num_outputs))
    zero = torch.zeros(num_outputs)
    return Measured(
        regressed=Regressed(
            y, names, network, ("mean weights", network), baselines, zero, zero + 10, zero - 30, is_count=False
        )
    )


UNSURE = "Usable for predictions, not for uncertainty."
WIDE, NARROW = "the 90 % intervals are too wide", "the 90 % intervals are too narrow"
INSIDE = r" \([0-9.]+ % of [0-9]+ targets inside\)"
WORSE = "probabilities worse than those of the mean of the targets"
LARGE, SMALL = (f"predicted sd too {side}" for side in ("large", "small"))
TIED = "not clearly better than linear regression"


@pytest.mark.parametrize(
    ("kind", "start", "faults"),
    [
        ("good", "Usable. RMSE ", {}),
        ("too wide", f"{UNSURE} T{WIDE[1:]} (100.0 % of ", {WIDE: "problem", LARGE: "note"}),
        ("too narrow", f"{UNSURE} T{NARROW[1:]} (", {NARROW: "problem", WORSE: "problem", SMALL: "note"}),
        ("tied", f"Usable, with notes. N{TIED[1:]}", {TIED: "note"}),
    ],
)
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_the_faults_of_a_regression_are_named(kind, start, faults, num_outputs):
    check(regressed(kind, num_outputs=num_outputs), start, faults)


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_the_first_line_says_whether_its_intervals_are_calibrated(is_calibrated):
    found = regressed().regressed
    calibration = ConformalIntervals(found.prediction, found.y) if is_calibrated else None
    _, line = judged(Measured(regressed=replace(found, calibration=calibration)))
    assert re.search("and the (calibrated )?90 % intervals hold", line)[1] == ("calibrated " if is_calibrated else None)


def test_intervals_of_one_level_are_found_fault_with():
    """The 90 % interval, the only one that an earlier version judged, is right."""
    [intervals, *_] = intervals_section(regressed("wrong shape")).verdicts
    assert intervals.level == "note"
    assert re.fullmatch(f"the 50 % intervals are too wide{INSIDE}", intervals.short)  # the others are right
    assert "--calibrate 0.2" in intervals.text
    assert re.match(
        "The 50 % intervals are too wide: the share of the targets inside is 6[0-9.]+ % for 50 %", intervals.text
    )


@pytest.mark.parametrize(
    ("kind", "short", "level"),
    [
        ("useless ranking", "predicted sd does not rank the errors", "problem"),
        ("wrong way round", "predicted sd ranks the errors the wrong way round", "problem"),
        ("noisy", "beaten by linear regression", "problem"),
        ("other rows", "no better than the mean of the targets", "problem"),
    ],
)
def test_a_regression_with_several_faults_has_each_of_them(kind, short, level):
    verdicts, line = judged(regressed(kind))
    assert (short, level) in {(verdict.short, verdict.level) for verdict in verdicts}
    assert short in line.lower()
    assert line.startswith(UNSURE if "sd" in short else "Not usable as it is. ")


@pytest.mark.parametrize(
    ("correlation", "short"),
    [(0.06, "predicted sd ranks the errors weakly"), (0.16, ""), (0.02, "predicted sd does not rank the errors")],
)
def test_a_weak_ranking_of_errors_is_not_called_good(correlation, short):
    found = {"correlation": correlation, "expected": 0.3, "by_chance": 0.03, "surest": 11.8, "least_sure": 13.8}
    assert of_ranking(found).short == short


def test_equal_predicted_sds_rank_nothing_and_could_not():
    generator = torch.Generator().manual_seed(6)
    mean = 10 * torch.randn(NUM_ROWS, 1, generator=generator)
    y, one = mean + torch.randn(mean.shape, generator=generator), torch.ones_like(mean)
    network = predicted(mean, one, y, num_draws=4, epistemic=1e-3)
    baselines = {"mean of the targets": predicted(0 * mean, 10 * one, y)}
    subject = Measured(
        regressed=Regressed(
            y,
            ("t",),
            network,
            ("mean weights", network),
            baselines,
            torch.zeros(1),
            torch.full((1,), 10.0),
            torch.full((1,), -30.0),
            is_count=False,
        )
    )
    unclear = "too few rows, or too similar sds, to tell whether errors grow with the predicted sd"
    check(subject, f"Usable, with notes. T{unclear[1:]}. RMSE ", {unclear: "note"})
    text = intervals_section(subject).verdicts[1].text
    assert text.startswith(
        "It cannot be told whether errors are larger where the predicted sd is larger: the test rows"
    )


def test_the_numbers_of_a_regression_are_those_of_its_rows():
    found = regressed("useless ranking").regressed
    errors, intervals = (make(Measured(regressed=found)) for make in (errors_section, intervals_section))
    y, mean = found.y.numpy(), found.prediction.mean.numpy()
    root = float(np.sqrt(np.square(y - mean).mean()))
    assert float(re.search(r"RMSE ([\d.]+) ±", errors.verdicts[0].text)[1]) == pytest.approx(root, rel=1e-3)
    sd = found.prediction.total.sqrt().numpy()
    for level, held in re.findall(r"([\d.]+) % for ([\d.]+) %", intervals.verdicts[0].text):
        half = torch.special.ndtri(torch.tensor(0.5 + float(held) / 200)).item() * sd
        assert float(level) == pytest.approx(100 * (np.abs(y - mean) <= half).mean(), abs=0.5)
    correlation = spearmanr(sd[:, 0], np.abs(y - mean)[:, 0]).statistic
    assert f"rank correlation is {correlation:+.2f}" in intervals.verdicts[1].text
    order = sd[:, 0].argsort()
    ends = [np.sqrt(np.square(y - mean)[rows].mean()) for rows in (order[:150], order[-150:])]
    groups, ranking = ranking_of(found, seed=0)
    assert [group["rows"] for group in groups] == [600] + [150] * 4
    assert groups[1]["predicted"] < groups[-1]["predicted"]
    assert [ranking["surest"], ranking["least_sure"]] == pytest.approx(ends)
    shown = f"RMSE is {ends[0]:.4g} in the surest quarter of the rows and {ends[1]:.4g} in the least sure"
    assert shown in of_ranking({**ranking, "correlation": ranking["expected"]}).text or ends[1] <= ends[0]


def test_the_scores_of_baselines_are_on_the_page():
    found = regressed("noisy")
    rows = {row["name"]: row for row in errors_section(found).values["scores"]}
    assert list(rows) == [
        "mean weights",
        "mean of 4 draws",
        "baseline: mean of the targets",
        "baseline: linear regression",
    ]
    assert [name for name, row in rows.items() if row["is_main"]] == ["mean of 4 draws"]
    right = found.regressed.baselines["linear regression"]
    assert rows["baseline: linear regression"]["nll"] == pytest.approx(-float(right.log_density.mean()))
    y, mean = found.regressed.y, right.mean
    assert rows["baseline: linear regression"]["rmse"] == pytest.approx(float((y - mean).square().mean().sqrt()))


@pytest.mark.parametrize(
    ("observed", "short"),
    [
        (torch.poisson, ""),
        (torch.round, WIDE),
        (lambda rate: torch.poisson(rate * torch.rand_like(rate) * 2), NARROW),
    ],
)
def test_counts_are_held_against_what_their_intervals_promise(observed, short):
    """An interval of 50 % of small counts promises, and holds, more than 50 %."""
    torch.manual_seed(7)
    rate = 8 * (0.5 * torch.randn(NUM_ROWS, 1)).exp()
    claimed, y = Poisson(rate[None]), observed(rate)
    network = RegressionPrediction(
        num_samples=1,
        log_density=claimed.log_prob(y)[0, :, 0],
        targets=y,
        mean=rate,
        aleatoric=rate,
        variance_of_means=torch.zeros_like(rate),
        components=claimed,
    )
    found = Regressed(
        y,
        ("n",),
        network,
        ("mean weights", network),
        {"n": network},
        torch.zeros(1),
        torch.ones(1),
        torch.zeros(1),
        is_count=True,
    )
    section = intervals_section(Measured(regressed=found))
    assert section.verdicts[0].short.partition(" (")[0] == short
    assert section.values["levels"][0]["promised"] > 0.55


# --- baselines, training and weights ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "error", "level", "words"),
    [
        (
            -5.0,
            0.1,
            "good",
            "probabilities are better than those of a line (NLL 5.000 against 5.434; RMSE 2 against 1).",
        ),
        (-5.455, 0.03, "note", "not clearly better than those of a line (NLL 5.455 against 5.434"),
        (-5.455, 0.005, "note", "A line predicts better (this run: NLL 5.455 against 5.434; RMSE 2"),
        (-5.430, 0.001, "note", "not clearly better than those of a line (NLL 5.430 against 5.434; RMSE 2"),
    ],
)
def test_a_baseline_is_compared_by_the_standard_error_of_the_difference(own, error, level, words):
    verdict = of_baseline("a line", own, -5.434, error, points="RMSE 2 against 1", is_nearer=False)
    assert verdict.level == level
    assert words in verdict.text
    assert f"the gain is {with_error(own + 5.434, error, '+')}." in verdict.rule


@pytest.mark.parametrize("is_linear", [False, True])
def test_a_linear_network_that_ties_with_a_linear_model_is_said_to_be_one(is_linear):
    said = "Both are linear models."
    for name in ("linear regression", "the mean of the targets"):
        verdict = of_baseline(name, -5.4, -5.4, 0.1, points="", is_nearer=False, is_linear=is_linear)
        assert (said in verdict.text) == (is_linear and name == "linear regression")


def test_who_errs_less_than_a_baseline_is_not_beaten_in_its_predictions():
    verdict = of_baseline("a line", -6.0, -5.4, 0.01, points="RMSE 1 against 2", is_nearer=True)
    assert (verdict.level, verdict.about) == ("problem", "uncertainty")
    assert verdict.text.startswith("The network has smaller errors than a line, but its probabilities are worse")


def test_the_score_that_decides_is_named_where_probabilities_and_errors_disagree():
    tied = of_baseline("a line", -3.197, -2.997, 0.2, points="RMSE 3.7 against 4.8", is_nearer=True)
    short = "probabilities not clearly better than those of a line (NLL 3.197 against 2.997)"
    assert tied.short == f"{short}, while the errors are smaller"


def test_a_network_that_a_baseline_beats_by_little_is_usable():
    little, much = (of_baseline("a line", own, -5.4, 0.01, points="", is_nearer=False) for own in (-5.46, -5.6))
    assert (little.level, little.about, little.is_beaten) == ("note", "baseline", True)
    assert str(first_line([little], "99 % right")) == "Usable, with notes. Beaten by a line. 99 % right."
    assert str(first_line([much], "99 % right")) == "Not usable as it is. Beaten by a line."
    level = of_baseline("a line", -5.46, -5.4, 0.01, points="", is_nearer=False, unbeaten="accuracy")
    assert (level.short, level.is_beaten) == ("beaten by a line in NLL, not clearly in accuracy", False)


def test_a_guess_that_also_beats_the_network_is_named():
    guess = "the mean of the targets"
    verdict = of_baseline("a line", -6.0, -5.4, 0.01, points="", is_nearer=False, guess=(guess, -5.7))
    assert verdict.short == f"beaten by a line and {guess}"
    remedy = "Use a line, or train on more rows."
    assert verdict.text.endswith(f" So does {guess}, which ignores all inputs: NLL 5.700. {remedy}")
    verdict = of_baseline("a line", -6.0, -5.4, 0.01, points="", is_nearer=False, guess=(guess, -6.1))
    assert guess not in verdict.short + verdict.text


def test_a_cold_posterior_is_said_to_be_one():
    history = History(num_data=10)
    history.add_step(-1.0, 0.0, 0.1)
    history.end_epoch([10], 0.1, 1.0)
    [verdict] = of_temperature(history)
    assert verdict.short == "a cold posterior (KL weight 0.1)"
    history.add_step(-1.0, 0.0, 1.0)
    history.end_epoch([10], 0.1, 1.0)
    assert of_temperature(history) == ()


@pytest.mark.parametrize(
    ("share", "level", "words"), [(0.05, "good", "Most weights learned"), (0.95, "note", "Few weights learned")]
)
def test_weights_that_are_at_the_prior_are_not_said_to_have_left_it(share, level, words):
    site = SiteDiagnosis("net.0.weight", 100, 10.0, share, 0.0, 0.1, 1.0)
    [verdict] = of_weights(Diagnosis((site,), {}, ()))
    assert verdict.level == level
    assert verdict.text.startswith(words)
    assert f"{share:.1%}".replace("%", " %") in verdict.text
    assert ("(95.0 %); the others (5.0 %) are still at the prior" in verdict.text) == (level == "good")
    assert not any(verdict.level == "good" for verdict in of_weights(Diagnosis((site,), {}, ()), is_trained=False))


# --- rows that are too few --------------------------------------------------------------------------------------------


def test_few_rows_are_no_problem_but_no_proof_either():
    """The network's errors are smaller than those of the mean, by less than two standard errors of the difference."""
    y = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])
    mean, one = torch.tensor([[0.5], [0.5], [0.5], [-1.0]]), torch.ones(4, 1)
    network = predicted(mean, one, y, num_draws=2)
    subject = Measured(
        regressed=Regressed(
            y,
            ("t",),
            network,
            ("mean weights", network),
            {"mean of the targets": predicted(0 * y, 2 * one, y)},
            torch.zeros(1),
            one[0],
            -2 * one[0],
            is_count=False,
        )
    )
    verdict = errors_section(subject).verdicts[0]
    assert verdict.short == "too few rows to tell whether better than the mean of the targets"
    beaten = of_baseline("a line", -5.46, -5.4, 0.01, points="", is_nearer=False)
    tied = of_baseline("trees", -5.4, -5.4, 0.1, points="", is_nearer=False)
    in_part = of_baseline("steps", -5.46, -5.4, 0.01, points="", is_nearer=False, unbeaten="RMSE")
    assert of_rivals([beaten, replace(tied, rivals=beaten.rivals)])[0].short == "beaten by a line"  # named once
    merged, unclear = sorted(of_rivals([beaten, tied, verdict, in_part]), key=lambda each: each.short)
    assert unclear == verdict  # findings are joined only if their level is the same
    assert merged.short == "beaten by a line, not clearly better than trees, beaten in NLL by steps"
    assert merged.text == f"{beaten.text} {tied.text} {in_part.text}"
