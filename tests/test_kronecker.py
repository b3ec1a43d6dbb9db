"""Kronecker factors where they are exact, and for layers and likelihoods that laplace-torch does not serve."""

import pytest
import torch
from torch import nn

import pyro_bnn as pb

from .test_gauss_newton import covariance_of

SIZES = {"categorical": 3, "gaussian": 2, "heteroscedastic": 4, "bernoulli": 2, "poisson": 2}

LIKELIHOODS = {
    "categorical": lambda: pb.CategoricalLikelihood(),
    "class weights": lambda: pb.CategoricalLikelihood([1.0, 2.0, 0.5]),
    "row weights": lambda: pb.CategoricalLikelihood().with_row_weights(),
    "gaussian": lambda: pb.GaussianLikelihood(0.7),
    "heteroscedastic": lambda: pb.HeteroscedasticGaussianLikelihood(),
    "bernoulli": lambda: pb.BernoulliLikelihood(),
    "poisson": lambda: pb.PoissonLikelihood(),
}

NETS = {
    "dense": lambda outputs: nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Tanh(), nn.Linear(3, outputs)),
    "one position": lambda outputs: nn.Sequential(
        nn.Conv1d(2, 3, 6), nn.Tanh(), nn.Conv1d(3, 2, 1, bias=False), nn.Flatten(), nn.Linear(2, outputs)
    ),
}


def model_of(net, name, num_data=1):
    likelihood = LIKELIHOODS[name]()
    x = torch.randn(num_data, 2, 6)
    y = torch.ones(num_data, 2)
    if isinstance(likelihood, pb.CategoricalLikelihood):
        y = torch.full((num_data,), 1)
    if name == "row weights":
        y = torch.stack([y, torch.full_like(y, 3)], -1).to(x)
    return pb.BayesianModel(net, prior=pb.NormalPrior(0.6), likelihood=likelihood, num_data=num_data), (x, y)


def blocks(posterior):
    """The precision matrix of each parameter, given that different parameters are independent."""
    matrix = torch.linalg.inv(covariance_of(posterior))
    sizes = [posterior.location[name].numel() for name in posterior.random]
    return [part[:, i : i + n] for part, i, n in zip(matrix.split(sizes), starts(sizes), sizes, strict=True)]


def starts(sizes):
    return [sum(sizes[:index]) for index in range(len(sizes))]


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("net", NETS)
def test_the_factors_of_a_single_row_are_exact_for_every_likelihood(net, name):
    torch.manual_seed(0)
    model, data = model_of(NETS[net](SIZES.get(name, 3)), name)
    found, exact = (blocks(pb.fit_gauss_newton(model, data, structure=kind)) for kind in ("kronecker", "full"))
    for ours, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)
        assert (expected - torch.eye(len(expected)) / 0.36).abs().max() > 1e-3  # the data count


def convolutions(kind, **options):
    size = (5,) if kind is nn.Conv1d else (1, 5)
    lift = nn.Identity() if kind is nn.Conv1d else nn.Unflatten(1, (2, 1))
    pairs = {key: value if kind is nn.Conv1d else (int(key != "padding"), value) for key, value in options.items()}
    return nn.Sequential(lift, kind(2, 3, size, **pairs), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 2}, {"dilation": 2, "padding": 4}], ids=str)
@pytest.mark.parametrize("structure", ["kronecker", "diagonal"])
def test_a_one_dimensional_convolution_is_that_of_images_of_height_one(structure, options):
    x, y = torch.randn(20, 2, 9), torch.randint(3, (20,))
    posteriors = []
    for kind in (nn.Conv1d, nn.Conv2d):
        torch.manual_seed(0)
        net = convolutions(kind, **options)
        net(x)
        model = pb.BayesianModel(net, prior=pb.NormalPrior(0.6), likelihood=pb.CategoricalLikelihood(), num_data=len(x))
        posteriors.append(pb.fit_gauss_newton(model, (x, y), structure=structure, batch_size=7))
    one, two = posteriors
    torch.testing.assert_close(covariance_of(one), covariance_of(two))
    assert one.log_evidence == pytest.approx(two.log_evidence, rel=1e-9)


class Mean(nn.Module):
    """A linear layer for each of several positions, and the mean over these."""

    def __init__(self):
        super().__init__()
        self.each, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.each(x).tanh().mean(1))


def test_the_diagonal_of_a_linear_layer_with_positions_is_that_of_the_full_matrix():
    torch.manual_seed(0)
    model, data = model_of(Mean(), "categorical", num_data=12)
    found, exact = (pb.fit_gauss_newton(model, data, structure=kind) for kind in ("diagonal", "full"))
    expected = torch.linalg.inv(covariance_of(exact)).diagonal()
    torch.testing.assert_close(torch.linalg.inv(covariance_of(found)).diagonal(), expected, rtol=1e-8, atol=1e-8)


def test_a_parameter_outside_of_layers_is_refused_by_the_name_of_the_network():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift, self.layer = nn.Parameter(torch.zeros(2, 6)), nn.Linear(12, 3)

        def forward(self, x):
            return self.layer((x + self.shift).flatten(1))

    model, data = model_of(Shifted(), "categorical", num_data=5)
    with pytest.raises(ValueError, match=r"the network itself \(Shifted\) is no such layer; leave it out"):
        pb.fit_gauss_newton(model, data)
    assert pb.fit_gauss_newton(model, data, where=pb.layers(nn.Linear)).status
