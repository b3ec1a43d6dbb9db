"""What `pyro-bnn report` says of predicted numbers."""

import re

import pytest
import torch
from torch.distributions import Normal

from pyro_bnn.app.reports.page.errors import errors_section
from pyro_bnn.app.reports.page.intervals import coverage_verdict, intervals_section
from pyro_bnn.app.reports.page.subject import Regressed
from pyro_bnn.uncertainty import RegressionPrediction

NUM_ROWS, NUM_DRAWS = 400, 8


class Holding:
    """The part of a subject that the sections look at."""

    def __init__(self, regressed):
        self.regressed = regressed


def regressed(*, scale=1.0, shuffled=False, num_outputs=1):
    """Targets with noise of size 1 around a mean that varies ten times as much, and their prediction."""
    generator = torch.Generator().manual_seed(3)
    mean = 10 * torch.randn(NUM_ROWS, num_outputs, generator=generator)
    y = mean + torch.randn(NUM_ROWS, num_outputs, generator=generator)
    if shuffled:
        mean = mean[torch.randperm(NUM_ROWS, generator=generator)]
    loc = mean + 0.1 * torch.randn(NUM_DRAWS, NUM_ROWS, num_outputs, generator=generator)
    components = Normal(loc, torch.full_like(loc, scale))
    prediction = RegressionPrediction(
        num_samples=NUM_DRAWS,
        log_density=components.log_prob(y).sum(-1).logsumexp(0) - torch.tensor(NUM_DRAWS).log(),
        targets=y,
        mean=loc.mean(0),
        aleatoric=torch.full_like(mean, scale**2),
        variance_of_means=loc.var(0),
        components=components,
    )
    names = tuple(f"target {i}" for i in range(num_outputs))
    guess = (torch.zeros(num_outputs), torch.full((num_outputs,), 10.0))
    return Holding(Regressed(y, names, prediction, *guess, is_count=False))


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_right_predictions_are_praised(num_outputs):
    subject = regressed(num_outputs=num_outputs)
    errors, intervals = errors_section(subject), intervals_section(subject)
    assert [verdict.level for verdict in (*errors.verdicts, *intervals.verdicts)] == ["good", "good"]
    assert "they can be taken at their word" in intervals.verdicts[0].text
    root = float(re.search(r"RMSE ([\d.]+) ±", errors.verdicts[0].text)[1])
    expected = float((subject.regressed.y - subject.regressed.prediction.mean).square().mean().sqrt())
    assert root == pytest.approx(expected, rel=1e-3)
    assert all(f"target {i}" in errors.body for i in range(num_outputs))


def test_predictions_of_other_rows_are_no_better_than_a_guess():
    [verdict] = errors_section(regressed(shuffled=True)).verdicts
    assert verdict.level == "problem"
    assert "no better than that" in verdict.text


@pytest.mark.parametrize(("scale", "word"), [(0.3, "too narrow"), (3.0, "too wide")])
def test_intervals_of_a_wrong_size_are_named(scale, word):
    [verdict] = intervals_section(regressed(scale=scale)).verdicts
    assert verdict.level == "problem"
    assert word in verdict.text


def test_few_rows_say_little_of_intervals_and_counts_may_be_wider():
    assert coverage_verdict(0.8, 10).level == "good"
    assert coverage_verdict(0.87, 1000).level == "note"
    assert coverage_verdict(0.8, 1000).level == "problem"
    assert coverage_verdict(0.99, 1000).level == "problem"
    assert coverage_verdict(0.99, 1000, is_count=True).level == "good"
    assert coverage_verdict(0.8, 1000, is_count=True).level == "problem"
