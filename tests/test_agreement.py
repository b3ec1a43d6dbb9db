"""What `compare` says about a run: its judgement with the limits, and chains of NUTS that have not converged."""

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.app.beside import agreement
from pyro_bnn.app.numbers import number
from pyro_bnn.inference.posterior import Status
from pyro_bnn.results.comparison import Comparison, Estimate, Scores
from pyro_bnn.scores.uncertainty import ClassificationPrediction


def judged(probability_of_chain, distance, *, is_ok=False):
    """Judge a run at a distance from four chains, of which one has another probability than 0.5 for its class."""
    probs = torch.full((4, 1, 10), 0.5)
    probs[0] = probability_of_chain
    probs = probs.reshape(4, 1, 10).repeat_interleave(5, 0)  # five equal draws in each chain
    logits = torch.stack([probs, 1 - probs], -1).squeeze(1).log()  # (S, N, C)
    nothing = torch.zeros(10)
    nuts = ClassificationPrediction(
        num_samples=20,
        log_density=None,
        targets=None,
        probs=logits.exp().mean(0),
        aleatoric=nothing,
        votes=None,
        mutual_information=nothing,
        variance_of_logits=nothing,
        logits=logits,
    )
    scores = {"agreement": Estimate(1.0, 0.0), "total variation": Estimate(distance, 0.001)}
    pair = Scores("run", "rows", scores, "nuts")
    result = Comparison([], [pair], {"nuts": nuts}, torch.zeros(10, 1), Status(is_ok, "NUTS."))
    return agreement(result, 4)


@pytest.mark.parametrize(
    ("of_chain", "distance", "beginning"),
    [
        (0.51, 0.01, "The run predicts like NUTS.\n"),
        (0.9, 0.01, "The run predicts like all chains of NUTS together, but these chains do not agree yet.\n"),
        (0.51, 0.3, "The run does not predict like NUTS.\n"),
        (0.9, 0.3, "Not decided: the total variation between the run and NUTS is 0.300, and a chain of NUTS differs"),
    ],
)
def test_chains_that_have_not_converged_still_tell_what_is_certain(of_chain, distance, beginning):
    said = judged(of_chain, distance)
    assert said.startswith(beginning)
    assert said.endswith("are too short to compare with.") == said.startswith("Not decided")
    assert f"{number(abs(of_chain - 0.5))}" in said  # how far a chain is from the others


def test_after_convergence_nothing_is_in_doubt():
    assert judged(0.51, 0.3, is_ok=True).startswith("The run does not predict like NUTS.\n")
    assert "has not converged" not in judged(0.51, 0.01, is_ok=True)


@pytest.mark.parametrize(
    ("total", "epistemic", "beginning"),
    [
        ((1.02, 0.98, 1.05), 1.05, "The run predicts like NUTS.\n"),
        ((1.02, 0.98, 1.05), 1.24, "The run predicts like NUTS, but its epistemic sd is 24 % larger.\n"),
        ((0.98, 0.95, 1.05), 0.7, "The run predicts like NUTS, but its epistemic sd is 30 % smaller.\n"),
        ((1.02, 0.7, 1.05), 1.0, "The run does not predict like NUTS.\n"),  # too narrow at some points
        ((1.2, 1.1, 1.3), 1.0, "The run does not predict like NUTS.\n"),
    ],
)
def test_the_judgement_of_numbers_has_its_limits_and_the_deviation(total, epistemic, beginning):
    x = torch.zeros(10, 1)
    model = pb.BayesianModel(
        nn.Linear(1, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(2.0), num_data=10
    )
    nuts = pb.predict(model, pb.MeanFieldGuide(model), x, num_samples=20, keep_draws=True, seed=0)
    scores = {
        "rms mean difference": Estimate(0.1, 0.01),
        "wasserstein": Estimate(0.1, 0.01),
        "epistemic sd ratio": Estimate(epistemic, 0.01, epistemic, epistemic),
        "total sd ratio": Estimate(total[0], 0.01, *total[1:]),
    }
    result = Comparison([], [Scores("run", "rows", scores, "nuts")], {"nuts": nuts}, x, Status(True, "NUTS."))
    said = agreement(result, 4)
    assert said.startswith(beginning)
    limit = 0.2 * float(nuts.total.mean().sqrt())
    assert f"differ by at most 10 %, on average and at 80 % of the points, and the means by at most {limit:.3f}" in said
