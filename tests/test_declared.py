"""Networks of Pyro's modules, which declare random weights by `PyroSample`."""

import functools
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import nn

import pyro_bnn as pb
from tests.tolerances import assert_identical

pytestmark = pytest.mark.uses_param_store  # by Pyro's own tools
ADAM = functools.partial(torch.optim.Adam, lr=0.05)


class Slope(PyroModule):
    """A line with a declared weight: y = 3 x."""

    def __init__(self, *, prior=None):
        super().__init__()
        self.linear = PyroModule[nn.Linear](1, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 2.0).expand([1, 1]).to_event(2) if prior is None else prior)

    def forward(self, x):
        return self.linear(x)


class Gain(PyroModule):
    """A positive factor that is declared, and weights that are not."""

    def __init__(self):
        super().__init__()
        self.linear, self.gain = nn.Linear(1, 1), PyroSample(dist.LogNormal(0.0, 0.5))

    def forward(self, x):
        return self.gain * self.linear(x)


class Hierarchical(PyroModule):
    """A weight whose prior depends on a declared scale, and a square of it that is computed."""

    def __init__(self):
        super().__init__()
        self.weight = PyroSample(lambda self: dist.Normal(0.0, self.scale).expand([1, 1]).to_event(2))
        self.scale = PyroSample(dist.HalfNormal(3.0))
        self.twice = PyroSample(lambda self: 2 * self.weight)

    def forward(self, x):
        return x @ self.twice / 2


def all_declared():
    net = PyroModule[nn.Sequential](PyroModule[nn.Linear](1, 4), nn.Tanh(), PyroModule[nn.Linear](4, 1))
    for layer in (net[0], net[2]):
        for name, value in list(layer.named_parameters()):
            setattr(layer, name, PyroSample(dist.Normal(0.0, 2.0).expand(value.shape).to_event(value.dim())))
    return net


def as_a_function():
    return Slope(prior=lambda self: dist.Normal(0.0, 2.0).expand([self.out_features, self.in_features]).to_event(2))


NETS = {
    "a weight": (Slope, {"net.linear.weight", "net.linear.bias"}),
    "a function": (as_a_function, {"net.linear.weight", "net.linear.bias"}),
    "a batch shape": (
        lambda: Slope(prior=dist.Normal(0.0, 2.0).expand([1, 1])),
        {"net.linear.weight", "net.linear.bias"},
    ),
    "inside of a plain module": (lambda: nn.Sequential(Slope()), {"net.0.linear.weight", "net.0.linear.bias"}),
    "a gain": (Gain, {"net.gain", "net.linear.weight", "net.linear.bias"}),
    "dependent": (Hierarchical, {"net.weight", "net.scale"}),
    "all": (all_declared, {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}),
}


def data():
    x = torch.linspace(-1, 1, 40)[:, None]
    return x, 3 * x + 0.1 * torch.randn(40, 1)


def model_of(net, **options):
    likelihood = pb.GaussianLikelihood(0.1)
    return pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=40, **options)


@pytest.fixture(params=NETS)
def case(request):
    make, sites = NETS[request.param]
    return model_of(make().double()), sites


def test_each_is_a_site_of_the_model(case):
    model, sites = case
    assert set(model.site_names) == sites


@pytest.mark.daily("a weight", "inside*", "dependent")
def test_it_is_learned_and_not_drawn_from_its_prior(case):
    """Before, the rmse was that of draws from the prior, 2.98."""
    model, _ = case
    x, y = data()
    posterior = pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=400, seed=0)
    assert pb.predict(model, posterior, x, y=y, num_samples=50, seed=0).score()["rmse"] < 0.4


def test_the_sample_statement_gives_the_prior():
    model = model_of(Slope().double())
    prior = model.prior_of("net.linear.weight")
    value = torch.tensor([[0.7]])
    assert_identical(prior.log_prob(value), dist.Normal(torch.tensor(0.0), 2.0).log_prob(value).sum())
    assert_identical(model.prior_of("net.linear.bias").log_prob(value[0]), pb_normal(1.0, value))


def pb_normal(scale, value):
    return dist.Normal(torch.tensor(0.0), scale).log_prob(value).sum()


def test_fixed_ones_are_fitted_on_the_fast_path_and_dependent_ones_by_pyro():
    x, y = data()
    paths = {}
    for name in ("a weight", "a function", "a gain", "all", "dependent"):
        model = model_of(NETS[name][0]().double())
        posterior = pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=1, seed=0)
        paths[name] = posterior.history.path
    assert paths.pop("dependent").startswith("pyro: a prior depends on other variables")
    assert set(paths.values()) == {"direct"}


@pytest.mark.parametrize("name", ["a weight", "a gain", "all"])
def test_both_paths_give_the_same_numbers(name):
    x, y = data()
    histories = []
    for is_direct in (True, False):
        torch.manual_seed(0)
        model = model_of(NETS[name][0]().double())
        guide = pb.MeanFieldGuide(model)
        if not is_direct:
            guide.register_forward_hook(lambda *_: None)
        posterior = pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=5, seed=0)
        histories.append((posterior.history.path, torch.tensor(posterior.history.elbo)))
    assert histories[0][0] == "direct" != histories[1][0]
    torch.testing.assert_close(histories[0][1], histories[1][1], rtol=1e-10, atol=0.0)


def test_the_joint_density_is_that_of_pyros_own_module(case):
    """The log-density of draws under stock Pyro: the network itself in a model written by hand."""
    model, _ = case
    x, y = data()
    values = {site.name: site.start for site in pb.MeanFieldGuide(model).sites}

    def by_hand(net):
        def run():
            priors = {
                name: dist.Normal(torch.zeros_like(values[name]), 1.0).to_event(values[name].dim()) for name in plain
            }
            drawn = {name: pyro.sample(name, prior) for name, prior in priors.items()}
            for name, value in drawn.items():
                owner = net.get_submodule(name.removeprefix("net.").rpartition(".")[0])
                del owner._parameters[name.rpartition(".")[2]]
                vars(owner)[name.rpartition(".")[2]] = value
            output = net(x)  # in the plate Pyro would draw weights for each row
            with pyro.plate("data", 40, dim=-2):
                pyro.sample("obs", dist.Normal(output, 0.1), obs=y)

        return run

    make = next(make for make, sites in NETS.values() if sites == set(model.site_names))
    net = make().double()
    plain = [f"net.{name}" for name, _ in net.named_parameters()]
    declared = {name.removeprefix("net."): value for name, value in values.items() if name not in plain}
    if "net.0.linear.weight" in values:
        declared = {"linear.weight": values["net.0.linear.weight"]}  # in a plain module, Pyro names it so
    conditioned = pyro.condition(by_hand(net), data={**declared, **values})
    with torch.no_grad():
        expected = pyro.poutine.trace(conditioned).get_trace().log_prob_sum()
        found = pyro.poutine.trace(pyro.condition(model, data=values)).get_trace(x, y).log_prob_sum()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.daily("a function", "inside*", "dependent")
def test_nuts_learns_it(case):
    model, _ = case
    x, y = data()
    with warnings.catch_warnings():  # chains too short to be believed, but long enough to leave the prior
        warnings.simplefilter("ignore", pb.ConvergenceWarning)
        posterior = pb.fit_nuts(model, (x, y), num_samples=40, num_warmup=40, num_chains=2, max_tree_depth=5, seed=0)
    assert pb.predict(model, posterior, x, y=y, seed=0).score()["rmse"] < 0.3


@pytest.mark.daily("a batch shape", "all")
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # 500 epochs
def test_fit_learns_it(case):
    """Before, a bare KeyError."""
    model, _ = case
    x, y = data()
    posterior = pb.fit(model, (x, y), num_epochs=500, seed=0)
    assert pb.predict(model, posterior, x, y=y, seed=0).score()["rmse"] < 0.5


@pytest.mark.daily("a weight")
def test_a_loop_of_ones_own_with_pyros_tools(case):
    model, sites = case
    x, y = data()
    guide = AutoNormal(model, init_scale=0.05)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step(x, y) for _ in range(300)]
    assert sum(losses[-30:]) < sum(losses[:30])
    assert set(guide(x, y)) == sites
    draws = Predictive(model, guide=guide, num_samples=3)(x)
    assert {name for name in draws if name.startswith("net.")} >= sites
    assert pb.predict(model, guide, x, y=y, num_samples=20, seed=0).score()["rmse"] < 1.0


def test_a_saved_posterior_gives_the_same_predictions(case, tmp_path):
    model, sites = case
    x, y = data()
    posterior = pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=3, seed=0)
    path = tmp_path / "posterior.safetensors"
    pb.save_posterior(posterior, path, model)
    make = next(make for make, found in NETS.values() if found == sites)
    again = model_of(make().double())
    loaded = pb.load_posterior(path, again)
    first, second = (pb.predict(m, p, x, num_samples=4, seed=1).mean for m, p in ((model, posterior), (again, loaded)))
    assert_identical(first, second)


def test_a_network_that_ran_before_is_taken():
    """Before, an AssertionError of Pyro's."""
    net = Slope()
    net(torch.zeros(2, 1))
    assert "net.linear.weight" in model_of(net).site_names
    assert net.linear._pyro_samples  # the caller's network is as it was


def test_where_and_exclude_choose_among_parameters():
    assert model_of(Gain(), where=()).site_names == ("net.gain",)
    assert model_of(Gain(), where="net.gain").site_names == ("net.gain",)
    assert set(model_of(Gain(), exclude="**.bias").site_names) == {"net.linear.weight", "net.gain"}
    with pytest.raises(ValueError, match=r"`exclude` selects `net.gain`, .* declares as random"):
        model_of(Gain(), exclude="net.gain")


def test_the_summary_says_whose_priors_they_have():
    assert "net.gain has a prior of its own" in str(model_of(Gain()))


def test_members_of_an_ensemble_start_from_different_points():
    starts = []
    for seed in range(2):
        torch.manual_seed(seed)
        starts.append(model_of(all_declared()).initial_value("net.0.weight"))
    assert not torch.equal(*starts)


def test_a_prior_that_was_used_before_is_taken():
    """This was a RecursionError, since torch's transforms then refer to their inverses and vice versa."""
    prior = dist.LogNormal(0.0, 0.5)
    prior.log_prob(torch.tensor(1.0))
    net = Gain()
    net.gain = PyroSample(prior)
    model = model_of(net)
    assert {"net.gain"} < {site.name for site in pb.MeanFieldGuide(model).sites}
    noisy = pb.GaussianLikelihood(prior)
    pb.BayesianModel(nn.Linear(1, 1), prior=pb.NormalPrior(), likelihood=noisy, num_data=3)


class Decorated(PyroModule):
    @PyroSample
    def gain(self):
        return dist.LogNormal(0.0, 0.5)

    def forward(self, x):
        return self.gain * x


class NeedsARun(PyroModule):
    def __init__(self):
        super().__init__()
        self.weight = PyroSample(lambda self: dist.Normal(self.center, 1.0))

    def forward(self, x):
        self.center = x.mean()
        return self.weight * x


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Decorated, r"`net.gain` .* by a decorator.* `self.gain = PyroSample\(\.\.\.\)`"),
        (NeedsARun, r"the prior of `net.weight` .*center.*attributes that exist before it runs"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(net, message):
    with pytest.raises(ValueError, match=message):
        model_of(net())


class Sampled(nn.Module):
    """Draws a variable by a statement in its forward pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x):
        return pyro.sample("gain", dist.LogNormal(0.0, 0.5)) * self.linear(x)


def test_a_statement_of_the_network_needs_a_guide_that_draws_it():
    """Before, the variable was silently drawn from its prior."""
    model = model_of(Sampled().double())
    with pytest.raises(ValueError, match=r"the network draws \['gain'\].*`PyroSample`"):
        pb.fit_svi(model, data(), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=1)
    posterior = pb.fit_svi(model, data(), AutoNormal(model), optimizer=ADAM, num_epochs=2)
    assert "gain" in posterior.guide(*data())


class Constrained(PyroModule):
    """Has a Pyro parameter with a constraint."""

    def __init__(self):
        super().__init__()
        self.linear, self.gain = nn.Linear(1, 1), PyroParam(torch.tensor(1.5), dist.constraints.positive)

    def forward(self, x):
        return self.gain * self.linear(x)


@pytest.mark.parametrize("exclude", [(), "net.gain_unconstrained"])
def test_a_constrained_parameter_of_pyros_is_drawn_or_learned(exclude):
    torch.manual_seed(0)
    model = model_of(Constrained().double(), exclude=exclude)
    x, y = data()
    guide = AutoNormal(model, init_scale=0.05)
    posterior = pb.fit_svi(model, (x, y), guide, optimizer=ADAM, num_epochs=300, seed=0)
    assert pb.predict(model, posterior, x, y=y, num_samples=30, seed=0).score()["rmse"] < 0.5
    assert ("net.gain_unconstrained" in model.site_names) is (exclude == ())
    assert not pyro.get_param_store()._params  # the network's parameters are its own
