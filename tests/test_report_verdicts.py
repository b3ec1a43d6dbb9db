"""What `pyro-bnn report` says of synthetic runs, each with one known fault; and its numbers on runs of a few rows."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.distributions import Laplace, Normal, Poisson

from pyro_bnn.app.reports.evaluation import Evaluation, Report, Row
from pyro_bnn.app.reports.page.classifier import accuracy_section, calibration_of, calibration_section
from pyro_bnn.app.reports.page.fit import of_temperature, of_weights
from pyro_bnn.app.reports.page.regression import errors_section, intervals_section, ranking_of
from pyro_bnn.app.reports.page.section import first_line
from pyro_bnn.app.reports.page.subject import Classified, Regressed
from pyro_bnn.app.reports.page.verdicts import of_calibration, of_rival
from pyro_bnn.guides import Diagnosis, SiteDiagnosis
from pyro_bnn.history import History
from pyro_bnn.uncertainty import ClassificationPrediction, RegressionPrediction

NUM_ROWS = 600


class Measured:
    """The part of a subject that the sections look at."""

    seed = 0

    def __init__(self, *, classified=None, regressed=None):
        self.classified, self.regressed = classified, regressed


def judged(subject):
    """All verdicts on predictions by what they are about: the beginning of their rule; and the first line."""
    makers = (accuracy_section, calibration_section, errors_section, intervals_section)
    sections = [section for make in makers if (section := make(subject)) is not None]
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    return verdicts, first_line(verdicts, "; ".join(section.usable for section in sections if section.usable))


def check(subject, start, faults):
    """The first line begins so; exactly these short verdicts are not good."""
    verdicts, line = judged(subject)
    assert line.startswith(start), line
    assert {verdict.short: verdict.level for verdict in verdicts if verdict.level != "good"} == faults
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
    rivals = {"mean of the targets": plain}
    if kind in ("noisy", "tied"):
        rivals["Bayesian ridge"] = right
    network = predicted(centre, scale, y, num_draws=4, epistemic=1e-3)
    names = tuple(f"target {i}" for i in range(num_outputs))
    zero = torch.zeros(num_outputs)
    return Measured(regressed=Regressed(y, names, network, network, rivals, zero, zero + 10, is_count=False))


WIDE, NARROW = "intervals too wide", "intervals too narrow"
WORSE = "probabilities worse than those of the mean of the targets"


@pytest.mark.parametrize(
    ("kind", "start", "faults"),
    [
        ("good", "Usable: RMSE ", {}),
        ("too wide", f"Usable for its predictions, not for its uncertainty: {WIDE}. RMSE ", {WIDE: "problem"}),
        ("too narrow", "Usable for its predictions, not for its uncertainty: ", {NARROW: "problem", WORSE: "problem"}),
        ("wrong shape", "Usable for its predictions, not for its", {WIDE: "problem"}),
        ("tied", "Usable, but no better than a straight line: RMSE ", {"no better than a straight line": "note"}),
    ],
)
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_the_faults_of_a_regression_are_named(kind, start, faults, num_outputs):
    if kind == "wrong shape":  # only the inner intervals are wrong; of those of 90 % alone, one would have said: good
        verdicts, line = judged(regressed(kind, num_outputs=num_outputs))
        [intervals] = [verdict for verdict in verdicts if verdict.short.startswith("intervals")]
        assert line.startswith(start)
        assert "for 50 %" in intervals.text
        assert "90 % intervals" not in intervals.text
        return
    check(regressed(kind, num_outputs=num_outputs), start, faults)


@pytest.mark.parametrize(
    ("kind", "short", "level"),
    [
        ("useless ranking", "predicted sd does not rank the errors", "problem"),
        ("wrong way round", "predicted sd ranks the errors the wrong way round", "problem"),
        ("noisy", "beaten by a straight line", "problem"),
        ("other rows", "no better than the mean of the targets", "problem"),
    ],
)
def test_a_regression_with_several_faults_has_each_of_them(kind, short, level):
    verdicts, line = judged(regressed(kind))
    assert (short, level) in {(verdict.short, verdict.level) for verdict in verdicts}
    assert short in line
    assert line.startswith("Usable for its predictions, not" if "sd" in short else "Not usable as it is: ")


def test_equal_predicted_sds_rank_nothing_and_could_not():
    generator = torch.Generator().manual_seed(6)
    mean = 10 * torch.randn(NUM_ROWS, 1, generator=generator)
    y, one = mean + torch.randn(mean.shape, generator=generator), torch.ones_like(mean)
    network = predicted(mean, one, y, num_draws=4, epistemic=1e-3)
    rivals = {"mean of the targets": predicted(0 * mean, 10 * one, y)}
    subject = Measured(
        regressed=Regressed(y, ("t",), network, network, rivals, torch.zeros(1), torch.full((1,), 10.0), is_count=False)
    )
    check(subject, "Usable: RMSE ", {"predicted sd does not rank the errors": "note"})


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
    assert f"rank correlation {correlation:+.2f}" in intervals.verdicts[1].text
    order = sd[:, 0].argsort()
    ends = [np.sqrt(np.square(y - mean)[rows].mean()) for rows in (order[:150], order[-150:])]
    assert f"RMSE {ends[0]:.4g} in the surest quarter of the rows and {ends[1]:.4g} in the least sure" in (
        intervals.verdicts[1].text
    )
    groups, ranking = ranking_of(found, seed=0)
    assert [group["rows"] for group in groups] == [150] * 4
    assert groups[0]["predicted"] < groups[-1]["predicted"]
    assert ranking.surest == pytest.approx(ends[0])


def test_the_scores_of_rivals_are_on_the_page():
    found = regressed("noisy")
    rows = {row["name"]: row for row in errors_section(found).values["scores"]}
    assert list(rows) == ["mean weights", "average over 4 draws", "rival: mean of the targets", "rival: Bayesian ridge"]
    right = found.regressed.rivals["Bayesian ridge"]
    assert rows["rival: Bayesian ridge"]["log_likelihood"] == pytest.approx(float(right.log_density.mean()))
    y, mean = found.regressed.y, right.mean
    assert rows["rival: Bayesian ridge"]["rmse"] == pytest.approx(float((y - mean).square().mean().sqrt()))


@pytest.mark.parametrize(("factor", "short"), [(1.0, ""), (0.1, "intervals too wide"), (8.0, "intervals too narrow")])
def test_counts_are_held_against_what_their_intervals_promise(factor, short):
    """An interval of 50 % of small counts holds far more than 50 %, as it should."""
    torch.manual_seed(7)
    rate = (0.5 * torch.randn(NUM_ROWS, 1)).exp()
    claimed = Poisson((rate * 8)[None])
    y = rate * 8 if factor == 0.1 else (rate * 8 + factor * (torch.poisson(rate * 8) - rate * 8)).round().clamp(min=0)
    y = y.round()
    network = RegressionPrediction(
        num_samples=1,
        log_density=claimed.log_prob(y)[0, :, 0],
        targets=y,
        mean=claimed.rate[0],
        aleatoric=claimed.rate[0],
        variance_of_means=torch.zeros_like(rate),
        components=claimed,
    )
    found = Regressed(y, ("n",), network, network, {"n": network}, torch.zeros(1), torch.ones(1), is_count=True)
    section = intervals_section(Measured(regressed=found))
    assert section.verdicts[0].short == short
    assert section.values["levels"][0]["promised"] > 0.55


# --- classifications --------------------------------------------------------------------------------------------------


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


def classifier(probs, y, rival):
    network = classes(probs, y)
    report = Report([Row("component 0", 0.5, 1.0, 0.1, 0.5)], {}, len(y), 0)
    evaluation = Evaluation(report, network, network, None, {})
    names = tuple("abcdefgh"[: probs.shape[-1]])
    rivals = {"logistic regression": classes(rival, y)}
    return Measured(classified=Classified(y, names, "row", "test rows", evaluation, rivals))


def labelled(kind):
    """Labels that are drawn from known probabilities, and a prediction of them that is right or wrong."""
    generator = torch.Generator().manual_seed(8)
    logits = 4 * torch.randn(NUM_ROWS, 3, generator=generator).double()
    if kind in ("imbalanced", "a class missed"):
        logits[:, 2] -= 30
    y = torch.multinomial(logits.softmax(-1), 1, generator=generator).flatten()
    probs, rival = logits.softmax(-1), (0.3 * logits).softmax(-1)
    if kind == "too sure":
        probs = (4 * logits).softmax(-1)
    elif kind == "too unsure":
        probs = (0.4 * logits).softmax(-1)
    elif kind == "useless uncertainty":  # the right class for most, with the certainty of another row
        sizes = logits[torch.randperm(NUM_ROWS, generator=generator)].sort(-1).values
        places = logits.argsort(-1).argsort(-1)
        probs = sizes.gather(-1, places).softmax(-1)
    elif kind == "beaten":
        probs, rival = (logits + 4 * torch.randn(logits.shape, generator=generator)).softmax(-1), logits.softmax(-1)
    elif kind == "tied":
        rival = probs
    elif kind == "imbalanced":
        y = torch.zeros(NUM_ROWS, dtype=torch.long)
        y[:8] = 1
        probs = torch.tensor([8e2, 9.0, 1.0]).expand(NUM_ROWS, 3) / 810
        rival = torch.tensor([1.0, 1.0, 1.0]).expand(NUM_ROWS, 3) / 3
    elif kind == "a class missed":
        y[:40] = 2
    return classifier(probs, y, rival)


@pytest.mark.parametrize(
    ("kind", "start", "short", "level"),
    [
        ("good", "Usable: ", None, None),
        ("too sure", "Usable for its predictions, not", "probabilities too high", "problem"),
        ("too unsure", "Usable for its predictions, not", "probabilities too low", "problem"),
        ("useless uncertainty", "Not usable as it is: ", "uncertainty does not point at errors", "problem"),
        ("beaten", "Not usable as it is: ", "beaten by logistic regression", "problem"),
        ("tied", "Usable, but no better than logistic", "no better than logistic regression", "note"),
        ("imbalanced", "Not usable as it is: no better than", "no better than always saying “a”", "problem"),
        ("imbalanced", "Not usable as it is: ", "mostly misses “b”", "problem"),
        ("a class missed", "Not usable as it is: ", "mostly misses “c”", "problem"),
    ],
)
def test_the_faults_of_a_classifier_are_named(kind, start, short, level):
    verdicts, line = judged(labelled(kind))
    found = {(verdict.short, verdict.level) for verdict in verdicts if verdict.level != "good"}
    if short is None:
        assert not found
    else:
        assert (short, level) in found
        assert short in line
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
    assert "balanced accuracy 50.0 %, lowest recall 0.0 % (“c”, 0 of 1)" in section.verdicts[1].text
    assert section.usable == "70.0 % right; defer the least certain 50 % and the rest had no error (5 rows)"
    own = (4 * math.log(0.98) + math.log(0.6) + math.log(0.3) + 2 * math.log(0.4) + math.log(0.3) + math.log(0.1)) / 10
    theirs = (6 * math.log(0.4) + 4 * math.log(0.3)) / 10
    assert f"log-likelihood {own:.3f} against {theirs:.3f} nats" in section.verdicts[2].text


def test_of_many_classes_those_of_the_lowest_recall_are_listed():
    y = torch.arange(25).repeat(4)
    probs = torch.nn.functional.one_hot(y, 25) * 0.9 + 0.004
    probs[y == 7] = probs[y == 8].clone()
    measured = classifier(probs[:, :8], y.clamp(max=7), probs[:, :8]).classified
    assert measured.classes == tuple("abcdefgh")
    names = tuple(f"class {i}" for i in range(25))
    network = classes(probs, y)
    evaluation = Evaluation(Report([Row("component 0", 0, 0, 0, 0)], {}, 100, 0), network, network, None, {})
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
    assert "too high, on average by" in verdict(2).text
    assert "too low, on average by" in verdict(0.5).text


# --- rivals, training and weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "error", "level", "words"),
    [
        (-5.0, 0.1, "good", "probabilities are better than those of a line (log-likelihood -5.000 against -5.434 nats"),
        (-5.455, 0.03, "note", "no better than those of a line (log-likelihood -5.455 against -5.434"),
        (-5.455, 0.005, "problem", "A line predicts better (log-likelihood -5.455 against -5.434 nats per row"),
        (-5.430, 0.001, "note", "difference +0.004 ± 0.001; RMSE 2 against 1"),
    ],
)
def test_a_rival_is_compared_by_the_standard_error_of_the_difference(own, error, level, words):
    verdict = of_rival("a line", own, -5.434, error, points="RMSE 2 against 1", is_nearer=False)
    assert verdict.level == level
    assert words in verdict.text


def test_who_errs_less_than_a_rival_is_not_beaten_in_its_predictions():
    verdict = of_rival("a line", -6.0, -5.4, 0.01, points="RMSE 1 against 2", is_nearer=True)
    assert (verdict.level, verdict.about) == ("problem", "uncertainty")
    assert verdict.text.startswith("The network errs less than a line, but its probabilities are worse")


def test_a_cold_posterior_is_said_to_be_one():
    history = History(num_data=10)
    history.add_step(-1.0, 0.0, 0.1)
    history.end_epoch([10], 0.1, 1.0)
    [verdict] = of_temperature(history)
    assert verdict.short == "a cold posterior (KL weight 0.1)"
    assert first_line([verdict], "99 % right") == "Usable: 99 % right; 1 reservation below."
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
