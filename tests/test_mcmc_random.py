"""Random networks: densities in C, in torch and by hand agree; draws are compared with those of Pyro's NUTS."""

import itertools
import math
import warnings
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.special
import scipy.stats
import torch
from pyro import infer
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.joint import network_potential
from pyro_bnn.inference.mcmc._native import native

from .chains import effective, quietly
from .tolerances import IDENTITY, STANDARD_ERRORS

ACTIVATIONS = {
    "tanh": (nn.Tanh, np.tanh),
    "relu": (nn.ReLU, lambda a: np.maximum(a, 0)),
    "sigmoid": (nn.Sigmoid, scipy.special.expit),
    "softplus": (nn.Softplus, lambda a: np.logaddexp(0, a)),
    "silu": (nn.SiLU, lambda a: a * scipy.special.expit(a)),
    "gelu": (nn.GELU, lambda a: a * scipy.stats.norm.cdf(a)),
    "leaky": (nn.LeakyReLU, lambda a: np.where(a > 0, a, 0.01 * a)),
}
PRIORS = {
    "normal": (pb.NormalPrior, lambda w, s: scipy.stats.norm.logpdf(w, scale=s)),
    "laplace": (pb.LaplacePrior, lambda w, s: scipy.stats.laplace.logpdf(w, scale=s)),
    "mixture": (
        lambda s: pb.ScaleMixturePrior(mixing=0.3, scale1=s, scale2=s / 4),
        lambda w, s: np.logaddexp(
            math.log(0.3) + scipy.stats.norm.logpdf(w, scale=s),
            math.log(0.7) + scipy.stats.norm.logpdf(w, scale=s / 4),
        ),
    ),
}
LIKELIHOODS = ("gaussian", "latent noise", "heteroscedastic", "categorical", "bernoulli", "poisson")
NOISE = 0.4


@dataclass
class Problem:
    """A random network on random data.

    Args:
        seed: Seed of all choices.
    """

    seed: int

    def __post_init__(self):
        choose = np.random.default_rng(self.seed)
        torch.manual_seed(self.seed)
        depth, num_inputs = int(choose.integers(0, 4)), int(choose.integers(1, 7))
        self.likelihood = str(choose.choice(LIKELIHOODS))
        self.activation, self.prior = str(choose.choice([*ACTIVATIONS])), str(choose.choice([*PRIORS]))
        self.scale, outputs = float(choose.uniform(0.3, 2.0)), {"categorical": 4, "heteroscedastic": 2}
        sizes = [num_inputs, *choose.integers(1, 25, depth).tolist(), outputs.get(self.likelihood, 1)]
        num_rows = int(choose.choice([1, 2, 7, 40, 130, 700]))  # the last one is written in blocks
        layers = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b, bias=bool(choose.random() < 0.8)), ACTIVATIONS[self.activation][0]()]
        self.net = nn.Sequential(*layers[:-1]).double()
        self.x, self.y = torch.randn(num_rows, num_inputs).double(), self._targets(num_rows)
        self.model = pb.BayesianModel(
            self.net, prior=PRIORS[self.prior][0](self.scale), likelihood=self._likelihood(), num_data=num_rows
        )
        self.potential = network_potential(self.model, self.x, self.y, torch.float64)
        self.num_weights = sum(site.start.numel() for site in self.potential.sites)

    def _targets(self, n):
        if self.likelihood == "categorical":
            return torch.randint(4, (n,))
        kinds = {"bernoulli": torch.rand(n, 1).round(), "poisson": torch.randint(6, (n, 1)).double()}
        return kinds.get(self.likelihood, torch.randn(n, 1)).double()

    def _likelihood(self):
        return {
            "gaussian": pb.GaussianLikelihood(NOISE),
            "latent noise": pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0)),
            "heteroscedastic": pb.HeteroscedasticGaussianLikelihood(),
            "categorical": pb.CategoricalLikelihood(),
            "bernoulli": pb.BernoulliLikelihood(),
            "poisson": pb.PoissonLikelihood(),
        }[self.likelihood]

    def by_hand(self, z):
        """Minus the log joint density at a vector of unconstrained numbers, by numpy and scipy."""
        values, begin = {}, 0
        for site in self.potential.sites:
            size = site.start.numel()
            values[site.name] = z[begin : begin + size].reshape(tuple(site.start.shape))
            begin += size
        log_noise = values.pop("likelihood.scale", None)
        total = sum(PRIORS[self.prior][1](value, self.scale).sum() for value in values.values())
        h = self.x.numpy()
        for name, layer in self.net.named_children():
            if isinstance(layer, nn.Linear):
                h = h @ values[f"net.{name}.weight"].T + values.get(f"net.{name}.bias", 0.0)
            else:
                h = ACTIVATIONS[self.activation][1](h)
        y = self.y.numpy()
        if log_noise is not None:  # LogNormal(0, 1), and the Jacobian of the exponential: the logarithm is normal
            total += scipy.stats.norm.logpdf(log_noise).sum()
            return -total - scipy.stats.norm.logpdf(y, h, np.exp(log_noise)).sum()
        return (
            -total
            - {
                "gaussian": lambda: scipy.stats.norm.logpdf(y, h, NOISE).sum(),
                "heteroscedastic": lambda: scipy.stats.norm.logpdf(y, h[:, :1], np.exp(h[:, 1:] / 2)).sum(),
                "categorical": lambda: np.take_along_axis(scipy.special.log_softmax(h, 1), y[:, None], 1).sum(),
                "bernoulli": lambda: (y * h - np.logaddexp(0, h)).sum(),
                "poisson": lambda: scipy.stats.poisson.logpmf(y, np.exp(h)).sum(),
            }[self.likelihood]()
        )


def check(seed):
    """Compare three ways to compute one density, at two points, and its slopes along two directions."""
    problem = Problem(seed)
    z = 0.6 * torch.randn(2, problem.num_weights).double()
    value, gradient = problem.potential.value_and_grad(z)
    in_c = native(problem.potential.value_and_grad, z[:1], 5).value_and_grad(z)
    torch.testing.assert_close(in_c[0], value, **IDENTITY)
    torch.testing.assert_close(in_c[1], gradient, rtol=1e-10, atol=1e-10)
    for row in range(2):
        point, direction = z[row].numpy(), np.random.default_rng(seed).normal(size=problem.num_weights)
        assert problem.by_hand(point) == pytest.approx(float(value[row]), rel=1e-10)
        step = 1e-6 * direction / np.linalg.norm(direction)
        slope = (problem.by_hand(point + step) - problem.by_hand(point - step)) / 2
        expected = float(gradient[row].numpy() @ step)
        assert slope == pytest.approx(expected, rel=1e-5, abs=1e-13 * abs(float(value[row])))


@pytest.mark.daily("[0-2]")
@pytest.mark.parametrize("seed", range(6))
def test_a_random_network_in_c_in_torch_and_by_hand(seed):
    check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6, 206))
def test_two_hundred_random_networks_in_c_in_torch_and_by_hand(seed):
    check(seed)


def test_another_scale_of_the_prior_would_be_seen():
    problem = Problem(0)
    z = 0.6 * torch.randn(1, problem.num_weights).double()
    value = float(problem.potential.value(z))
    problem.scale *= 1.001
    assert problem.by_hand(z[0].numpy()) != pytest.approx(value, rel=1e-10)


# --- draws beside those of Pyro ---------------------------------------------------------------------------------------

X = torch.linspace(-1, 1, 12).double()[:, None]
GRID = torch.tensor([[-0.9], [0.1], [0.8]]).double()
NETS = {
    "regression": (lambda: nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)), X.mul(2).sin()),
    "classes": (lambda: nn.Linear(1, 3), torch.arange(12) // 4),
    "latent noise": (lambda: nn.Linear(1, 1), X + 0.3 * (7 * X).sin()),
}


def networks_of(name):
    net, y = NETS[name]
    likelihoods = {
        "regression": pb.GaussianLikelihood(0.3),
        "classes": pb.CategoricalLikelihood(),
        "latent noise": pb.GaussianLikelihood(dist.LogNormal(-1.0, 1.0)),
    }
    torch.manual_seed(0)
    model = pb.BayesianModel(net().double(), prior=pb.NormalPrior(1.0), likelihood=likelihoods[name], num_data=12)
    return model, y


def quantities(model, samples):
    """What the network returns at three inputs, its square, and the logarithm of the noise; shape (K, S, M)."""
    lead = next(iter(samples.values())).shape[:2]
    rows = []
    for index in range(lead.numel()):
        draw = {name: value.flatten(0, 1)[index] for name, value in samples.items()}
        outputs = pb.predict_point(model, draw, GRID)
        numbers = outputs.probs if isinstance(model.likelihood, pb.CategoricalLikelihood) else outputs.mean
        noise = [draw["likelihood.scale"].log().reshape(-1)] if "likelihood.scale" in draw else []
        rows.append(torch.cat([numbers.flatten(), numbers.flatten().square(), *noise]))
    return torch.stack(rows).unflatten(0, lead)


def largest_z_score(ours, theirs):
    variances = [values.flatten(0, 1).var(0) / effective(values) for values in (ours, theirs)]
    return float(((ours.mean((0, 1)) - theirs.mean((0, 1))) / sum(variances).sqrt()).abs().max())


@pytest.mark.nightly
@pytest.mark.parametrize("name", NETS)
def test_draws_are_those_of_pyros_own_nuts(name):
    model, y = networks_of(name)
    torch.manual_seed(1)
    with warnings.catch_warnings(), mock.patch("torch.multiprocessing.cpu_count", return_value=1):
        warnings.filterwarnings("ignore", message="num_chains=")
        kernel = infer.NUTS(model, max_tree_depth=6)
        mcmc = infer.MCMC(kernel, num_samples=300, warmup_steps=150, num_chains=2, disable_progbar=True)
        mcmc.run(X, y)
    theirs = quantities(model, mcmc.get_samples(group_by_chain=True))
    for compile, path in ((True, "C"), (False, "replayed: `compile` is False")):
        lengths = {"num_samples": 1000, "num_warmup": 500, "num_chains": 2}
        posterior = quietly(pb.fit_nuts, model, (X, y), compile=compile, seed=0, **lengths)
        assert posterior.path == path
        ours = quantities(model, posterior.chains)
        score = largest_z_score(ours, theirs)
        print(f"{name}, {path}: largest difference {score:.1f} standard errors")
        assert score < STANDARD_ERRORS
        assert largest_z_score(ours + 0.3 * ours.flatten(0, 1).std(0), theirs) > STANDARD_ERRORS
