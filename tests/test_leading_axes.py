"""One rule for leading axes: values of shape (..., N, *O) give results for each of their slices (N, *O)."""

import pytest
import scipy.stats
import torch

import pyro_bnn as pb

from .cases import LIKELIHOODS, small_model
from .tolerances import assert_identical

NUM_DRAWS = 4
NUMBERS = [name for name, (*_, by_hand) in LIKELIHOODS.items() if by_hand]
LEADS = [(), (1,), (3,), (NUM_DRAWS,), (2, NUM_DRAWS), (NUM_DRAWS, 1, 2), (0,)]
"""Among them as many slices as draws, with which values could be taken for those of the draws."""


def prediction_of(likelihood):
    model, x, y = small_model(likelihood=likelihood)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    return pb.predict(model, guide, x, num_samples=NUM_DRAWS, seed=2, keep_draws=True), y


@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize("name", ["cdf", "log_prob"])
@pytest.mark.parametrize("likelihood", NUMBERS)
def test_each_slice_of_the_values_is_treated_alone(likelihood, name, lead):
    prediction, y = prediction_of(likelihood)
    function = getattr(prediction, name)
    values = y + torch.randint(3, (*lead, *y.shape))
    result = function(values)
    assert result.shape == (*lead, *function(y).shape)
    for one, given in zip(result.reshape(-1, *function(y).shape), values.reshape(-1, *y.shape), strict=True):
        assert_identical(one, function(given))


@pytest.mark.parametrize("lead", [lead for lead in LEADS if 0 not in lead], ids=str)
@pytest.mark.parametrize("likelihood", NUMBERS)
def test_each_probability_has_its_quantiles(likelihood, lead):
    prediction, y = prediction_of(likelihood)
    levels = 0.05 + 0.9 * torch.rand(lead)
    quantiles = prediction.quantile(levels)
    assert quantiles.shape == (*lead, *y.shape)
    for one, level in zip(quantiles.reshape(-1, *y.shape), levels.reshape(-1), strict=True):
        assert_identical(one, prediction.quantile(float(level)))


def test_a_grid_of_counts_has_scipys_probabilities():
    prediction, y = prediction_of("poisson")
    grid = torch.arange(NUM_DRAWS).double().reshape(-1, 1, 1).expand(-1, *y.shape)
    expected = scipy.stats.poisson.cdf(grid[:, None].numpy(), prediction.components.rate.numpy()).mean(1)
    assert_identical(prediction.cdf(grid), expected)
