"""Laplace's method: exact where the posterior is Gaussian, and with clear errors where it cannot be used."""

import functools
import math

import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb

from .cases import small_model
from .test_exact import Problem
from .tolerances import STANDARD_ERRORS


def test_laplace_is_exact_for_conjugate_regression():
    problem = Problem()
    for seed in range(2):
        posterior = pb.fit_laplace(problem.model, (problem.x, problem.y), seed=seed)
        assert posterior.status
        assert str(posterior.status) == "Laplace approximation around the mode, searched from the network's weights."
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
    with pytest.warns(pb.ConvergenceWarning, match="stopped before the mode.*Raise `max_iter`"):
        posterior = pb.fit_laplace(model, (x, y), max_iter=1)
    assert not posterior.status
    assert "Raise `max_iter`" in posterior.status.remedy
    again = pb.fit_laplace(model, (x, y), init=posterior, seed=0)
    assert "searched from a draw from `init`." in again.status.message
    model, x, y = small_model(prior=pb.ScaleMixturePrior(0.5, 3.0, 0.01), likelihood="gaussian-fixed", num_data=6)
    try:
        assert pb.fit_laplace(model, (x, y)).precision.shape == (37, 37)
    except ValueError as error:
        assert "log-concave" in str(error)  # noqa: PT017


def test_the_status_of_laplace_names_what_was_not_inferred():
    model, x, y = small_model(likelihood="gaussian-learned", num_data=6)
    with pytest.warns(UserWarning, match="stay at their present values"):
        posterior = pb.fit_laplace(model, (x, y))
    assert "Not inferred, at their present values: likelihood.rho." in posterior.status.message


def test_laplace_takes_the_hessian_as_it_is():
    """y = a b with a, b ~ N(0, 1): at the mode the log-likelihood is convex along one axis, the log-joint concave."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(0.1))

        def forward(self, x):
            return x * self.a * self.b

    model = pb.BayesianModel(Product(), prior=pb.NormalPrior(1.0), likelihood=pb.GaussianLikelihood(1.0), num_data=1)
    posterior = pb.fit_laplace(model, (torch.ones(1, 1), torch.full((1, 1), 0.8)))
    assert posterior.status
    torch.testing.assert_close(posterior.location, torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(posterior.precision, torch.tensor([[1.0, -0.8], [-0.8, 1.0]]), atol=1e-4, rtol=0)
    expected = -0.5 * 0.8**2 - 0.5 * math.log(2 * math.pi) - 0.5 * math.log(1 - 0.64)
    assert posterior.log_evidence == pytest.approx(expected, abs=1e-4)
    with pytest.warns(pb.ConvergenceWarning, match="Hessian is not positive"):
        saddle = pb.fit_laplace(model, (torch.ones(1, 1), torch.full((1, 1), 5.0)), init=Origin())
    assert "Hessian is not positive in 1 of 2" in saddle.status.message


class Origin(pb.Posterior):
    status = pb.Status(True, "zero")

    def draws(self, num_samples, *args):
        yield {"net.a": torch.zeros(()), "net.b": torch.zeros(())}


def test_laplace_and_dropout():
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    model, x, y = small_model(net=net, num_data=6)
    posterior = pb.fit_laplace(model, (x, y))
    assert posterior.log_evidence == pb.fit_laplace(model, (x, y)).log_evidence
    assert model.training
    model, x, y = small_model(net=nn.Sequential(nn.Linear(4, 3), pb.nets.MCDropout(0.5)), num_data=6)
    with pytest.raises(ValueError, match="must give the same density"):
        pb.fit_laplace(model, (x, y))
    with pytest.raises(ValueError, match="`init` must be a Posterior"):
        pb.fit_laplace(model, (x, y), init=pb.DeltaGuide(model))


def test_laplace_of_a_noise_scale_is_in_log_space():
    """y ~ N(0, s^2), s ~ LogNormal(0, 1), z = log s: mode and curvature by hand."""
    y = torch.tensor([[1.0], [-2.0], [0.5]])
    model = pb.BayesianModel(
        nn.Linear(1, 1, bias=False),
        prior=pb.NormalPrior(1.0),
        likelihood=pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0)),
        num_data=3,
    )
    posterior = pb.fit_laplace(model, (torch.zeros(3, 1), y))
    total = float(y.square().sum())
    z = float(posterior.median()["likelihood.scale"].log())
    assert -3 + total * math.exp(-2 * z) - z == pytest.approx(0, abs=1e-6)
    assert float(posterior.precision[1, 1]) == pytest.approx(2 * total * math.exp(-2 * z) + 1, rel=1e-6)
    assert float(posterior.precision[0, 0]) == pytest.approx(1.0)
    draws = posterior.sample(2000, seed=0)["likelihood.scale"].log()
    assert abs(draws.std() * float(posterior.precision[1, 1]) ** 0.5 - 1) < 0.1


def test_a_loader_gives_what_the_pair_gives_and_its_order_is_seeded(capsys, monkeypatch):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, a, b):
            return self.first(a) + self.second(b)

    model, x, y = small_model(net=Two(), num_data=6)
    expected = pb.fit_laplace(model, ((x, x.flip(1)), y))
    batches = [((x[part], x[part].flip(1)), y[part]) for part in (slice(4), slice(4, 6))]
    assert pb.fit_laplace(model, batches).log_evidence == pytest.approx(expected.log_evidence, rel=1e-9)
    with pytest.raises(ValueError, match="must have all 6 rows"):
        pb.fit_laplace(model, batches[:1])
    model, x, y = small_model(num_data=6)
    loader, generator = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True), torch.get_rng_state()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for fit in (pb.fit_laplace, functools.partial(pb.fit_gauss_newton, structure="diagonal")):
        capsys.readouterr()
        first, second = (fit(model, loader, seed=3, progress=shown) for shown in (False, True))
        assert first.log_evidence == second.log_evidence
        shown = capsys.readouterr().err
        assert "evaluation" in shown or "row" in shown
        with pytest.raises(ValueError, match="`progress` must be True or False"):
            fit(model, loader, progress=1)
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.gpu
def test_laplace_and_compare_on_a_gpu():
    problem = Problem()
    model, x, y = problem.model.cuda(), problem.x.cuda(), problem.y.cuda()
    posterior = pb.fit_laplace(model, (x, y))
    assert posterior.log_evidence == pytest.approx(float(problem.log_evidence), abs=1e-6)
    guide = pb.MeanFieldGuide(model)
    result = pb.compare(model, {"laplace": posterior, "guide": pb.GuidePosterior(guide)}, x, y=y, num_samples=100)
    assert result.pairs[0].scores["wasserstein"].value > 0
