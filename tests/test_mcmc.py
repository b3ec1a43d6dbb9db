"""MCMC: the right distribution for any prior, likelihood and sampler; and refused arguments."""

import dataclasses
import functools
import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import scipy.integrate
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.guides import Init
from pyro_bnn.inference.mcmc import Draws, Kernel, Sampler, leapfrog

from .cases import FIXED_PRIORS, HIERARCHICAL_PRIORS, PRIORS, SAMPLERS, small_model
from .chains import assert_from, effective, fit_briefly, hierarchy, moments_agree, quietly, z_scores
from .test_exact import Problem
from .tolerances import STANDARD_ERRORS


@dataclasses.dataclass(frozen=True)
class Langevin(Sampler):
    """A user's sampler: trajectories of a single step."""

    def kernel(self, value_and_grad, z, *, compile=False):
        return LangevinKernel(value_and_grad, z)


class LangevinKernel(Kernel):
    def __init__(self, value_and_grad, z):
        super().__init__(value_and_grad, z)
        self._now = (z, *value_and_grad(z))

    def draw(self):
        z, potential, gradient = self._now
        r = torch.randn_like(z) / self.inverse_mass.sqrt()
        step = self.step_size[:, None]
        end = leapfrog(self.value_and_grad, z, r, gradient, step, step * self.inverse_mass)
        before, after = potential + self._kinetic(r), end[3] + self._kinetic(end[1])
        takes = torch.rand_like(before).log() < before - after
        row = takes[:, None]
        z, gradient = torch.where(row, end[0], z), torch.where(row, end[2], gradient)
        potential = torch.where(takes, end[3], potential)
        self._now = z, potential, gradient
        return Draws(
            finished=torch.ones_like(takes),
            z=z,
            log_density=-potential,
            energy=before,
            accept=(before - after).clamp_max(0).exp(),
            diverging=before - after < -1000,
            num_steps=torch.ones_like(takes, dtype=torch.long),
        )

    def _kinetic(self, r):
        return 0.5 * (r.square() * self.inverse_mass).sum(-1)


MICROCANONICAL = pb.MCLMC(energy_error=1e-5, first_energy_error=1e-5)
ALL_SAMPLERS = {**SAMPLERS, "MCLMC": (MICROCANONICAL, 150), "one's own": (Langevin(), 6000)}


def fit_problem(problem, sampler, *, num_samples, num_warmup=150, seed=0):
    """Chains of a conjugate regression, and their weights, shape (K, S, P)."""
    lengths = {"num_samples": num_samples, "num_warmup": num_warmup}
    posterior = quietly(pb.fit_mcmc, problem.model, (problem.x, problem.y), sampler=sampler, seed=seed, **lengths)
    return posterior, posterior.chains["net.weight"].flatten(2)


@pytest.mark.daily("MCLMC")
@pytest.mark.parametrize("name", ALL_SAMPLERS)
def test_every_sampler_finds_a_conjugate_posterior(name):
    problem = Problem()
    sampler, num_samples = ALL_SAMPLERS[name]
    posterior, weights = fit_problem(problem, sampler, num_samples=num_samples)
    assert f"; {type(sampler).__name__}: 4 chains of {num_samples} draws" in posterior.status.message
    assert moments_agree(weights, problem.mean.flatten(), torch.linalg.inv(problem.precision))


@pytest.mark.daily("HMC-0")  # for NUTS in C, which is compared with this one, see `test_mcmc_single.py`
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", SAMPLERS)
def test_conjugate_regression(name, seed):
    problem, (sampler, num_samples) = Problem(), SAMPLERS[name]
    posterior, weights = fit_problem(problem, sampler, num_samples=num_samples, seed=seed)
    assert posterior.status
    covariance = torch.linalg.inv(problem.precision)
    assert moments_agree(weights, problem.mean.flatten(), covariance)
    assert not moments_agree(weights, problem.mean.flatten(), covariance.diagonal().diag())
    assert not moments_agree(weights, problem.mean.flatten() + 0.1, covariance)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_gaussian_guides_on_the_same_problem(seed):
    """Full rank is exact; mean-field has the right means and variances that are known to be too small."""
    problem = Problem()
    covariance, conditional = torch.linalg.inv(problem.precision), (1 / problem.precision.diagonal()).diag()
    init = pb.NetworkInit(scale=0.2)
    guides = {
        "full": pb.auto_guide(AutoMultivariateNormal, problem.model, init=init),
        "mean": pb.MeanFieldGuide(problem.model, init=init),
    }
    draws = {}
    for name, guide in guides.items():
        posterior = pb.fit_svi(
            problem.model,
            (problem.x, problem.y),
            guide,
            optimizer=pb.optim.scheduled(
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


@pytest.mark.daily("normal", "mixture", "by-name", "hierarchical-per-parameter")
@pytest.mark.parametrize("prior", [*FIXED_PRIORS, *HIERARCHICAL_PRIORS])
def test_every_prior_can_be_sampled_from(prior):
    """The potential is compared with Pyro's in `test_joint.py`; here chains start, move and are kept."""
    model, x, y = small_model(prior=PRIORS[prior], likelihood="gaussian-latent", num_data=6)
    short = {"num_samples": 10, "num_warmup": 10, "num_chains": 2, "max_tree_depth": 3}
    samples = quietly(pb.fit_nuts, model, (x, y), **short, seed=0).chains
    assert set(samples) == set(model.latent_names)
    for values in samples.values():
        assert values.shape[:2] == (2, 10)
        assert values.isfinite().all()
        assert (values.std(1) > 0).all()


@pytest.mark.nightly
def test_nuts_beats_a_skewed_constrained_posterior():
    """The noise scale alone, by quadrature; without the Jacobian of its logarithm, the density would differ."""
    y = 1.7 * torch.randn(7, 1, generator=torch.Generator().manual_seed(3))
    model = pb.BayesianModel(
        nn.Linear(1, 1, bias=False),
        prior=pb.NormalPrior(1.0),
        likelihood=pb.GaussianLikelihood(dist.HalfNormal(2.0)),
        num_data=7,
    )
    posterior = pb.fit_nuts(model, (torch.zeros(7, 1), y), num_samples=600, num_warmup=300, seed=0)
    draws = posterior.chains["likelihood.scale"].unsqueeze(-1)

    def moments(power):
        def density(s):
            return s**power * math.exp(-(s**2) / 8) * s**-7 * math.exp(-float(y.square().sum()) / (2 * s**2))

        total = scipy.integrate.quad(density, 1e-3, 30)[0]
        return [scipy.integrate.quad(lambda s, k=k: s**k * density(s), 1e-3, 30)[0] / total for k in (1, 2)]

    powers = torch.cat([draws, draws.square()], -1)
    assert (z_scores(powers, torch.tensor(moments(0))).abs() < STANDARD_ERRORS).all()
    assert not (z_scores(powers, torch.tensor(moments(-1))).abs() < STANDARD_ERRORS).all()
    prior = dist.Normal(0.0, 1.0)  # the weight does not matter, so that its posterior is its prior
    assert_from(posterior.chains["net.weight"], prior.cdf)


@pytest.mark.nightly
def test_a_mixture_prior_without_data_is_sampled_as_it_is():
    prior = pb.ScaleMixturePrior(mixing=0.4, scale1=1.5, scale2=0.3)
    model = pb.BayesianModel(
        nn.Linear(1, 1, bias=False), prior=prior, likelihood=pb.GaussianLikelihood(1.0), num_data=1
    )
    posterior = pb.fit_nuts(model, (torch.zeros(1, 1), torch.zeros(1, 1)), num_warmup=300, num_samples=1000, seed=1)
    mixture = pb.distributions.ScaleMixtureNormal(0.4, 1.5, 0.3)
    assert_from(posterior.chains["net.weight"], mixture.cdf)
    other = pb.distributions.ScaleMixtureNormal(0.4, 1.5, 1.0)
    with pytest.raises(AssertionError):
        assert_from(posterior.chains["net.weight"], other.cdf)


def test_a_plain_pyro_model_with_a_hyperprior():
    """All latent variables, constrained ones in their supports; the marginal by quadrature in two unknowns."""
    y = torch.tensor([1.2, -0.4, 2.2])

    def model(x, y):
        spread = pyro.sample("spread", dist.HalfNormal(1.0))
        weight = pyro.sample("weight", dist.Normal(0.0, spread).expand([3]).to_event(1))
        pyro.sample("obs", dist.Normal(weight, 1.0).to_event(1), obs=y)

    posterior = quietly(pb.fit_nuts, model, (y, y), num_samples=200, num_warmup=100, num_chains=2, seed=0)
    spread = posterior.chains["spread"].unsqueeze(-1)

    def density(s):  # y_i ~ N(0, s^2 + 1)
        return math.exp(-(s**2) / 2) * (s**2 + 1) ** -1.5 * math.exp(-float(y.square().sum()) / (2 * (s**2 + 1)))

    total = scipy.integrate.quad(density, 0, 20)[0]
    mean = scipy.integrate.quad(lambda s: s * density(s), 0, 20)[0] / total
    deviation = (spread.mean() - mean) / (spread.std() / effective(spread).sqrt())
    assert spread.min() > 0
    assert deviation.abs() < STANDARD_ERRORS


# ---- where chains start, what is told, and what is refused


@pytest.mark.daily("NUTS", "one's own")
@pytest.mark.parametrize("name", ALL_SAMPLERS)
def test_a_seed_repeats_and_leaves_the_generator(name):
    problem, (sampler, _) = Problem(), ALL_SAMPLERS[name]
    before = torch.get_rng_state()
    first, again, other = (
        fit_problem(problem, sampler, num_samples=4, num_warmup=20, seed=seed)[1] for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_fit_nuts_is_fit_mcmc_with_nuts():
    problem = Problem()
    lengths = {"num_samples": 6, "num_warmup": 20, "num_chains": 3, "target_accept": 0.6, "init": pb.NetworkInit()}
    settings = {**lengths, "dtype": torch.float32, "seed": 5}
    data = problem.model, (problem.x, problem.y)
    short = quietly(pb.fit_nuts, *data, max_tree_depth=2, **settings)
    long = quietly(pb.fit_mcmc, *data, sampler=pb.NUTS(max_tree_depth=2), **settings)
    assert torch.equal(short.chains["net.weight"], long.chains["net.weight"])
    assert short.statistics.num_steps.max() == 3
    deeper = quietly(pb.fit_nuts, *data, max_tree_depth=4, **settings)
    assert not torch.equal(short.chains["net.weight"], deeper.chains["net.weight"])


def test_a_step_of_hmc_takes_up_to_its_longest_trajectory():
    problem = Problem()
    posterior, _ = fit_problem(problem, pb.HMC(max_steps=3), num_samples=60, num_warmup=0)
    assert posterior.statistics.num_steps.unique().tolist() == [1, 2, 3]


def test_chains_start_where_they_are_told():
    torch.manual_seed(0)  # far from the data, a first step may be long
    problem = Problem()
    guide = pb.MeanFieldGuide(problem.model, init=pb.NetworkInit(scale=1e-6))
    for init in (pb.NetworkInit(scale=1e-6), pb.GuidePosterior(guide)):
        with pytest.warns(pb.ConvergenceWarning):
            posterior = pb.fit_nuts(
                problem.model, (problem.x, problem.y), num_samples=4, num_warmup=0, max_tree_depth=1, init=init, seed=0
            )
        first = posterior.chains["net.weight"][:, 0]
        distances = (first - problem.model.initial_value("net.weight")).flatten(1).norm(dim=1)
        assert (distances < 1.0).all()
    with pytest.raises(ValueError, match='`init` must be "prior", an Init'):
        pb.fit_nuts(problem.model, (problem.x, problem.y), init=None)


class Nowhere(Init):
    def __call__(self, site):
        return torch.full_like(site.unconstrained_start, float("inf")), torch.zeros_like(site.unconstrained_start)


def test_random_networks_are_refused_and_dropout_is_off():
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    model, x, y = small_model(net=nn.Sequential(nn.Linear(4, 3), Noise()), num_data=6)
    with pytest.raises(ValueError, match="must give the same density"):
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
        pb.fit_nuts(model, (x, y), num_samples=2)
    with pytest.raises(ValueError, match="no start with a finite density"):
        fit_briefly(model, x, y, init=Nowhere())


def test_arguments_that_make_no_sense_are_refused():
    model, x, y = small_model(num_data=6)
    with pytest.raises(ValueError, match="`dtype` must be"):
        pb.fit_nuts(model, (x, y), dtype=torch.float16)
    with pytest.raises(ValueError, match=r"`data` must be the tuple of the model's arguments, .* got Tensor"):
        pb.fit_nuts(hierarchy, x)
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        pb.fit_nuts(model, (x, y))
    with pytest.raises(ValueError, match=r"`x` must be a tensor, an array, .* got NoneType"):
        pb.fit_nuts(model, (None, y))


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda: pb.NUTS(max_tree_depth=0), "`max_tree_depth` must be a whole number of at least 1"),
        (lambda: pb.NUTS(max_tree_depth=25), "`max_tree_depth` must be at most 20, a million steps for a draw, got 25"),
        (lambda: pb.HMC(max_steps=0), "`max_steps` must be a whole number of at least 1"),
        (lambda: "NUTS", r"`sampler` must be a Sampler such as NUTS\(\), got str"),
        (lambda: pb.NUTS, "`sampler` must be a Sampler .*, got the class NUTS"),
    ],
)
def test_samplers_that_make_no_sense_are_refused(sampler, message):
    problem = Problem()
    with pytest.raises(ValueError, match=message):
        pb.fit_mcmc(problem.model, (problem.x, problem.y), sampler=sampler())


def test_warnings_point_to_the_caller():
    model, x, y = small_model(likelihood="gaussian-learned", num_data=6)
    for fit in (pb.fit_nuts, functools.partial(pb.fit_mcmc, sampler=pb.HMC(2))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(model, (x, y), num_samples=4, num_warmup=4)
        assert {warning.category for warning in caught} == {UserWarning, pb.ConvergenceWarning}
        assert {warning.filename for warning in caught} == {__file__}


def test_divergences_and_short_chains_are_told_with_a_remedy():
    """Neal's funnel, the classic."""

    def funnel(x, y):
        scale = pyro.sample("log_scale", dist.Normal(0.0, 3.0))
        pyro.sample("x", dist.Normal(0.0, (scale / 2).exp()).expand([9]).to_event(1))

    data = torch.zeros(1)
    with pytest.warns(pb.ConvergenceWarning, match=r"divergent trajectories.*target_accept"):
        posterior = pb.fit_nuts(
            funnel, (data, data), num_samples=60, num_warmup=60, num_chains=2, target_accept=0.3, seed=2
        )
    assert not posterior.status
    assert "sample longer" in posterior.status.message
