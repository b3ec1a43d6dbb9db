"""Natural-gradient inference: its step is that of the paper, and its fixed points are the optima of the ELBO."""

import copy
import functools
import math

import ivon
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from scipy.optimize import minimize
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.scale_maps import Precision

from .cases import small_model
from .fits import PerWeightPrior, WidePrior
from .test_exact import NOISE, PRIOR_SCALE, D, Problem
from .tolerances import agrees_in_mean


@pytest.fixture
def problem():
    return Problem()


def precise(model, scale=0.05):
    return pb.MeanFieldGuide(model, init=pb.NetworkInit(scale), scale_map=Precision())


def flat(values):
    return torch.cat([value.flatten() for value in values.values()])


def unflat(vector, like):
    parts = vector.split([value.numel() for value in like.values()])
    return {name: part.view_as(like[name]) for name, part in zip(like, parts, strict=True)}


# --- the step ---------------------------------------------------------------------------------------------------------


class Reference:
    """The method in the paper's own terms: mean loss of a row, h, delta and the effective number of rows lambda."""

    def __init__(self, model, guide, kl_weight, loc=0.0, scale=0.7, *, lr, b1, b2, sign=1.0, factor=1.0, debias=True):
        self.model, self.like, self.num_data, self.factor = model, guide.locations(), model.num_data, factor
        self.m, self.center, self.prior_precision = flat(self.like).clone(), loc, torch.as_tensor(scale) ** -2
        self.h = (flat(guide.scales()) ** -2 - self.prior_precision) * kl_weight / self.num_data
        self.g_bar, self.t = torch.zeros_like(self.m), 0
        self.lr, self.b1, self.b2, self.sign, self.debias = lr, b1, b2, sign, debias

    def mean_loss_gradient(self, w, x, y):
        leaf = w.clone().requires_grad_()
        loss = -self.factor * self.model.log_likelihood(unflat(leaf, self.like), x, y) / self.num_data
        return torch.autograd.grad(loss, leaf)[0]

    def step(self, x, y, kl_weight, num_draws):
        lam = self.num_data / kl_weight
        delta = self.prior_precision / lam
        g, f = torch.zeros_like(self.m), torch.zeros_like(self.m)
        for _ in range(num_draws):
            w = self.m + torch.empty_like(self.m).normal_() / (lam * (self.h + delta)).sqrt()
            own = self.mean_loss_gradient(w, x, y)
            g += own / num_draws
            f += self.sign * own * (w - self.m) * lam * (self.h + delta) / num_draws
        self.t += 1
        self.g_bar = self.b1 * self.g_bar + (1 - self.b1) * g
        rate = 1 - self.b2
        self.h = self.b2 * self.h + rate * f + rate**2 * (self.h - f) ** 2 / (2 * (self.h + delta))
        g_bar = self.g_bar / (1 - self.b1**self.t) if self.debias else self.g_bar
        self.m = self.m - self.lr * (g_bar + delta * (self.m - self.center)) / (self.h + delta)
        self.precision = lam * (self.h + delta)


PRIORS = {
    "normal": (pb.NormalPrior(0.7), {}),
    "wide": (WidePrior(), {"loc": 0.3, "scale": 2.0}),
    "per-weight": (PerWeightPrior(), None),
}


def wide_net():
    """A network whose second layer has so many weights that their gradient is a separate tensor."""
    return nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 256), nn.Tanh(), nn.Linear(256, 3))


def compared(prior="normal", num_draws=1, weights=(1.0, 1.0, 1.0), num_parts=1, make_net=lambda: None, **changes):
    """The guide and the reference after three steps with the same noise."""
    member, arguments = PRIORS[prior]
    model, x, y = small_model(prior=member, num_data=60, net=make_net())
    guide = precise(model)
    settings = {"lr": 0.05, "b1": 0.8, "b2": 0.97}
    if arguments is None:
        ramps = [torch.arange(value.numel()).double() for value in guide.locations().values()]
        arguments = {"loc": torch.cat([r / 10 for r in ramps]), "scale": torch.cat([0.5 + r / 20 for r in ramps])}
    reference = Reference(model, guide, weights[0], **{**arguments, **settings, **changes})
    make = pb.optim.natural_gradient(0.05, momentum=0.8, hessian_decay=0.97)
    execution = pb.Execution(num_parts=num_parts)
    with pb.svi_step(model, guide, make, elbo=Trace_ELBO(num_draws), execution=execution) as step:
        step.prepared(x, y)
        torch.manual_seed(3)
        for kl_weight in weights:
            step(x, y, kl_weight=kl_weight)
        found = flat(guide.locations()), flat(guide.scales()) ** -2
    torch.manual_seed(3)
    for kl_weight in weights:
        reference.step(x, y, kl_weight, num_draws)
    return found, (reference.m, reference.precision)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_draws": 3},
        {"weights": (0.3, 0.3, 0.3)},
        {"weights": (0.3, 0.6, 0.5)},
        {"num_parts": 2},
        {"prior": "wide"},
        {"prior": "per-weight", "weights": (0.3, 0.6, 0.5), "num_draws": 2},
        {"make_net": wide_net},
        {"make_net": wide_net, "num_draws": 2, "num_parts": 2},
    ],
    ids=lambda change: str({name: getattr(value, "__name__", value) for name, value in change.items()}),
)
def test_a_step_is_that_of_the_paper(options):
    found, expected = compared(**options)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("change", [{"sign": -1.0}, {"factor": 0.1}, {"debias": False}, {"loc": 0.1}])
def test_a_step_with_a_mistake_is_another(change):
    found, expected = compared(**change)
    assert not all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(found, expected, strict=True))


class OfTokens(nn.Module):
    """Long embeddings, one of them never used, before a linear layer."""

    def __init__(self, sparse):
        super().__init__()
        self.used, self.unused = nn.Embedding(20_000, 4, sparse=sparse), nn.Embedding(20_000, 4)
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(self.used(x))


@pytest.mark.parametrize("make", [precise, pb.DeltaGuide])
def test_sparse_and_missing_gradients_of_long_tables_are_as_dense_ones(make):
    results = []
    for sparse in (False, True):
        torch.manual_seed(0)
        likelihood, net = pb.CategoricalLikelihood(), OfTokens(sparse)
        model = pb.BayesianModel(net, prior=pb.NormalPrior(0.7), likelihood=likelihood, num_data=60)
        guide, x = make(model), torch.arange(6)
        optimizer = pb.optim.natural_gradient(0.05) if make is precise else functools.partial(torch.optim.SGD, lr=0.01)
        with pb.svi_step(model, guide, optimizer) as step:
            for _ in range(2):
                step(x, x % 3)
            gradients = {name: parameter.grad for name, parameter in guide.loc.named_parameters()}
            assert (gradients["net.unused.weight"] == 0).all() == (make is precise)  # a point's has that of the prior
            assert not (gradients["net.used.weight"] == 0).all()
        results.append(guide.locations())
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value)


@pytest.mark.parametrize("b2", [0.97, 0.9])
def test_a_step_is_that_of_the_released_package(b2):
    model, x, y = small_model(num_data=60)
    guide = precise(model)
    net = copy.deepcopy(model.network)  # its weights are buffers of the model's copy
    start = {name.removeprefix("net."): value for name, value in guide.locations().items()}
    parameters = {name: nn.Parameter(value.clone()) for name, value in start.items()}
    delta = 0.7**-2 / 60
    hessian = float(guide.scales()["net.0.weight"][0, 0]) ** -2 / 60 - delta
    options = {"ess": 60, "weight_decay": delta, "hess_init": hessian, "beta1": 0.9, "beta2": b2, "rescale_lr": False}
    theirs = ivon.IVON(parameters.values(), lr=0.05, **options)
    with pb.svi_step(model, guide, pb.optim.natural_gradient(0.05, hessian_decay=0.97)) as step:
        step.prepared(x, y)
        torch.manual_seed(3)
        for _ in range(3):
            step(x, y)
    torch.manual_seed(3)
    for _ in range(3):
        with theirs.sampled_params(train=True):
            theirs.zero_grad()
            nn.functional.cross_entropy(torch.func.functional_call(net, parameters, x), y).backward()
        theirs.step()
    found, expected = flat(guide.scales()) ** -2, 60 * (theirs.param_groups[0]["hess"] + delta)
    for name, value in guide.locations().items():
        is_same = torch.allclose(value, parameters[name.removeprefix("net.")], rtol=1e-9)
        assert is_same == (b2 == 0.97)
    assert torch.allclose(found, expected, rtol=1e-9) == (b2 == 0.97)


# --- fixed points -----------------------------------------------------------------------------------------------------


def mean_changes(model, guide, batches, num_steps=1200, kl_weight=1.0, num_draws=1):
    """Standardised changes of means and of precisions in steps so short that the guide hardly moves."""
    lr = 1e-7
    make = pb.optim.natural_gradient(lr, momentum=0.0, hessian_decay=1 - lr)
    changes, before = [], None
    with pb.svi_step(model, guide, make, elbo=Trace_ELBO(num_draws), kl_weight=kl_weight) as step:
        for index in range(num_steps):
            now = torch.cat([flat(guide.locations()), flat(guide.scales()).log()])
            if before is not None:
                changes.append((now - before) / lr)
            before = now
            step(*batches[index % len(batches)])
    return torch.stack(changes)


def at_its_optimum(problem, kl_weight=1.0, *, marginal=False):
    precision = problem.x.T @ problem.x / NOISE**2 / kl_weight + torch.eye(D) / PRIOR_SCALE**2
    mean = torch.linalg.solve(precision, problem.x.T @ problem.y / NOISE**2 / kl_weight).T
    guide = precise(problem.model)
    variance = torch.linalg.inv(precision).diagonal() if marginal else precision.diagonal().reciprocal()
    with torch.no_grad():
        guide.loc.net.weight.copy_(mean)
        guide.precision.net.weight.copy_(variance.reciprocal().reshape(1, D))
    return guide


def thirds(problem):
    """Batches of a third of the rows; all of them together are the data."""
    return [(problem.x[index::3], problem.y[index::3]) for index in range(3)]


@pytest.mark.daily("1.0-True-1")
@pytest.mark.parametrize(
    ("kl_weight", "is_split", "num_draws"), [(1.0, False, 1), (0.3, False, 2), (1.0, True, 1)], ids=str
)
def test_the_mean_field_optimum_of_a_linear_regression_is_a_fixed_point(problem, kl_weight, is_split, num_draws):
    batches = thirds(problem) if is_split else [(problem.x, problem.y)]
    guide = at_its_optimum(problem, kl_weight)
    options = {"kl_weight": kl_weight, "num_draws": num_draws}
    assert agrees_in_mean(mean_changes(problem.model, guide, batches, **options), 0.0)


@pytest.mark.nightly
@pytest.mark.parametrize("wrong", [{"kl_weight": 0.8}, {"marginal": True}], ids=str)
def test_another_guide_is_no_fixed_point(problem, wrong):
    guide = at_its_optimum(problem, **wrong)
    assert not agrees_in_mean(mean_changes(problem.model, guide, [(problem.x, problem.y)]), 0.0)


X = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64)[:, None]
Y = 0.3 * X + torch.tensor([0.1, -0.2, 0.05, 0.3, -0.1, 0.1], dtype=torch.float64)[:, None]


def likelihood_of(weight, scale):
    """Log-likelihood of the six rows for many weights and noise scales at once."""
    return dist.Normal(weight * X, scale).log_prob(Y).sum(0)


# name -> prior of the weight, prior of the noise scale or its value, log-density of (log-likelihood, log-prior) by hand
MODELS = {
    "laplace": (
        pb.LaplacePrior(0.2),
        0.4,
        lambda z: (likelihood_of(z[0], 0.4), dist.Laplace(0.0, 0.2).log_prob(z[0])),
    ),
    "mixture": (
        pb.ScaleMixturePrior(0.5, 1.0, 0.1),
        0.4,
        lambda z: (
            likelihood_of(z[0], 0.4),
            torch.logaddexp(dist.Normal(0.0, 1.0).log_prob(z[0]), dist.Normal(0.0, 0.1).log_prob(z[0])) - math.log(2),
        ),
    ),
    "latent-scale": (
        pb.NormalPrior(0.7),
        dist.LogNormal(-1.0, 0.5),
        lambda z: (
            likelihood_of(z[0], z[1].exp()),
            dist.Normal(0.0, 0.7).log_prob(z[0]) + dist.Normal(-1.0, 0.5).log_prob(z[1]),
        ),
    ),
}


def best_gaussians(log_densities, num_variables, kl_weight):
    """Means and scales of the best mean-field guide, by quadrature of the ELBO and BFGS: shape (2, variables)."""
    nodes = torch.linspace(-8.0, 8.0, 16_001 if num_variables == 1 else 101)
    grid = torch.cartesian_prod(*[nodes] * num_variables).reshape(-1, num_variables).T
    weights = dist.Normal(0.0, 1.0).log_prob(grid).sum(0).softmax(0)

    def objective(numbers):
        leaf = torch.tensor(numbers, requires_grad=True)
        loc, log_scale = leaf.reshape(2, -1)
        log_likelihood, log_prior = log_densities(loc[:, None] + log_scale.exp()[:, None] * grid)
        value = -(weights * (log_likelihood + kl_weight * log_prior)).sum() - kl_weight * log_scale.sum()
        (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient.numpy()

    start = torch.tensor([0.0, -1.0]).repeat_interleave(num_variables).numpy()
    found = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9})
    loc, log_scale = torch.tensor(found.x).reshape(2, -1)
    return loc, log_scale.exp()


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "kl_weight"), [("laplace", 0.4), ("mixture", 1.0), ("latent-scale", 1.0)])
def test_the_optimum_with_other_priors_is_a_fixed_point(name, kl_weight):
    prior, noise, log_densities = MODELS[name]
    likelihood = pb.GaussianLikelihood(noise)
    model = pb.BayesianModel(nn.Linear(1, 1, bias=False), prior=prior, likelihood=likelihood, num_data=6)
    guide = precise(model)
    loc, scale = best_gaussians(log_densities, len(guide.sites), kl_weight)

    def changes(factor):
        with torch.no_grad():
            for values, tree in ((loc, guide.loc), ((scale * factor) ** -2, guide.precision)):
                for value, parameter in zip(values, tree.parameters(), strict=True):
                    parameter.fill_(value)
        return mean_changes(model, guide, [(X, Y)], kl_weight=kl_weight)

    assert agrees_in_mean(changes(1.0), 0.0)
    assert not agrees_in_mean(changes(1.3), 0.0)


# --- convergence ------------------------------------------------------------------------------------------------------


def averages(problem, seed, *, batch_size, kl_weight=1.0):
    """Means and variances of the guide, averaged over the later steps of a fit that starts far away."""
    guide, found = precise(problem.model, scale=0.3), []

    def note(history):
        if len(history.epochs) > num_epochs / 4:
            found.append(torch.cat([flat(guide.locations()), flat(guide.scales()).square()]))

    num_epochs = 400 if batch_size is None else 200

    def rate(epoch):  # batches of unlike rows need a decaying one
        return 1.0 if batch_size is None else 1 / (1 + epoch / 10)

    decay = functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=rate)
    make = pb.optim.scheduled(pb.optim.natural_gradient(0.2, hessian_decay=0.98), decay)
    options = {"num_epochs": num_epochs, "batch_size": batch_size, "kl_weight": kl_weight, "callbacks": [note]}
    pb.fit_svi(problem.model, (problem.x, problem.y), guide, optimizer=make, seed=seed, **options)
    return torch.stack(found).mean(0)


@pytest.mark.nightly
@pytest.mark.parametrize(("batch_size", "kl_weight"), [(4, 1.0), (None, 2.0)])
def test_a_fit_of_a_linear_regression_converges_to_the_mean_field_optimum(problem, batch_size, kl_weight):
    runs = torch.stack([averages(problem, seed, batch_size=batch_size, kl_weight=kl_weight) for seed in range(8)])
    optimum = at_its_optimum(problem, kl_weight)
    variances = flat(optimum.scales()).square()
    assert agrees_in_mean(runs, torch.cat([flat(optimum.locations()), variances]))
    other = at_its_optimum(problem, kl_weight, marginal=True)
    assert not agrees_in_mean(runs[:, D:], flat(other.scales()).square())
    torch.testing.assert_close(runs[:, D:].mean(0), variances, rtol=0.1, atol=0)
