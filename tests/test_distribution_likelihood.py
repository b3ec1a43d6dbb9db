"""Any distribution as a likelihood: it does what the built-in ones do, and says what is wrong with a function."""

import functools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats
import torch
from pyro.infer import Predictive, Trace_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn import likelihoods
from pyro_bnn.scores.uncertainty._quantiles import mean_cdf, mixture_quantile

from .tolerances import IDENTITY, STANDARD_ERRORS, assert_identical

ADAM = functools.partial(torch.optim.Adam, lr=0.02)


def own(make, **kwargs):
    return likelihoods.DistributionLikelihood(make, **kwargs)


def model_of(likelihood, num_outputs=2, num_data=8):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, num_outputs))
    return pb.BayesianModel(net, prior=pb.NormalPrior(0.5), likelihood=likelihood, num_data=num_data)


def predicted(likelihood, num_outputs=2, y=None, **kwargs):
    model = model_of(likelihood, num_outputs)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3))
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    return pb.predict(model, guide, x, y=y, num_samples=30, seed=0, keep_draws=True, **kwargs)


GAUSSIANS = {
    "fixed": (lambda: pb.GaussianLikelihood(0.5), lambda: own(lambda out: dist.Normal(out, 0.5))),
    "latent": (
        lambda: pb.GaussianLikelihood(dist.LogNormal(0.0, 0.5)),
        lambda: own(lambda out, scale: dist.Normal(out, scale), latent={"scale": dist.LogNormal(0.0, 0.5)}),
    ),
    "latent vector": (
        lambda: pb.GaussianLikelihood(dist.LogNormal(torch.zeros(2), 0.5).to_event(1)),
        lambda: own(dist_normal, latent={"scale": dist.LogNormal(torch.zeros(2), 0.5).to_event(1)}),
    ),
    "learned": (
        lambda: pb.GaussianLikelihood(None),
        lambda: own(
            lambda out, rho: dist.Normal(out, nn.functional.softplus(rho)), learned={"rho": math.log(math.e - 1)}
        ),
    ),
    "heteroscedastic": (
        pb.HeteroscedasticGaussianLikelihood,
        lambda: own(lambda mean, log_variance: dist.Normal(mean, (log_variance / 2).exp()), num_parts=2),
    ),
}


def dist_normal(out, scale):
    return dist.Normal(out, scale)


@pytest.mark.parametrize("name", GAUSSIANS)
def test_a_gaussian_of_your_own_is_the_gaussian(name):
    ours, stock = (make() for make in reversed(GAUSSIANS[name]))
    num_outputs = ours.num_outputs(2)
    y = torch.randn(8, 2)
    found, expected = (predicted(likelihood, num_outputs, y) for likelihood in (ours, stock))
    for field in ("mean", "aleatoric", "epistemic", "log_density"):
        assert_identical(getattr(found, field), getattr(expected, field))
    torch.testing.assert_close(found.quantile([0.001, 0.5]), expected.quantile([0.001, 0.5]), rtol=1e-8, atol=1e-9)
    assert_identical(found.cdf(y), expected.cdf(y))
    assert_identical(found.log_prob(y), expected.log_prob(y))
    for seed in range(3):
        traces = [pyro.poutine.trace(model_of(one, num_outputs)) for one in (ours, stock)]
        densities = []
        for trace in traces:
            torch.manual_seed(seed)
            densities.append(trace.get_trace(torch.ones(8, 3), y).log_prob_sum())
        assert_identical(*(density.detach() for density in densities))


@pytest.mark.parametrize("name", ["fixed", "latent", "latent vector"])
def test_rows_and_batches_do_not_change_a_prediction(name):
    make = GAUSSIANS[name][1]
    whole, batched = predicted(make()), predicted(make(), batch_size=3)
    assert_identical(whole.quantile(0.9), batched.quantile(0.9))
    rows = torch.tensor([5, 0])
    assert_identical(whole[rows].quantile(0.9), whole.quantile(0.9)[rows])
    assert_identical(whole[rows].log_prob(torch.zeros(2, 2)), whole.log_prob(torch.zeros(8, 2))[rows])


def test_particles_at_once_and_parallel_draws():
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    for name, (stock, make) in GAUSSIANS.items():
        losses, drawn = [], []
        for likelihood in (make(), stock()):
            model = model_of(likelihood, likelihood.num_outputs(2))
            guide = pb.MeanFieldGuide(model)
            torch.manual_seed(0)
            losses.append(Trace_ELBO(num_particles=3, vectorize_particles=True).loss(model, guide, x, y))
            predictive = Predictive(model, guide=guide, num_samples=4, parallel=True)
            torch.manual_seed(0)
            drawn.append(predictive(x)["obs"])
        assert losses[0] == pytest.approx(losses[1], rel=1e-10), name
        torch.testing.assert_close(*drawn, **IDENTITY)


def test_weights_of_rows_count_rows():
    x, y = torch.randn(4, 3), torch.rand(4, 2)
    likelihood = own(lambda out: dist.Laplace(out, 0.5))
    weighted = model_of(likelihood.with_row_weights(), num_data=4)
    twice = model_of(likelihood, num_data=5)
    values = {name: weighted.initial_value(name) for name in weighted.site_names}
    joined = likelihood.join_weights(y, [1.0, 1.0, 1.0, 2.0])
    expected = twice.log_likelihood(values, torch.cat([x, x[3:]]), torch.cat([y, y[3:]]))
    assert_identical(weighted.log_likelihood(values, x, joined), expected)
    vectors = own(lambda out: dist.MultivariateNormal(out, torch.eye(2))).with_row_weights()
    with pytest.raises(ValueError, match="single numbers"):
        model_of(vectors)(x, joined)


# --- without closed form ----------------------------------------------------------------------------------------------


def logit_normal(out):
    return dist.TransformedDistribution(dist.Normal(out, 1.5), [dist.transforms.SigmoidTransform()])


def test_moments_by_draws_are_integrals():
    outputs = torch.tensor([[[-2.0]], [[0.0]], [[1.0]]])  # three rows with one draw
    made = own(logit_normal)(outputs[:, 0])
    sizes = []
    for row, f in enumerate((-2.0, 0.0, 1.0)):
        moments = [
            scipy.integrate.quad(
                lambda t, p=p, f=f: scipy.stats.norm.pdf(t, f, 1.5) / (1 + math.exp(-t)) ** p, f - 15, f + 15
            )[0]
            for p in (1, 2)
        ]
        variance = moments[1] - moments[0] ** 2
        error = (variance / 1000) ** 0.5
        assert abs(float(made.mean[row, 0]) - moments[0]) < STANDARD_ERRORS * error
        assert abs(float(made.variance[row, 0]) / variance - 1) < STANDARD_ERRORS * (2 / 1000) ** 0.5
        sizes.append(abs(1 / (1 + math.exp(-f)) - moments[0]) / error)  # the sigmoid of the mean is not the mean
    assert max(sizes) > STANDARD_ERRORS
    before = torch.get_rng_state()
    assert_identical(own(logit_normal)(outputs[:, 0]).mean, made.mean)
    assert torch.equal(before, torch.get_rng_state())


def test_quantiles_by_draws_are_near_the_true_ones():
    tril = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    found = predicted(own(lambda out: dist.MultivariateNormal(out, scale_tril=tril)))
    exact = predicted(pb.GaussianLikelihood(1.0))  # the same margins
    assert_identical(found.mean, exact.mean)
    for level in (0.05, 0.5, 0.9):
        probability = exact.cdf(found.quantile(level))
        error = (level * (1 - level) / 4000) ** 0.5
        assert bool(((probability - level).abs() < STANDARD_ERRORS * error).all())
        assert not bool(((probability - level - 0.1).abs() < STANDARD_ERRORS * error).any())  # the twin
        assert bool((found.cdf(found.quantile(level)) - level).abs().max() <= 1 / 4000)
    draws = found.sample(4000, seed=3)
    assert float(torch.corrcoef(draws[:, 0].T)[0, 1]) > 0.5  # the two targets of a row go together
    assert float(torch.corrcoef(exact.sample(4000, seed=3)[:, 0].T)[0, 1]) < 0.3  # without it they do not
    y = torch.randn(8, 2)
    joint = dist.MultivariateNormal(found.components.output, scale_tril=tril).log_prob(y)
    assert_identical(found.log_prob(y), joint.logsumexp(0) - math.log(30))


@pytest.mark.parametrize(
    ("make", "exact"),
    [
        (lambda out: dist.Gamma(2.0, out.exp()), lambda q, f: scipy.stats.gamma.ppf(q, 2.0, scale=np.exp(-f))),
        (lambda out: dist.Chi2(1 + out.square()), lambda q, f: scipy.stats.chi2.ppf(q, 1 + f**2)),
    ],
    ids=["Gamma", "Chi2"],
)
def test_quantiles_stay_in_the_support(make, exact):
    """Also where the bounds from mean and variance are outside of the support: there torch's cdf is NaN."""
    outputs = torch.linspace(-2.0, 2.0, 5)
    for level in (0.001, 0.05, 0.9):
        found = mixture_quantile(make(outputs[None]), level)
        assert_identical(found, torch.as_tensor(exact(level, outputs.numpy())))
    assert not bool(mean_cdf(make(outputs[None]), torch.full((5,), -1.0)).any())


def test_a_distribution_without_a_mean_says_so():
    with pytest.raises(ValueError, match="Cauchy has none; use a distribution with a mean"):
        predicted(own(lambda out: dist.Cauchy(out, 1.0)))


# --- all ways to fit --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counts():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 1, generator=generator, dtype=torch.float64)
    return x, torch.poisson(x.exp(), generator=generator)


def of_counts():
    return own(
        lambda out, alpha: dist.NegativeBinomial(1 / alpha, logits=out + alpha.log()),
        latent={"alpha": dist.LogNormal(-1.0, 0.5)},
    )


def counting_model(num_data=60):
    torch.manual_seed(0)
    return pb.BayesianModel(nn.Linear(1, 1), prior=dist.Normal(0.0, 1.0), likelihood=of_counts(), num_data=num_data)


def test_gauss_newton_fits_are_refused(counts):
    with pytest.raises(ValueError, match=r"got DistributionLikelihood.*use `fit_laplace`"):
        pb.fit_gauss_newton(counting_model(), counts)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # short chains
def test_fits_samplers_and_comparison_agree(counts):
    model = counting_model()
    chains = pb.fit_nuts(model, counts, num_chains=2, num_warmup=50, num_samples=50, compile="auto", seed=0)
    assert "not written in C (aten.digamma" in chains.path
    posteriors = {"NUTS": chains}
    for name, estimator in (("none", None), ("lrt", pb.LocalReparameterization()), ("flipout", pb.Flipout())):
        guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
        posteriors[name] = pb.fit_svi(model, counts, guide, optimizer=ADAM, num_epochs=250, estimator=estimator, seed=0)
    posteriors["Laplace"] = pb.fit_laplace(model, counts)
    found = pb.compare(model, posteriors, counts[0][:30], y=counts[1][:30], num_samples=50, seed=0)
    ratios = [s.scores["total sd ratio"].value for s in found.pairs if s.reference == "NUTS"]
    assert len(ratios) == 4
    assert all(0.7 < ratio < 1.4 for ratio in ratios)


@pytest.mark.usefixtures("short_fits")
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_fit_chooses_and_says_why(counts):
    x, y = (part[:20] for part in counts)
    posterior = pb.fit(counting_model(num_data=20), (x, y), seed=0)
    assert "digamma" in str(posterior.status)


def test_a_saved_posterior_needs_the_same_function(counts, tmp_path):
    model = counting_model()
    posterior = pb.fit_svi(model, counts, pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=2, seed=0)
    path = tmp_path / "posterior.safetensors"
    pb.save_posterior(posterior, path, model=model)
    again = counting_model()
    loaded = pb.load_posterior(path, model=again)
    found, expected = (
        pb.predict(m, p, counts[0], num_samples=5, seed=0) for m, p in ((again, loaded), (model, posterior))
    )
    assert_identical(found.mean, expected.mean)
    other = pb.BayesianModel(
        nn.Linear(1, 1), prior=dist.Normal(0.0, 1.0), likelihood=pb.PoissonLikelihood(), num_data=60
    )
    with pytest.raises(ValueError, match="likelihood"):
        pb.load_posterior(path, model=other)


def test_pictures_and_intervals_take_the_prediction(counts):
    model = counting_model()
    posterior = pb.fit_svi(model, counts, pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=2, seed=0)
    order = counts[0][:, 0].argsort()
    prediction = pb.predict(model, posterior, counts[0][order], num_samples=20, seed=0, keep_draws=True)
    pb.plotting.regression_bands(counts[0][order], prediction)
    for score in ("absolute", "scaled", "quantile"):
        intervals = pb.calibration.ConformalIntervals(prediction, counts[1][order], score=score)
        low, high = intervals.interval(prediction, 0.9)
        assert 0.85 <= pb.metrics.interval_coverage(low, high, counts[1][order]) <= 1
    assert len(str(prediction).splitlines()) < 9


def test_calibration_refuses_censored_targets():
    likelihood = likelihoods.Censored(low=0.0)
    y = torch.rand(8, 2)
    found = predicted(likelihood, y=y)
    assert str(found).startswith("CensoredPrediction: 8 rows, uncensored, 2 outputs with quantiles")
    for calibrate in (pb.calibration.ConformalIntervals, pb.calibration.SpreadFactor.fit):
        with pytest.raises(ValueError, match="use the quantiles of the prediction"):
            calibrate(found, y)
    assert found.score() == {"nll": found.nll}
    with pytest.raises(ValueError, match=r"predict\(..., y=y\)"):
        found.score(y + 1)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda out: out, "must return a distribution, got Tensor"),
        (lambda out: dist.Normal(0.0, 1.0), "one element for each row"),
        (lambda out: dist.Normal(out, out - 100.0), "Map the output to the allowed range"),
        (lambda out: dist.Normal(out[:, 0], 1.0), "Count axes from the end"),
        (lambda out: dist.Categorical(logits=out), "use CategoricalLikelihood"),
        (lambda out: dist.Gamma(2.0, out.exp()), "must be at least 0, got values from -"),
        (lambda out: dist.Poisson(out.exp()), "whole numbers of at least 0"),
    ],
)
def test_a_wrong_function_is_refused_with_a_remedy(make, words):
    x, y = torch.randn(8, 3), torch.randn(8, 2).index_fill(0, torch.tensor([0]), -0.5)
    y = y[:, 0] if "Count" in words else y
    with pytest.raises(ValueError, match=words):
        pb.fit_svi(model := model_of(own(make)), (x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=1, seed=0)


def test_a_latent_number_that_does_not_broadcast_is_found_at_once():
    x, y = torch.randn(8, 3), torch.randn(8)
    model = model_of(
        own(lambda out, scale: dist.Normal(out[..., 0], scale), latent={"scale": dist.LogNormal(0.0, 1.0)})
    )
    with pytest.raises(ValueError, match="own numbers must broadcast"):
        pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=1, seed=0)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"make": dist.Normal}, "a function from the network's output"),
        ({"make": 3}, "a function from the network's output"),
        ({"num_parts": 0}, "`num_parts`"),
        ({"latent": {"scale": 1.0}}, "one of `pyro.distributions` without batch shape, got float"),
        ({"latent": {"scale": dist.Normal(torch.zeros(2), 1.0)}}, "to_event"),
        ({"latent": {"scale": dist.Poisson(1.0)}}, "continuous"),
        ({"latent": {"forward": dist.Normal(0.0, 1.0)}}, "choose another name"),
        ({"learned": {"scale": "a"}}, "finite number"),
        ({"latent": 3}, "a dict by name"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, words):
    with pytest.raises(ValueError, match=words):
        own(**{"make": lambda out: dist.Normal(out, 1.0), **kwargs})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: likelihoods.StudentT(2.0), "above 2"),
        (lambda: likelihoods.StudentT(4.0, dist.Normal(0.0, 1.0)), "positive numbers"),
        (lambda: likelihoods.Censored(), "use GaussianLikelihood"),
        (lambda: likelihoods.Censored(low=2.0, high=1.0), "exchange"),
        (lambda: likelihoods.Survival("gamma"), "'weibull', 'lognormal'"),
        (lambda: likelihoods.Ordinal(3, [1.0, 0.0]), "increasing"),
        (lambda: likelihoods.Ordinal(3, dist.Normal(0.0, 1.0)), r"Ordinal.prior\(3\)"),
        (lambda: likelihoods.Ordinal(1), "at least 2"),
    ],
)
def test_wrong_settings_of_ready_made_ones_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("likelihood", "y", "words"),
    [
        (likelihoods.Beta(), torch.tensor([[0.0], [0.5]]), "strictly between 0 and 1, got 1 equal"),
        (likelihoods.Censored(low=0.0), torch.tensor([[-1.0], [0.5]]), "clamp"),
        (likelihoods.Survival(), torch.tensor([[-1.0, 1.0], [0.5, 0.0]]), "first column"),
        (likelihoods.Survival(), torch.tensor([[1.0, 2.0], [0.5, 0.0]]), "second column"),
        (likelihoods.Survival(), torch.tensor([[1.0], [0.5]]), r"expects `y` of shape \(2, 2\)"),
        (likelihoods.Ordinal(3), torch.tensor([0, 3]), "count classes from 0"),
        (likelihoods.Ordinal(3), torch.tensor([0.0, 1.0]), "y.long"),
        (likelihoods.NegativeBinomial(), torch.tensor([[0.5], [1.0]]), "whole numbers"),
    ],
)
def test_wrong_targets_are_refused(likelihood, y, words):
    model = pb.BayesianModel(nn.Linear(1, 1), prior=pb.NormalPrior(), likelihood=likelihood, num_data=2)
    with pytest.raises(ValueError, match=words):
        model.check_targets(torch.zeros(2, 1), y)
