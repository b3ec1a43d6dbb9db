"""NUTS and HMC: the right distribution, whatever the prior, the likelihood and the network."""

import copy
import functools
import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.mcmc.util import initialize_model
from torch import nn

import pyro_bnn as pb
from pyro_bnn._scope import eval_mode
from pyro_bnn.joint import NetworkPotential, TracePotential
from pyro_bnn.mcmc import _nuts
from pyro_bnn.mcmc._adaptation import DualAveraging, Welford, windows
from pyro_bnn.mcmc._compiled import compiled
from pyro_bnn.mcmc._diagnostics import convergence
from pyro_bnn.mcmc._nuts import NUTS, _checkpoint_tables

from .cases import LIKELIHOODS, PRIORS, small_model, small_net
from .test_exact import Problem
from .tolerances import SMALLEST_P_VALUE, STANDARD_ERRORS, assert_identical


def quietly(fit, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.ConvergenceWarning)
        return fit(*args, **kwargs)


# ---- the flat potential


def assert_same_potential(model, x, y):
    """Ours, our tracing one, and Pyro's own, at the same points."""
    fast = NetworkPotential(model, x, y)
    traced = TracePotential(model, (x, y))
    with torch.no_grad():
        z = 0.5 * fast.from_prior(3)
    value, gradient = fast.value_and_grad(z)
    for other in traced.value_and_grad(z), _pyros(model, x, y, fast, z):
        assert_identical(value, other[0])
        assert_identical(gradient, other[1])


def _pyros(model, x, y, potential, z):
    _, potential_fn, _, _ = initialize_model(model, model_args=(x, y))
    values, gradients = [], []
    for row in z:
        row = row.clone().requires_grad_()
        parts = zip(potential.sites, potential._split(row[None]), strict=True)
        value = potential_fn({site.name: part[0] for site, part in parts})
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, row)[0])
    return torch.stack(values), torch.stack(gradients)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("prior", PRIORS)
def test_the_potential_is_that_of_pyro(prior, likelihood):
    model, x, y = small_model(prior=PRIORS[prior], likelihood=likelihood, num_data=6)
    assert_same_potential(model.double(), x, y)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.cell(x.unsqueeze(-1))[0][:, -1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())[:, :3]


class Doubled(nn.Sequential):
    """Looks like a chain, and is none."""

    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    net[0].register_forward_hook(lambda module, arguments, output: 3 * output)
    return net


def with_one_activation():
    activation = nn.Tanh()
    return nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 5), activation, nn.Linear(5, 3))


NETS = {
    "own forward": lambda: Doubled(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "hook": hooked,
    "one activation twice": with_one_activation,
    "normalised": lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "another activation": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Softsign(), nn.Linear(5, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3)
    ),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)),
    "recurrent": Recurrent,
    "tied": Tied,
    "no bias": lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.GELU(), nn.Linear(5, 3, bias=False)),
}


@pytest.mark.parametrize("net", NETS)
def test_the_potential_of_other_networks(net):
    model, x, y = small_model(net=NETS[net](), num_data=6)
    with eval_mode(model):
        assert_same_potential(model, x, y)


def test_the_potential_with_some_parameters_fixed():
    model, x, y = small_model(num_data=6, where="net.2.*")
    assert_same_potential(model, x, y)


def hierarchy(x, y):
    """A prior scale with a prior of its own, and a noise scale."""
    spread = pyro.sample("spread", dist.HalfCauchy(1.0))
    weight = pyro.sample("weight", dist.Normal(0.0, spread).expand([3]).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ weight, noise), obs=y)


def test_the_potential_of_a_plain_pyro_model_with_a_hyperprior():
    x, y = torch.randn(8, 3), torch.randn(8)
    potential = TracePotential(hierarchy, (x, y))
    z = potential.from_prior(3)
    value, gradient = potential.value_and_grad(z)
    pyros = _pyros(hierarchy, x, y, potential, z)
    assert_identical(value, pyros[0])
    assert_identical(gradient, pyros[1])


# ---- the right distribution


def effective(values):
    """Effective sample size of each column, shape (K, S, M)."""
    return convergence(values).ess_bulk


def z_scores(values, expected):
    """Of chain means, shape (K, S, M), with standard errors from effective sample sizes; needs enough of those."""
    ess = effective(values)
    assert ess.min() > 200
    return (values.mean((0, 1)) - expected) / (values.flatten(0, 1).std(0) / ess.sqrt())


def moments_agree(values, mean, covariance):
    """Means and all second moments, shape (K, S, M)."""
    deviations = values - mean
    products = (deviations.unsqueeze(-1) * deviations.unsqueeze(-2)).flatten(2)
    scores = torch.cat([z_scores(values, mean), z_scores(products, covariance.flatten())])
    return bool((scores.abs() < STANDARD_ERRORS).all())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fit", [pb.fit_nuts, pb.fit_hmc])
def test_conjugate_regression(fit, seed):
    problem = Problem()
    options = {} if fit is pb.fit_nuts else {"max_steps": 8}
    posterior = fit(problem.model, problem.x, problem.y, num_samples=800, num_warmup=300, seed=seed, **options)
    assert posterior.status
    weights = posterior.samples["net.weight"].flatten(2)
    covariance = torch.linalg.inv(problem.precision)
    assert moments_agree(weights, problem.mean.flatten(), covariance)
    assert not moments_agree(weights, problem.mean.flatten(), covariance.diagonal().diag())
    assert not moments_agree(weights, problem.mean.flatten() + 0.1, covariance)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_gaussian_guides_on_the_same_problem(seed):
    """Full rank is exact; mean-field has the right means and variances that are known to be too small."""
    problem = Problem()
    covariance, conditional = torch.linalg.inv(problem.precision), (1 / problem.precision.diagonal()).diag()
    init = pb.NetworkInit(scale=0.2)
    guides = {
        "full": pb.auto_multivariate_normal(problem.model, init=init),
        "mean": pb.MeanFieldGuide(problem.model, init=init),
    }
    draws = {}
    for name, guide in guides.items():
        posterior = pb.fit_svi(
            problem.model,
            guide,
            (problem.x, problem.y),
            optimizer=pb.scheduled(
                functools.partial(torch.optim.Adam, lr=0.1),
                lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 1e-3 ** (1 / 1000)),
            ),
            num_epochs=1000,
            elbo=Trace_ELBO(num_particles=4),
            seed=seed,
        )
        draws[name] = posterior.sample(1000, seed=seed)["net.weight"].flatten(1)[None]  # (1, S, D), one "chain"
    assert moments_agree(draws["full"], problem.mean.flatten(), covariance)
    assert moments_agree(draws["mean"], problem.mean.flatten(), conditional)
    assert not moments_agree(draws["mean"], problem.mean.flatten(), covariance)
    assert (draws["mean"][0].var(0) < covariance.diagonal()).all()


def test_nuts_beats_a_skewed_constrained_posterior():
    """Noise scale alone: its density by quadrature; without the Jacobian of its logarithm it is another one."""
    y = 1.7 * torch.randn(7, 1, generator=torch.Generator().manual_seed(3))
    model = pb.BayesianModel(
        nn.Linear(1, 1, bias=False),
        prior=pb.NormalPrior(1.0),
        likelihood=pb.GaussianLikelihood(dist.HalfNormal(2.0)),
        num_data=7,
    )
    posterior = pb.fit_nuts(model, torch.zeros(7, 1), y, num_samples=600, num_warmup=300, seed=0)
    draws = posterior.samples["likelihood.scale"].unsqueeze(-1)

    def moments(power):
        def density(s):
            return s**power * math.exp(-(s**2) / 8) * s**-7 * math.exp(-float(y.square().sum()) / (2 * s**2))

        total = scipy.integrate.quad(density, 1e-3, 30)[0]
        return [scipy.integrate.quad(lambda s, k=k: s**k * density(s), 1e-3, 30)[0] / total for k in (1, 2)]

    powers = torch.cat([draws, draws.square()], -1)
    assert (z_scores(powers, torch.tensor(moments(0))).abs() < STANDARD_ERRORS).all()
    assert not (z_scores(powers, torch.tensor(moments(-1))).abs() < STANDARD_ERRORS).all()
    prior = dist.Normal(0.0, 1.0)  # the weight does not matter, so that its posterior is its prior
    assert_from(posterior.samples["net.weight"], prior.cdf)


def assert_from(draws, cdf):
    """Kolmogorov's test on draws thinned to independence."""
    values = draws.flatten(2)[..., 0].unsqueeze(-1)
    keep = max(1, math.ceil(values.numel() / float(effective(values).min())))
    thinned = values[:, ::keep].flatten()
    assert scipy.stats.kstest(cdf(thinned).numpy(), "uniform").pvalue > SMALLEST_P_VALUE


def test_a_mixture_prior_without_data_is_sampled_as_it_is():
    prior = pb.ScaleMixturePrior(mixing=0.4, scale1=1.5, scale2=0.3)
    model = pb.BayesianModel(
        nn.Linear(1, 1, bias=False), prior=prior, likelihood=pb.GaussianLikelihood(1.0), num_data=1
    )
    posterior = pb.fit_nuts(model, torch.zeros(1, 1), torch.zeros(1, 1), num_warmup=300, num_samples=1000, seed=1)
    mixture = pb.distributions.ScaleMixtureNormal(0.4, 1.5, 0.3)
    assert_from(posterior.samples["net.weight"], mixture.cdf)
    other = pb.distributions.ScaleMixtureNormal(0.4, 1.5, 1.0)
    with pytest.raises(AssertionError):
        assert_from(posterior.samples["net.weight"], other.cdf)


def test_a_plain_pyro_model_with_a_hyperprior():
    """All of its latent variables, constrained ones in their supports; its marginal by quadrature in two unknowns."""
    y = torch.tensor([1.2, -0.4, 2.2])

    def model(x, y):
        spread = pyro.sample("spread", dist.HalfNormal(1.0))
        weight = pyro.sample("weight", dist.Normal(0.0, spread).expand([3]).to_event(1))
        pyro.sample("obs", dist.Normal(weight, 1.0).to_event(1), obs=y)

    posterior = quietly(pb.fit_nuts, model, y, y, num_samples=200, num_warmup=100, num_chains=2, seed=0)
    spread = posterior.samples["spread"].unsqueeze(-1)

    def density(s):  # y_i ~ N(0, s^2 + 1)
        return math.exp(-(s**2) / 2) * (s**2 + 1) ** -1.5 * math.exp(-float(y.square().sum()) / (2 * (s**2 + 1)))

    total = scipy.integrate.quad(density, 0, 20)[0]
    mean = scipy.integrate.quad(lambda s: s * density(s), 0, 20)[0] / total
    deviation = (spread.mean() - mean) / (spread.std() / effective(spread).sqrt())
    assert spread.min() > 0
    assert deviation.abs() < STANDARD_ERRORS


@pytest.mark.slow
def test_the_compiled_sampler_is_the_same_sampler():
    problem = Problem()
    runs = [
        quietly(
            pb.fit_nuts, problem.model, problem.x, problem.y, num_samples=10, num_warmup=60, seed=0, compile=compile
        )
        for compile in (False, True)
    ]
    torch.testing.assert_close(runs[0].samples, runs[1].samples, rtol=1e-6, atol=1e-8)
    assert torch.equal(runs[0].statistics.num_steps, runs[1].statistics.num_steps)
    torch.testing.assert_close(runs[0].statistics.inverse_mass, runs[1].statistics.inverse_mass)


def normal_potential(z):
    """Its gradient is its argument, the very same tensor."""
    return 0.5 * z.square().sum(-1), z


def quartic_potential(z):
    """Steep enough for long steps to diverge."""
    return z.pow(4).sum(-1), 4 * z.pow(3)


def record(value_and_grad, steps, *, max_tree_depth, num_events, compile):
    """All that a kernel reports, event by event, shape (events, statistics, K)."""
    torch.manual_seed(1)
    kernel = NUTS(value_and_grad, torch.randn(len(steps), 3), max_tree_depth=max_tree_depth, compile=compile)
    kernel.step_size = torch.tensor(steps)
    torch.manual_seed(2)
    reports = []
    for index, draws in zip(range(num_events), kernel.draws(), strict=False):
        numbers = [draws.log_density, draws.energy, draws.accept, draws.diverging, draws.num_steps, *draws.z.mT]
        reports.append(torch.stack([torch.where(draws.finished, number, 0) for number in (draws.finished, *numbers)]))
        kernel.step_size[index % len(steps)] *= 1.01 if index % 3 else 0.97  # as in warm-up
        kernel.inverse_mass[index % len(steps)] = 1 + 0.1 * (index % 4)
    return torch.stack(reports)


CASES = {
    "chains that end at different times": (normal_potential, [0.03, 0.2, 0.9], 5, 7),
    "one step per draw": (normal_potential, [0.4, 1.2], 1, 3),
    "divergences": (quartic_potential, [0.2, 2.5], 4, 256),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_compiled_kernel_makes_the_same_draws(case, monkeypatch):
    """Also where the random numbers of a block do not last until a subtree ends."""
    potential, steps, max_tree_depth, block = CASES[case]
    monkeypatch.setattr(_nuts, "RANDOM_BLOCK", block)
    eager, fast = (
        record(potential, steps, max_tree_depth=max_tree_depth, num_events=60, compile=c) for c in (False, True)
    )
    torch.testing.assert_close(fast, eager, rtol=1e-8, atol=1e-8)
    finished, diverging, num_steps = eager[:, 0] > 0, eager[:, 4] > 0, eager[:, 5]
    assert num_steps.max() == 2**max_tree_depth - 1
    assert (case == "one step per draw") == bool(finished.all())
    assert (case == "divergences") == bool(diverging.any())
    assert not diverging[finished].all()


def test_a_compiler_is_asked_any_number_of_times():
    """It gives up on a function after eight versions, which is a count of fits here."""
    z = torch.randn(3)
    with torch._dynamo.config.patch(recompile_limit=1):
        for power in (1, 2, 3):
            function = compiled(functools.partial(torch.pow, exponent=power), [z])
            assert_identical(function(z), z**power)


# ---- what a run leaves behind


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    x = torch.randn(20, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    model = pb.BayesianModel(small_net(), prior=pb.NormalPrior(1.0), likelihood=pb.CategoricalLikelihood(), num_data=20)
    posterior = quietly(pb.fit_nuts, model, x, y, num_samples=50, num_warmup=50, num_chains=2, seed=0)
    return model, x, y, posterior


def test_a_seed_repeats_and_leaves_the_generator(fitted):
    model, x, y, posterior = fitted
    before = torch.get_rng_state()
    again = quietly(pb.fit_nuts, model, x, y, num_samples=50, num_warmup=50, num_chains=2, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    for name, values in posterior.samples.items():
        assert torch.equal(values, again.samples[name])
    other = quietly(pb.fit_nuts, model, x, y, num_samples=4, num_warmup=50, num_chains=2, seed=1)
    assert not torch.equal(other.samples["net.0.weight"], again.samples["net.0.weight"][:, :4])


def test_predict_takes_chains_like_any_posterior(fitted):
    model, x, y, posterior = fitted
    prediction = pb.predict(model, posterior, x, y=y, num_samples=100)
    assert pb.metrics.accuracy(prediction.probs, y) > 0.8
    assert prediction.epistemic.mean() > 0.01
    assert posterior.samples["net.0.weight"].dtype == torch.float32
    means = [pb.predict_point(model, draw, x).probs for draw in posterior.draws(100)]
    torch.testing.assert_close(prediction.probs, torch.stack(means).mean(0))


def test_draws_are_spread_evenly_and_never_twice(fitted):
    *_, posterior = fitted
    flat = posterior.samples["net.0.bias"].flatten(0, 1)
    drawn = posterior.sample(4)["net.0.bias"]
    assert torch.equal(drawn, flat[[12, 37, 62, 87]])
    assert torch.equal(posterior.sample(100)["net.0.bias"], flat)
    with pytest.raises(ValueError, match="hold 100 draws"):
        posterior.sample(101)


def test_chains_survive_a_file(fitted, tmp_path):
    model, x, _, posterior = fitted
    posterior.save(tmp_path / "chains.pt")
    loaded = pb.MCMCPosterior.load(tmp_path / "chains.pt")
    assert torch.equal(pb.predict(model, posterior, x).probs, pb.predict(model, loaded, x).probs)
    assert loaded.status == posterior.status
    assert torch.equal(loaded.statistics.energy, posterior.statistics.energy)
    with pytest.raises(FileNotFoundError):
        pb.MCMCPosterior.load(tmp_path / "none.pt")
    torch.save({"model": 1}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"no file that .*save"):
        pb.MCMCPosterior.load(tmp_path / "other.pt")


def test_arviz_gets_everything(fitted):
    model, x, y, posterior = fitted
    data = posterior.to_arviz(model=model, x=x, y=y)
    assert set(data.groups()) == {
        "posterior", "sample_stats", "posterior_predictive", "log_likelihood", "observed_data",
    }  # fmt: skip
    assert data.posterior["net.0.weight"].shape == (2, 50, 5, 4)
    assert data.posterior_predictive["obs"].shape == data.log_likelihood["obs"].shape == (2, 50, 20)
    by_hand = [pb.predict_point(model, draw, x, y=y).log_density for draw in posterior.draws(100)]
    ours = torch.as_tensor(np.array(data.log_likelihood["obs"])).flatten(0, 1)
    torch.testing.assert_close(ours, torch.stack(by_hand), rtol=1e-5, atol=1e-6)
    assert int(data.sample_stats["diverging"].sum()) == int(posterior.statistics.diverging.sum())
    with pytest.raises(ValueError, match="go together"):
        posterior.to_arviz(model=model)


def test_the_log_density_is_that_of_the_draws(fitted):
    model, x, y, posterior = fitted
    potential = NetworkPotential(copy.deepcopy(model).double(), x.double(), y)
    flat = {name: values.flatten(0, 1).double() for name, values in posterior.samples.items()}
    log_density = -potential.value(potential.unconstrain(flat))
    torch.testing.assert_close(log_density, posterior.statistics.log_density.flatten(), rtol=1e-4, atol=1e-4)


def test_diagnostics_are_those_of_arviz(fitted):
    import arviz

    model, x, _, posterior = fitted
    report = posterior.diagnostics(model, x[:3])
    data = posterior.to_arviz()
    r_hat = arviz.rhat(data)
    largest = max(float(r_hat[name].max()) for name in posterior.samples)
    assert report.latents.worst_r_hat == pytest.approx(largest, rel=2e-3)  # ranks of numbers that float32 makes equal
    probs = torch.stack([pb.predict_point(model, draw, x[:3]).probs for draw in posterior.draws(100)])
    expected = arviz.rhat(probs[:, 1, 2].reshape(2, 50).numpy())
    assert report.predictions.r_hat[5] == pytest.approx(float(expected), rel=1e-4)
    assert "predictions" in str(report)
    with pytest.raises(ValueError, match="go together"):
        posterior.diagnostics(model)


# ---- where chains start, and what is refused


def test_chains_start_where_they_are_told():
    problem = Problem()
    guide = pb.MeanFieldGuide(problem.model, init=pb.NetworkInit(scale=1e-6))
    for init in (pb.NetworkInit(scale=1e-6), pb.GuidePosterior(guide)):
        with pytest.warns(pb.ConvergenceWarning):
            posterior = pb.fit_nuts(
                problem.model, problem.x, problem.y, num_samples=4, num_warmup=0, max_tree_depth=1, init=init, seed=0
            )
        first = posterior.samples["net.weight"][:, 0]
        distances = (first - problem.model.initial_value("net.weight")).flatten(1).norm(dim=1)
        assert (distances < 1.0).all()
    with pytest.raises(ValueError, match="`init` must be an Init"):
        pb.fit_nuts(problem.model, problem.x, problem.y, init="prior")


class Nowhere(pb.Init):
    def __call__(self, site):
        return torch.full_like(site.unconstrained_start, float("inf")), torch.zeros_like(site.unconstrained_start)


def fit_briefly(model, x, y, **kwargs):
    return quietly(pb.fit_nuts, model, x, y, num_samples=4, num_warmup=4, num_chains=2, **kwargs)


def test_random_networks_are_refused_and_dropout_is_off():
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    model, x, y = small_model(net=nn.Sequential(nn.Linear(4, 3), Noise()), num_data=6)
    with pytest.raises(ValueError, match="different densities for the same weights"):
        fit_briefly(model, x, y)
    model, x, y = small_model(net=nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), num_data=6)
    fit_briefly(model, x, y)
    assert model.training


def test_learnable_parameters_are_named():
    model, x, y = small_model(likelihood="gaussian-learned", num_data=6)
    with pytest.warns(UserWarning, match=r"learnable parameters \['likelihood.rho'\] stay"):
        fit_briefly(model, x, y)


def test_data_that_do_not_fit_are_refused():
    model, x, y = small_model(num_data=7)
    with pytest.raises(ValueError, match="`num_data` is 7 but the data has 6 rows"):
        fit_briefly(model, x, y)
    model, x, y = small_model(num_data=6)
    with pytest.raises(ValueError, match="must be finite"):
        fit_briefly(model, x.index_fill(0, torch.tensor([2]), float("nan")), y)
    with pytest.raises(ValueError, match="class labels"):
        fit_briefly(model, x, y + 5)
    with pytest.raises(ValueError, match="`num_samples` must be a whole number of at least 4"):
        pb.fit_nuts(model, x, y, num_samples=2)
    with pytest.raises(ValueError, match="no start with a finite density"):
        fit_briefly(model, x, y, init=Nowhere())


def test_divergences_and_short_chains_are_told_with_a_remedy():
    """Neal's funnel, the classic."""

    def funnel(x, y):
        scale = pyro.sample("log_scale", dist.Normal(0.0, 3.0))
        pyro.sample("x", dist.Normal(0.0, (scale / 2).exp()).expand([9]).to_event(1))

    data = torch.zeros(1)
    with pytest.warns(pb.ConvergenceWarning, match=r"divergent trajectories.*target_accept"):
        posterior = pb.fit_nuts(
            funnel, data, data, num_samples=60, num_warmup=60, num_chains=2, target_accept=0.3, seed=2
        )
    assert not posterior.status
    assert "sample longer" in posterior.status.message


@pytest.mark.parametrize("num_warmup", [5, 20, 30, 49, 50, 60])
def test_short_warm_ups_end_with_a_step_that_works(num_warmup):
    problem = Problem()
    posterior = quietly(
        pb.fit_nuts,
        problem.model,
        problem.x,
        problem.y,
        num_samples=20,
        num_warmup=num_warmup,
        max_tree_depth=4,
        seed=0,
    )
    assert posterior.statistics.accept.mean() > 0.5
    assert posterior.statistics.diverging.sum() < 8


def test_one_chain_is_judged_by_its_halves():
    problem = Problem()
    posterior = quietly(
        pb.fit_nuts, problem.model, problem.x, problem.y, num_samples=200, num_warmup=100, num_chains=1, seed=0
    )
    assert "1 chain of 200 draws" in posterior.status.message
    assert 0.99 < posterior.diagnostics().latents.worst_r_hat < 1.1
    drifting = torch.linspace(0, 1, 100).reshape(1, 100, 1)
    assert convergence(drifting).worst_r_hat > 1.5


def test_chains_that_do_not_move_are_a_problem():
    values = {"w": torch.ones(2, 10, 1)}
    numbers = torch.randn(2, 10)
    statistics = pb.ChainStatistics(
        numbers, numbers, numbers, numbers > 9, numbers.long(), numbers[:, 0], numbers, seconds=1.0
    )
    report = pb.MCMCPosterior(values, statistics, pb.Status(True, ""), sampler="NUTS").diagnostics()
    assert any("did not move" in problem for problem in report.problems)


def test_chains_of_another_model_are_refused(fitted):
    model, x, _, posterior = fitted
    other, _, _ = small_model(net=nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)))
    other.float()
    for use in (lambda: posterior.diagnostics(other, x), lambda: posterior.to_arviz(model=other, x=x)):
        with pytest.raises(ValueError, match="belongs to another model"):
            use()
    with pytest.raises(ValueError, match="the start belongs to another model"):
        pb.fit_nuts(other, torch.zeros(20, 4).float(), torch.arange(20) % 3, init=posterior)
    with pytest.raises(ValueError, match=r"`x` is torch\.float64"):
        posterior.diagnostics(model, x.double())
    with pytest.raises(ValueError, match="cannot take `x`"):
        posterior.diagnostics(model, x[:, :2])
    with pytest.raises(ValueError, match="must be finite"):
        posterior.diagnostics(model, x * float("nan"))


def test_arguments_that_make_no_sense_are_refused():
    model, x, y = small_model(num_data=6)
    with pytest.raises(ValueError, match="`dtype` must be"):
        pb.fit_nuts(model, x, y, dtype=torch.float16)
    with pytest.raises(ValueError, match="`compile=True` needs a BayesianModel"):
        pb.fit_nuts(hierarchy, x, y, compile=True)
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        pb.fit_nuts(model, x, y)
    with pytest.raises(ValueError, match="`x` must be a tensor"):
        pb.fit_nuts(model, x.numpy(), y)


def test_predict_takes_what_short_chains_have():
    model, x, y = small_model(num_data=6)
    posterior = fit_briefly(model, x, y)
    assert pb.predict(model, posterior, x).num_samples == 8


def test_a_module_used_twice():
    shared = nn.Linear(4, 4)
    model, x, y = small_model(net=nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 3)), num_data=6)
    assert model.site_names == ("net.0.weight", "net.0.bias", "net.3.weight", "net.3.bias")
    assert_same_potential(model, x, y)


# ---- the parts


def test_windows_are_those_of_stan():
    assert windows(1000) == [100, 150, 250, 450, 950]
    assert windows(150) == [100]
    assert windows(49) == []
    assert windows(500)[-1] == 450


def test_dual_averaging_finds_the_step_of_a_known_acceptance():
    averaging = DualAveraging(1.0, 0.8)
    for _ in range(3000):
        averaging.update(math.exp(-averaging.step_size))
    assert averaging.average == pytest.approx(-math.log(0.8), rel=0.05)


def test_welford_is_the_variance():
    values = torch.randn(40, 3)
    welford = Welford(values[0])
    for value in values:
        welford.update(value)
    assert_identical(welford.variance(), 40 / 45 * values.var(0) + 1e-3 * 5 / 45)


def test_checkpoints_are_the_first_leaves_of_all_balanced_subtrees():
    stores, checks = _checkpoint_tables(6, torch.device("cpu"))
    held = {}
    for leaf in range(32):
        expected = {leaf + 1 - 2**k for k in range(1, 6) if (leaf + 1) % 2**k == 0}  # first leaves of what closes here
        assert {held[level] for level in checks[leaf].nonzero().flatten().tolist()} == expected
        for level in stores[leaf].nonzero().flatten().tolist():
            held[level] = leaf


def test_laplace_is_exact_for_conjugate_regression():
    problem = Problem()
    for seed in range(5):
        posterior = pb.fit_laplace(problem.model, problem.x, problem.y, seed=seed)
        assert posterior.status
        torch.testing.assert_close(posterior.median()["net.weight"], problem.mean, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(posterior.precision, problem.precision, rtol=1e-8, atol=1e-8)
        assert posterior.log_evidence == pytest.approx(float(problem.log_evidence), abs=1e-8)
        draws = posterior.sample(4000, seed=seed)["net.weight"].flatten(1)
        deviations = draws - problem.mean.flatten()
        products = (deviations.unsqueeze(-1) * deviations.unsqueeze(-2)).flatten(1)
        scores = torch.cat([deviations, products - torch.linalg.inv(problem.precision).flatten()], 1)
        assert (scores.mean(0) / (scores.std(0) / 4000**0.5)).abs().max() < STANDARD_ERRORS


def test_laplace_says_when_it_did_not_reach_the_mode_or_has_none():
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    posterior = pb.fit_laplace(model, x, y, max_iterations=1)
    assert not posterior.status
    assert "raise `max_iterations`" in posterior.status.message
    model, x, y = small_model(prior=pb.ScaleMixturePrior(0.5, 3.0, 0.01), likelihood="gaussian-fixed", num_data=6)
    try:
        assert pb.fit_laplace(model, x, y).precision.shape == (37, 37)
    except ValueError as error:
        assert "log-concave" in str(error)  # noqa: PT017


def test_laplace_takes_the_hessian_as_it_is():
    """y = a b with a, b ~ N(0, 1): at the mode the likelihood curves the wrong way along one axis, the sum does not."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(0.1))

        def forward(self, x):
            return x * self.a * self.b

    model = pb.BayesianModel(Product(), prior=pb.NormalPrior(1.0), likelihood=pb.GaussianLikelihood(1.0), num_data=1)
    posterior = pb.fit_laplace(model, torch.ones(1, 1), torch.full((1, 1), 0.8))
    assert posterior.status
    torch.testing.assert_close(posterior.mode, torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(posterior.precision, torch.tensor([[1.0, -0.8], [-0.8, 1.0]]), atol=1e-4, rtol=0)
    expected = -0.5 * 0.8**2 - 0.5 * math.log(2 * math.pi) - 0.5 * math.log(1 - 0.64)
    assert posterior.log_evidence == pytest.approx(expected, abs=1e-4)
    saddle = pb.fit_laplace(model, torch.ones(1, 1), torch.full((1, 1), 5.0), init=Origin())
    assert "curves the wrong way in 1 of 2" in saddle.status.message


class Origin(pb.Posterior):
    status = pb.Status(True, "zero")

    def draws(self, num_samples, *args):
        yield {"net.a": torch.zeros(()), "net.b": torch.zeros(())}


def test_laplace_and_dropout():
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    model, x, y = small_model(net=net, num_data=6)
    posterior = pb.fit_laplace(model, x, y)
    assert posterior.log_evidence == pb.fit_laplace(model, x, y).log_evidence
    assert model.training
    model, x, y = small_model(net=nn.Sequential(nn.Linear(4, 3), pb.nets.MCDropout(0.5)), num_data=6)
    with pytest.raises(ValueError, match="different densities for the same weights"):
        pb.fit_laplace(model, x, y)
    with pytest.raises(ValueError, match="`init` must be a Posterior"):
        pb.fit_laplace(model, x, y, init=pb.auto_delta(model))


def test_laplace_of_a_noise_scale_is_in_log_space():
    """y ~ N(0, s^2), s ~ LogNormal(0, 1), z = log s: mode and curvature by hand."""
    y = torch.tensor([[1.0], [-2.0], [0.5]])
    model = pb.BayesianModel(
        nn.Linear(1, 1, bias=False),
        prior=pb.NormalPrior(1.0),
        likelihood=pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0)),
        num_data=3,
    )
    posterior = pb.fit_laplace(model, torch.zeros(3, 1), y)
    total = float(y.square().sum())
    z = float(posterior.median()["likelihood.scale"].log())
    assert -3 + total * math.exp(-2 * z) - z == pytest.approx(0, abs=1e-6)
    assert float(posterior.precision[1, 1]) == pytest.approx(2 * total * math.exp(-2 * z) + 1, rel=1e-6)
    assert float(posterior.precision[0, 0]) == pytest.approx(1.0)
    draws = posterior.sample(2000, seed=0)["likelihood.scale"].log()
    assert abs(draws.std() * float(posterior.precision[1, 1]) ** 0.5 - 1) < 0.1


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_chains_on_a_gpu(compile):
    problem = Problem()
    model, x, y = problem.model.cuda(), problem.x.cuda(), problem.y.cuda()
    state = torch.cuda.get_rng_state()
    posterior = quietly(pb.fit_nuts, model, x, y, num_samples=200, num_warmup=100, compile=compile, seed=0)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    weights = posterior.samples["net.weight"]
    assert weights.is_cuda
    assert moments_agree(weights.flatten(2).cpu(), problem.mean.flatten(), torch.linalg.inv(problem.precision))
    assert pb.predict(model, posterior, x).mean.is_cuda
    assert posterior.diagnostics(model, x).predictions.worst_r_hat < 1.1


@pytest.mark.gpu
def test_laplace_and_compare_on_a_gpu():
    problem = Problem()
    model, x, y = problem.model.cuda(), problem.x.cuda(), problem.y.cuda()
    posterior = pb.fit_laplace(model, x, y)
    assert posterior.log_evidence == pytest.approx(float(problem.log_evidence), abs=1e-6)
    guide = pb.MeanFieldGuide(model)
    result = pb.compare(model, {"laplace": posterior, "guide": pb.GuidePosterior(guide)}, x, y=y, num_samples=100)
    assert result.pairs[0].scores["wasserstein"].value > 0
