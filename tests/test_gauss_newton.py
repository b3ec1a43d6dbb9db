"""Laplace's method with Gauss-Newton matrices: the numbers of laplace-torch, and exact numbers where known."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb

from .cases import small_model
from .test_exact import Problem
from .tolerances import STANDARD_ERRORS, assert_identical

NAMES = {"diagonal": "diag", "kronecker": "kron", "full": "full"}
"""What laplace-torch calls the structures."""

NUM_DATA, SCALE = 30, 0.5


def images(num_outputs):
    """A network with a convolution, for images of 1 x 4 x 4."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, num_outputs)
    )


NETS = {
    "dense": (lambda o: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, o)), (4,), "net.2.*"),
    "convolution": (images, (1, 4, 4), "net.4.*"),
}


def problem(net="dense", likelihood="categorical", **kwargs):
    torch.manual_seed(0)
    make, shape, last = NETS[net]
    x = torch.randn(NUM_DATA, *shape)
    is_classes = likelihood == "categorical"
    y = torch.randint(3, (NUM_DATA,)) if is_classes else torch.randn(NUM_DATA, 2)
    member = pb.CategoricalLikelihood() if is_classes else pb.GaussianLikelihood(0.7)
    kwargs = {"prior": pb.NormalPrior(SCALE), **kwargs}
    net = make(3 if is_classes else 2)
    return net, pb.BayesianModel(net, likelihood=member, num_data=NUM_DATA, **kwargs), x, y, last


def theirs(net, x, y, structure, subset, prior_precision=SCALE**-2, likelihood="categorical"):
    """laplace-torch's own fit, with all rows at once."""
    kind = {"categorical": ("classification", 1.0), "gaussian": ("regression", 0.7)}[likelihood]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from laplace import Laplace

        fitted = Laplace(
            net,
            kind[0],
            subset_of_weights=subset,
            hessian_structure=NAMES[structure],
            sigma_noise=kind[1],
            prior_precision=prior_precision,
        )
        fitted.fit(DataLoader(TensorDataset(x, y), batch_size=len(x)))
        fitted.functional_variance(jacobians(fitted, x, subset))  # it warns at its first use
    return fitted


def jacobians(fitted, x, subset):
    backend = fitted.backend
    return (backend.jacobians(x) if subset == "all" else backend.last_layer_jacobians(x))[0]


def their_precision(fitted):
    precision = fitted.posterior_precision
    if isinstance(precision, torch.Tensor):
        return precision if precision.dim() == 2 else precision.diag()
    return precision.to_matrix()


def covariance_of(posterior):
    size = sum(posterior.location[name].numel() for name in posterior.random)
    return torch.stack([posterior.covariance.times(unit) for unit in torch.eye(size)])


# --- the numbers of laplace-torch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
@pytest.mark.parametrize("subset", ["all", "last_layer"])
@pytest.mark.parametrize("structure", NAMES)
@pytest.mark.parametrize("net", NETS)
def test_the_numbers_are_those_of_laplace_torch(net, structure, subset, likelihood):
    plain, model, x, y, last = problem(net, likelihood)
    where = "**" if subset == "all" else last
    posterior = pb.fit_gauss_newton(model, (x, y), structure=structure, where=where, batch_size=7)
    fitted = theirs(plain, x, y, structure, subset, likelihood=likelihood)
    close = {"rtol": 1e-8, "atol": 1e-10}
    covariance = covariance_of(posterior)
    torch.testing.assert_close(torch.linalg.inv(their_precision(fitted)), covariance, **close)
    torch.testing.assert_close(covariance.diagonal(), posterior.covariance.variances(), **close)
    assert posterior.log_evidence == pytest.approx(float(fitted.log_marginal_likelihood()), rel=1e-9)
    slopes = jacobians(fitted, x, subset)
    ours = torch.einsum("nkp,pq,ncq->nkc", slopes, covariance, slopes)
    torch.testing.assert_close(fitted.functional_variance(slopes), ours, **close)
    others = theirs(plain, x, y, structure, subset, 1.1 * SCALE**-2, likelihood)
    assert (torch.linalg.inv(their_precision(others)) - covariance).abs().max() > 1e-3
    assert abs(float(others.log_marginal_likelihood()) - posterior.log_evidence) > 1e-3


class Scaled(nn.Module):
    """A layer of another kind, which has no shortcut."""

    def __init__(self, size):
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, size))

    def forward(self, x):
        return x * self.factor


ODD = {
    "another layer": lambda: nn.Sequential(nn.Linear(4, 5), Scaled(5), nn.Tanh(), nn.Linear(5, 3)),
    "called twice": lambda: nn.Sequential(*[nn.Linear(4, 4), nn.Tanh()] * 2, nn.Linear(4, 3)),
    "strides": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 2, 2, stride=2, padding=1, dilation=1, bias=False),
        nn.Conv2d(2, 2, 1, groups=2),
        nn.Flatten(),
        nn.Linear(8, 3),
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_the_diagonal_is_that_of_the_full_matrix(odd):
    torch.manual_seed(0)
    model, x, y = small_model(net=ODD[odd](), num_data=6)
    precisions = {}
    for structure in ("diagonal", "full"):
        posterior = pb.fit_gauss_newton(model, (x, y), structure=structure)
        precisions[structure] = torch.linalg.inv(covariance_of(posterior)).diagonal()
    torch.testing.assert_close(precisions["diagonal"], precisions["full"], rtol=1e-8, atol=1e-8)
    assert precisions["full"].unique().numel() > 5


@pytest.mark.parametrize("prior", [pb.FanInNormalPrior(0.8), pb.NetworkNormalPrior(0.3)], ids=["fan-in", "network"])
def test_priors_that_differ_from_weight_to_weight_are_those_of_the_model(prior):
    plain, model, x, y, _ = problem(prior=prior)
    posterior = pb.fit_gauss_newton(model, (x, y))
    fitted = theirs(plain, x, y, "kronecker", "all", torch.tensor([*posterior.prior_precisions.values()]))
    if isinstance(prior, pb.NetworkNormalPrior):
        fitted.prior_mean = fitted.mean
    assert posterior.log_evidence == pytest.approx(float(fitted.log_marginal_likelihood()), rel=1e-9)
    assert "the prior is the model's" in posterior.status.message


@pytest.mark.parametrize(("per", "number"), [("network", 1), ("layer", 2), ("parameter", 4)])
@pytest.mark.parametrize("structure", NAMES)
def test_the_evidence_has_its_maximum_at_the_chosen_precisions(structure, per, number):
    plain, model, x, y, _ = problem()
    posterior = pb.fit_gauss_newton(model, (x, y), structure=structure, prior_precision="evidence", per=per)
    found = torch.tensor([*posterior.prior_precisions.values()])
    assert len(found.unique()) == number
    fitted = theirs(plain, x, y, structure, "all")

    def slopes(precisions):
        logarithms = precisions.log().requires_grad_()
        evidence = fitted.log_marginal_likelihood(logarithms.exp())
        evidence.backward()
        group = {"network": [[0, 1, 2, 3]], "layer": [[0, 1], [2, 3]], "parameter": [[0], [1], [2], [3]]}[per]
        return float(evidence.detach()), torch.stack([logarithms.grad[members].sum() for members in group])

    evidence, slope = slopes(found)
    assert posterior.log_evidence == pytest.approx(evidence, rel=1e-9)
    assert slope.abs().max() < 1e-5
    other, slope = slopes(1.1 * found)
    assert other < evidence - 1e-3
    assert slope.abs().max() > 1e-2
    assert "prior precisions chosen by the evidence" in posterior.status.message


# --- exact ------------------------------------------------------------------------------------------------------------


def test_it_is_exact_for_conjugate_regression():
    exact = Problem()
    point = {"net.weight": exact.mean}
    posterior = pb.fit_gauss_newton(exact.model, (exact.x, exact.y), init=point, structure="full")
    torch.testing.assert_close(covariance_of(posterior), torch.linalg.inv(exact.precision), rtol=1e-9, atol=1e-12)
    assert posterior.log_evidence == pytest.approx(float(exact.log_evidence), abs=1e-9)
    assert posterior.status
    away = pb.fit_gauss_newton(exact.model, (exact.x, exact.y), init={"net.weight": exact.mean + 5}, structure="full")
    assert not away.status
    assert "posterior standard deviations from the mode" in away.status.message
    assert "Train longer" in away.status.remedy


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_the_distance_from_the_mode_is_a_number_of_standard_deviations(structure):
    """For a Gaussian with known precision, from both sides of its mean."""
    exact = Problem()
    for sign in (1, -1):
        move = sign * torch.tensor([[0.3, 0.1, 0.7]])
        gradient = exact.precision @ move[0]
        precision = exact.precision if structure == "full" else exact.precision.diag().diag()
        expected = float((gradient @ torch.linalg.solve(precision, gradient) / 3).sqrt())
        at = {"net.weight": exact.mean + move}
        posterior = pb.fit_gauss_newton(exact.model, (exact.x, exact.y), init=at, structure=structure)
        assert f"The point lies {expected:.2g} posterior standard deviations from the mode" in posterior.status.message
    at_mode = {"net.weight": exact.mean}
    posterior = pb.fit_gauss_newton(exact.model, (exact.x, exact.y), init=at_mode, structure=structure)
    distance = float(posterior.status.message.partition("lies ")[2].split()[0])
    assert distance < 1e-12


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_of_a_last_layer_it_is_the_exact_hessian_and_of_a_whole_network_not(likelihood):
    _, last, x, y, _ = problem(likelihood=likelihood, where="net.2.*")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the body stays as it is
        laplace = pb.fit_laplace(last, (x, y))
    posterior = pb.fit_gauss_newton(last, (x, y), init=laplace, structure="full")
    torch.testing.assert_close(torch.linalg.inv(covariance_of(posterior)), laplace.precision, rtol=1e-7, atol=1e-7)
    assert posterior.log_evidence == pytest.approx(laplace.log_evidence, abs=1e-8)
    _, whole, x, y, _ = problem(likelihood=likelihood)
    laplace = pb.fit_laplace(whole, (x, y))
    posterior = pb.fit_gauss_newton(whole, (x, y), init=laplace, structure="full")
    assert (torch.linalg.inv(covariance_of(posterior)) - laplace.precision).abs().max() > 1e-2


@pytest.mark.parametrize("structure", NAMES)
def test_draws_have_the_mean_and_the_covariance(structure):
    _, model, x, y, _ = problem()
    posterior = pb.fit_gauss_newton(model, (x, y), structure=structure, where="net.2.*")
    sampled, median = posterior.sample(4000, seed=1), posterior.median()
    draws = torch.cat([sampled[name].flatten(1) for name in posterior.random], 1)
    mode = torch.cat([median[name].flatten() for name in posterior.random])

    def largest_score(covariance):
        deviations = draws - mode
        white = deviations @ torch.linalg.cholesky(torch.linalg.inv(covariance))
        products = (white.unsqueeze(-1) * white.unsqueeze(-2)).flatten(1) - torch.eye(len(mode)).flatten()
        scores = torch.cat([white, products], 1)
        return float((scores.mean(0) / (scores.std(0) / len(draws) ** 0.5)).abs().max())

    covariance = covariance_of(posterior)
    assert largest_score(covariance) < STANDARD_ERRORS
    assert largest_score(1.3 * covariance) > STANDARD_ERRORS


# --- a last layer -----------------------------------------------------------------------------------------------------


class Counted(nn.Linear):
    calls = 0

    def forward(self, x):
        Counted.calls += 1
        return super().forward(x)


def test_only_the_chosen_layer_is_random_and_the_body_runs_once():
    torch.manual_seed(0)
    net = nn.Sequential(Counted(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model, x, y = small_model(net=net, num_data=6)
    posterior = pb.fit_gauss_newton(model, (x, y), structure="full", where="net.2.*")
    assert set(posterior.constants) == {"net.0.weight", "net.0.bias"}
    assert not posterior.is_linearised
    draws = posterior.sample(5, seed=0)
    assert {name for name, values in draws.items() if (values != values[0]).any()} == {"net.2.weight", "net.2.bias"}
    Counted.calls = 0
    prediction = pb.predict(model, posterior, x, num_samples=100, seed=0)
    assert Counted.calls < 5  # the targets' check and a first run
    linear = pb.predict(model, posterior, x, num_samples=100, seed=0, linearised=True)
    torch.testing.assert_close(linear.probs, prediction.probs)
    alone = pb.BayesianModel(
        net, prior=pb.NormalPrior(0.7), likelihood=pb.CategoricalLikelihood(), num_data=6, where="net.2.*"
    )
    its = pb.fit_gauss_newton(alone, (x, y), structure="full")
    assert_identical(its.log_evidence, posterior.log_evidence)
    assert_identical(pb.predict(alone, its, x, num_samples=100, seed=0).probs, prediction.probs)
    with pytest.raises(ValueError, match=r"`where` glob 'net.9.\*' matches none"):
        pb.fit_gauss_newton(model, (x, y), where="net.9.*")


def test_several_inputs_and_tied_weights():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, a, b):
            return self.last(torch.tanh(self.first(a) + self.second(b)))

    class One(Two):
        def forward(self, x):
            return super().forward(x, x.flip(1))

    model, x, y = small_model(net=Two(), num_data=6)
    posterior = pb.fit_gauss_newton(model, ((x, x.flip(1)), y), structure="full", where="net.last.*")
    with pytest.raises(ValueError, match="Kronecker factors need linear, or one- or two-dim"):
        pb.fit_gauss_newton(model, ((x, x.flip(1)), y))
    one, *_ = small_model(net=One(), num_data=6)
    one.load_state_dict(model.state_dict())
    alike = pb.fit_gauss_newton(one, (x, y), structure="full", where="net.last.*")
    whole = pb.fit_gauss_newton(one, (x, y), structure="full")
    assert whole.random.count("net.first.weight") == 1
    assert len(covariance_of(whole)) == 12 + 3 + 3 + 12
    for structure in ("full", "diagonal"):
        several, single = (
            pb.fit_gauss_newton(some, (given, y), structure=structure)
            for some, given in ((model, (x, x.flip(1))), (one, x))
        )
        torch.testing.assert_close(covariance_of(several), covariance_of(single))
    torch.testing.assert_close(covariance_of(alike), covariance_of(posterior))
    for where in ("**", "**.weight"):  # tied weights, and a weight without its bias
        with pytest.raises(ValueError, match="Kronecker factors need linear, or one- or two-dim"):
            pb.fit_gauss_newton(one, (x, y), where=where)


@pytest.mark.gpu
@pytest.mark.parametrize("structure", NAMES)
def test_on_a_gpu_the_numbers_are_the_same(structure):
    _, model, x, y, _ = problem("convolution")
    kwargs = {"structure": structure, "prior_precision": "evidence"}
    expected = pb.fit_gauss_newton(model, (x, y), **kwargs)
    posterior = pb.fit_gauss_newton(model.cuda(), (x.cuda(), y.cuda()), **kwargs)
    assert posterior.log_evidence == pytest.approx(expected.log_evidence, rel=1e-6)
    assert pb.predict(model, posterior, x.cuda(), num_samples=5, seed=0).probs.is_cuda
