"""Local reparameterisation and flipout: the law of a row is that of sampled weights, and the ELBO stays the ELBO."""

import copy
import functools
import pickle

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import pyro_bnn as pb

from .cases import PRIORS, small_model
from .test_exact import Problem, mean_field_at_its_optimum
from .tolerances import SINGLE, STANDARD_ERRORS, agrees_in_mean, assert_identical

ESTIMATORS = {"lrt": pb.LocalReparameterization(), "flipout": pb.Flipout()}
ELBOS = [Trace_ELBO, TraceMeanField_ELBO]
ADAM = functools.partial(torch.optim.Adam, lr=0.01)

# name -> (layer, shape of one row of its input, which of its parameters are random)
LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (4,), "**"),
    "linear-no-bias": (lambda: nn.Linear(4, 3, bias=False), (4,), "**"),
    "linear-weight-only": (lambda: nn.Linear(4, 3), (4,), "net.weight"),
    "linear-bias-only": (lambda: nn.Linear(4, 3), (4,), "net.bias"),
    "conv1d-stride-padding": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 5), "**"),
    "conv1d-same-dilation": (lambda: nn.Conv1d(2, 2, 2, padding="same", dilation=2), (2, 4), "**"),
    "conv2d-stride-no-bias": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), bias=False), (2, 5, 4), "**"),
    "conv2d-groups-dilation": (lambda: nn.Conv2d(4, 2, 2, groups=2, dilation=2, padding=1), (4, 3, 3), "**"),
    "conv2d-circular": (lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), (1, 3, 3), "**"),
    "conv2d-weight-only": (lambda: nn.Conv2d(2, 2, 2), (2, 3, 3), "net.weight"),
    "conv2d-bias-only": (lambda: nn.Conv2d(2, 2, 2), (2, 3, 3), "net.bias"),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2, padding=(0, 1, 0)), (2, 2, 2, 2), "**"),
}


def pair(net, *, where="**", num_data=20, prior=None, likelihood=None, scale=0.3):
    """A model and a guide whose standard deviations are not small and not all the same."""
    model = pb.BayesianModel(
        net,
        prior=prior or pb.NormalPrior(),
        likelihood=likelihood or pb.GaussianLikelihood(0.5),
        num_data=num_data,
        where=where,
    )
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=scale))
    with torch.no_grad():
        for parameter in guide.rho.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model, guide


def output(model, guide, x):
    return poutine.replay(model, poutine.trace(guide).get_trace(x))(x)


def outputs(estimator, model, guide, x, num_calls, elbo=Trace_ELBO):
    """Network outputs of independent calls, (S, N, ...); without an estimator those of sampled weights."""
    with torch.no_grad():
        if estimator is None:
            return torch.stack([output(model, guide, x) for _ in range(num_calls)])
        with estimator.applied(model, guide, elbo=elbo):
            return torch.stack([output(model, guide, x) for _ in range(num_calls)])


def exact_law(net, guide, x):
    """Mean (M,) and covariance (M, M) of one row's outputs under the guide: a layer is linear in its weights."""
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    random = {name.removeprefix("net."): loc for name, loc in guide.locations().items()}
    scales = [guide.scales()[f"net.{name}"].flatten() for name in random]

    def run(*values):
        tensors = {**parameters, **dict(zip(random, values, strict=True))}
        return torch.func.functional_call(net, tensors, (x[None],)).flatten()

    jacobians = torch.autograd.functional.jacobian(run, tuple(random.values()))
    jacobian = torch.cat([j.flatten(1) for j in jacobians], 1) * torch.cat(scales)
    return run(*random.values()), jacobian @ jacobian.T


def standard_errors_apart(a, b):
    """How many standard errors the means of two samples differ, elementwise."""
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    return (a.mean(0) - b.mean(0)).abs() / error


# --- the law of a layer's output --------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", LAYERS)
def test_the_outputs_have_the_mean_and_variance_of_sampled_weights(name, estimator):
    """A row of the test is the average over the equal rows of one call, which need not be independent."""
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
    noise = (outputs(ESTIMATORS["lrt"], model, guide, x, 2000) - gamma) / delta.sqrt()
    assert agrees_in_mean(noise, 0.0)
    assert agrees_in_mean(noise.square(), 1.0)
    assert agrees_in_mean(noise[:, :, 0] * noise[:, :, 1], 0.0)
    assert not agrees_in_mean(noise.square(), 1.3)


@pytest.mark.parametrize("name", ["linear", "conv2d-stride-no-bias"])
def test_rows_are_uncorrelated_unless_weights_are_shared(name):
    make, shape, where = LAYERS[name]
    net = make()
    model, guide = pair(net, where=where)
    x = torch.randn(shape).expand(2, *shape)
    mean, _ = exact_law(net, guide, x[0])
    for estimator in (*ESTIMATORS.values(), None):
        deviations = outputs(estimator, model, guide, x, 800).flatten(2) - mean
        assert agrees_in_mean(deviations[:, 0] * deviations[:, 1], 0.0) == (estimator is not None)
        same_size = torch.isclose(deviations[:, 0].abs(), deviations[:, 1].abs()).double().mean()
        assert (same_size < 0.9) == (estimator is not None)  # not only the signs of whole outputs are flipped


def test_flipout_is_exact_for_the_positions_of_a_row_together():
    net = nn.Linear(3, 2)
    model, guide = pair(net)
    x = torch.randn(1, 4, 3)  # (N, T, D)
    mean, covariance = exact_law(net, guide, x[0])
    deviations = outputs(ESTIMATORS["flipout"], model, guide, x, 2000).flatten(1) - mean
    products = deviations[:, :, None] * deviations[:, None, :]
    assert agrees_in_mean(products, covariance)
    assert not agrees_in_mean(products, covariance.diagonal().diag())


def test_flipout_is_exact_for_the_positions_of_a_convolution_together():
    net = nn.Conv1d(2, 2, 2, padding=1)
    model, guide = pair(net)
    x = torch.randn(1, 2, 3)
    mean, covariance = exact_law(net, guide, x[0])
    for estimator, is_exact in (("flipout", True), ("lrt", False)):  # the approximation that the docstring owns up to
        deviations = outputs(ESTIMATORS[estimator], model, guide, x, 2000).flatten(1) - mean
        assert agrees_in_mean(deviations[:, :, None] * deviations[:, None, :], covariance) == is_exact


# --- the objective ----------------------------------------------------------------------------------------------------


def losses_and_gradients(estimator, model, guide, x, y, *, elbo, stated=None, num_draws=500):
    """Of independent single-draw objectives: (S,) and (S, P)."""
    losses, gradients = [], []
    for _ in range(num_draws):
        guide.zero_grad()
        if estimator is None:
            loss = elbo().differentiable_loss(model, guide, x, y)
        else:
            with estimator.applied(model, guide, elbo=stated or elbo):
                loss = elbo().differentiable_loss(model, guide, x, y)
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in guide.parameters()]).clone())
    return torch.stack(losses), torch.stack(gradients)


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", ["normal", "mixture", "laplace"])
def test_the_elbo_and_its_gradient_are_those_of_sampled_weights(prior, elbo):
    model, x, y = small_model(prior=pb.ScaleMixturePrior(0.5, 1.0, 0.3) if prior == "mixture" else PRIORS[prior])
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    expected = losses_and_gradients(None, model, guide, x, y, elbo=elbo)
    for estimator in ESTIMATORS.values():
        found = losses_and_gradients(estimator, model, guide, x, y, elbo=elbo)
        for a, b in zip(found, expected, strict=True):
            assert bool((standard_errors_apart(a, b) < STANDARD_ERRORS).all())


def test_another_elbo_than_the_stated_one_is_wrong():
    """What the argument `elbo` is for: without draws, `Trace_ELBO` takes the densities at the mean for the KL."""
    model, x, y = small_model()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    expected = losses_and_gradients(None, model, guide, x, y, elbo=Trace_ELBO)
    lrt = ESTIMATORS["lrt"]
    found = losses_and_gradients(lrt, model, guide, x, y, elbo=Trace_ELBO, stated=TraceMeanField_ELBO)
    for a, b in zip(found, expected, strict=True):
        assert not bool((standard_errors_apart(a, b) < STANDARD_ERRORS).all())


def test_gradients_vary_less_than_with_shared_weights():
    x, y = pb.data.regression_problem(32)
    x, y = x.double(), y.double()
    model, guide = pair(
        pb.nets.mlp([1, 10, 2]), num_data=32, likelihood=pb.HeteroscedasticGaussianLikelihood(), scale=0.1
    )
    spread = {}
    for name, estimator in (("rt", None), *ESTIMATORS.items()):
        _, gradients = losses_and_gradients(estimator, model, guide, x, y, elbo=TraceMeanField_ELBO, num_draws=300)
        spread[name] = (gradients - gradients.mean(0)).square().sum(1)
    for name in ESTIMATORS:
        assert spread[name].mean() < 0.7 * spread["rt"].mean()
        assert standard_errors_apart(spread[name], spread["rt"]) > STANDARD_ERRORS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_the_variance_is_zero_the_gradient_is_zero_and_not_nan(dtype):
    model, guide = pair(nn.Linear(3, 2, bias=False))
    model.to(dtype), guide.to(dtype)
    with ESTIMATORS["lrt"].applied(model, guide, elbo=Trace_ELBO):
        found = output(model, guide, torch.zeros(4, 3, dtype=dtype))
    found.square().sum().backward()
    assert bool((found.abs() < 1e-15).all())
    assert_identical(guide.rho.net.weight.grad, torch.zeros(2, 3, dtype=dtype))
    assert_identical(guide.loc.net.weight.grad, torch.zeros(2, 3, dtype=dtype))


# --- what is computed -------------------------------------------------------------------------------------------------


class Recorder(TorchDispatchMode):
    """Shapes of what was multiplied and of what was drawn."""

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
    applied = estimator.applied(model, guide, elbo=elbo)
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
    with ESTIMATORS["lrt"].applied(model, guide, elbo=TraceMeanField_ELBO):
        draw = guide(x)
    means = guide.median()
    assert {name for name in draw if torch.equal(draw[name], means[name])} == {"net.0.weight", "net.2.weight"}


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
    """With scales next to nothing, so that the draws do not matter."""
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


# --- fitting ----------------------------------------------------------------------------------------------------------


def fit(model, guide, x, y, **kwargs):
    return pb.fit_svi(model, guide, (x, y), **{"optimizer": ADAM, "num_epochs": 5, "seed": 0, **kwargs})


@pytest.mark.uses_param_store
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_fit_svi_and_pyros_loop_give_the_same_losses(estimator, elbo):
    losses = {}

    def fresh():
        torch.manual_seed(11)
        model, x, y = small_model(likelihood="gaussian-latent", num_data=6)
        return model, pb.MeanFieldGuide(model, init=pb.NormalInit()), x, y

    for run in ("first", "second"):
        history = fit(*fresh(), elbo=elbo, num_particles=2, seed=5, estimator=ESTIMATORS[estimator]).history
        losses[run] = history.loss
    model, guide, x, y = fresh()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo(num_particles=2))
    torch.manual_seed(5)
    with ESTIMATORS[estimator].applied(model, guide, elbo=elbo):
        losses["pyro"] = [svi.step(x, y) for _ in range(5)]
    losses["plain"] = fit(*fresh(), elbo=elbo, num_particles=2, seed=5).history.loss
    assert losses["first"] == losses["second"]
    assert_identical(losses["first"], losses["pyro"])
    assert losses["first"] != losses["plain"]


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_fit_svi_finds_the_optimum(estimator, elbo):
    problem = Problem()
    guide = pb.MeanFieldGuide(problem.model)
    posterior = fit(
        problem.model,
        guide,
        problem.x,
        problem.y,
        optimizer=functools.partial(torch.optim.Adam, lr=0.05),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.996),
        num_epochs=1000,
        elbo=elbo,
        num_particles=2,
        estimator=ESTIMATORS[estimator],
    )
    _, scale = mean_field_at_its_optimum(problem)
    torch.testing.assert_close(guide.median()["net.weight"], problem.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(guide.scales()["net.weight"], scale, atol=0, rtol=0.12)
    elbos = torch.tensor([record.elbo for record in posterior.history.epochs[-200:]])
    assert elbos.mean() - 5 * elbos.std() / 200**0.5 < problem.log_evidence
    assert elbos.mean() > problem.log_evidence - 1.0


@pytest.mark.parametrize("weight", [0.0, 1e-5, 0.5, 1.0])
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_history_holds_the_two_terms_of_the_elbo(estimator, elbo, weight):
    """With parameters that do not move, their means are those of the closed form and of sampled weights."""
    problem = Problem()
    guide, scale = mean_field_at_its_optimum(problem)
    still = functools.partial(torch.optim.SGD, lr=1e-300)
    history = fit(
        problem.model,
        guide,
        problem.x,
        problem.y,
        optimizer=still,
        num_epochs=400,
        elbo=elbo,
        kl_weight=weight,
        estimator=ESTIMATORS[estimator],
    ).history
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(problem.mean, scale), torch.distributions.Normal(0.0, 1.3)
    ).sum()
    errors = (problem.y - problem.x @ problem.mean.T).square() + problem.x.square() @ scale.square().T
    likelihood = torch.distributions.Normal(0.0, 0.6).log_prob(torch.tensor(0.0)) * 12 - errors.sum() / 2 / 0.6**2
    found = torch.tensor([[record.kl, record.expected_log_likelihood] for record in history.epochs])
    if elbo is TraceMeanField_ELBO:
        assert_identical(found[:, 0], kl.expand(400))
    else:
        assert agrees_in_mean(found[:, 0], kl)
        assert not agrees_in_mean(found[:, 0], kl + 1)
    assert agrees_in_mean(found[:, 1], likelihood)
    assert not agrees_in_mean(found[:, 1], likelihood + 1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_loss_that_is_not_finite_is_reported(estimator):
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    guide = pb.MeanFieldGuide(model)
    with torch.no_grad():
        guide.loc.net.get_parameter("2.bias").fill_(float("nan"))
    with pytest.raises(pb.NonFiniteError, match=r"net\.2\.bias"):
        fit(model, guide, x, y, elbo=TraceMeanField_ELBO, estimator=ESTIMATORS[estimator])


# --- hooks ------------------------------------------------------------------------------------------------------------


def draw_with_seed(model, guide, x):
    torch.manual_seed(3)
    return output(model, guide, x)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_after_the_context_all_is_as_before_even_after_an_error(estimator):
    model, x, y = small_model()
    guide = pb.MeanFieldGuide(model)
    before, keys = draw_with_seed(model, guide, x), (list(model.state_dict()), list(guide.state_dict()))
    applied = ESTIMATORS[estimator].applied(model, guide, elbo=Trace_ELBO)
    with applied:
        assert not torch.equal(draw_with_seed(model, guide, x), before)
    with pytest.raises(ValueError, match="rows"), applied:  # it may be used again, and fail inside the model
        Trace_ELBO().loss(model, guide, x, y[:3])
    assert torch.equal(draw_with_seed(model, guide, x), before)
    assert (list(model.state_dict()), list(guide.state_dict())) == keys
    assert_identical(draw_with_seed(copy.deepcopy(model), pickle.loads(pickle.dumps(guide)), x), before)


def test_draws_of_the_posterior_are_genuine_in_callbacks_and_after_the_fit():
    model, x, y = small_model(num_data=6)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.5))
    seen = []

    def callback(history):
        seen.append(guide()["net.0.weight"] - guide.locations()["net.0.weight"])

    posterior = fit(model, guide, x, y, elbo=TraceMeanField_ELBO, estimator=ESTIMATORS["lrt"], callbacks=[callback])
    draws = posterior.sample(10)["net.0.weight"]
    assert all(float(deviation.detach().abs().max()) > 0.1 for deviation in seen)
    assert float(draws.std(0).mean()) > 0.1


def test_what_a_network_asks_about_a_weight_is_no_use_of_it():
    def forward(layers, x):
        weight = layers["a"].weight
        assert (weight.shape, len(weight), weight.dim(), weight.dtype) == ((4, 4), 4, 2, x.dtype)
        return layers["a"](x).reshape(-1, weight.size(0))

    model, guide = pair(Using(forward, a=nn.Linear(4, 4)))
    assert outputs(ESTIMATORS["lrt"], model, guide, torch.randn(6, 4), 1).shape == (1, 6, 4)


# --- refusals ---------------------------------------------------------------------------------------------------------


class Using(nn.Module):
    """A network whose forward pass is given."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.run = forward

    def forward(self, x):
        return self.run(self.layers, x)


def twice(layers, x):
    return layers["a"](layers["a"](x))


def tied():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, second)


def attention(layers, x):
    return layers["a"](x[:, None], x[:, None], x[:, None])[0].squeeze(1)


MISUSES = {
    # name -> (network of four inputs, what the error names)
    "transposed": (Using(lambda m, x: x @ m["a"].weight.t(), a=nn.Linear(4, 4, bias=False)), r"a\.weight.*Tensor\.t\b"),
    "recurrent": (
        Using(lambda m, x: m["a"](x[:, None])[0].squeeze(1), a=nn.LSTM(4, 4, batch_first=True)),
        r"a\.weight_ih_l0.*lstm",
    ),
    "attention": (
        Using(attention, a=nn.MultiheadAttention(4, 2, batch_first=True)),
        r"a\.in_proj_weight.*multi_head_attention_forward",
    ),
    "embedding": (Using(lambda m, x: m["a"](x.long() * 0).mean(1), a=nn.Embedding(3, 4)), r"a\.weight.*embedding"),
    "normalisation": (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), r"net\.1\.weight.*layer_norm"),
    "batch-normalisation": (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "LayerNorm or GroupNorm"),
    "transposed-convolution": (
        Using(lambda m, x: m["a"](x[:, :, None]).squeeze(2), a=nn.ConvTranspose1d(4, 4, 1)),
        r"a\.weight.*conv_transpose1d",
    ),
    "weight-as-input": (
        Using(lambda m, x: x + nn.functional.linear(m["a"].weight, x[:4]).sum(), a=nn.Linear(4, 4, bias=False)),
        r"a\.weight.*linear",
    ),
    "used-twice": (Using(twice, a=nn.Linear(4, 4)), r"a\.weight.*used twice"),
    "tied": (tied(), r"net\.0\.weight.*used twice"),
    "unused": (Using(lambda m, x: m["a"](x), a=nn.Linear(4, 4), b=nn.Linear(4, 4)), r"b\.bias.*did not appear"),
    "merged-rows": (
        Using(lambda m, x: m["a"](x.reshape(-1, 2)).reshape(-1, 4), a=nn.Linear(2, 2)),
        r"a\.weight.*\(12, 2\).*6 rows",
    ),
    "no-rows": (Using(lambda m, x: x + m["a"](x[0]), a=nn.Linear(4, 4)), r"a\.weight.*\(4,\).*6 rows"),
    "unbatched": (
        Using(lambda m, x: m["a"](x).reshape(6, -1), a=nn.Conv1d(6, 6, 1)),
        r"a\.weight.*\(6, 4\).*3 dimensions",
    ),
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", MISUSES)
def test_other_uses_of_a_random_parameter_are_refused_by_name(name, estimator):
    net, message = MISUSES[name]
    model, guide = pair(copy.deepcopy(net).double(), prior=pb.NormalPrior(0.5))
    x = torch.randn(6, 4)
    applied = ESTIMATORS[estimator].applied(model, guide, elbo=Trace_ELBO)
    with applied, pytest.raises(ValueError, match=message) as caught:
        output(model, guide, x)
    assert "without an estimator" in str(caught.value)
    assert len(output(model, guide, x)) == 6  # as it is without


def test_the_positions_of_a_row_are_refused_by_local_reparameterisation():
    model, guide = pair(nn.Linear(4, 3))
    applied = ESTIMATORS["lrt"].applied(model, guide, elbo=Trace_ELBO)
    with applied, pytest.raises(ValueError, match=r"`net.weight` and `net.bias`.*\(6, 2, 4\).*Flipout\(\)"):
        output(model, guide, torch.randn(6, 2, 4))


def test_what_an_estimator_cannot_serve_is_refused_at_the_door():
    lrt = ESTIMATORS["lrt"]
    model, x, y = small_model(num_data=6)
    guide, other = pb.MeanFieldGuide(model), small_model(net=nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))[0]
    for elbo in (RenyiELBO, Trace_ELBO(), None):
        with pytest.raises(ValueError, match=r"`elbo` must be one of the classes.*fit without an estimator"):
            lrt.applied(model, guide, elbo=elbo)
    with pytest.raises(ValueError, match=r"`guide` must be a MeanFieldGuide.*AutoNormal"):
        lrt.applied(model, pb.auto_normal(model), elbo=Trace_ELBO)
    with pytest.raises(ValueError, match="`model` must be a BayesianModel"):
        lrt.applied(nn.Linear(2, 2), guide, elbo=Trace_ELBO)
    with pytest.raises(ValueError, match=r"another model.*net\.1\.bias"):
        lrt.applied(other, guide, elbo=Trace_ELBO)
    with pytest.raises(ValueError, match="`estimator` must be an Estimator"):
        fit(model, guide, x, y, estimator="lrt")
    with pytest.raises(ValueError, match="`estimator` must be an Estimator"):
        fit(model, guide, x, y, estimator=pb.Flipout)
    with pytest.raises(ValueError, match="`elbo` must be one of the classes"):
        fit(model, guide, x, y, estimator=lrt, elbo=RenyiELBO, num_particles=2)
    with (
        lrt.applied(model, guide, elbo=Trace_ELBO),
        pytest.raises(ValueError, match="already applied"),
        pb.Flipout().applied(model, guide, elbo=Trace_ELBO),
    ):
        pass
    fit(model, guide, x, y, estimator=lrt)  # nothing of this has left a trace


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_an_elbo_does_not_do_is_refused_in_the_context(estimator):
    model, x, y = small_model()
    guide = pb.MeanFieldGuide(model)
    with ESTIMATORS[estimator].applied(model, guide, elbo=Trace_ELBO):
        with pytest.raises(ValueError, match=r"vectorised.*num_particles"):
            Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, x, y)
        with pytest.raises(ValueError, match="vectorised"):
            Predictive(model, guide=guide, num_samples=3, parallel=True)(x)
        with pytest.raises(ValueError, match=r"`net\.0\.weight` is not what the guide drew last.*Leave its context"):
            model(x)
        guide(x)
        with pytest.raises(ValueError, match="is not what the guide drew last"):
            poutine.condition(model, {name: value.detach() for name, value in guide(x).items()})(x)
