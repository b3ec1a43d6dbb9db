"""Predictions of the network linearised in its weights, compared with exact ones by hand."""

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.batch_norm import PinnedPosterior

from .cases import small_model
from .posteriors import chains
from .test_gauss_newton import covariance_of
from .tolerances import STANDARD_ERRORS, assert_identical

KINDS = {
    "mean field": lambda model, x, y: pb.GuidePosterior(pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))),
    "low rank": lambda model, x, y: pb.GuidePosterior(pb.LowRankGuide(model, rank=2, init=pb.NetworkInit(scale=0.3))),
    "laplace": lambda model, x, y: pb.fit_laplace(model, (x, y)),
    "gauss-newton": lambda model, x, y: pb.fit_gauss_newton(model, (x, y)),
}


def slopes(model, center, x):
    """The Jacobian of the outputs in all weights, shape (N, C, P), and the outputs."""
    names = list(model.site_names)

    def output(*weights):
        return model.output_given(dict(zip(names, weights, strict=True)), x)

    parts = torch.autograd.functional.jacobian(output, tuple(center[name] for name in names))
    return torch.cat([part.flatten(2) for part in parts], -1), output(*(center[name] for name in names))


class Stored(pb.Posterior):
    """Given draws, and a given center."""

    status = pb.Status(True, "stored")

    def __init__(self, draws, center):
        self.stored, self.center = draws, center

    def draws(self, num_samples, *args):
        for index in range(num_samples):
            yield {name: values[index] for name, values in self.stored.items()}

    def median(self):
        return self.center


@pytest.mark.parametrize("kind", KINDS)
def test_every_draw_is_that_of_the_linear_network(kind):
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    posterior = KINDS[kind](model, x, y)
    center, draws = posterior.median(), posterior.sample(5, seed=1)
    jacobian, at_center = slopes(model, center, x)
    moves = torch.cat([(draws[name] - center[name]).flatten(1) for name in model.site_names], -1)
    expected = at_center + torch.einsum("ncp,sp->snc", jacobian, moves)
    arguments = {"num_samples": 5, "seed": 0, "keep_draws": True, "batch_size": 4}
    stored = Stored(draws, center)
    prediction = pb.predict(model, stored, x, linearised=True, **arguments)
    torch.testing.assert_close(prediction.components.mean, expected, rtol=1e-9, atol=1e-11)
    plain = pb.predict(model, stored, x, linearised=False, **arguments)
    assert (plain.components.mean - expected).abs().max() > 1e-3


def test_mean_and_variance_are_those_of_the_linear_network():
    """The network itself at drawn weights has another variance."""
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6, prior=pb.NormalPrior(2.0))
    posterior = pb.fit_gauss_newton(model, (x, y), structure="full")
    jacobian, center = slopes(model, posterior.median(), x)
    variance = torch.einsum("ncp,pq,ncq->nc", jacobian, covariance_of(posterior), jacobian)

    def score(linearised):
        prediction = pb.predict(model, posterior, x, num_samples=1000, seed=0, keep_draws=True, linearised=linearised)
        squares = (prediction.components.mean - center).square()
        return float(((squares.mean(0) - variance) / (squares.std(0) / 1000**0.5)).abs().max())

    assert score(linearised=True) < STANDARD_ERRORS
    assert score(linearised=False) > STANDARD_ERRORS


def test_a_network_that_is_linear_predicts_the_same():
    model, x, y = small_model(net=nn.Linear(4, 3), num_data=6)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    plain, linear = (pb.predict(model, guide, x, y=y, seed=0, linearised=flag) for flag in (False, True))
    assert_identical(plain.probs, linear.probs)
    assert_identical(plain.log_density, linear.log_density)
    model, x, y = small_model(num_data=6)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    plain, linear = (pb.predict(model, guide, x, seed=0, linearised=flag) for flag in (False, True))
    assert (plain.probs - linear.probs).abs().max() > 1e-3


def test_without_a_median_it_is_refused():
    model, x, _ = small_model()
    guide = pb.MeanFieldGuide(model)
    posterior = pb.GuidePosterior(guide)
    stored = chains({name: values[None] for name, values in posterior.sample(3).items()})
    for without in (pb.EnsemblePosterior([posterior, stored]), stored):
        with pytest.raises(ValueError, match=r"needs posteriors with a median.* got one of.* pass `linearised=False`"):
            pb.predict(model, without, x, linearised=True, num_samples=1)
    with pytest.raises(ValueError, match="`linearised` must be True or False"):
        pb.predict(model, guide, x, linearised="yes")


def test_an_operation_without_forward_derivative_is_named():
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return Rounded.apply(self.layer(x))

    model, x, _ = small_model(net=Net())
    with pytest.raises(ValueError, match="needs forward derivatives, but an operation of the network has none"):
        pb.predict(model, pb.MeanFieldGuide(model), x, linearised=True, num_samples=2)


def test_a_whole_network_with_a_gauss_newton_matrix_is_linearised_unless_told_otherwise():
    model, x, y = small_model(num_data=6)
    posterior = pb.fit_gauss_newton(model, (x, y))
    probs = {flag: pb.predict(model, posterior, x, seed=0, linearised=flag).probs for flag in (None, True, False)}
    assert torch.equal(probs[None], probs[True])
    assert (probs[None] - probs[False]).abs().max() > 1e-3


def stored_posterior(model, num_draws, seed):
    """Random draws around a random center."""
    generator = torch.Generator().manual_seed(seed)

    def shifted(values, *lead):
        return {k: v + torch.randn(*lead, *v.shape, generator=generator, dtype=v.dtype) for k, v in values.items()}

    center = shifted(pb.DeltaGuide(model).median())
    return Stored(shifted(center, num_draws), center)


@pytest.mark.parametrize("num_samples", [4, 12])
def test_an_ensemble_is_linearised_around_each_member_in_turn(num_samples):
    """A mixture of Laplace approximations; one of the two members is itself a mixture of two."""
    model, x, y = small_model(num_data=6)
    first, second, third = (stored_posterior(model, 6, seed) for seed in range(3))
    ensemble = pb.EnsemblePosterior([first, pb.EnsemblePosterior([second, third])])
    counts = (num_samples // 2, num_samples // 4, num_samples // 4)
    parts = [
        pb.predict(model, member, x, num_samples=count, linearised=True).probs * count
        for member, count in zip((first, second, third), counts, strict=True)
    ]
    prediction = pb.predict(model, ensemble, x, y=y, num_samples=num_samples, linearised=True)
    assert_identical(prediction.probs, sum(parts) / num_samples)
    assert_identical(prediction.log_density, prediction.probs.gather(1, y[:, None]).log()[:, 0])
    swapped = [Stored(first.stored, second.center), Stored(second.stored, first.center)]
    right, wrong = (
        pb.predict(model, pb.EnsemblePosterior(some), x, num_samples=4, linearised=True).probs
        for some in ([first, second], swapped)
    )
    assert (wrong - right).abs().max() > 1e-3


@pytest.mark.nightly
def test_an_ensemble_of_gauss_newton_fits_predicts_the_mean_of_its_members():
    model, x, y = small_model(num_data=6)
    members = []
    for seed in range(2):
        torch.manual_seed(seed)
        values = {name: value + 0.3 * torch.randn_like(value) for name, value in pb.DeltaGuide(model).median().items()}
        members.append(pb.fit_gauss_newton(model, (x, y), init=values))
    mixture = pb.predict(model, pb.EnsemblePosterior(members), x, num_samples=4000, seed=0).probs
    each = [pb.predict(model, member, x, num_samples=2000, seed=1) for member in members]
    error = STANDARD_ERRORS * 0.5 * (2 / 4000) ** 0.5  # a probability's standard deviation is at most 0.5
    assert (mixture - sum(part.probs for part in each) / 2).abs().max() < error


def test_members_of_an_ensemble_that_carry_statistics_are_linearised_with_their_own():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    model, x, _ = small_model(net=net, num_data=6, where="net.[03].*")
    members = []
    for seed in range(2):
        with torch.no_grad():
            model.network[1].running_mean.add_(1.0)
        members.append(PinnedPosterior(model, stored_posterior(model, 4, seed)))
    options = {"num_samples": 4, "linearised": True}
    each = [pb.predict(model, member, x, **options).probs for member in members]
    mixture = pb.predict(model, pb.EnsemblePosterior(members), x, num_samples=8, linearised=True).probs
    assert_identical(mixture, sum(each) / 2)
    assert (each[0] - pb.predict(model, members[0].inner, x, **options).probs).abs().max() > 1e-3


class Linear(Stored):
    """Draws for the network linearised around a center."""

    is_linearised = True


def test_only_those_members_of_an_ensemble_are_linearised_that_are_meant_for_it():
    model, x, _ = small_model(num_data=6)
    plain, other = (stored_posterior(model, 6, seed) for seed in range(2))
    linear, drawn = Linear(other.stored, other.center), pb.StoredPosterior.of(plain, 6)
    mixture = pb.predict(model, pb.EnsemblePosterior([drawn, linear]), x, num_samples=12, keep_draws=True).logits
    for found, member, linearised in ((mixture[::2], drawn, False), (mixture[1::2], other, True)):
        expected = pb.predict(model, member, x, num_samples=6, keep_draws=True, linearised=linearised).logits
        torch.testing.assert_close(found, expected)
    as_it_is = pb.predict(model, other, x, num_samples=6, keep_draws=True, linearised=False).logits
    assert (mixture[1::2] - as_it_is).abs().max() > 1e-2
    with pytest.raises(ValueError, match="needs posteriors with a median"):
        pb.predict(model, pb.EnsemblePosterior([drawn, linear]), x, num_samples=4, linearised=True)


def test_laplace_is_linearised_unless_only_the_last_layer_is_random(tmp_path):
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    posterior = pb.fit_laplace(model, (x, y))
    pb.save_posterior(posterior, tmp_path / "laplace.pt", model)
    loaded = pb.load_posterior(tmp_path / "laplace.pt", model)
    assert posterior.is_linearised
    assert loaded.is_linearised
    means = {flag: pb.predict(model, loaded, x, seed=0, linearised=flag).mean for flag in (None, True, False)}
    assert torch.equal(means[None], means[True])
    assert (means[None] - means[False]).abs().max() > 1e-3
    frozen = nn.Linear(4, 4).requires_grad_(False)
    last = pb.BayesianModel(
        nn.Sequential(frozen, nn.Tanh(), nn.Linear(4, 1)),
        prior=pb.NormalPrior(1.0),
        likelihood=pb.GaussianLikelihood(0.5),
        num_data=6,
        where="net.2.*",
    )
    assert not pb.fit_laplace(last, (x, torch.randn(6, 1))).is_linearised
