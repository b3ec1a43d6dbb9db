"""Predictions of classes and numbers, and the sources of their uncertainty."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn.modelling.distributions import NormalMixture
from pyro_bnn.scores.uncertainty import (
    RunningMoments,
    entropy,
    expected_entropy,
    mutual_information,
    predictive_entropy,
)

from .cases import LIKELIHOODS, small_model, small_net
from .tolerances import assert_identical

CLASSES = ["categorical", "bernoulli"]


def wide_guide(model):
    return pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))


def brute_force(model, guide, x, num_samples, seed, num_outputs):
    """Observation distribution of each draw, by hand, from the draws that `predict` uses."""
    draws = []

    class Recorder(pb.Posterior):
        status = pb.Status(True, "")

        def draws(self, num_samples, *args):
            for draw in pb.GuidePosterior(guide).draws(num_samples, *args):
                draws.append(draw)
                yield draw

    prediction = pb.predict(model, Recorder(), x, num_samples=num_samples, seed=seed, keep_draws=True)
    outputs = []
    for draw in draws:
        weights = {name.removeprefix("net."): value for name, value in draw.items() if name.startswith("net.")}
        outputs.append(functional_call(small_net(num_outputs), weights, (x,)))
    return prediction, torch.stack(outputs), draws


# --- classes ----------------------------------------------------------------------------------------------------------


def test_class_prediction_is_the_average_over_draws():
    model, x, y = small_model()
    prediction, logits, _ = brute_force(model, wide_guide(model), x, 30, 1, 3)
    probs = logits.softmax(-1)
    assert_identical(prediction.probs, probs.mean(0))
    assert_identical(prediction.total, predictive_entropy(logits))
    assert_identical(prediction.aleatoric, expected_entropy(logits))
    assert_identical(prediction.epistemic, mutual_information(logits))
    assert_identical(prediction.votes, nn.functional.one_hot(logits.argmax(-1), 3).sum(0))
    centred = logits - logits.mean(-1, keepdim=True)
    assert_identical(prediction.logit_variance, centred.var(0).mean(-1))
    assert_identical(prediction.logits, logits.log_softmax(-1))
    assert_identical(prediction.labels, probs.mean(0).argmax(-1))
    with_targets = pb.predict(model, wide_guide(model), x, y=y, num_samples=30, seed=1)
    expected = with_targets.probs.gather(-1, y[:, None]).log().flatten()
    assert_identical(with_targets.log_density, expected)
    assert with_targets.nll == pytest.approx(-float(expected.mean()))


def test_yes_or_no_predictions_have_two_classes():
    model, x, _ = small_model(likelihood="bernoulli")
    prediction, logits, _ = brute_force(model, wide_guide(model), x, 20, 1, 2)
    yes = logits.sigmoid()
    assert_identical(prediction.probs, torch.stack([1 - yes.mean(0), yes.mean(0)], -1))
    assert_identical(prediction.aleatoric, entropy(torch.stack([1 - yes, yes], -1)).mean(0))
    assert (prediction.epistemic >= 0).all()


def test_uncertainty_of_certain_and_of_disagreeing_draws():
    sure = torch.tensor([[[1000.0, 0.0]], [[1000.0, 0.0]]])
    torn = torch.tensor([[[1000.0, 0.0]], [[0.0, 1000.0]]])
    assert_identical(mutual_information(sure), [0.0])
    assert_identical(mutual_information(torn), [math.log(2)])
    assert_identical(expected_entropy(torn), [0.0])
    assert_identical(predictive_entropy(torch.zeros(5, 1, 4)), [math.log(4)])
    accumulator = pb.uncertainty.ClassAccumulator()
    for logits in torn:
        accumulator.add(dist.Categorical(logits=logits), keep=False)
    assert_identical(accumulator.prediction(None).epistemic, [math.log(2)])


def exact_mutual_information(logits):
    """Mutual information of draws (S, C), with 50 digits."""
    with localcontext() as context:
        context.prec = 50
        odds = [[Decimal(float(value)).exp() for value in draw] for draw in logits]
        probs = [[value / sum(draw) for value in draw] for draw in odds]
        mean = [sum(column) / len(probs) for column in zip(*probs, strict=True)]
        return float(sum(p * (p / q).ln() for draw in probs for p, q in zip(draw, mean, strict=True)) / len(probs))


def class_prediction(logits, family=dist.Categorical):
    accumulator = pb.uncertainty.ClassAccumulator()
    for draw in logits:
        accumulator.add(family(logits=draw), keep=False)
    return accumulator.prediction(None)


@pytest.mark.parametrize("num_samples", [2, 3, 30])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_small_epistemic_uncertainty_is_right_in_single_precision(num_samples, num_classes):
    """For unsure to certain inputs, and draws that differ by 1e-5 to 30, values down to 1e-10 nats are right to 1 %."""
    scale = torch.logspace(-5, 1.5, 13)
    margin = torch.tensor([0.0, 3.0, 10.0, 20.0])[:, None]
    base = torch.randn(4, 1, num_classes)
    base[..., 0] += margin
    logits = (base + scale[:, None] * torch.randn(num_samples, 4, 13, num_classes)).flatten(1, 2).float()
    expected = torch.tensor([exact_mutual_information(logits[:, n]) for n in range(52)])
    prediction = class_prediction(logits)
    assert prediction.epistemic.dtype == torch.float32
    large_enough = expected > 1e-10
    assert (expected[large_enough] < 1e-8).any()
    assert (expected > 0.01).any()
    ratio = (prediction.epistemic.double() / expected)[large_enough]
    assert ((ratio - 1).abs() < 0.01).all()
    assert (prediction.epistemic >= 0).all()
    by_formula = mutual_information(logits).double()
    torch.testing.assert_close(by_formula[large_enough], expected[large_enough], rtol=1e-5, atol=0.0)
    difference = entropy(logits.softmax(-1).mean(0)) - entropy(logits.softmax(-1)).mean(0)
    assert not ((difference.double() / expected)[large_enough] - 1).abs().lt(0.01).all()  # the must-fail twin


def test_total_is_the_sum_of_its_parts_and_the_entropy_of_the_mean():
    logits = torch.randn(20, 50, 4) * torch.logspace(-3, 2, 50)[:, None]
    prediction = class_prediction(logits)
    assert_identical(prediction.total, prediction.aleatoric + prediction.epistemic)
    assert_identical(prediction.total, entropy(prediction.probs))
    assert_identical(prediction.epistemic, mutual_information(logits))
    assert_identical(predictive_entropy(logits), expected_entropy(logits) + mutual_information(logits))
    single = class_prediction(logits.float())
    torch.testing.assert_close(single.total, single.aleatoric + single.epistemic, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(single.total.double(), prediction.total, rtol=1e-4, atol=1e-12)


def test_draws_that_are_the_same_or_impossible_have_finite_uncertainty():
    same = torch.randn(1, 5, 3).expand(7, 5, 3)
    assert (class_prediction(same).epistemic >= 0).all()
    assert float(class_prediction(same).epistemic.max()) < 1e-30
    never = torch.tensor([[[0.0, -math.inf, -math.inf]], [[-math.inf, 0.0, -math.inf]]])
    assert_identical(mutual_information(never), [math.log(2)])
    yes_or_no = class_prediction(torch.tensor([[[800.0]], [[-800.0]], [[800.0]], [[-800.0]]]), dist.Bernoulli)
    assert_identical(yes_or_no.epistemic, [[math.log(2)]])
    assert_identical(yes_or_no.aleatoric, [[0.0]])


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", [name for name, (*_, by_hand) in LIKELIHOODS.items() if by_hand])
def test_regression_moments_are_those_of_the_mixture(likelihood):
    model, x, y = small_model(likelihood=likelihood)
    guide = wide_guide(model)
    _, num_outputs, _, by_hand = LIKELIHOODS[likelihood]
    prediction, outputs, draws = brute_force(model, guide, x, 25, 2, num_outputs)
    components = by_hand(outputs, draws)
    assert_identical(prediction.mean, components.mean.mean(0))
    assert_identical(prediction.epistemic, components.mean.var(0))
    assert_identical(prediction.aleatoric, components.variance.mean(0))
    assert_identical(prediction.total, components.mean.var(0) + components.variance.mean(0))
    assert prediction.mean.shape == y.shape
    with_targets = pb.predict(model, guide, x, y=y, num_samples=25, seed=2)
    per_draw = components.log_prob(y).flatten(2).sum(-1)
    assert_identical(with_targets.log_density, per_draw.logsumexp(0) - math.log(25))
    assert with_targets.nll == pytest.approx(-float(with_targets.log_density.mean()))


@pytest.mark.parametrize("likelihood", ["heteroscedastic", "gaussian-latent", "poisson"])
@pytest.mark.parametrize("q", [0.001, 0.1, 0.5, 0.975])
def test_quantiles_invert_the_mixtures_cdf(likelihood, q):
    model, x, _ = small_model(likelihood=likelihood)
    prediction = pb.predict(model, wide_guide(model), x, num_samples=25, seed=2, keep_draws=True)
    quantile = prediction.quantile(q)
    if likelihood == "poisson":
        assert (prediction.cdf(quantile) >= q).all()
        assert (prediction.cdf(quantile - 1) < q).all()
        assert torch.equal(quantile, quantile.round())
    else:
        torch.testing.assert_close(prediction.cdf(quantile), torch.full_like(quantile, q), rtol=1e-9, atol=1e-12)


def test_count_cdf_is_the_sum_of_probabilities():
    rate = torch.tensor([[[0.3], [4.0]]])
    accumulator = pb.uncertainty.MomentAccumulator()
    accumulator.add(dist.Poisson(rate[0]), keep=True)
    prediction = accumulator.prediction(None)
    for value in (0.0, 3.0, 3.7):
        expected = sum(dist.Poisson(rate[0]).log_prob(torch.tensor(float(k))).exp() for k in range(int(value) + 1))
        assert_identical(prediction.cdf(torch.tensor(value)), expected)
    assert_identical(prediction.cdf(torch.tensor(-1.0)), torch.zeros(2, 1))


def test_quantiles_cover_as_they_claim():
    """Draws from the predictive mixture itself fall below its q-quantile with probability q."""
    model, x, _ = small_model(likelihood="heteroscedastic")
    prediction = pb.predict(model, wide_guide(model), x, num_samples=40, seed=2, keep_draws=True)
    draws = torch.cat([prediction.components.sample() for _ in range(200)])  # (8000, 6, 2)
    for q in (0.05, 0.5, 0.95):
        below = (draws < prediction.quantile(q)).double().mean(0)
        assert ((below - q).abs() < 5 * math.sqrt(q * (1 - q) / 8000)).all()
        assert not ((below - q - 0.05).abs() < 5 * math.sqrt(q * (1 - q) / 8000)).all()


@pytest.mark.parametrize("likelihood", ["heteroscedastic", "poisson", "mixture-density"])
def test_several_quantiles_at_once(likelihood):
    model, x, _ = small_model(likelihood=likelihood)
    prediction = pb.predict(model, wide_guide(model), x, num_samples=9, seed=2, keep_draws=True)
    levels = [0.05, 0.5, 0.95]
    together = prediction.quantile(levels)
    assert together.shape == (3, *prediction.mean.shape)
    for level, quantile in zip(levels, together, strict=True):
        assert torch.equal(prediction.quantile(level), quantile)
    assert torch.equal(prediction.quantile(torch.tensor(levels)), together)
    assert torch.equal(prediction.quantile(torch.tensor(0.5)), together[1])
    for bad in (1.0, -0.1, math.nan, [0.5, 1.0], torch.rand(2, 2) + 1, []):
        with pytest.raises(ValueError, match="`q` must be a probability strictly between 0 and 1, or a tensor or list"):
            prediction.quantile(bad)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("kind", ["gaussian", "mixture"])
def test_standard_deviations_are_finite_wherever_quantiles_are_in_single_precision(kind, at_once):
    """The square of 1e20 is infinite in single precision."""
    loc, scale = 1e20 * torch.randn(9, 4, 1, 3).float(), 1e20 * (torch.rand(9, 4, 1, 3).float() + 0.2)
    if kind == "gaussian":
        accumulator, make = pb.uncertainty.MomentAccumulator(), lambda draws: dist.Normal(loc[draws], scale[draws])
    else:
        accumulator = pb.uncertainty.MixtureAccumulator()
        make = lambda draws: NormalMixture(torch.zeros_like(loc[draws]), loc[draws], scale[draws])  # noqa: E731
    singles = [make(draw) for draw in range(9)]
    if at_once:
        accumulator.add_draws(make(slice(None)), keep=False)
    else:
        for single in singles:
            accumulator.add(single, keep=True)
    prediction = accumulator.prediction(None)
    frame = prediction.to_frame()
    sds = frame[[name for name in frame.columns if "_sd" in name]].to_numpy()
    assert np.isfinite(sds).all()
    assert (prediction.mean.dtype, sds.dtype) == (torch.float32, np.float32)
    torch.testing.assert_close(prediction.epistemic, make(slice(None)).mean.double().var(0), rtol=1e-6, atol=0)
    if not at_once:
        assert torch.isfinite(prediction.quantile([0.05, 0.95])).all()


@pytest.mark.parametrize("q", [1e-30, 1e-12, 0.5, 1 - 1e-9, 1 - 1e-12])
def test_extreme_quantiles_are_finite_and_right_in_single_precision(q):
    loc, scale = torch.randn(4, 3, 1).float(), torch.rand(4, 3, 1).float() + 0.2
    accumulator = pb.uncertainty.MomentAccumulator()
    for draw in zip(loc, scale, strict=True):
        accumulator.add(dist.Normal(*draw), keep=True)
    quantile = accumulator.prediction(None).quantile(q)
    assert quantile.dtype == torch.float32
    parts = scipy.stats.norm(loc.double().numpy(), scale.double().numpy())
    tail = parts.cdf(quantile.double().numpy()) if q <= 0.5 else parts.sf(quantile.double().numpy())
    assert tail.mean(0) == pytest.approx(min(q, 1 - q), rel=1e-4)  # a rounding of the quantile moves the tail by this


def test_infinite_variances_have_an_infinite_mean():
    """Noise that overflows far from the data is reported as infinite, however the draws are cut into blocks."""
    for size in (1, 2, 4):
        moments = RunningMoments()
        for block in torch.tensor([torch.inf, 1.0, torch.inf, 2.0]).view(-1, size, 1):
            moments.add_to_mean(block)
        assert moments.mean == torch.inf
    assert RunningMoments().add_to_mean(torch.tensor([[torch.nan]])).isnan()


def test_few_draws_are_kept_unless_told_otherwise(monkeypatch):
    model, x, y = small_model(likelihood="heteroscedastic")
    guide, settings = wide_guide(model), {"num_samples": 9, "seed": 1}
    kept = pb.predict(model, guide, x, **settings)
    lower, upper = kept.interval(0.8)
    assert_identical(lower, kept.quantile(0.1))
    assert_identical(upper, kept.quantile(0.9))
    torch.testing.assert_close(kept.sd.square(), kept.total.to(kept.sd))
    loader = DataLoader(TensorDataset(x, y), batch_size=2)
    monkeypatch.setattr("pyro_bnn.scores.uncertainty._prediction.MOST_KEPT", 9 * 6 * 2)
    assert_identical(pb.predict(model, guide, loader, **settings).interval(0.8)[0], lower)
    assert pb.predict(model, guide, x, num_samples=10).components is None
    monkeypatch.setattr("pyro_bnn.scores.uncertainty._prediction.MOST_KEPT", 9 * 6 * 2 - 1)
    assert pb.predict(model, guide, loader, **settings).components is None
    assert pb.predict(model, guide, x, **settings).components is None
    assert pb.predict(model, guide, x, keep_draws=True, **settings).components is not None
