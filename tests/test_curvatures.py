"""Natural gradients of a likelihood's latent variables: second derivatives, and their effect on fits."""

import functools

import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import nn
from torch.autograd.functional import hessian

import pyro_bnn as pb
from pyro_bnn.inference.guides import _natural_state
from pyro_bnn.inference.scale_maps import Precision

from .cases import small_model
from .test_natural import flat, precise

DECAY = 0.9


def by_hand(model, guide, x, y, *, kl_weight, num_draws):
    """The precisions after a step, from the formula: second derivatives for the noise, Stein's identity for weights."""
    joint = guide.joint(model)
    loc, precision = flat(guide.locations()), flat(guide.scales()) ** -2
    (noise,) = (site for site in joint.sites if site.name == "likelihood.scale")
    num_weights = len(loc) - noise.start.numel()

    def constrained(w):
        return joint.constrained(joint.layout.views(w))

    def loss(w):
        return -model.log_likelihood(constrained(w), x, y)

    def log_prior_of_noise(w):
        free = joint.layout.views(w)["likelihood.scale"]
        value = noise.transform(free)
        return noise.prior.log_prob(value) + noise.transform.log_abs_det_jacobian(free, value).sum()

    product = torch.zeros_like(loc)
    for _ in range(num_draws):
        w = loc + torch.empty_like(loc).normal_() / precision.sqrt()
        slope = torch.autograd.functional.jacobian(loss, w)
        of_prior = torch.autograd.functional.jacobian(log_prior_of_noise, w)
        own = slope * (w - loc)
        own[num_weights:] = hessian(loss, w).diagonal()[num_weights:] / precision[num_weights:]
        product += (own - kl_weight * of_prior * (w - loc)) / num_draws
    prior = torch.full_like(loc, 0.7**-2)
    prior[num_weights:] = 0.0
    rate = 1 - DECAY
    u = product / kl_weight + prior / precision - 1
    return precision * (1 + rate * u + 0.5 * rate**2 * u**2)


@pytest.mark.parametrize(
    "options",
    [{}, {"kl_weight": 0.3}, {"num_draws": 3, "kl_weight": 0.3}, {"num_parts": 2}, {"num_draws": 2, "num_parts": 2}],
    ids=str,
)
@pytest.mark.parametrize("likelihood", ["gaussian-latent", "gaussian-latent-vector"])
def test_a_step_uses_second_derivatives_of_the_noise_scale(likelihood, options, monkeypatch):
    options = {"kl_weight": 1.0, "num_draws": 1, **options}
    num_parts = options.pop("num_parts", 1)
    kl_weight, num_draws = options["kl_weight"], options["num_draws"]

    def after_a_step():
        model, x, y = small_model(likelihood=likelihood, num_data=60)
        guide = precise(model, 0.3)
        torch.manual_seed(3)
        expected = by_hand(model, guide, x, y, **options)
        make, execution = pb.optim.natural_gradient(0.05, hessian_decay=DECAY), pb.Execution(num_parts=num_parts)
        with pb.svi_step(
            model, guide, make, elbo=Trace_ELBO(num_draws), execution=execution, kl_weight=kl_weight
        ) as step:
            step.prepared(x, y)
            torch.manual_seed(3)
            step(x, y)
            return flat(guide.scales()) ** -2, expected

    torch.testing.assert_close(*after_a_step(), rtol=1e-9, atol=1e-11)
    monkeypatch.setattr(_natural_state, "diagonal_hessians", lambda joint: [])
    assert not torch.allclose(*after_a_step(), rtol=1e-3)


def test_large_variables_and_those_that_the_loss_does_not_use_have_no_second_derivatives():
    model, _, _ = small_model(likelihood="gaussian-latent-vector", num_data=6)
    assert [found.name for found in _natural_state.diagonal_hessians(precise(model).joint(model))] == [
        "likelihood.scale"
    ]
    prior = dist.LogNormal(torch.zeros(17), 1.0).to_event(1)
    wide = pb.BayesianModel(
        nn.Linear(2, 17), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(prior), num_data=6
    )
    assert _natural_state.diagonal_hessians(precise(wide).joint(wide)) == []
    model, _, _ = small_model(num_data=6)
    assert _natural_state.diagonal_hessians(precise(model).joint(model)) == []
    unused = _natural_state.DiagonalHessian("scale", slice(3, 5))
    leaf = torch.zeros(2, requires_grad=True)
    unused.begin({"scale": leaf})
    unused.add(torch.ones(2, requires_grad=True).sum())
    unused.add((2 * leaf).sum())  # a constant slope
    unused.end(torch.zeros(2), torch.ones(2))
    products = torch.ones(6)
    unused.add_to(products, slice(0, 6))
    assert torch.equal(products, torch.ones(6))


def test_second_derivatives_go_to_their_place_in_any_part():
    """Of x^2 y^2 in x and y, each by itself, and divided by the precisions."""
    found = _natural_state.DiagonalHessian("scale", slice(3, 5))
    leaf = torch.tensor([2.0, 3.0], requires_grad=True)
    found.begin({"scale": leaf})
    for _ in range(2):
        found.add(leaf.square().prod())
    found.end(torch.tensor([0.5, 2.0]), torch.tensor([4.0, 2.0]))
    whole = torch.zeros(7)
    whole[3:5] = torch.tensor([0.5, 2.0])  # Stein's
    found.add_to(whole, slice(0, 7))
    expected = torch.tensor([2 * 2 * 9 / 4, 2 * 2 * 4 / 2])
    torch.testing.assert_close(whole[3:5], expected)
    assert (whole[[0, 1, 2, 5, 6]] == 0).all()
    first, second = torch.tensor([0.0, 0.5]), torch.tensor([2.0, 0.0])
    found.add_to(first, slice(2, 4))
    found.add_to(second, slice(4, 6))
    torch.testing.assert_close(torch.stack([first[1], second[0]]), expected)
    assert (first[0], second[1]) == (0, 0)


def noisy_rows(num_rows=1200, noise=0.1):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 3, generator=generator)
    y = torch.sin(x).sum(1, keepdim=True) + noise * torch.randn(num_rows, 1, generator=generator)
    return x, y


@pytest.mark.nightly
def test_a_noise_scale_is_found_from_afar_and_its_width_is_that_of_its_information(monkeypatch):
    """The curvature of a log-scale is 2 N. Stein's identity alone gives far more, and the scale hardly moves."""
    x, y = noisy_rows()

    def fitted():
        torch.manual_seed(0)
        likelihood = pb.GaussianLikelihood(dist.LogNormal(-3.0, 2.0))
        net = pb.nets.mlp([3, 20, 1], activation=nn.Tanh)
        model = pb.BayesianModel(net, prior=pb.FanInNormalPrior(2.0), likelihood=likelihood, num_data=len(x))
        guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.02), scale_map=Precision())
        cosine = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=250)
        make = pb.optim.scheduled(pb.optim.natural_gradient(0.1, hessian_decay=0.98, clip=1.0), cosine)
        pb.fit_svi(model, (x, y), guide, optimizer=make, num_epochs=250, batch_size=300, seed=0)
        return float(guide.median()["likelihood.scale"]), float(guide.scales()["likelihood.scale"]) ** -2

    scale, precision = fitted()
    assert 0.1 < scale < 0.3
    assert precision == pytest.approx(2 * len(x), rel=0.1)
    monkeypatch.setattr(_natural_state, "diagonal_hessians", lambda joint: [])
    scale, precision = fitted()
    assert scale < 0.05
    assert precision > 100 * 2 * len(x)
