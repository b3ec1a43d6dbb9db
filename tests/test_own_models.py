"""Users' Pyro models and guides, functions and modules, in `fit_svi`, `fit_nuts` and `predict`."""

import functools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

import pyro_bnn as pb
from pyro_bnn.scores.uncertainty import RegressionPrediction, ValuePrediction

pytestmark = pytest.mark.uses_param_store  # functions keep their parameters there
ADAM = functools.partial(torch.optim.Adam, lr=0.05)
NOISE = 0.3


def line(x, y=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
    mean = slope * x
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(mean, NOISE), obs=y)
    return mean


class Line(PyroModule):
    def __init__(self):
        super().__init__()
        self.slope = PyroSample(dist.Normal(0.0, 2.0))

    def forward(self, x, y=None):
        mean = self.slope * x
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(mean, NOISE), obs=y)
        return mean


def learned_noise(x, y=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
    scale = pyro.param("scale", torch.tensor(1.0), constraint=dist.constraints.positive)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(slope * x, scale), obs=y)
    return slope * x


def guide(x, y=None):
    loc = pyro.param("loc", torch.tensor(0.0))
    scale = pyro.param("width", torch.tensor(0.1), constraint=dist.constraints.positive)
    pyro.sample("slope", dist.Normal(loc, scale))


GUIDES = {
    "function": lambda model, x, y: guide,
    "AutoNormal": lambda model, x, y: AutoNormal(model),
    "MeanFieldGuide": lambda model, x, y: pb.MeanFieldGuide(model, x, y),
}


@pytest.fixture
def data():
    x = torch.linspace(-1, 1, 40)
    return x, 3 * x + NOISE * torch.randn(40)


def exact(x, y):
    """Mean and standard deviation of the slope: Bayesian linear regression in one weight."""
    precision = 1 / 4 + x.square().sum() / NOISE**2
    return (x @ y) / NOISE**2 / precision, precision**-0.5


@pytest.mark.daily("MeanFieldGuide-function")
@pytest.mark.parametrize("make", [lambda: line, Line], ids=["function", "module"])
@pytest.mark.parametrize("name", GUIDES)
def test_every_kind_of_guide_finds_the_exact_posterior(data, make, name):
    x, y = data
    model = make()
    optimizer = functools.partial(torch.optim.Adam, lr=0.03)
    fitted = GUIDES[name](model, x, y)
    elbo = Trace_ELBO(num_particles=2)
    posterior = pb.fit_svi(model, data, fitted, optimizer=optimizer, num_epochs=400, elbo=elbo, seed=0)
    draws = torch.stack([draw["slope"] for draw in posterior.draws(400, x)])
    mean, sd = exact(x, y)
    assert abs(draws.mean() - mean) < 0.5 * sd  # the exact posterior has a guide in each family
    assert 0.7 < draws.std() / sd < 1.4
    prediction = pb.predict(model, posterior, x, num_samples=400, seed=0)
    assert isinstance(prediction, RegressionPrediction)
    torch.testing.assert_close(prediction.mean, draws.mean() * x, rtol=0.0, atol=float(sd))
    torch.testing.assert_close(prediction.epistemic.sqrt(), draws.std() * x.abs(), rtol=0.3, atol=1e-6)
    assert prediction.score(y)["rmse"] < 1.3 * NOISE
    values = pb.predict(model, posterior, x, num_samples=400, site="_RETURN", seed=0)
    assert isinstance(values, ValuePrediction)
    torch.testing.assert_close(values.mean, prediction.mean)


def test_chains_and_fits_predict_alike(data):
    x, y = data
    chains = pb.fit_nuts(line, (x, y), num_samples=600, num_warmup=200, num_chains=2, seed=0)
    prediction = pb.predict(line, chains, x, keep_draws=True, seed=0)
    mean, sd = exact(x, y)
    torch.testing.assert_close(prediction.mean, mean * x, rtol=0.0, atol=float(sd))
    low, high = prediction.quantile([0.05, 0.95])
    assert bool((low <= high).all())


def test_a_functions_parameters_are_left_where_pyro_looks_for_them(data):
    """So that Pyro's tools can continue a fit, and `predict` uses the learned parameters."""
    posterior = pb.fit_svi(learned_noise, data, guide, optimizer=ADAM, num_epochs=300, seed=0)
    assert 0.2 < pyro.param("scale").item() < 0.5
    (draw,) = posterior.draws(1, data[0])
    assert draw["slope"] == pytest.approx(3.0, abs=0.5)
    before = pyro.param("loc").item()
    SVI(learned_noise, guide, pyro.optim.Adam({"lr": 1e-6}), Trace_ELBO()).step(*data)
    assert pyro.param("loc").item() == pytest.approx(before, abs=1e-5)


def test_steps_are_those_of_pyros_svi(data):
    """The first gradients, and so the first step of plain SGD, by both."""
    torch.manual_seed(0)
    svi = SVI(line, guide, pyro.optim.SGD({"lr": 1e-4}), Trace_ELBO())
    for _ in range(3):
        svi.step(*data)
    expected = {name: pyro.param(name).detach().clone() for name in ("loc", "width")}
    pyro.clear_param_store()
    with pb.svi_step(line, guide, functools.partial(torch.optim.SGD, lr=1e-4)) as step:
        step.prepared(*data)
        torch.manual_seed(0)
        for _ in range(3):
            step(*data)
    for name, value in expected.items():
        torch.testing.assert_close(pyro.param(name).detach(), value, rtol=1e-6, atol=0.0)


def test_an_interrupted_fit_of_functions_goes_on(data, tmp_path):
    file = tmp_path / "fit.pt"
    options = {"optimizer": ADAM, "seed": 0}
    whole = pb.fit_svi(line, data, guide, num_epochs=6, **options)
    pyro.clear_param_store()
    pb.fit_svi(line, data, guide, num_epochs=3, checkpoint=file, **options)
    pyro.clear_param_store()
    resumed = pb.fit_svi(line, data, guide, num_epochs=6, resume=file, **options)
    assert resumed.history.elbo == whole.history.elbo


def late(x, y=None):
    if y is not None and len(x) < 40:
        pyro.param("late", torch.tensor(0.0))
    return line(x, y)


def returns_none(x, y=None):
    pyro.sample("slope", dist.Normal(0.0, 2.0))


def two(x, y=None):
    offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
    return line(x, y) + offset


REFUSED = {
    "a guide without its model's arguments": (lambda x, y: pb.MeanFieldGuide(line), r"`MeanFieldGuide\(line, x, y\)`"),
    "a module's too": (lambda x, y: pb.MeanFieldGuide(Line()), r"`MeanFieldGuide\(Line, x, y\)`"),
    "auto_normal": (
        lambda x, y: pb.auto_guide(AutoNormal, line),
        r"got function; for another Pyro model take MeanFieldGuide\(model, x, y\)",
    ),
    "a number as a model": (
        lambda x, y: pb.fit_svi(3, (x, y), guide, optimizer=ADAM, num_epochs=1),
        "`model` must be a module or a function, got int; pass a Pyro model",
    ),
    "a class as a guide": (
        lambda x, y: pb.fit_svi(line, (x, y), AutoNormal, optimizer=ADAM, num_epochs=1),
        r"`guide` must be an instance, got the class; pass `AutoNormal\(model\)`",
    ),
    "predict without a value": (
        lambda x, y: pb.predict(returns_none, pb.MeanFieldGuide(line, x, y), x),
        "must have one observed site with a row for each input, or return the values to predict.* got NoneType",
    ),
    "predict with another model's posterior": (
        lambda x, y: pb.predict(two, pb.MeanFieldGuide(line, x, y), x),
        r"belongs to another model: it lacks \['offset'\]",
    ),
    "predict with too many": (
        lambda x, y: pb.predict(line, pb.MeanFieldGuide(two, x, y), x),
        r"has values of \['offset'\], which the model does not draw",
    ),
    "predict by a plain network": (
        lambda x, y: pb.predict(nn.Linear(40, 1), pb.MeanFieldGuide(line, x, y), x),
        r"got Linear, which draws none of \['slope'\]",
    ),
    "predict with targets": (
        lambda x, y: pb.predict(line, pb.MeanFieldGuide(line, x, y), x, y=y, site="_RETURN"),
        r"`y` needs an observed site.*name one of \['obs'\] as `site`, or leave `y` out",
    ),
    "predict by a model that needs targets": (
        lambda x, y: pb.predict(lambda x, y: line(x, y), pb.MeanFieldGuide(line, x, y), x),
        r"can be called without its observations, as `model\(x, y=None\)`",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_the_remedy(data, name):
    run, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        run(*data)


def test_a_parameter_that_comes_late_is_refused(data):
    x, y = data
    batches = [(x, y), (x[:20], y[:20])]
    with pytest.raises(ValueError, match="must run at the first call, got a new one of `late`"):
        pb.fit_svi(late, batches, guide, optimizer=ADAM, num_epochs=1)


def test_a_prediction_of_values_can_be_shown_cut_and_tabled(data):
    x, y = data
    options = {"site": "_RETURN", "seed": 0}
    prediction = pb.predict(line, pb.MeanFieldGuide(line, x, y), x, num_samples=5, keep_draws=True, **options)
    assert list(prediction.to_frame().columns) == ["mean", "sd"]
    assert prediction[:3].values.shape == (5, 3)
    assert "standard deviation over draws" in str(prediction)
    single = pb.predict(line, pb.MeanFieldGuide(line, x, y), x, num_samples=1, keep_draws=False, **options)
    with pytest.raises(ValueError, match="at least"):
        _ = single.variance
    with pytest.raises(ValueError, match="keep_draws=True"):
        single.quantile([0.5])
