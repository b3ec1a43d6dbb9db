"""Local reparameterisation and flipout: the law of a row is that of drawn weights."""

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import pyro_bnn as pb
from pyro_bnn.inference.estimators import Applied

from .cases import ESTIMATORS, PRIORS, small_model
from .fits import PLAIN_OR_ESTIMATOR
from .layers import LAYERS, exact_law, output, outputs, pair
from .tolerances import SINGLE, agrees_in_mean, assert_identical

# --- the law of a layer's output --------------------------------------------------------------------------------------


@pytest.mark.daily(
    "linear-lrt", "linear-flipout", "conv1d-same-*", "conv2d-groups-dilation-*", "conv2d-*-only-lrt", "conv3d-lrt"
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", LAYERS)
def test_the_outputs_have_the_mean_and_variance_of_sampled_weights(name, estimator):
    """Each tested number is an average over the equal rows of one call, since these may depend on each other."""
    make, shape, where = LAYERS[name]
    net = make()
    model, guide = pair(net, where=where)
    row = torch.randn(shape)
    mean, covariance = exact_law(net, guide, row)
    num_calls = 200 if estimator == "lrt" else 600
    draws = outputs(ESTIMATORS[estimator], model, guide, row.expand(20, *shape), num_calls).flatten(2)  # (S, N, M)
    assert agrees_in_mean(draws.mean(1), mean)
    squares = (draws - mean).square().mean(1)
    assert agrees_in_mean(squares, covariance.diagonal())
    assert not agrees_in_mean(squares, 2 * covariance.diagonal())
    assert not agrees_in_mean(draws.mean(1), mean + covariance.diagonal().sqrt())


@pytest.mark.daily("conv2d-groups-dilation")
@pytest.mark.parametrize("name", ["linear", "conv2d-groups-dilation"])
def test_the_oracle_of_these_tests_is_the_law_of_sampled_weights(name):
    make, shape, where = LAYERS[name]
    net = make()
    model, guide = pair(net, where=where)
    row = torch.randn(shape)
    mean, covariance = exact_law(net, guide, row)
    draws = outputs(None, model, guide, row[None], 2000).flatten(1)
    assert agrees_in_mean(draws, mean)
    assert agrees_in_mean((draws - mean).square(), covariance.diagonal())


def test_local_reparameterisation_of_a_linear_layer_is_its_formula():
    """The standard normal noise, found by solving the formula, has the right moments in every element."""
    net = nn.Linear(4, 3)
    model, guide = pair(net)
    x = torch.randn(6, 4)
    loc, scale = guide.locations(), guide.scales()
    gamma = torch.einsum("ni,oi->no", x, loc["net.weight"]) + loc["net.bias"]
    delta = torch.einsum("ni,oi->no", x**2, scale["net.weight"] ** 2) + scale["net.bias"] ** 2
    noise = (outputs(ESTIMATORS["lrt"], model, guide, x, 1000) - gamma) / delta.sqrt()
    assert agrees_in_mean(noise, 0.0)
    assert agrees_in_mean(noise.square(), 1.0)
    assert agrees_in_mean(noise[:, :, 0] * noise[:, :, 1], 0.0)
    assert not agrees_in_mean(noise.square(), 1.3)


@pytest.mark.daily("plain-linear", "lrt-linear", "flipout-conv2d*")
@pytest.mark.parametrize("name", ["linear", "conv2d-stride-no-bias"])
@pytest.mark.parametrize("estimator", PLAIN_OR_ESTIMATOR)
def test_rows_are_uncorrelated_unless_weights_are_shared(estimator, name):
    make, shape, where = LAYERS[name]
    net = make()
    model, guide = pair(net, where=where)
    x = torch.randn(shape).expand(2, *shape)
    mean, _ = exact_law(net, guide, x[0])
    deviations = outputs(PLAIN_OR_ESTIMATOR[estimator], model, guide, x, 800).flatten(2) - mean
    assert agrees_in_mean(deviations[:, 0] * deviations[:, 1], 0.0) == (estimator != "plain")
    same_size = torch.isclose(deviations[:, 0].abs(), deviations[:, 1].abs()).double().mean()
    assert (same_size < 0.9) == (estimator != "plain")  # not only the signs of whole outputs are flipped


@pytest.mark.nightly
def test_flipout_is_exact_for_the_positions_of_a_row_together():
    net = nn.Linear(3, 2)
    model, guide = pair(net)
    x = torch.randn(1, 4, 3)  # (N, T, D)
    mean, covariance = exact_law(net, guide, x[0])
    deviations = outputs(ESTIMATORS["flipout"], model, guide, x, 2000).flatten(1) - mean
    products = deviations[:, :, None] * deviations[:, None, :]
    assert agrees_in_mean(products, covariance)
    assert not agrees_in_mean(products, covariance.diagonal().diag())


@pytest.mark.nightly
def test_flipout_is_exact_for_the_positions_of_a_convolution_together():
    net = nn.Conv1d(2, 2, 2, padding=1)
    model, guide = pair(net)
    x = torch.randn(1, 2, 3)
    mean, covariance = exact_law(net, guide, x[0])
    for estimator, is_exact in (("flipout", True), ("lrt", False)):  # the approximation that the docstring owns up to
        deviations = outputs(ESTIMATORS[estimator], model, guide, x, 2000).flatten(1) - mean
        assert agrees_in_mean(deviations[:, :, None] * deviations[:, None, :], covariance) == is_exact


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_local_reparameterisation_are_those_of_its_formula(name):
    """Autograd of mean + root of the variance * noise gives the same gradients, for the noise that was drawn."""
    make, shape, where = LAYERS[name]
    net = make()
    model, guide = pair(net, where=where)
    x = torch.randn(5, *shape, requires_grad=True)
    with ESTIMATORS["lrt"].applied(model, guide):
        found = output(model, guide, x)
    fixed = {key: value.detach() for key, value in net.named_parameters()}
    random = [site.removeprefix("net.") for site in model.site_names]
    loc = {key: guide.loc.get_parameter(f"net.{key}") for key in random}
    scale = {key: functional.softplus(guide.rho.get_parameter(f"net.{key}")) for key in random}
    squares = {key: scale[key] ** 2 if key in scale else torch.zeros_like(value) for key, value in fixed.items()}
    mean = torch.func.functional_call(net, fixed | loc, (x,))
    deviation = torch.func.functional_call(net, squares, (x.square(),)).sqrt()
    noise = ((found - mean) / deviation).detach()
    leaves, direction = (x, *guide.parameters()), torch.randn_like(found)
    gradients = torch.autograd.grad(found, leaves, direction)
    for sign in (1, -1):
        expected = torch.autograd.grad(mean + sign * deviation * noise, leaves, direction, retain_graph=True)
        same = [torch.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(gradients, expected, strict=True)]
        assert all(same) == (sign == 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_the_variance_is_zero_the_gradient_is_zero_and_not_nan(dtype):
    model, guide = pair(nn.Linear(3, 2, bias=False))
    model.to(dtype), guide.to(dtype)
    with ESTIMATORS["lrt"].applied(model, guide):
        found = output(model, guide, torch.zeros(4, 3, dtype=dtype))
    found.square().sum().backward()
    assert torch.equal(found, torch.zeros_like(found))  # in single precision noise times a tiny scale would be 1e-19
    assert_identical(guide.rho.net.weight.grad, torch.zeros(2, 3, dtype=dtype))
    assert_identical(guide.loc.net.weight.grad, torch.zeros(2, 3, dtype=dtype))


def test_a_weight_of_constrained_support_is_sampled_as_always():
    class PositivePrior(pb.Prior):
        def elementwise(self, name, parameter, module):
            return pyro.distributions.LogNormal(parameter.new_zeros(()), 1.0)

    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.abs_()
    model, guide = pair(net, prior=pb.PriorByName({"net.weight": PositivePrior(), "**": pb.NormalPrior()}))
    median = guide.median()
    at_zero = outputs(ESTIMATORS["lrt"], model, guide, torch.zeros(2, 2), 400) - median["net.bias"]
    assert agrees_in_mean(at_zero.square(), guide.scales()["net.bias"].square())
    assert agrees_in_mean(at_zero[:, 0] * at_zero[:, 1], 0.0)  # the Gaussian bias: noise of its own for each row
    far = outputs(ESTIMATORS["lrt"], model, guide, torch.full((2, 2), 100.0), 400)
    far = far / (100 * median["net.weight"].sum(1)) - 1
    assert not agrees_in_mean(far[:, 0] * far[:, 1], 0.0)  # the log-normal weight: drawn once for all rows


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_single_precision_is_the_same_up_to_rounding(estimator):
    """With tiny scales, so that the draws do not matter."""
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 3))
    model, guide = pair(net)
    x = torch.randn(5, 1, 3, 3)
    with torch.no_grad():
        for parameter in guide.rho.parameters():
            parameter.fill_(-60.0)
    found = {}
    for dtype in (torch.float64, torch.float32):
        model.to(dtype), guide.to(dtype)
        found[dtype] = outputs(ESTIMATORS[estimator], model, guide, x.to(dtype), 1)[0]
        assert found[dtype].dtype == dtype
    torch.testing.assert_close(found[torch.float32].double(), found[torch.float64], **SINGLE)


# --- what is computed -------------------------------------------------------------------------------------------------


class Recorder(TorchDispatchMode):
    """Records the shapes of multiplied and of drawn tensors."""

    def __init__(self):
        super().__init__()
        self.products, self.random = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in {"mm", "addmm", "linear", "bmm", "matmul"}:
            self.products.append(tuple(result.shape))
        if any(part in name for part in ("normal", "rand", "bernoulli")):
            self.random.append(tuple(result.shape))
        return result


def recorded(estimator, elbo, prior=None):
    model, guide = pair(nn.Linear(7, 5), prior=prior)
    x, y = torch.randn(3, 7), torch.randn(3, 5)
    applied = Applied(estimator, model, guide, closed_form=elbo is TraceMeanField_ELBO)
    with applied, torch.no_grad(), Recorder() as recorder:
        elbo().loss(model, guide, x, y)
    return recorder


@pytest.mark.parametrize("prior", ["normal", "laplace", "fan-in", "by-name"])
def test_local_reparameterisation_is_two_products_and_wastes_no_draw(prior):
    recorder = recorded(ESTIMATORS["lrt"], TraceMeanField_ELBO, PRIORS[prior])
    assert recorder.products == [(3, 5), (3, 5)]
    assert set(recorder.random) == {(3, 5)}


@pytest.mark.parametrize(
    ("elbo", "prior"), [(Trace_ELBO, None), (TraceMeanField_ELBO, pb.ScaleMixturePrior())], ids=["trace", "mixture"]
)
def test_weights_are_drawn_where_the_divergence_needs_them(elbo, prior):
    recorder = recorded(ESTIMATORS["lrt"], elbo, prior)
    assert recorder.products == [(3, 5), (3, 5)]
    assert (5, 7) in recorder.random


def test_flipout_is_two_products_and_draws_weights():
    recorder = recorded(ESTIMATORS["flipout"], TraceMeanField_ELBO)
    assert recorder.products == [(3, 5), (3, 5)]
    assert (5, 7) in recorder.random


def test_only_sites_of_the_network_without_need_for_draws_give_their_means():
    prior = pb.PriorByName({"**.bias": pb.ScaleMixturePrior(), "**": pb.NormalPrior()})
    model, x, _ = small_model(likelihood="gaussian-latent", prior=prior)
    guide = pb.MeanFieldGuide(model)
    with Applied(ESTIMATORS["lrt"], model, guide, closed_form=True):
        draw = guide(x)
    means = guide.median()
    assert {name for name in draw if torch.equal(draw[name], means[name])} == {"net.0.weight", "net.2.weight"}
