"""Every architecture is fitted: by SVI on both paths, by natural gradients, and by NUTS."""

import math

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.inference.joint import NetworkPotential

from .architecture_case import PRIOR_SCALE, Case, assert_predicts
from .architectures import ARCHITECTURES, FEW, NAMES
from .fits import PATHS, SGD, assert_same, forbid_direct
from .tolerances import IDENTITY, assert_identical

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),  # torch's own, of its encoder
    pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning"),  # short chains
    pytest.mark.filterwarnings("ignore:the model's learnable parameters"),
]


@pytest.mark.daily(*FEW)
@pytest.mark.parametrize("name", NAMES)
def test_svi_makes_the_same_steps_on_the_direct_path_and_on_that_of_pyro(name, monkeypatch):
    found = []
    for path, recorded in PATHS.items():
        case = Case(ARCHITECTURES[name])
        model = case.model()
        guide = pb.MeanFieldGuide(model)
        with monkeypatch.context() as patch:
            if path == "pyro":
                forbid_direct(patch)
            history = pb.fit_svi(model, (case.x, case.y), guide, optimizer=SGD, num_epochs=2, seed=0).history
        assert history.path == recorded
        assert len(set(history.elbo)) == 2
        found.append((history, {**dict(guide.named_parameters()), **dict(model.named_parameters())}))
        case.assert_unchanged()
    assert_same(found)


LR, HESSIAN_DECAY, SCALE = 0.1, 0.99, 0.05


def undone(before, after):
    """Gradient and draw of a site in a first step of `natural_gradient`, from (mean, scale) before and after it."""
    (mean, scale), (next_mean, next_scale) = before, after
    rate, prior_precision = 1 - HESSIAN_DECAY, PRIOR_SCALE**-2
    factor = (2 * (scale / next_scale) ** 2 - 1).sqrt()  # S' / S = (1 + f^2) / 2 with f = 1 + rate u
    product = (factor - 1) / rate + 1 - prior_precision * scale**2  # g (w - m)
    gradient = (mean - next_mean) / next_scale**2 / LR - prior_precision * mean
    has_gradient = gradient.abs() > 1e-9  # other elements do not determine their draw
    return gradient, mean + torch.where(has_gradient, product / gradient, 0)


@pytest.mark.daily(*FEW)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_natural_gradients_is_the_formula_with_the_gradient_of_the_callers_network(name):
    """The changes of precisions and means determine the gradient and the draw: the gradient must be the true one."""
    case = Case(ARCHITECTURES[name])
    model = case.repeatable()
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=SCALE), scale_map=pb.scale_maps.Precision())

    def state():
        locations, scales = guide.locations(), guide.scales()
        return {site: (locations[site].clone(), scales[site].clone()) for site in model.site_names}

    start = state()
    plain = case.with_state_of(model)  # before the step changes what has no distribution
    with pb.svi_step(model, guide, pb.optim.natural_gradient(LR, hessian_decay=HESSIAN_DECAY)) as step:
        first = step(case.x, case.y)
        found = {site: undone(start[site], after) for site, after in state().items()}
        second = step(case.x, case.y)
    if not case.architecture.refusal:  # not always random: a second call has the same numbers
        case.put({site: draw for site, (_, draw) in found.items()}, plain)
        value, expected = case.value_and_gradients(plain, model)
        torch.testing.assert_close(first.log_likelihood, value, rtol=1e-8, atol=1e-8)
        for site, (gradient, _) in found.items():
            torch.testing.assert_close(gradient, -expected[site], rtol=1e-5, atol=1e-5)
    assert math.isfinite(float(second.elbo))
    assert float(second.elbo) != float(first.elbo)
    case.assert_unchanged()


SHORT = {"num_samples": 4, "num_warmup": 6, "num_chains": 1, "max_tree_depth": 2, "seed": 0}


@pytest.mark.daily(*FEW)
@pytest.mark.parametrize("name", NAMES)
def test_nuts_follows_the_density_of_the_callers_network(name):
    case = Case(ARCHITECTURES[name])
    model = case.model(is_training=False)
    if case.architecture.refusal:
        with pytest.raises(ValueError, match=case.architecture.refusal):
            pb.fit_nuts(model, (case.x, case.y), **SHORT)
        return
    rounding = {"rtol": 1e-8, "atol": 1e-6} if case.architecture.is_long else IDENTITY  # of millions of weights
    potential = NetworkPotential(model, case.x, case.y)
    z = potential.from_prior(3)
    drawn = potential.constrain(z)
    for rows in ([0, 1, 2], [1]):  # several chains at once, and one alone
        value, gradient = potential.value_and_grad(z[rows])
        with torch.no_grad():  # as for what is reported
            assert_identical(value, potential.value(z[rows]))
        for index, row in enumerate(rows):
            values = {site: draws[row].detach() for site, draws in drawn.items()}
            plain = case.put(values, case.with_state_of(model))
            expected, slopes = case.value_and_gradients(plain, model)
            torch.testing.assert_close(value[index], -(expected + case.log_prior(values)), **rounding)
            by_site = [(values[site] / PRIOR_SCALE**2 - slope).flatten() for site, slope in slopes.items()]
            torch.testing.assert_close(gradient[index], torch.cat(by_site), **rounding)
    case.assert_unchanged()


@pytest.mark.daily("`nn.Embedding`", "`nn.LayerNorm`", "`nn.Conv2d`")
@pytest.mark.parametrize("name", [name for name, case in ARCHITECTURES.items() if not (case.refusal or case.is_long)])
def test_nuts_draws_the_weights_of_the_callers_network(name):
    case = Case(ARCHITECTURES[name])
    model = case.model(is_training=False)
    posterior = pb.fit_nuts(model, (case.x, case.y), **SHORT | {"num_warmup": 20})
    assert_predicts(case, model, posterior)
    assert all(bool((draws.std(0) > 0).all()) for draws in posterior.sample(4, seed=0).values())
    case.assert_unchanged()
