"""The mixture density likelihood against integrals, naive sums and a single Gaussian."""

import functools
import math

import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from pyro.infer import Predictive
from torch import nn
from torch.distributions import MixtureSameFamily
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn.modelling.distributions import NormalMixture
from pyro_bnn.scores.uncertainty import MixtureDensityPrediction

from .cases import small_model
from .tolerances import SMALLEST_P_VALUE, STANDARD_ERRORS, agrees_in_mean, assert_identical


def stock(output, num_components, min_scale=1e-6):
    """The same distribution, built from torch's classes."""
    logits, loc, rho = output.reshape(*output.shape[:-1], 3, -1, num_components).unbind(-3)
    scale = min_scale + nn.functional.softplus(rho)
    return MixtureSameFamily(dist.Categorical(logits=logits), dist.Normal(loc, scale))


def kept_prediction(num_samples=40, seed=2, **kwargs):
    model, x, y = small_model(likelihood="mixture-density", **kwargs)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    return pb.predict(model, guide, x, y=y, num_samples=num_samples, seed=seed, keep_draws=True), y


# --- the distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_components", [1, 2, 5])
def test_density_moments_and_cdf_are_integrals(num_components):
    mixture = pb.MixtureDensityLikelihood(num_components)(2 * torch.randn(4, 6 * num_components))  # (4, 2)
    grid = torch.linspace(-80, 80, 400_001)
    density = mixture.log_prob(grid[:, None, None]).exp()  # (G, 4, 2)
    step = float(grid[1] - grid[0])

    def integral(values):
        torch.testing.assert_close(values.sum(0) * step, expected, rtol=1e-6, atol=1e-7)

    expected = torch.ones(4, 2)
    integral(density)
    expected = mixture.mean
    integral(density * grid[:, None, None])
    expected = mixture.variance
    integral(density * (grid[:, None, None] - mixture.mean).square())
    expected = mixture.cdf(torch.tensor(0.0))
    integral(torch.cat([density[:200_000], density[200_000:200_001] / 2]))  # up to 0


@pytest.mark.parametrize("lead", [(), (7,), (3, 2)])
def test_layout_and_density_are_those_of_torchs_own_parts(lead):
    output, y = torch.randn(*lead, 5, 24), torch.randn(5, 2)
    ours, theirs = pb.MixtureDensityLikelihood(4)(output), stock(output, 4)
    assert ours.batch_shape == (*lead, 5, 2)
    assert_identical(ours.log_prob(y), theirs.log_prob(y))
    assert_identical(ours.mean, theirs.mean)
    assert_identical(ours.variance, theirs.variance)
    assert_identical(ours.cdf(y), theirs.cdf(y))
    torch.testing.assert_close(ours.cdf(ours.icdf(torch.tensor(0.3))), torch.full(ours.batch_shape, 0.3))
    event = ours.expand((6, *ours.batch_shape)).to_event(1)
    assert event.sample((2,)).shape == (2, 6, *lead, 5, 2)
    assert_identical(event.log_prob(y), theirs.log_prob(y).sum(-1).expand(6, *lead, 5))


def test_one_component_is_the_heteroscedastic_gaussian():
    output, y = torch.randn(5, 4), torch.randn(5, 2)
    mean, rho = output.chunk(2, -1)
    one = pb.MixtureDensityLikelihood(1, min_scale=0.01)(torch.cat([torch.randn(5, 2), mean, rho], -1))
    log_variance = 2 * (0.01 + nn.functional.softplus(rho)).log()
    gaussian = pb.HeteroscedasticGaussianLikelihood()(torch.cat([mean, log_variance], -1))
    assert_identical(one.log_prob(y), gaussian.log_prob(y))
    assert_identical(one.mean, gaussian.mean)
    assert_identical(one.variance, gaussian.variance)
    assert_identical(one.cdf(y), gaussian.cdf(y))


EXTREME = [
    [0.0, 1e30, -1e30],  # logits
    [1e4, -1e4, 0.0],
    [0.0, 1e9, -1e9],  # means
    [1e4, -1e4, 0.0],  # rho
    [1e30, -1e30, -1e30],
]


@pytest.mark.parametrize("rho", [EXTREME[1], EXTREME[3], EXTREME[4], [-1e4] * 3])
@pytest.mark.parametrize("logits", EXTREME[:2])
@pytest.mark.parametrize("loc", [[0.0] * 3, EXTREME[2]])
@pytest.mark.parametrize("y", [0.0, 1.0, -1e9])
def test_extreme_outputs_have_finite_densities_and_gradients(logits, loc, rho, y):
    output = torch.tensor([[*logits, *loc, *rho]], dtype=torch.float32).requires_grad_()
    log_prob = pb.MixtureDensityLikelihood(3)(output).log_prob(torch.tensor([[y]], dtype=torch.float32))
    (gradient,) = torch.autograd.grad(log_prob.sum(), output)
    assert log_prob.dtype == torch.float32
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(gradient).all()
    exact = stock(output.detach().double(), 3).log_prob(torch.tensor([[y]]))
    torch.testing.assert_close(log_prob.double(), exact, rtol=1e-4, atol=1e-4)


def test_a_naive_density_underflows_there():
    """The must-fail twin: with exponentials of log scales and a sum of densities, the result is 0."""
    y, loc, scale = torch.tensor(100.0), torch.zeros(3), torch.tensor([1.0, 0.1, 1e-3])
    naive = dist.Normal(loc.float(), scale.float()).log_prob(y.float()).exp().mean().log()
    assert naive == -math.inf
    assert torch.isfinite(NormalMixture(loc.float(), loc.float(), scale.float()).log_prob(y.float()))


def test_gradients_are_those_of_the_naive_density():
    likelihood, y = pb.MixtureDensityLikelihood(3), torch.randn(4, 2)
    assert torch.autograd.gradcheck(
        lambda output: likelihood(output).log_prob(y), torch.randn(4, 18, requires_grad=True)
    )


def test_components_start_at_the_targets_quantiles():
    y = torch.randn(2001, 2) * torch.tensor([1.0, 30.0])
    likelihood = pb.MixtureDensityLikelihood(4)
    net = nn.Linear(3, 24)
    net.weight.data.zero_()
    net.bias.data = likelihood.initial_bias(y)
    start = likelihood(net(torch.randn(5, 3)))
    assert_identical(start.weights, torch.full((5, 2, 4), 0.25))
    expected = torch.stack([y.quantile(q, dim=0) for q in (0.125, 0.375, 0.625, 0.875)], -1)  # (2, 4)
    assert_identical(start.loc, expected.expand(5, 2, 4))
    torch.testing.assert_close(start.scale, (y.std(0) / 4)[:, None].expand(5, 2, 4), rtol=1e-4, atol=0.0)
    for bad in (y[:, 0], y[:1], torch.zeros(5, 1)):
        with pytest.raises(ValueError, match="two different values in every column"):
            likelihood.initial_bias(bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pb.MixtureDensityLikelihood(0), "`num_components` must be a whole number of at least 1, got 0"),
        (lambda: pb.MixtureDensityLikelihood(2, min_scale=0.0), "`min_scale` must be a finite number above 0"),
        (
            lambda: pb.MixtureDensityLikelihood(4)(torch.zeros(5, 14)),
            (
                r"with 4 components needs a network output of shape \(N, 12 \* O\), got \(5, 14\); "
                "give the last layer 12 outputs per target"
            ),
        ),
        (lambda: pb.MixtureDensityLikelihood(1)(torch.zeros(3)), r"of shape \(N, 3 \* O\), got \(3,\)"),
        (lambda: NormalMixture(*torch.zeros(3)), "need a last axis of components"),
        (lambda: NormalMixture(torch.zeros(2), torch.zeros(2), torch.zeros(2), validate_args=True), "scale"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("y", [torch.zeros(6), torch.zeros(6, 3), torch.zeros(6, 2, dtype=torch.long)])
def test_wrong_targets_are_refused(y):
    model, x, _ = small_model(likelihood="mixture-density")
    with pytest.raises(ValueError, match="MixtureDensityLikelihood"):
        model.check_targets(x, y)


# --- prediction -------------------------------------------------------------------------------------------------------


def test_the_three_parts_are_the_variance_of_all_components_together():
    """By brute force: the S * M Gaussians of a row as one mixture."""
    prediction, _ = kept_prediction()
    assert isinstance(prediction, MixtureDensityPrediction)
    parts = prediction.components
    weights = (parts.logits.softmax(-1) / 40).movedim(0, -1).flatten(-2)  # (N, O, M * S)
    loc, scale = (v.movedim(0, -1).flatten(-2) for v in (parts.loc, parts.scale))
    mean = (weights * loc).sum(-1)
    assert_identical(prediction.mean, mean)
    second_moment = (weights * (loc.square() + scale.square())).sum(-1)
    population = prediction.epistemic * 39 / 40  # the epistemic part is unbiased, the variance of a mixture is not
    assert_identical(prediction.aleatoric + population, second_moment - mean.square())
    assert_identical(prediction.within_components + prediction.between_components, prediction.aleatoric)
    assert_identical(prediction.within_components, (weights * scale.square()).sum(-1))
    assert_identical(prediction.total, prediction.aleatoric + prediction.epistemic)
    for part in (prediction.within_components, prediction.between_components, prediction.epistemic):
        assert (part > 1e-3 * prediction.total).all()  # none of them is nothing here


def test_one_component_has_nothing_between_components():
    x = torch.randn(6, 4)
    model = pb.BayesianModel(
        nn.Linear(4, 6), prior=pb.NormalPrior(), likelihood=pb.MixtureDensityLikelihood(1), num_data=6
    )
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    prediction = pb.predict(model, guide, x, num_samples=9)
    assert_identical(prediction.between_components, torch.zeros(6, 2))


def test_the_predictive_density_is_the_log_of_a_mean_of_densities():
    prediction, y = kept_prediction()
    parts = prediction.components
    densities = dist.Normal(parts.loc, parts.scale).log_prob(y[..., None]).exp()
    naive = (parts.logits.softmax(-1) * densities).sum(-1).prod(-1).mean(0).log()  # (N,)
    assert_identical(prediction.log_density, naive)
    assert_identical(prediction.log_prob(y), naive)
    table = prediction.log_prob(torch.stack([y, y + 1, y - 3]).reshape(3, 1, 6, 2))
    assert table.shape == (3, 1, 6)
    assert_identical(table[0, 0], naive)
    assert_identical(table[2, 0], prediction.log_prob(y - 3))
    assert prediction.log_prob(torch.zeros(5, 1, 1)).shape == (5, 6)


@pytest.mark.parametrize("likelihood", ["gaussian-latent", "heteroscedastic", "poisson", "mixture-density"])
def test_every_kind_of_number_has_a_predictive_density_and_draws(likelihood):
    model, x, y = small_model(likelihood=likelihood)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    prediction = pb.predict(model, guide, x, y=y, num_samples=8, seed=0, keep_draws=True)
    assert_identical(prediction.log_prob(y), prediction.log_density)
    draws = prediction.sample(4000, seed=1)
    assert draws.shape == (4000, *y.shape)
    assert agrees_in_mean(draws, prediction.mean)
    assert not agrees_in_mean(draws + prediction.total.sqrt() / 5, prediction.mean)
    state = torch.get_rng_state()
    assert torch.equal(draws, prediction.sample(4000, seed=1))
    assert not torch.equal(draws, prediction.sample(4000, seed=2))
    assert torch.equal(state, torch.get_rng_state())


def test_a_density_integrates_to_one_over_a_grid():
    torch.manual_seed(1)
    net, likelihood = nn.Linear(4, 9), pb.MixtureDensityLikelihood(3)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=6)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    prediction = pb.predict(model, guide, torch.randn(6, 4), num_samples=5, keep_draws=True)
    grid = torch.linspace(-40, 40, 20_001)
    total = prediction.log_prob(grid[:, None, None]).exp().sum(0) * float(grid[1] - grid[0])
    torch.testing.assert_close(total, torch.ones(6), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("q", [0.001, 0.1, 0.5, 0.975])
def test_quantiles_invert_the_cdf(q):
    prediction, _ = kept_prediction()
    quantile = prediction.quantile(q)
    torch.testing.assert_close(prediction.cdf(quantile), torch.full((6, 2), q), rtol=1e-9, atol=1e-12)


def test_draws_agree_with_the_cdf():
    prediction, _ = kept_prediction()
    draws = prediction.sample(4000, seed=3)
    for q in (0.05, 0.5, 0.95):
        below, error = (draws <= prediction.quantile(q)).double().mean(0), math.sqrt(q * (1 - q) / 4000)
        assert ((below - q).abs() < STANDARD_ERRORS * error).all()
        assert not ((below - q - 0.06).abs() < STANDARD_ERRORS * error).all()  # the must-fail twin
    ranks = torch.stack([prediction.cdf(row) for row in draws[:1000]])  # uniform, if draws and cdf agree
    assert scipy.stats.kstest(ranks[:, 0, 0].numpy(), "uniform").pvalue > SMALLEST_P_VALUE
    shifted = torch.stack([prediction.cdf(row + 0.5 * prediction.total.sqrt()) for row in draws[:1000]])
    assert scipy.stats.kstest(shifted[:, 0, 0].numpy(), "uniform").pvalue < SMALLEST_P_VALUE


def test_rows_of_one_draw_share_their_weights():
    """With almost no noise, draws are functions: two equal rows get equal values."""
    likelihood = pb.MixtureDensityLikelihood(1)
    net = nn.Linear(1, 3)
    net.bias.data[2] = -100.0
    model = pb.BayesianModel(
        net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=2, where=["net.weight", "net.bias"]
    )
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    prediction = pb.predict(model, guide, torch.zeros(2, 1), num_samples=20, keep_draws=True)
    draws = prediction.sample(50)
    assert float((draws[:, 0] - draws[:, 1]).abs().max()) < 1e-4
    assert float(draws[:, 0].std()) > 0.1


def test_loaders_batches_and_points_give_the_same_prediction():
    model, x, y = small_model(likelihood="mixture-density")
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    settings = {"num_samples": 4, "keep_draws": True, "seed": 0}
    whole = pb.predict(model, guide, x, y=y, **settings)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    for other in (
        pb.predict(model, guide, x, y=y, batch_size=4, **settings),
        pb.predict(model, guide, loader, **settings),
    ):
        assert isinstance(other, MixtureDensityPrediction)
        assert other.components.batch_shape == (4, 6, 2)
        for name in ("within_components", "between_components", "log_density", "epistemic"):
            assert_identical(getattr(other, name), getattr(whole, name))
        assert_identical(other.log_prob(y), whole.log_density)
    point = pb.predict_point(model, guide.median(), x, y=y)
    assert_identical(point.within_components + point.between_components, point.aleatoric)
    with pytest.raises(ValueError, match="needs at least 2 draws"):
        _ = point.total
    summary = pb.predict(model, guide, x, num_samples=2, keep_draws=False)
    for call in (lambda: summary.log_prob(y), lambda: summary.sample(3), lambda: summary.quantile(0.5)):
        with pytest.raises(ValueError, match=r"call `predict\(..., keep_draws=True\)`"):
            call()
    with pytest.raises(ValueError, match="`num_samples` must be a whole number of at least 1"):
        whole.sample(0)


# --- inference --------------------------------------------------------------------------------------------------------


def bimodal_problem(num_data=60):
    """y is near -2 or 2, whatever x."""
    x = torch.randn(num_data, 1)
    y = 4 * torch.randint(2, (num_data, 1)).to(x) - 2 + 0.3 * torch.randn(num_data, 1)
    likelihood = pb.MixtureDensityLikelihood(2)
    net = nn.Linear(1, 6)
    net.bias.data = likelihood.initial_bias(y)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(2.0), likelihood=likelihood, num_data=num_data)
    return model, x, y


def test_pyros_own_predictive_draws_from_the_mixture():
    model, x, _ = bimodal_problem()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1e-6))
    draws = Predictive(model, guide=guide, num_samples=200, parallel=True)(x)["obs"]
    assert draws.shape == (200, 60, 1)


@pytest.mark.parametrize("method", ["svi", "nuts", "nuts, compiled"])
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # few draws
def test_two_modes_are_found(method):
    model, x, y = bimodal_problem()
    if method == "svi":
        posterior = pb.fit_svi(
            model,
            (x, y),
            pb.MeanFieldGuide(model),
            optimizer=functools.partial(torch.optim.Adam, lr=0.02),
            num_epochs=400,
            seed=0,
        )
        assert posterior.history.path == "direct"
    else:
        settings = {"num_samples": 20, "num_warmup": 60, "num_chains": 2, "max_tree_depth": 5}
        settings["init"] = pb.NetworkInit(scale=0.1)  # from the prior, one short chain in five ends in a lesser mode
        posterior = pb.fit_nuts(model, (x, y), compile=method != "nuts", seed=0, **settings)
    prediction = pb.predict(model, posterior, torch.zeros(1, 1), num_samples=40, seed=0, keep_draws=True)
    at_mode, between = prediction.log_prob(torch.tensor([-2.0, 0.0])[:, None, None]).exp().flatten()
    assert at_mode > 0.3
    assert between < 0.05
    assert prediction.between_components > 2 * (prediction.within_components + prediction.epistemic)
    assert dict(pyro.get_param_store()) == {}
