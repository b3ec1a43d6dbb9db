"""Properties that hold for all inputs, tested on inputs from hypothesis, the same in every run."""

import itertools
import math
from dataclasses import astuple

import numpy as np
import pyro.distributions as dist
import scipy.integrate
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import pyro_bnn as pb
from pyro_bnn import kl, metrics, scale_maps
from pyro_bnn.modelling.distributions import NormalMixture, ScaleMixtureNormal
from pyro_bnn.scores.uncertainty import ClassAccumulator, MomentAccumulator, concatenate

from .tolerances import assert_identical

# The fixture that seeds each test runs once per test and not once per example: it only guards global state, and no
# example draws from torch's generators except through a seed of its own.
properties = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
few = settings(properties, max_examples=15)


def floats(low, high):
    return st.floats(low, high, allow_nan=False)


def vectors(low, high, size):
    return st.lists(floats(low, high), min_size=size, max_size=size).map(torch.tensor)


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SEEDS = st.integers(0, 2**31)
SCALES = floats(-4, 4).map(lambda log: 10.0**log)


# --- distributions ----------------------------------------------------------------------------------------------------

scale_mixtures = st.builds(
    lambda mixing, first, second: ScaleMixtureNormal(*map(torch.tensor, (mixing, first, second))),
    floats(0.01, 0.99),
    SCALES,
    SCALES,
)
mixtures = st.integers(1, 4).flatmap(
    lambda size: st.builds(
        lambda logits, loc, log_scale: NormalMixture(logits, loc, 10**log_scale),
        vectors(-20, 20, size),
        vectors(-100, 100, size),
        vectors(-3, 3, size),
    )
)
DISTRIBUTIONS = st.one_of(scale_mixtures, mixtures)


def scales_of(distribution):
    if isinstance(distribution, NormalMixture):
        return distribution.loc, distribution.scale
    scales = torch.stack([distribution.scale1, distribution.scale2])
    return torch.zeros(2), scales


def breaks(distribution):
    """Points between which the density is smooth: some standard deviations around each component's mean."""
    loc, scale = scales_of(distribution)
    steps = torch.tensor([-9.0, -3.0, -1.0, 0.0, 1.0, 3.0, 9.0])
    points = (loc[:, None] + scale[:, None] * steps).flatten().sort().values
    is_new = torch.cat([torch.tensor([True]), points.diff() > 1e-9 * scale.min()])  # quadrature needs some width
    return points[is_new].tolist()


@few
@given(DISTRIBUTIONS)
def test_densities_integrate_to_one_and_to_the_cdf(distribution):
    edges = breaks(distribution)

    def density(value):
        return float(distribution.log_prob(torch.tensor(value)).exp())

    total = 0.0
    for low, high in itertools.pairwise(edges):
        total += scipy.integrate.quad(density, low, high, epsabs=1e-12, limit=200)[0]
        assert abs(total - float(distribution.cdf(torch.tensor(high)))) < 1e-7
    assert abs(total - 1) < 1e-7


@properties
@given(DISTRIBUTIONS, floats(-8, 8), st.integers(0, 3))
def test_the_density_is_the_slope_of_the_cdf(distribution, steps, component):
    loc, scale = scales_of(distribution)
    index = component % len(loc)
    value = (loc[index] + steps * scale[index]).requires_grad_()
    (slope,) = torch.autograd.grad(distribution.cdf(value), value)
    torch.testing.assert_close(slope, distribution.log_prob(value).exp().detach(), rtol=1e-9, atol=1e-300)


@properties
@given(DISTRIBUTIONS, st.lists(floats(-12, 0), min_size=2, max_size=6), st.booleans())
def test_quantiles_invert_the_cdf_and_both_are_monotone(distribution, exponents, is_upper):
    levels = torch.tensor(sorted({0.5 * 10**exponent for exponent in exponents}))
    if is_upper:
        levels = (1 - levels).unique()
    quantiles = distribution.icdf(levels)
    assert bool(torch.isfinite(quantiles).all())
    assert bool((quantiles.diff() >= 0).all())
    # between two components a flat cdf has no unique quantile, but every quantile has the right cdf
    torch.testing.assert_close(distribution.cdf(quantiles), levels, rtol=1e-6, atol=1e-9)
    assert bool((distribution.cdf(quantiles).diff() >= -1e-12).all())


# --- likelihoods ------------------------------------------------------------------------------------------------------

OUTPUTS = floats(-60, 60)
NUMBERS = floats(-1e4, 1e4)


@properties
@given(st.integers(2, 6).flatmap(lambda size: vectors(-1e4, 1e4, size)), st.booleans())
def test_class_probabilities_are_finite_in_logarithms_and_add_up_to_one(logits, single):
    logits = logits.float() if single else logits
    likelihood = pb.CategoricalLikelihood()
    labels = torch.arange(len(logits))
    output = logits.expand(len(logits), -1)
    likelihood.check_targets(output, labels)
    log_probs = likelihood(output).log_prob(labels)
    assert bool(torch.isfinite(log_probs).all())
    rounding = 4 * torch.finfo(logits.dtype).eps * (1 + float(logits.abs().max()))  # that of the logits themselves
    assert abs(float(log_probs.double().exp().sum()) - 1) < rounding


@properties
@given(floats(-1e4, 1e4))
def test_yes_and_no_add_up_to_one(log_odds):
    likelihood, targets = pb.BernoulliLikelihood(), torch.tensor([0.0, 1.0])
    log_probs = likelihood(torch.full((2,), log_odds)).log_prob(targets)
    assert bool(torch.isfinite(log_probs).all())
    assert_identical(log_probs.exp().sum(), 1.0)


@properties
@given(floats(-20, 6))
def test_probabilities_of_counts_add_up_to_one(output):
    rate = math.exp(output)
    counts = torch.arange(0.0, rate + 40 * math.sqrt(rate) + 60)
    log_probs = pb.PoissonLikelihood()(torch.full_like(counts, output)).log_prob(counts)
    assert bool(torch.isfinite(log_probs).all())
    torch.testing.assert_close(log_probs.exp().sum(), torch.tensor(1.0), rtol=1e-9, atol=0)


@properties
@given(NUMBERS, floats(-1e6, 1e6), floats(-300, 300), SCALES, st.booleans())
def test_densities_of_numbers_are_finite_with_finite_gradients(y, mean, other, scale, single):
    dtype = torch.float32 if single else torch.float64
    target = torch.tensor([[y]], dtype=dtype)
    members = {
        pb.GaussianLikelihood(scale): [mean],
        pb.MixtureDensityLikelihood(2): [other, -other, mean, y, other, -other],
        pb.HeteroscedasticGaussianLikelihood(): [mean, max(min(other, 40.0), -40.0)],
    }
    for likelihood, numbers in members.items():
        output = torch.tensor([numbers], dtype=dtype, requires_grad=True)
        log_prob = likelihood.to(dtype)(output).log_prob(target).sum()
        (gradient,) = torch.autograd.grad(log_prob, output)
        assert bool(torch.isfinite(log_prob)), type(likelihood)
        assert bool(torch.isfinite(gradient).all()), type(likelihood)


def test_the_gradient_of_a_far_off_prediction_is_finite_where_the_density_is():
    """Hypothesis found this case: the gradient in the log variance is (z^2 - 1) / 2, and was infinite."""
    output = torch.tensor([[330379.0, -32.0]], dtype=torch.float32, requires_grad=True)
    target = torch.zeros(1, 1, dtype=torch.float32)
    log_prob = pb.HeteroscedasticGaussianLikelihood()(output).log_prob(target)
    (gradient,) = torch.autograd.grad(log_prob.sum(), output)
    z = output[0, 0].detach().double() * math.exp(16)
    torch.testing.assert_close(gradient[0, 1].double(), (z.square() - 1) / 2, rtol=1e-5, atol=0)
    by_torch = dist.Normal(output[:, :1], (0.5 * output[:, 1:]).exp()).log_prob(target)
    (gradient,) = torch.autograd.grad(by_torch.sum(), output)
    assert not torch.isfinite(gradient).all()


@properties
@given(SEEDS, vectors(0.01, 100, 3), vectors(0, 10, 5))
def test_weights_multiply_and_a_common_factor_comes_out(seed, of_classes, of_rows):
    logits, labels = random(seed, 5, 3), torch.arange(5) % 3
    likelihood = pb.CategoricalLikelihood(of_classes).with_row_weights()
    joined = likelihood.join_weights(labels, of_rows)
    plain = likelihood(logits).log_prob(labels)
    found = likelihood.weighted(likelihood(logits), joined, torch.float64).log_prob(labels)
    assert_identical(found, plain * of_rows * of_classes[labels])
    doubled = likelihood.join_weights(labels, 2 * of_rows)
    assert_identical(likelihood.weighted(likelihood(logits), doubled, torch.float64).log_prob(labels), 2 * found)


# --- weights of the divergence, and maps of scales --------------------------------------------------------------------


@properties
@given(st.integers(1, 3000))
def test_weights_of_blundell_halve_and_have_mean_one(num_batches):
    weights = [kl.blundell()(0, batch, num_batches) for batch in range(num_batches)]
    assert abs(math.fsum(weights) / num_batches - 1) < 1e-12
    assert all(0 <= later <= earlier for earlier, later in itertools.pairwise(weights))
    assert all(later == earlier / 2 for earlier, later in itertools.pairwise(weights[:50]))


@properties
@given(st.integers(1, 50), floats(0, 100), st.integers(1, 200))
def test_warm_up_grows_to_its_weight_and_stays_there(num_epochs, weight, num_batches):
    schedule = kl.linear_warmup(num_epochs, weight)
    steps = [schedule(epoch, batch, num_batches) for epoch in range(num_epochs) for batch in range(num_batches)]
    assert all(0 <= earlier <= later <= weight for earlier, later in itertools.pairwise(steps))
    assert steps[-1] == weight == schedule(num_epochs + 7, 0, num_batches)


@properties
@given(SCALES, st.sampled_from([scale_maps.Softplus(), scale_maps.LogVariance()]))
def test_maps_of_scales_and_their_inverses_undo_each_other(scale, scale_map):
    value = torch.tensor(scale)
    torch.testing.assert_close(scale_map(scale_map.inverse(value)), value, rtol=1e-8, atol=0)
    assert bool(scale_map(scale_map.inverse(value) + 0.1) > value)


# --- decompositions of uncertainty ------------------------------------------------------------------------------------


def classes_from(logits):
    accumulator = ClassAccumulator()
    for draw in logits:
        accumulator.add(dist.Categorical(logits=draw), keep=True)
    return accumulator.prediction(None)


def numbers_from(loc, scale):
    accumulator = MomentAccumulator()
    for draw in zip(loc, scale, strict=True):
        accumulator.add(dist.Normal(*draw), keep=True)
    return accumulator.prediction(None)


PARTS = ("expectation", "total", "aleatoric", "epistemic")


def assert_same_prediction(found, expected, atol=1e-10):
    for part in PARTS:
        torch.testing.assert_close(getattr(found, part), getattr(expected, part), rtol=1e-8, atol=atol)


@properties
@given(SEEDS, st.integers(2, 6), st.integers(1, 5), st.integers(2, 5), floats(-8, 3))
def test_parts_of_a_class_prediction(seed, num_draws, num_data, num_classes, log_spread):
    logits = random(seed, num_draws, num_data, num_classes) * 10**log_spread
    prediction = classes_from(logits)
    assert_identical(prediction.total, prediction.aleatoric + prediction.epistemic)
    for part in ("total", "aleatoric", "epistemic"):
        assert bool((getattr(prediction, part) >= 0).all())
        assert bool((getattr(prediction, part) <= math.log(num_classes) + 1e-12).all())
    entropy = -(prediction.probs * prediction.probs.clamp_min(1e-300).log()).sum(-1)
    torch.testing.assert_close(prediction.total, entropy, rtol=1e-9, atol=1e-9)
    assert_identical(prediction.probs.sum(-1), torch.ones(num_data))
    assert bool((prediction.votes.sum(-1) == num_draws).all())


@properties
@given(SEEDS, st.integers(2, 6), st.integers(2, 6), floats(-4, 4))
def test_parts_of_a_prediction_of_numbers(seed, num_draws, num_data, log_spread):
    loc = random(seed, num_draws, num_data, 2) * 10**log_spread
    scale = random(seed + 1, num_draws, num_data, 2).exp()
    prediction = numbers_from(loc, scale)
    assert_identical(prediction.total, prediction.aleatoric + prediction.epistemic)
    assert bool((prediction.aleatoric >= 0).all())
    assert bool((prediction.epistemic >= 0).all())
    assert_identical(prediction.aleatoric, scale.square().mean(0))
    torch.testing.assert_close(prediction.epistemic, loc.var(0), rtol=1e-9, atol=1e-12)


@properties
@given(SEEDS, st.integers(2, 6), st.integers(2, 6), st.booleans(), st.data())
def test_order_of_rows_and_draws_and_chunks_of_rows_do_not_matter(seed, num_draws, num_data, is_class, data):
    logits, scale = random(seed, num_draws, num_data, 3), random(seed + 1, num_draws, num_data, 3).exp()

    def predict(draws, rows):
        first, second = logits[draws][:, rows], scale[draws][:, rows]
        return classes_from(first) if is_class else numbers_from(first, second)

    every, rows = list(range(num_draws)), list(range(num_data))
    expected = predict(every, rows)
    assert_same_prediction(predict(data.draw(st.permutations(every)), rows), expected)
    order = data.draw(st.permutations(rows))
    assert_same_prediction(predict(every, order), expected[torch.tensor(order)])
    cut = data.draw(st.integers(1, num_data - 1))
    assert_same_prediction(concatenate([predict(every, rows[:cut]), predict(every, rows[cut:])]), expected)


@few
@given(SEEDS, st.integers(1, 9), st.sampled_from(["classes", "numbers"]))
def test_predictions_do_not_depend_on_the_batch_size(seed, batch_size, kind):
    likelihood = pb.CategoricalLikelihood() if kind == "classes" else pb.GaussianLikelihood(0.5)
    x = random(seed, 9, 2)
    y = torch.arange(9) % 3 if kind == "classes" else random(seed + 1, 9, 3)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=9)
    guide = pb.MeanFieldGuide(model)
    found, expected = (
        pb.predict(model, guide, x, y=y, num_samples=4, batch_size=size, seed=seed) for size in (batch_size, 9)
    )
    assert_same_prediction(found, expected)
    torch.testing.assert_close(found.log_density, expected.log_density, rtol=1e-9, atol=1e-12)


# --- metrics ----------------------------------------------------------------------------------------------------------


@properties
@given(SEEDS, st.integers(1, 40), st.integers(1, 6), floats(-3, 3), st.data())
def test_class_scores_are_bounded_and_do_not_know_the_order_of_rows(seed, num_data, num_classes, log_spread, data):
    probs = (random(seed, num_data, num_classes) * 10**log_spread).softmax(-1)
    y = torch.tensor(data.draw(st.lists(st.integers(0, num_classes - 1), min_size=num_data, max_size=num_data)))
    order = torch.tensor(data.draw(st.permutations(range(num_data))))
    bounds = {
        metrics.accuracy: 1.0,
        metrics.brier_score: 2.0,
        metrics.expected_calibration_error: 1.0,
        metrics.adaptive_calibration_error: 1.0,
        metrics.negative_log_likelihood: math.inf,
    }
    for score, bound in bounds.items():
        value = score(probs, y)
        assert 0 <= value <= bound + 1e-12, score
        assert np.isclose(score(probs[order], y[order]), value, rtol=1e-9, atol=1e-12), score
    counts = metrics.calibration_bins(probs, y).counts
    assert float(counts.sum()) == num_data


@properties
@given(SEEDS, st.integers(2, 12), st.integers(1, 8), floats(-50, 50), SCALES)
def test_scores_of_numbers_move_and_stretch_with_the_numbers(seed, num_draws, num_data, shift, factor):
    draws, y = random(seed, num_draws, num_data), random(seed + 1, num_data)
    scale = random(seed + 2, num_data, num_draws).exp()
    moved, target = shift + factor * draws, shift + factor * y
    tolerance = {"rtol": 1e-7, "atol": 1e-9 * (factor + abs(shift))}
    weights = torch.full((num_draws,), 1 / num_draws)
    pairs = [
        (metrics.root_mean_squared_error(moved[0], target), metrics.root_mean_squared_error(draws[0], y)),
        (metrics.crps_from_draws(moved, target), metrics.crps_from_draws(draws, y)),
        (
            metrics.crps_of_normal_mixture(weights, moved.T, factor * scale, target),
            metrics.crps_of_normal_mixture(weights, draws.T, scale, y),
        ),
    ]
    for found, expected in pairs:
        assert np.isclose(found, factor * expected, **tolerance)
    assert pairs[2][1] > 0
    flipped = torch.arange(num_data).flip(0)
    assert np.isclose(metrics.crps_from_draws(draws[:, flipped], y[flipped]), pairs[1][1], rtol=1e-9, atol=1e-12)
    lower, upper = draws.amin(0), draws.amax(0)
    assert 0 <= metrics.interval_coverage(lower, upper, y) <= metrics.interval_coverage(lower - 1, upper + 1, y) <= 1


@few
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8), st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_detection_is_that_of_all_pairs_and_sees_ranks_only(known, unknown):
    known, unknown = torch.tensor(known, dtype=torch.double), torch.tensor(unknown, dtype=torch.double)
    scores = metrics.ood_scores(known, unknown)
    pairs = (unknown[:, None] > known).double() + 0.5 * (unknown[:, None] == known)
    assert np.isclose(scores.auroc, float(pairs.mean()))
    for same in (
        metrics.ood_scores(known.flip(0), unknown.flip(0)),
        metrics.ood_scores((known / 4).exp(), (unknown / 4).exp()),
    ):
        np.testing.assert_allclose(astuple(same), astuple(scores), rtol=1e-12)  # NaN equals NaN
    assert 0 <= scores.fpr95 <= 1
    assert 0 < scores.aupr <= 1 + 1e-12
