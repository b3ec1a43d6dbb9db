"""Acquisition functions of BoTorch see the same draws of a network at every call."""

import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.batch_norm import PinnedPosterior
from pyro_bnn.interop.botorch import Surrogate, fit_surrogate

from .tolerances import IDENTITY, STANDARD_ERRORS

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)  # of GPyTorch's own use
    from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
    from botorch.acquisition.monte_carlo import qExpectedImprovement
    from botorch.acquisition.multi_objective.monte_carlo import qExpectedHypervolumeImprovement
    from botorch.acquisition.objective import LinearMCObjective
    from botorch.exceptions.errors import UnsupportedError
    from botorch.models.transforms import Normalize, Standardize
    from botorch.optim import optimize_acqf
    from botorch.sampling.get_sampler import get_sampler
    from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning

PAGE = Path(__file__).parent.parent / "docs" / "how_to" / "optimise.md"
SHORT = {"num_samples": 32, "num_warmup": 100}
CUBE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def small(num_outputs=1, likelihood=None, seed=0, net=None):
    """A network whose posterior is a guide that was not fitted: any distribution of weights will do."""
    torch.manual_seed(seed)
    net = pb.nets.mlp([2, 7, num_outputs], activation=nn.Tanh) if net is None else net
    likelihood = pb.GaussianLikelihood(0.3) if likelihood is None else likelihood
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=10)
    return model, pb.GuidePosterior(pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3)))


def points(*shape, seed=1):
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_values_are_those_of_the_same_draws_at_every_call():
    model, posterior = small()
    surrogate = Surrogate(model, posterior, num_samples=16, seed=3)
    x = points(5, 3)
    first = surrogate.posterior(x).values
    torch.rand(7)
    draws = posterior.sample(16, seed=3)
    assert first.shape == (5, 16, 3, 1)
    assert torch.equal(surrogate.posterior(x).values, first)
    torch.testing.assert_close(surrogate.posterior(x[2, 1:]).values, first[2, :, 1:], **IDENTITY)
    one = model.output_given({name: value[6] for name, value in draws.items()}, x.flatten(0, 1))
    torch.testing.assert_close(one, first[:, 6].flatten(0, 1), **IDENTITY)
    assert not torch.allclose(Surrogate(model, posterior, num_samples=16, seed=4).posterior(x).values, first)


def test_predictions_are_those_of_predict():
    model, posterior = small()
    stored, x = pb.StoredPosterior.of(posterior, 20, seed=0), points(6)
    found = Surrogate(model, stored).posterior(x)
    prediction = pb.predict(model, stored, x)
    torch.testing.assert_close(found.mean, prediction.mean, **IDENTITY)
    torch.testing.assert_close(found.variance, prediction.epistemic, **IDENTITY)


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 1))),
        nn.Sequential(pb.nets.Standardize(torch.full((2,), 0.5), torch.full((2,), 0.3)), nn.Linear(2, 1)),
    ],
    ids=["nested", "standardised"],
)
def test_networks_of_other_forms_and_gradients_in_the_points(net):
    model, posterior = small(net=net.double())
    surrogate, x = Surrogate(model, posterior, num_samples=4, seed=0), points(3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: surrogate.posterior(x).values, x)


def test_each_draw_of_an_ensemble_has_its_own_learned_parameters():
    nets = [pb.nets.mlp([2, 3, 1], activation=nn.Tanh) for _ in range(2)]
    members = []
    for net in nets:
        model, _ = small(net=net)
        model = pb.BayesianModel(
            net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(1.0), num_data=10, where="net.2.*"
        )
        members.append(PinnedPosterior(model, pb.MeanFieldGuide(model)))
    ensemble, x = pb.EnsemblePosterior(members), points(4)
    stored = pb.StoredPosterior.of(ensemble, 6, seed=0)
    found = Surrogate(model, stored, num_samples=6).posterior(x).mean
    torch.testing.assert_close(found, pb.predict(model, stored, x, num_samples=6).mean, **IDENTITY)


def test_noise_is_added_on_request_and_leaves_the_mean():
    model, posterior = small()
    surrogate, x = Surrogate(model, posterior, num_samples=500, seed=0), points(4)
    without, noisy = surrogate.posterior(x), surrogate.posterior(x, observation_noise=True)
    torch.testing.assert_close(noisy.mean, without.mean, **IDENTITY)
    ratio = (noisy.values - without.values) / 0.3
    torch.testing.assert_close(ratio.var(-3, unbiased=False), torch.ones(4, 1), **IDENTITY)
    assert torch.equal(surrogate.posterior(x, observation_noise=True).values, noisy.values)
    varying, guide = small(2, pb.HeteroscedasticGaussianLikelihood())
    of_input = Surrogate(varying, guide, num_samples=500, seed=0)
    noise = of_input.posterior(x, observation_noise=True).values - of_input.posterior(x).values
    scale = varying.observe(of_input._outputs(of_input._draws(), x), of_input._draws()).stddev
    torch.testing.assert_close((noise / scale).mean(-3), torch.zeros(4, 1), **IDENTITY)


def test_transforms_are_applied_before_and_undone_after():
    model, posterior = small()
    bounds = torch.tensor([[-1.0, 0.0], [3.0, 5.0]])
    standard = Standardize(1)
    standard(torch.tensor([[1.0], [4.0], [10.0]]))
    plain = Surrogate(model, posterior, num_samples=8, seed=0)
    surrogate = Surrogate(
        model,
        posterior,
        num_samples=8,
        seed=0,
        input_transform=Normalize(2, bounds=bounds),
        outcome_transform=standard.eval(),
    )
    x = points(3)
    expected = 5.0 + torch.tensor([1.0, 4.0, 10.0]).std() * plain.posterior(x).values
    torch.testing.assert_close(
        surrogate.posterior(bounds[0] + (bounds[1] - bounds[0]) * x).values, expected, **IDENTITY
    )


def test_a_later_change_of_the_model_or_the_guide_changes_nothing():
    model, posterior = small()
    surrogate, x = Surrogate(model, posterior, num_samples=4, seed=0), points(3)
    before = surrogate.posterior(x).values
    with torch.no_grad():
        for parameter in [*model.parameters(), *model.buffers(), *posterior.guide.parameters()]:
            parameter += 1.0
    assert torch.equal(surrogate.posterior(x).values, before)
    assert not list(surrogate.float().posterior(x.float()).values.isnan().nonzero())
    assert all(not parameter.requires_grad for parameter in surrogate.parameters())


def linear(num_samples):
    """A linear model with a known posterior, points, and the expected improvement over 0.2 there."""
    model, _ = small(net=nn.Linear(2, 1, bias=False).double())
    loc, scale = torch.tensor([[0.5, -1.0]]), torch.tensor([[1.0, 0.5]])
    weights = loc + scale * torch.randn(num_samples, 1, 2, generator=torch.Generator().manual_seed(0))
    stored = pb.StoredPosterior({"net.weight": weights}, method="known", status=pb.Status(True, "known"))
    x = points(20)
    mean, sd = x @ loc[0], (x.square() @ scale[0].square()).sqrt()
    z, normal = (mean - 0.2) / sd, torch.distributions.Normal(0.0, 1.0)
    return model, stored, x, sd * (z * normal.cdf(z) + normal.log_prob(z).exp())


@pytest.mark.filterwarnings("ignore:qExpectedImprovement has known numerical issues")
def test_expected_improvement_is_that_of_the_posterior():
    """Within the error of the draws; an acquisition function whose threshold is .3 too high does not agree."""
    model, stored, x, expected = linear(4096)
    surrogate = Surrogate(model, stored, num_samples=4096)
    shape = torch.Size([4096])
    gains = (surrogate.posterior(x[:, None]).values[..., 0, 0].T - 0.2).clamp(min=0)  # (S, N)
    error = gains.std(0) / 64
    sampler = get_sampler(surrogate.posterior(x[:, None]), shape)
    found = qExpectedImprovement(surrogate, 0.2, sampler=sampler)(x[:, None])
    assert ((found - expected).abs() < STANDARD_ERRORS * error).all()
    wrong = qExpectedImprovement(surrogate, 0.5, sampler=sampler)(x[:, None])
    assert ((wrong - expected).abs() > STANDARD_ERRORS * error).any()


def test_samples_go_through_all_draws():
    model, posterior = small()
    found = Surrogate(model, posterior, num_samples=8, seed=0).posterior(points(3, 2))
    samples = get_sampler(found, torch.Size([16]))(found)  # (16, 3, 2, 1)
    torch.testing.assert_close(samples.mean(0), found.mean, **IDENTITY)
    assert torch.equal(samples[::2], found.values.movedim(1, 0))
    fewer = get_sampler(found, torch.Size([4]))(found)
    assert torch.equal(fewer, found.values.movedim(1, 0)[1::2])


def pairs():
    model, posterior = small(2)
    return Surrogate(model, posterior, num_samples=32, num_outputs=2, seed=0)


def improvement():
    model, posterior = small()
    return qLogExpectedImprovement(Surrogate(model, posterior, num_samples=32, seed=0), 0.0)


def noisy_improvement():
    model, posterior = small()
    surrogate = Surrogate(model, posterior, num_samples=32, seed=0)
    return qLogNoisyExpectedImprovement(surrogate, points(4), cache_root=False, prune_baseline=False)


def hypervolume():
    surrogate, reference = pairs(), torch.tensor([-1.0, -1.0])
    front = FastNondominatedPartitioning(reference, torch.tensor([[0.1, -0.2], [-0.3, 0.2]]))
    return qExpectedHypervolumeImprovement(surrogate, reference, front)


def weighted_sum():
    objective = LinearMCObjective(torch.tensor([1.0, 2.0]))
    return qLogExpectedImprovement(pairs(), 0.0, objective=objective)


@pytest.mark.filterwarnings("ignore:qExpectedHypervolumeImprovement has known numerical issues")
@pytest.mark.parametrize("make", [improvement, noisy_improvement, hypervolume, weighted_sum])
@pytest.mark.parametrize("q", [1, 2])
def test_acquisition_functions_are_optimised(make, q):
    """The optimum is inside the bounds, and better than a thousand random points."""
    gain = make()
    torch.manual_seed(0)
    best, value = optimize_acqf(gain, CUBE, q=q, num_restarts=4, raw_samples=64)
    assert best.shape == (q, 2)
    assert ((best >= 0) & (best <= 1)).all()
    with torch.no_grad():
        assert value > gain(points(1000, q)).max() - 1e-3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.condition_on_observations(points(1), points(1)), "fit the network again"),
        (lambda s: s.fantasize(points(1), None), "fit the network again"),
        (
            lambda s: s.posterior(points(2), observation_noise=torch.ones(1)),
            "`observation_noise` must be True or False",
        ),
    ],
)
def test_what_a_network_cannot_do_says_the_remedy(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(Surrogate(*small(), num_samples=4))


def linearised():
    model, _ = small()
    return model, pb.fit_gauss_newton(model, (points(10), points(10)[:, :1]))


def with_dropout():
    return small(net=pb.nets.mlp([2, 7, 1], dropout=0.5).double())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Surrogate(3, small()[1]), "`model` must be a BayesianModel, got int"),
        (lambda: Surrogate(*small(likelihood=pb.PoissonLikelihood())), "Gaussian.*got PoissonLikelihood"),
        (lambda: Surrogate(*small(), num_samples=1), "`num_samples` must be a whole number of at least 2"),
        (lambda: Surrogate(*linear(3)[:2], num_samples=5), "only 3 draws are stored"),
        (lambda: Surrogate(*linearised()), "linearised network"),
        (lambda: Surrogate(*small(2)).posterior(points(2)), r"shape \(N, 1\), got \(N, 2\); .*`num_outputs`"),
        (lambda: Surrogate(*with_dropout()).posterior(points(2)), "remove MCDropout"),
        (lambda: Surrogate(*small()).posterior(points(2).float()), "float32 but the network is torch.float64"),
        (lambda: Surrogate(*small()).posterior(points(2)[:, :1]), "cannot take `x`"),
        (lambda: Surrogate(*small()).posterior(points()), r"`X` must have shape \(\*batch, q, d\)"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.nightly
def test_without_the_package_the_import_says_how_to_install_it():
    code = """
import sys

class Absent:
    def find_spec(self, name, *_):
        if name == "botorch":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
import pyro_bnn.interop.botorch
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode
    assert "this needs BoTorch, which is not installed: run `pip install -e '.[botorch]'`" in found.stderr


def branch(x):
    """Two targets of two inputs."""
    return torch.stack([(4 * x[:, 0]).sin(), x[:, 0] - x[:, 1].square()], -1)


def test_a_fitted_surrogate_follows_the_function_between_its_points():
    """In units other than those of the unit cube, for two targets; the values of another function are far away."""
    low, high = torch.tensor([-2.0, 10.0]), torch.tensor([3.0, 60.0])
    x, new = points(30), points(50, seed=2)
    surrogate = fit_surrogate(
        low + (high - low) * x, 40 * branch(x) + 7, bounds=torch.stack([low, high]), **SHORT, seed=0
    )
    found = (surrogate.posterior(low + (high - low) * new).mean - 7) / 40
    error = (found - branch(new)).square().mean(0).sqrt() / branch(x).std(0)
    assert (error < 0.3).all()
    assert ((found - branch(1 - new)).square().mean(0).sqrt() / branch(x).std(0)).max() > 0.3
    assert surrogate.num_outputs == 2


@pytest.mark.nightly
def test_points_chosen_with_it_are_better_than_points_at_random():
    """Four steps of two points on a bump come closer to its top than eight more random points."""

    def bump(x):
        return -(x - torch.tensor([0.3, 0.7])).square().sum(-1, keepdim=True)

    x = points(6)
    assert bump(points(14)).max() < -0.02
    first, again = (fit_surrogate(x, bump(x), bounds=CUBE, **SHORT, seed=0).posterior(x).values for _ in range(2))
    assert torch.equal(first, again)
    for step in range(4):
        gain = qLogExpectedImprovement(fit_surrogate(x, bump(x), bounds=CUBE, **SHORT, seed=0), bump(x).max())
        torch.manual_seed(step)
        near = {"sample_around_best": True}  # the points of the fit, which the surrogate has
        more, _ = optimize_acqf(gain, CUBE, q=2, num_restarts=4, raw_samples=64, sequential=True, options=near)
        x = torch.cat([x, more])
    assert bump(x).max() > -0.01


def test_an_input_may_be_constant_and_a_surrogate_can_be_pickled_after_its_use():
    x = points(6) * CUBE.new_tensor([1.0, 0.0]) + 3
    surrogate = fit_surrogate(x, branch(x), num_samples=4, num_warmup=4, seed=0)
    found = surrogate.posterior(x).values
    assert torch.isfinite(found).all()
    assert torch.equal(pickle.loads(pickle.dumps(surrogate)).posterior(x).values, found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_surrogate(points(5), points(4)), r"one dtype, got \(5, 2\).*and \(4, 2\)"),
        (lambda: fit_surrogate(points(5), points(5).float()), "one dtype"),
        (lambda: fit_surrogate(points(5) / 0, points(5)), "`X` must be finite"),
        (lambda: fit_surrogate(points(5), points(5) > 1), "`Y` must be floating point"),
        (lambda: fit_surrogate(points(5), points(5), bounds=CUBE[:1]), r"`bounds` must have shape \(2, 2\)"),
        (lambda: fit_surrogate(points(5), points(5), bounds=CUBE.flip(0)), "`bounds`.*lower values in its first row"),
        (lambda: fit_surrogate(points(5), points(5), bounds=CUBE / 0), "`bounds` must be finite"),
        (lambda: fit_surrogate(points(5), torch.ones(5, 1)), "`Y` must not be constant"),
        (
            lambda: fit_surrogate(points(5), points(5), num_samples=1),
            "`num_samples` must be a whole number of at least",
        ),
    ],
)
def test_mistakes_of_a_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # short chains
def test_the_blocks_of_the_page_run_in_order(capsys):
    torch.set_default_dtype(torch.float32)
    names = {"__name__": "page"}
    for index, code in enumerate(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)):
        exec(compile(code, f"{PAGE.name} block {index}", "exec"), names)
    torch.set_default_dtype(torch.float64)
    best = [float(value) for value in re.findall(r"best of \d+: (-\d+\.\d+)", capsys.readouterr().out)]
    assert best[1] > best[0] + 1
