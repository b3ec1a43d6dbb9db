"""Stochastic-gradient MCMC: the distribution of its moves, if known exactly, and chains compared with NUTS."""

import functools
import math

import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import network_potential
from pyro_bnn.inference.mcmc import convergence
from pyro_bnn.inference.sgmcmc import ChainOptimizer, ConstantSteps, Stage

from .cases import small_net
from .chains import quietly
from .tolerances import STANDARD_ERRORS

NOISE = 0.3
SAMPLING = Stage(1.0, is_noisy=True, is_sampling=True)


# --- the moves: many points at once, one draw of each -----------------------------------------------------------------


def problem(num_data=40):
    """Linear regression: features, targets, and the mean and precision of the posterior."""
    torch.manual_seed(0)
    x = torch.cat([torch.randn(num_data, 2), torch.ones(num_data, 1)], 1)
    y = x @ torch.tensor([1.0, -0.5, 0.3]) + NOISE * torch.randn(num_data)
    precision = x.mT @ x / NOISE**2 + torch.eye(3)
    return x, y, torch.linalg.solve(precision, x.mT @ y / NOISE**2), precision


def moved(sampler, gradient, start, num_moves=300):
    """Points after many moves, shape (M, P)."""
    point, memory = start.clone(), {}
    for _ in range(num_moves):
        sampler.move(point, gradient(point), memory, SAMPLING)
    return point


def from_posterior(mean, precision, num_points=40_000):
    return dist.MultivariateNormal(mean, precision_matrix=precision).sample((num_points,))


def moments_agree(points, mean, covariance):
    """Means and second moments of independent points, shape (M, P), within standard errors."""
    deviations = points - mean
    products = (deviations.unsqueeze(-1) * deviations.unsqueeze(-2)).flatten(1)
    for values, expected in ((points, mean), (products, covariance.flatten())):
        scores = (values.mean(0) - expected) / (values.std(0) / math.sqrt(len(values)))
        if not bool((scores.abs() < STANDARD_ERRORS).all()):
            return False
    return True


@pytest.mark.daily("0.25-0.5")
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("temperature", [0.25, 1.0])
def test_momentum_has_no_error_from_long_steps_on_a_gaussian(momentum, temperature):
    """The longest stable step is four divided by the largest curvature; the test uses half of it."""
    _, _, mean, precision = problem()
    sampler = pb.SGHMC(2 / float(torch.linalg.eigvalsh(precision)[-1]), momentum, temperature)
    points = moved(sampler, lambda z: (z - mean) @ precision, from_posterior(mean, precision))
    covariance = torch.linalg.inv(precision)
    assert moments_agree(points, mean, temperature * covariance)
    assert not moments_agree(points, mean, (temperature + 0.05) * covariance)


def test_langevin_dynamics_have_the_known_error_of_their_step():
    """The stationary covariance is that of an autoregression: with A = 1 - lr C it solves S = A S A + 2 lr."""
    _, _, mean, precision = problem()
    curvature, axes = torch.linalg.eigh(precision)
    lr = 0.5 / float(curvature[-1])
    points = moved(pb.SGLD(lr), lambda z: (z - mean) @ precision, from_posterior(mean, precision))
    expected = 2 * lr / (1 - (1 - lr * curvature).square())
    assert moments_agree((points - mean) @ axes, torch.zeros(3), torch.diag(expected))
    assert not moments_agree(points, mean, torch.linalg.inv(precision))


@pytest.mark.daily("SGHMC")
@pytest.mark.parametrize("make", [pb.SGLD, lambda lr: pb.SGHMC(lr, 0.5)], ids=["SGLD", "SGHMC"])
def test_the_effect_of_minibatches_vanishes_with_the_step(make):
    x, y, mean, precision = problem()

    def gradient(z):
        rows = torch.randint(len(x), (len(z), 10))
        residuals = (torch.einsum("mbp,mp->mb", x[rows], z) - y[rows]) / NOISE**2
        return len(x) / 10 * torch.einsum("mbp,mb->mp", x[rows], residuals) + z

    widths = []
    for lr, num_moves in ((1e-4, 300), (1e-5, 1000)):
        points = moved(make(lr), gradient, from_posterior(mean, precision, 4000), num_moves)
        widths.append(float((points.var(0) * precision.diagonal()).mean()))
    at_once = float((torch.linalg.inv(precision).diagonal() * precision.diagonal()).mean())
    assert widths[0] / at_once - 1 > 3 * abs(widths[1] / at_once - 1)


def test_a_move_without_noise_is_the_formula():
    point, gradient, memory = torch.tensor([2.0]), torch.tensor([3.0]), {"velocity": torch.tensor([0.5])}
    pb.SGHMC(0.04, 0.8).move(point, gradient, memory, Stage(0.25, is_noisy=False, is_sampling=False))
    h = math.sqrt(0.25 * 0.04)
    velocity = 0.5 - h * 3
    assert float(point) == pytest.approx(2 + h / 2 * velocity + h / 2 * 0.8 * velocity)
    assert float(memory["velocity"]) == pytest.approx(0.8 * velocity)
    pb.SGLD(0.04).move(point := torch.tensor([2.0]), gradient, {}, Stage(0.25, is_noisy=False, is_sampling=False))
    assert float(point) == pytest.approx(2 - 0.01 * 3)


# --- step sizes -------------------------------------------------------------------------------------------------------


def test_cycles_follow_the_formula():
    plan = pb.CyclicalSteps(num_cycles=3, exploration=0.25)
    for step in range(100):
        k, length = step + 1, math.ceil(100 / 3)
        factor = 0.5 * (math.cos(math.pi * ((k - 1) % length) / length) + 1)  # equation 1 of the article
        stage = plan.stage(step, 100)
        assert stage.factor == pytest.approx(factor)
        assert stage.is_sampling == stage.is_noisy == (((k - 1) % length) / length >= 0.25)


def test_constant_steps_have_a_warmup():
    stages = [ConstantSteps(warmup=0.2).stage(step, 10) for step in range(10)]
    assert [stage.is_sampling for stage in stages] == [False] * 2 + [True] * 8
    assert all(stage.is_noisy and stage.factor == 1 for stage in stages)


# --- chains of a model ------------------------------------------------------------------------------------------------


def noisy_line():
    """A regression with a noise scale that is latent, so that the Jacobian of its transform matters."""
    torch.manual_seed(3)
    x = torch.randn(8, 1)
    y = 0.5 * x + 0.6 * torch.randn(8, 1)
    likelihood = pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0))
    return pb.BayesianModel(nn.Linear(1, 1), prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=8), x, y


def scores(first, second):
    """Difference of the means of two sets of chains, shape (K, S, M), in standard errors."""
    variance = sum(chain.flatten(0, 1).var(0) / convergence(chain).ess_bulk for chain in (first, second))
    return (first.mean((0, 1)) - second.mean((0, 1))) / variance.sqrt()


def drawn(model, x, y, *, num_epochs=2000, lr=0.02, **options):
    options = {"num_samples": 500, "num_chains": 2, "seed": 1, **options}
    return quietly(pb.fit_sgmcmc, model, (x, y), sampler=pb.SGHMC(lr), num_epochs=num_epochs, **options)


@pytest.mark.parametrize("prior", [pb.NormalPrior(0.7), pb.HorseshoePrior(), pb.ScaleMixturePrior(0.5, 1.0, 0.1)])
@pytest.mark.parametrize("jacobian", [True, False])
def test_the_gradient_is_that_of_the_potential_of_nuts(prior, jacobian):
    """In unconstrained space, so the Jacobians of latent noise scales and prior scales must be included."""
    torch.manual_seed(3)
    x, y = torch.randn(8, 1), torch.randn(8, 1)
    likelihood = pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0))
    model = pb.BayesianModel(nn.Linear(1, 1), prior=prior, likelihood=likelihood, num_data=8)
    point = pb.inference.guides.DeltaGuide(model, jacobian=jacobian)
    before = {name: value.clone() for name, value in point.locations().items()}
    with pb.svi_step(model, point, functools.partial(torch.optim.SGD, lr=1.0)) as step:
        step(x, y)
    potential = network_potential(model, x, y, None)
    start = torch.cat([before[site.name].reshape(-1) for site in potential.sites])
    _, gradient = potential.value_and_grad(start[None])
    moved = torch.cat([point.locations()[site.name].reshape(-1) for site in potential.sites]) - start
    assert torch.allclose(moved, -gradient[0], rtol=1e-9) == jacobian


@pytest.mark.nightly
def test_predictions_of_a_network_are_those_of_nuts():
    torch.manual_seed(0)
    x = torch.randn(20, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    likelihood = pb.CategoricalLikelihood()
    model = pb.BayesianModel(small_net(), prior=pb.NormalPrior(1.0), likelihood=likelihood, num_data=20)
    start = pb.NormalInit(loc_scale=1.0)
    nuts = quietly(pb.fit_nuts, model, (x, y), num_samples=200, num_warmup=100, num_chains=2, init=start, seed=0)

    def predicted(posterior):
        """Probability of the first class, shape (K, S, N)."""
        rows = [pb.predict_point(model, draw, x).probs[:, 0] for draw in posterior.draws(posterior.num_stored)]
        return torch.stack(rows).view(2, -1, len(x))[..., ::4]

    expected = predicted(nuts)
    posterior = drawn(model, x, y, num_epochs=2000, lr=0.05, num_samples=200, init=start)
    assert scores(predicted(posterior), expected).abs().max() < STANDARD_ERRORS
    cold = quietly(
        pb.fit_sgmcmc,
        model,
        (x, y),
        sampler=pb.SGHMC(0.05, temperature=0.2),
        num_epochs=1000,
        num_samples=200,
        num_chains=2,
        init=start,
        seed=1,
    )
    assert scores(predicted(cold), expected).abs().max() > STANDARD_ERRORS


@pytest.mark.nightly
def test_with_all_rows_a_regression_is_that_of_nuts():
    """Means and second moments of the line at the data, and of the noise's logarithm; a colder chain has others."""
    model, x, y = noisy_line()
    start = pb.NormalInit(loc_scale=0.5)
    nuts = quietly(pb.fit_nuts, model, (x, y), num_samples=150, num_warmup=80, num_chains=2, init=start, seed=0)

    def moments(posterior):
        """Shape (K, S, M)."""
        weight, bias, noise = (posterior.chains[name] for name in ("net.weight", "net.bias", "likelihood.scale"))
        line = weight.flatten(2) * x[::3, 0] + bias.flatten(2)
        values = torch.cat([line, noise[..., None].log()], -1)
        return torch.cat([values, values.square()], -1)

    expected = moments(nuts)
    options = {"num_epochs": 2000, "num_samples": 250, "init": start}
    assert scores(moments(drawn(model, x, y, **options)), expected).abs().max() < STANDARD_ERRORS
    cold = quietly(
        pb.fit_sgmcmc, model, (x, y), sampler=pb.SGHMC(0.02, temperature=0.2), num_chains=2, seed=1, **options
    )
    assert scores(moments(cold), expected).abs().max() > STANDARD_ERRORS


def test_the_draws_are_those_of_the_plan_and_lie_where_they_are_wanted(tmp_path):
    model, x, y = noisy_line()
    options = {"num_epochs": 60, "num_samples": 10, "num_chains": 2}
    kept = drawn(model, x, y, **options)
    stored = drawn(model, x, y, **options, store=tmp_path / "draws")
    every = drawn(model, x, y, **{**options, "num_samples": 30})
    for name, draws in kept.chains.items():
        assert torch.equal(draws, stored.chains[name])
        assert torch.equal(draws, every.chains[name][:, 2::3])  # of the last 30 steps every third
    assert 0 < (tmp_path / "draws").stat().st_size - 2 * 10 * 3 * x.element_size() < 1000  # the header
    pb.save_posterior(stored, tmp_path / "posterior", model)
    loaded = pb.load_posterior(tmp_path / "posterior", model)
    assert torch.equal(pb.predict(model, loaded, x).mean, pb.predict(model, kept, x).mean)
    with pytest.raises(FileExistsError, match="`store` must be a new file"):
        drawn(model, x, y, **options, store=tmp_path / "draws")
    with pytest.raises(ValueError, match="steps at which a chain samples, 30 of 60, got 31"):
        drawn(model, x, y, **{**options, "num_samples": 31})


def test_a_run_that_fails_leaves_no_file_unless_one_can_go_on_from_it(tmp_path):
    model, x, y = noisy_line()
    options = {"num_epochs": 20, "num_samples": 8, "store": tmp_path / "draws"}
    with pytest.raises(ValueError, match="shape"):
        drawn(model, x, y[:, 0], **options)
    assert not (tmp_path / "draws").exists()
    drawn(model, x, y, **options)
    assert (tmp_path / "draws").exists()
    with pytest.raises(FileNotFoundError, match="must lie in an existing folder"):
        drawn(model, x, y, **{**options, "store": tmp_path / "nowhere" / "draws"})


@pytest.mark.daily("*-2")
@pytest.mark.parametrize("num_chains", [1, 2])
@pytest.mark.parametrize("is_stored", [False, True])
def test_chains_go_on_to_the_bit(tmp_path, num_chains, is_stored):
    model, x, y = noisy_line()
    options = {"num_epochs": 20, "num_samples": 8, "num_chains": num_chains, "batch_size": 3}
    whole = drawn(model, x, y, **options)

    def stop(history):
        if len(history.epochs) == 15:
            raise KeyboardInterrupt

    where = {"checkpoint": pb.Checkpoint(tmp_path / "run", minutes=0)}
    if is_stored:
        where["store"] = tmp_path / "draws"
    with pytest.raises(KeyboardInterrupt):
        drawn(model, x, y, **options, **where, callbacks=[stop])
    gone_on = drawn(model, x, y, **options, **where, resume=tmp_path / "run", callbacks=[lambda history: None])
    for name, draws in whole.chains.items():
        assert torch.equal(draws, gone_on.chains[name])
    other = {**options, "num_epochs": 30}
    with pytest.raises(ValueError, match="from another fit: its optimizer's settings"):
        drawn(model, x, y, **other, resume=tmp_path / "run", callbacks=[lambda history: None])


@pytest.mark.parametrize("sampler", [pb.SGLD(0.1), pb.SGHMC(0.1)])
@pytest.mark.parametrize("flag", [None, 0.0, 1.0])
def test_a_flag_on_the_device_makes_a_step_do_nothing(sampler, flag):
    """For example, torch's `GradScaler` sets the flag after a gradient that is not finite."""
    torch.manual_seed(0)
    point = nn.Parameter(torch.ones(3))
    rest = {"num_steps": 4, "record": lambda step: None, "processes": pb.Execution().processes}
    chain = ChainOptimizer([point], sampler=sampler, steps=ConstantSteps(), **rest)
    for gradient in (1.0, math.nan if flag else 2.0):
        before = point.detach().clone()
        point.grad = torch.full((3,), gradient)
        chain.found_inf = None if flag is None else torch.tensor(flag if gradient != 1.0 else 0.0)
        chain.step()
    assert torch.equal(point, before) == bool(flag)
    assert all(value.isfinite().all() for value in chain.state[point].values())


def test_learnable_parameters_stay_and_are_told():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    likelihood = pb.GaussianLikelihood(0.5)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=8, where="net.2.*")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(8, 1)
    with pytest.warns(UserWarning, match=r"learnable parameters .* stay at their present values"):
        drawn(model, x, x, num_epochs=20, num_samples=8)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "sghmc"}, "`sampler`.*SGHMC"),
        ({"steps": 3}, "`steps`.*CyclicalSteps"),
        ({"num_epochs": 0}, "`num_epochs` must be"),
        ({"data": iter([])}, "`data` must have a length"),
        ({"init": 3}, "`init`"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    model, x, y = noisy_line()
    options = {"data": (x, y), "sampler": pb.SGHMC(1e-3), "num_epochs": 4, "num_samples": 2, **options}
    with pytest.raises(ValueError, match=message):
        pb.fit_sgmcmc(model, options.pop("data"), **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pb.SGLD(0.0), "`lr`"),
        (lambda: pb.SGHMC(1.0, 1.0), "`momentum` must be at least 0 and below 1"),
        (lambda: pb.SGHMC(1.0, temperature=-1.0), "`temperature`"),
        (lambda: pb.CyclicalSteps(0), "`num_cycles`"),
        (lambda: ConstantSteps(1.0), "`warmup` must be at least 0 and below 1"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_loader_gives_the_same_chain_as_its_rows_in_one_batch_but_only_latent_variables_are_judged():
    x, y = torch.linspace(-1, 1, 32)[:, None], torch.linspace(-2, 2, 32)[:, None]
    model = pb.BayesianModel(
        nn.Linear(1, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.3), num_data=32
    )
    options = {"sampler": pb.SGLD(1e-4), "num_epochs": 60, "num_samples": 30, "seed": 0}
    rows, loaded = (quietly(pb.fit_sgmcmc, model, data, **options) for data in ([x, y], [(x, y)]))
    torch.testing.assert_close(loaded.chains, rows.chains)
    assert "predictions: largest R-hat" in rows.status.message
    assert "latent variables: largest R-hat" in loaded.status.message
