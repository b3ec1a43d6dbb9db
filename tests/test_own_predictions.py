"""Predictions, comparisons and files of Pyro models of one's own, beside the same written by hand."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import nn

import pyro_bnn as pb
from pyro_bnn.modelling.distributions import NormalMixture

from .fits import ADAM
from .tolerances import IDENTITY

pytestmark = pytest.mark.uses_param_store
NUM = 50
X = torch.linspace(-1, 1, 6, dtype=torch.float64)
WEIGHTS = torch.randn(NUM, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
STORED = pb.StoredPosterior({"weights": WEIGHTS}, method="made up", status=pb.Status(True, "made up"))
LINES = WEIGHTS[:, :1] + WEIGHTS[:, 1:] * X  # (S, N)


def close(found, expected):
    torch.testing.assert_close(found, expected, **IDENTITY)


def model_of(observe):
    """A line whose observations have any distribution; it returns the line."""

    def model(x, y=None):
        weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        mean = weights[0] + weights[1] * x
        with pyro.plate("data", len(x)):
            pyro.sample("obs", observe(mean), obs=y)
        return mean

    return model


def by_hand(observe, y):
    """Log-density of the targets in the mixture of all draws."""
    return torch.stack([observe(line).log_prob(y) for line in LINES]).logsumexp(0) - math.log(NUM)


def two(mean):
    return torch.stack([mean, 2 * mean], -1)


NUMBERS = {
    "normal": (lambda mean: dist.Normal(mean, 0.3), X),
    "two outputs": (lambda mean: dist.Normal(two(mean), 0.3).to_event(1), two(X)),
    "heteroscedastic": (lambda mean: dist.Normal(mean, 0.1 + mean.abs()), X),
    "Student-t": (lambda mean: dist.StudentT(5.0, mean, 0.3), X),
    "Poisson": (lambda mean: dist.Poisson(mean.exp()), torch.arange(6)),
    "binomial": (lambda mean: dist.Binomial(5, probs=mean.sigmoid()), torch.arange(6)),
    "zero-inflated": (lambda mean: dist.ZeroInflatedPoisson(mean.exp(), gate=mean.sigmoid()), torch.arange(6)),
    "negative binomial": (lambda mean: dist.NegativeBinomial(3.0, logits=mean), torch.arange(6)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    observe, y = NUMBERS[name]
    model = model_of(observe)
    prediction = pb.predict(model, STORED, X, y=y, num_samples=NUM, seed=0)
    assert isinstance(prediction, pb.uncertainty.RegressionPrediction)
    means = torch.stack([observe(line).mean for line in LINES])
    close(prediction.mean, means.mean(0))
    close(prediction.epistemic, means.var(0))
    close(prediction.aleatoric, torch.stack([observe(line).variance for line in LINES]).mean(0))
    close(prediction.log_density, by_hand(observe, y.double()))
    if prediction.components is not None:  # Pyro's zero-inflated distributions do not keep their rates
        close(prediction.log_prob(y)[:2], prediction[:2].log_prob(y[:2]))
    assert prediction.score()["nll"] == pytest.approx(-float(by_hand(observe, y.double()).mean()))


def test_quantiles_and_draws():
    observe, y = NUMBERS["normal"]
    prediction = pb.predict(model_of(observe), STORED, X, y=y, num_samples=NUM, keep_draws=True, seed=0)
    close(prediction.log_prob(y), prediction.log_density)
    middle = prediction.quantile(0.5)
    cdf = torch.stack([observe(line).cdf(middle) for line in LINES]).mean(0)
    torch.testing.assert_close(cdf, torch.full_like(cdf, 0.5), rtol=0.0, atol=1e-6)


CLASSES = {
    "categorical": (lambda mean: dist.Categorical(logits=two(mean)), torch.arange(6) % 2),
    "bernoulli": (lambda mean: dist.Bernoulli(logits=mean), torch.arange(6) % 2),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name):
    observe, y = CLASSES[name]
    prediction = pb.predict(model_of(observe), STORED, X, y=y, num_samples=NUM, seed=0)
    assert isinstance(prediction, pb.uncertainty.ClassificationPrediction)
    second = LINES.sigmoid().mean(0)  # the log-odds are 2 m - m = m, or m
    close(prediction.probs, torch.stack([1 - second, second], -1))
    close(prediction.log_density, torch.where(y == 1, second, 1 - second).log())


def correlated(mean):
    return dist.MultivariateNormal(two(mean), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))


OTHERS = {
    "dependent outputs": (correlated, two(X)),
    "no moments": (lambda mean: dist.Cauchy(mean, 1.0), X),
    "counts of several kinds": (
        lambda mean: dist.Multinomial(3, logits=two(mean)),
        torch.tensor([[1.0, 2.0]], dtype=torch.float64).expand(6, 2),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sites_are_predicted_by_draws(name):
    observe, y = OTHERS[name]
    prediction = pb.predict(model_of(observe), STORED, X, y=y, num_samples=NUM, keep_draws=True, seed=0)
    assert isinstance(prediction, pb.uncertainty.ValuePrediction)
    close(prediction.log_density, by_hand(observe, y))
    assert prediction.values.shape == (NUM, *y.shape)
    close(prediction.mean, prediction.values.mean(0))
    assert prediction.score().keys() == {"rmse", "nll"}
    assert prediction.score(y + 1).keys() == {"rmse"}
    close(torch.tensor(prediction.to_frame()["log_density"]), prediction.log_density)


def test_drawn_values_have_the_total_variance():
    """Many draws of observations with dependent outputs: the variance is that of a line plus 1, not that of a line."""
    many = pb.StoredPosterior({"weights": WEIGHTS.repeat(20, 1)}, method="made up", status=pb.Status(True, "made up"))
    prediction = pb.predict(model_of(correlated), many, X, num_samples=20 * NUM, seed=0)
    means = torch.stack([two(line) for line in LINES])
    total, line = means.var(0, correction=0) + 1, means.var(0, correction=0)
    error = total * math.sqrt(2 / (20 * NUM))  # of a sample variance of nearly Gaussian numbers
    assert bool(((prediction.variance - total).abs() < 5 * error).all())
    assert not bool(((prediction.variance - line).abs() < 5 * error).all())  # the twin


def test_a_mixture_density_keeps_its_parts():
    def observe(mean):
        weights = torch.zeros(*mean.shape, 2)
        return NormalMixture(weights, torch.stack([mean - 1, mean + 1], -1), torch.full((*mean.shape, 2), 0.3))

    prediction = pb.predict(model_of(observe), STORED, X, y=X, num_samples=NUM, seed=0)
    assert isinstance(prediction, pb.uncertainty.MixtureDensityPrediction)
    close(prediction.between_components, torch.ones(6))


def test_predictions_agree_with_pyros_predictive():
    """Within Monte Carlo error; a model with half of the noise does not agree."""
    model, num_draws = model_of(NUMBERS["normal"][0]), 300
    guide = AutoNormal(model)
    pb.fit_svi(model, (X, X), guide, optimizer=ADAM, num_epochs=50, seed=0)
    torch.manual_seed(0)
    draws = Predictive(model, guide=guide, num_samples=num_draws)(X)["obs"]

    def are_equal(noise):
        same = model_of(lambda mean: dist.Normal(mean, noise))
        prediction = pb.predict(same, guide, X, num_samples=num_draws, seed=1)
        mean_error = (2 * draws.var(0) / num_draws).sqrt()
        variance_error = draws.var(0) * math.sqrt(2 * 2 / num_draws)
        are_close = (prediction.mean - draws.mean(0)).abs() < 5 * mean_error
        return bool((are_close & ((prediction.total - draws.var(0)).abs() < 5 * variance_error)).all())

    assert are_equal(0.3)
    assert not are_equal(0.15)


# --- which site is predicted ------------------------------------------------------------------------------------------


def two_sites(x, y=None, z=None):
    mean = model_of(NUMBERS["normal"][0])(x, y)
    with pyro.plate("more", len(x)):
        pyro.sample("count", dist.Poisson(mean.exp()), obs=z)
    return 2 * mean


def test_sites_are_named_and_the_return_value_is_one():
    options = {"num_samples": NUM, "seed": 0}
    line, counts = (pb.predict(two_sites, STORED, X, site=site, **options) for site in ("obs", "count"))
    close(line.mean, LINES.mean(0))
    close(counts.mean, LINES.exp().mean(0))
    for named in (pb.predict(two_sites, STORED, X, site=site, **options) for site in (None, "_RETURN")):
        assert isinstance(named, pb.uncertainty.ValuePrediction)
        close(named.mean, 2 * LINES.mean(0))
        close(named.variance, (2 * LINES).var(0))
    nothing = model_of(NUMBERS["normal"][0])
    silent = pb.predict(lambda x, y=None: [nothing(x, y)][1:], STORED, X, **options)  # without a value to return
    close(silent.mean, line.mean)


REFUSED = {
    "an unknown site": ({"site": "weights"}, r"`site` must be an observed site of the model \(obs\) or '_RETURN'"),
    "targets of another shape": ({"y": X[:, None]}, r"shape of the site `obs`, \(6,\), got \(6, 1\)"),
    "targets that are NaN": ({"y": X * math.nan}, "`y` must be finite"),
    "a loader": ({"x": iter([X, X])}, "a loader. needs a BayesianModel"),
    "a list": ({"x": [X, X]}, r"a tuple of the arguments of your Pyro model, got a list of 2 items; pass a tuple"),
    "linearised": ({"linearised": True}, "`linearised` needs a BayesianModel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        pb.predict(model_of(NUMBERS["normal"][0]), STORED, **{"x": X, "num_samples": 3, **options})


def test_impossible_targets_are_refused():
    categorical, poisson = model_of(CLASSES["categorical"][0]), model_of(NUMBERS["Poisson"][0])
    with pytest.raises(ValueError, match=r"possible values of the site `obs`, got 1 outside"):
        pb.predict(categorical, STORED, X, y=torch.tensor([0, 1, 0, 1, 0, 2]))
    with pytest.raises(ValueError, match="whole numbers, as the site `obs` does"):
        pb.predict(categorical, STORED, X, y=X)
    with pytest.raises(ValueError, match=r"possible values of the site `obs`, got 3 outside"):
        pb.predict(poisson, STORED, X, y=torch.tensor([0, 1, 2, -1, -2, -3]))
    model, x = network()
    with pytest.raises(ValueError, match="`site` is for Pyro models of your own"):
        pb.predict(model, pb.MeanFieldGuide(model), x, site="obs")


# --- beside a BayesianModel, and compared -----------------------------------------------------------------------------


def network():
    net = nn.Linear(1, 1).double()
    likelihood = pb.GaussianLikelihood(0.3)
    return pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=6), X[:, None]


def written_out(x, y=None):
    """The model of :func:`network`."""
    weight = pyro.sample("net.weight", dist.Normal(0.0, 1.0).expand([1, 1]).to_event(2))
    bias = pyro.sample("net.bias", dist.Normal(0.0, 1.0).expand([1]).to_event(1))
    mean = x @ weight.T + bias
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(mean, 0.3).to_event(1), obs=y)
    return mean


def test_both_kinds_of_model_predict_alike_and_are_compared():
    model, x = network()
    draws = {"net.weight": WEIGHTS[:, 1:, None], "net.bias": WEIGHTS[:, :1]}
    posterior = pb.StoredPosterior(draws, method="made up", status=pb.Status(True, "made up"))
    shifted = pb.StoredPosterior(
        draws | {"net.bias": draws["net.bias"] + 1}, method="made up", status=pb.Status(True, "made up")
    )
    entries = {"network": (model, posterior), "own": posterior, "shifted": shifted}
    result = pb.compare(written_out, entries, x, y=x, num_samples=NUM, seed=0)
    first, second = result.predictions["network"], result.predictions["own"]
    for name in ("mean", "epistemic", "aleatoric", "log_density"):
        close(getattr(second, name), getattr(first, name))
    distances = {(row.reference, row.method): row.scores["rms mean difference"].value for row in result.pairs}
    assert distances["network", "own"] == pytest.approx(0.0, abs=1e-12)
    assert distances["own", "shifted"] == pytest.approx(1.0)
    assert "coverage_90" in result.methods[1].scores


def test_a_comparison_needs_an_observed_site():
    with pytest.raises(ValueError, match="a RegressionPrediction is needed, got a ValuePrediction"):
        pb.compare(two_sites, {"a": STORED, "b": STORED}, X, num_samples=NUM)
    named = pb.compare(two_sites, {"a": STORED, "b": STORED}, X, num_samples=NUM, site="count")
    close(named.predictions["a"].mean, pb.predict(two_sites, STORED, X, num_samples=NUM, site="count").mean)
    with pytest.raises(ValueError, match="`model` must be a BayesianModel, got int"):
        pb.compare(3, {"a": STORED, "b": STORED}, X, num_samples=NUM)


# --- files ------------------------------------------------------------------------------------------------------------


class Learned(PyroModule):
    """With a random weight and a learned scale."""

    def __init__(self):
        super().__init__()
        self.weights = PyroSample(dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        self.scale = PyroParam(torch.tensor(1.0), constraint=dist.constraints.positive)

    def forward(self, x, y=None):
        weights = self.weights
        mean = weights[0] + weights[1] * x
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(mean, self.scale), obs=y)
        return mean


LINE = model_of(NUMBERS["normal"][0])


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_chains_and_draws_of_a_function(tmp_path):
    chains = pb.fit_nuts(LINE, (X, X), num_samples=20, num_warmup=5, num_chains=2, seed=0)
    for posterior in (chains, STORED):
        pb.save_posterior(posterior, tmp_path / "file", LINE, data=(X, X))
        loaded = pb.load_posterior(tmp_path / "file", LINE, data=(X[:2], X[:2]))
        before, after = (pb.predict(LINE, p, X, y=X, num_samples=20, seed=0) for p in (posterior, loaded))
        assert torch.equal(before.mean, after.mean)
        assert torch.equal(before.log_density, after.log_density)


@pytest.mark.parametrize("kind", ["AutoNormal", "MeanFieldGuide"])
def test_a_module_gets_its_parameters_back_with_a_guide(kind, tmp_path):
    def made(model):
        guide = AutoNormal(model) if kind == "AutoNormal" else pb.MeanFieldGuide(model, X, X)
        guide(X, X)
        return guide

    model = Learned()
    posterior = pb.fit_svi(model, (X, X), made(model), optimizer=ADAM, num_epochs=20, seed=0)
    assert float(model.scale.detach()) != 1
    pb.save_posterior(posterior, tmp_path / "file", model, data=(X, X))
    again = Learned()
    with pytest.raises(ValueError, match="cannot be made from the file alone"):
        pb.load_posterior(tmp_path / "file", again, data=(X, X))
    loaded = pb.load_posterior(tmp_path / "file", again, guide=made(again), data=(X, X))
    assert torch.equal(again.scale, model.scale)
    before, after = (pb.predict(m, p, X, y=X, seed=0) for m, p in ((model, posterior), (again, loaded)))
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.log_density, after.log_density)


def with_sites(**sites):
    def model(x, y=None):
        values = [pyro.sample(name, prior) for name, prior in sites.items()]
        mean = sum(value.sum() for value in values) * x
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(mean, 0.3), obs=y)
        return mean

    return model


def normal(size):
    return dist.Normal(0.0, 1.0).expand([size]).to_event(1)


OTHER_MODELS = {
    "a name": (with_sites(slopes=normal(2)), "it lacks the latent variable `slopes` of the model"),
    "a shape": (with_sites(weights=normal(3)), r"shape of `weights` is \(2,\) in the file and \(3,\) in the model"),
    "a support": (
        with_sites(weights=dist.LogNormal(0.0, 1.0).expand([2]).to_event(1)),
        r"support of `weights` is Real\(\) in the file and GreaterThan\(lower_bound=0.0\) in the model",
    ),
    "one more": (with_sites(weights=normal(2), more=normal(1)), "it lacks the latent variable `more`"),
    "a module": (Learned(), "lacks `scale_unconstrained`"),
    "none": (None, "saved with a Pyro model of your own"),
    "another kind": (network()[0], "saved with a Pyro model of your own"),
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_a_file_of_another_model_is_refused(name, tmp_path):
    model, message = OTHER_MODELS[name]
    pb.save_posterior(STORED, tmp_path / "file", LINE, data=(X, X))
    options = {} if name in ("none", "another kind") else {"data": (X, X)}
    with pytest.raises(ValueError, match=message):
        pb.load_posterior(tmp_path / "file", model, **options)
    pb.load_posterior(tmp_path / "file", with_sites(weights=normal(2)), data=(X, X))  # the same sites


def stored_scale(x, y=None):
    scale = pyro.param("scale", torch.tensor(1.0))
    return with_sites(weights=normal(2))(x * scale, y)


REFUSED_CALLS = {
    "no arguments": (LINE, {}, "which only a call can show; pass the arguments of a call as `data`"),
    "not a tuple": (LINE, {"data": X}, "got Tensor"),
    "without targets": (LINE, {"data": (X,)}, "obs"),
    "too many": (LINE, {"data": (X, X, X)}, "cannot be called"),
    "a function with parameters": (
        stored_scale,
        {"data": (X, X)},
        r"the parameters \['scale'\] in Pyro's global store",
    ),
    "arguments of a BayesianModel": (network()[0], {"data": (X, X)}, "`data` is for a Pyro model of your own"),
    "a path": ("x.pt", {}, "or None, got str; pass the path first"),
    "a class": (Learned, {"data": (X, X)}, "must be a BayesianModel, a Pyro model of your own, or None"),
}


@pytest.mark.parametrize("name", ["a name", "a shape", "one more"])
def test_a_posterior_of_another_model_is_not_saved(name, tmp_path):
    with pytest.raises(ValueError, match="the posterior cannot be saved"):
        pb.save_posterior(STORED, tmp_path / "file", OTHER_MODELS[name][0], data=(X, X))


@pytest.mark.parametrize("name", REFUSED_CALLS)
def test_calls_that_are_refused(name, tmp_path):
    model, options, message = REFUSED_CALLS[name]
    with pytest.raises(ValueError, match=message):
        pb.save_posterior(STORED, tmp_path / "file", model, **options)
    assert not (tmp_path / "file").exists()
