"""Natural-gradient inference together with all other options of a fit, and what it refuses."""

import functools

import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn.auto.fitting import _variational
from pyro_bnn.inference.scale_maps import Precision
from pyro_bnn.inference.svi import FEW, LONGER, NonFiniteError
from pyro_bnn.modelling.priors import PosteriorPrior

from .cases import FIXED_PRIORS, LIKELIHOODS, small_model, small_net
from .fits import forbid_direct


def precise(model, **options):
    return pb.MeanFieldGuide(model, scale_map=Precision(), **options)


def fit(model, guide, x, y, **options):
    options = {"optimizer": pb.optim.natural_gradient(0.05, hessian_decay=0.95), "num_epochs": 3, "seed": 0, **options}
    return pb.fit_svi(model, (x, y), guide, **options)


def mean_elbo(model, guide, x, y, num_draws=200):
    torch.manual_seed(0)
    return -Trace_ELBO(num_particles=num_draws).loss(model, guide, x, y)


@pytest.mark.daily("normal", "mixture", "fan-in")
@pytest.mark.parametrize("prior", FIXED_PRIORS)
def test_the_elbo_rises_with_every_prior(prior):
    model, x, y = small_model(prior=FIXED_PRIORS[prior], num_data=6)
    guide = precise(model, init=pb.NetworkInit(0.05))
    before = mean_elbo(model, guide, x, y)
    posterior = fit(model, guide, x, y, num_epochs=60)
    assert mean_elbo(model, guide, x, y) > before + 5
    assert posterior.history.path == "direct"
    assert posterior.status.remedy in ("", FEW, LONGER)


@pytest.mark.parametrize("gauss_newton_every", [None, 2])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_can_be_fitted_and_predicted(likelihood, gauss_newton_every):
    model, x, y = small_model(likelihood=likelihood, num_data=6)
    optimizer = pb.optim.natural_gradient(0.05, hessian_decay=0.95, gauss_newton_every=gauss_newton_every)
    posterior = fit(model, precise(model), x, y, optimizer=optimizer)
    assert torch.isfinite(torch.tensor(posterior.history.elbo)).all()
    pb.predict(model, posterior, x, num_samples=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_history_has_the_exact_divergence_at_the_parameters_of_each_step(dtype):
    model, x, y = small_model(num_data=6, net=small_net().to(dtype))
    guide = precise(model)
    x = x.to(dtype)
    with pb.svi_step(model, guide, pb.optim.natural_gradient(hessian_decay=0.9)) as step:
        for _ in range(3):
            expected = closed_form(guide, 0.7)
            torch.testing.assert_close(step(x, y).kl, expected, rtol=1e-10 if dtype == torch.float64 else 1e-5, atol=0)


def closed_form(guide, prior_scale):
    terms = []
    for name, loc in guide.locations().items():
        q = torch.distributions.Normal(loc.double(), guide.scales()[name].double())
        terms.append(torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, prior_scale)).sum())
    return torch.stack(terms).sum()


def test_removed_weights_stay_removed_and_have_no_part_in_the_elbo():
    model, x, y = small_model(
        num_data=6, prior=pb.PriorByName({"net.0.*": pb.ScaleMixturePrior(), "**": pb.NormalPrior()})
    )
    guide = pb.pruning.prune(precise(model), fraction=0.5).guide
    masks = {name: mask.clone() for name, mask in guide.masks.items()}
    posterior = fit(model, guide, x, y, num_epochs=20)
    for site, mask in masks.items():
        assert torch.equal(guide.kept(site), mask)
        assert not guide.locations()[site][~mask].any()
        assert not guide.scales()[site][~mask].any()
    late = posterior.history.elbo[-1]
    assert abs(mean_elbo(model, guide, x, y) - late) < 0.5 * abs(late)


def test_parameters_without_a_distribution_are_learned_by_their_own_optimizer():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    model, x, y = small_model(num_data=6, net=net, where="net.3.*")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rates = []

    def sgd(parameters):
        made = torch.optim.SGD(parameters, lr=0.01)
        made.register_step_pre_hook(lambda inner, *_: rates.append(inner.param_groups[0]["lr"]))
        return made

    halving = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    make = pb.optim.scheduled(pb.optim.natural_gradient(0.05, others=sgd), halving)
    fit(model, precise(model), x, y, optimizer=make)
    assert rates == [0.01, 0.005, 0.0025]
    after = model.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert {"net.0.weight", "net.1.weight", "net.1.running_mean"} <= changed


def test_an_initial_hessian_sets_the_scales():
    model, x, y = small_model(num_data=6)
    guide = precise(model)
    fit(
        model,
        guide,
        x,
        y,
        optimizer=pb.optim.natural_gradient(1e-9, hessian_decay=1 - 1e-12, initial_hessian=0.5),
        kl_weight=0.3,
    )
    for scale in guide.scales().values():
        torch.testing.assert_close(scale, torch.full_like(scale, (6 * 0.5 / 0.3 + 0.7**-2) ** -0.5))


def test_no_mean_moves_further_than_the_limit():
    model, x, y = small_model(num_data=6)
    guide = precise(model, init=pb.NetworkInit(0.6))
    before = guide.locations()["net.0.weight"].clone()
    fit(model, guide, x, y, optimizer=pb.optim.natural_gradient(0.5, clip=0.01), num_epochs=1)
    moved = (guide.locations()["net.0.weight"] - before).abs()
    assert float(moved.max()) <= 0.005 + 1e-12
    assert float(moved.max()) > 0.004


def test_the_learning_rate_of_means_rises_over_the_first_steps():
    """The largest move is the limit times the rate, also after a change of the optimizer."""
    model, x, y = small_model(num_data=6)
    guide = precise(model, init=pb.NetworkInit(0.6))
    make = pb.optim.natural_gradient(0.5, momentum=0.0, clip=0.001, num_warmup=4)
    moves, state = [], None
    for _ in range(2):
        optimizer = make(list(guide.parameters()))
        if state is not None:
            optimizer.load_state_dict(state)
        with pb.svi_step(model, guide, optimizer) as step:
            for _ in range(3):
                before = guide.locations()["net.0.weight"].clone()
                step(x, y)
                moves.append(float((guide.locations()["net.0.weight"] - before).abs().max()))
        state = optimizer.state_dict()
    expected = 0.0005 * torch.tensor([0.25, 0.5, 0.75, 1, 1, 1])
    torch.testing.assert_close(torch.tensor(moves), expected, rtol=1e-6, atol=0)


def test_an_optimizer_goes_on_in_another_step_and_from_its_state():
    def steps(parts, *, reload=False):
        torch.manual_seed(0)
        model, x, y = small_model(num_data=6)
        guide = precise(model)
        optimizer = pb.optim.natural_gradient(0.05)(list(guide.parameters()))
        torch.manual_seed(1)
        for count in parts:
            with pb.svi_step(model, guide, optimizer) as step:
                for _ in range(count):
                    step(x, y)
            if reload:
                state = optimizer.state_dict()
                optimizer = pb.optim.natural_gradient(0.05)(list(guide.parameters()))
                optimizer.load_state_dict(state)
        return torch.cat([value.flatten() for value in guide.state_dict().values()])

    assert torch.equal(steps([4]), steps([2, 2]))
    assert torch.equal(steps([4]), steps([2, 2], reload=True))
    assert not torch.equal(steps([4]), steps([3]))


def test_a_bad_batch_leaves_the_parameters_of_the_last_good_step():
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    guide = precise(model)
    with pb.svi_step(model, guide, pb.optim.natural_gradient()) as step:
        step(x, y)
        before = {name: value.clone() for name, value in guide.state_dict().items()}
        with pytest.raises(NonFiniteError, match="the last finite step"):
            step(x, y + 1e200)
        assert all(torch.equal(value, before[name]) for name, value in guide.state_dict().items())


def test_a_flag_on_the_device_makes_a_step_do_nothing():
    model, x, y = small_model(num_data=6)
    guide = precise(model)
    with pb.svi_step(model, guide, pb.optim.natural_gradient(hessian_decay=0.9)) as step:
        step(x, y)
        optimizer = step.optimizer
        before = {name: value.clone() for name, value in guide.state_dict().items()}
        momentum = [state["momentum"].clone() for state in optimizer.state.values()]
        guide.loc.net.get_parameter("0.weight").grad.fill_(float("nan"))
        optimizer.grad_scale, optimizer.found_inf = None, torch.ones(())
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf
    assert all(torch.equal(value, before[name]) for name, value in guide.state_dict().items())
    assert all(map(torch.equal, momentum, [state["momentum"] for state in optimizer.state.values()]))


def test_fit_finds_a_plateau_by_natural_gradients(monkeypatch):
    monkeypatch.setattr(_variational, "WINDOW_STEPS", 100)
    x = torch.linspace(-1, 1, 20)[:, None]
    model = pb.BayesianModel(
        nn.Linear(1, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.1), num_data=20
    )
    posterior = pb.fit(model, (x, 2 * x), guide=precise(model), optimizer=pb.optim.natural_gradient(0.2), seed=0)
    assert "NaturalGradient lr 0.2" in posterior.status.message
    assert abs(float(posterior.guide.locations()["net.weight"]) - 2) < 0.2


REFUSED = {
    "softplus": ({"guide": pb.MeanFieldGuide}, {}, "make it with `scale_map=scale_maps.Precision"),
    "low-rank": ({"guide": lambda model: pb.LowRankGuide(model, rank=1)}, {}, "got LowRankGuide"),
    "estimator": ({}, {"estimator": pb.LocalReparameterization()}, "leave `estimator` out"),
    "renyi": ({}, {"elbo": RenyiELBO(0.5, 2)}, "direct path, which is impossible because the bound is RenyiELBO"),
    "hierarchical": ({"prior": pb.HierarchicalNormalPrior()}, {}, "because a prior depends on other variables"),
    "zero": ({}, {"kl_weight": 0.0}, "`kl_weight` must be at least 1e-12"),
    "gauss-newton": (
        {"prior": pb.ScaleMixturePrior()},
        {"optimizer": pb.optim.natural_gradient(gauss_newton_every=1)},
        "`gauss_newton_every` needs Gaussian priors of the weights, got another prior at `net.0.weight`",
    ),
    "others": (
        {"where": "net.2.*"},
        {"optimizer": pb.optim.natural_gradient(others=lambda parameters: None)},
        "`others` must be",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused(name):
    options, arguments, sentence = REFUSED[name]
    options = {"guide": precise, **options}
    make = options.pop("guide")
    model, x, y = small_model(num_data=6, **options)
    with pytest.raises(ValueError, match=sentence):
        fit(model, make(model), x, y, **arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.0},
        {"momentum": 1.0},
        {"hessian_decay": -0.1},
        {"initial_hessian": 0.0},
        {"clip": -1.0},
        {"num_warmup": -1},
        {"gauss_newton_every": 0},
        {"others": 3},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
        pb.optim.natural_gradient(**options)


def test_the_optimizer_alone_has_no_step(monkeypatch):
    model, x, y = small_model(num_data=6)
    guide = precise(model)
    optimizer = pb.optim.natural_gradient()(list(guide.parameters()))
    with pytest.raises(ValueError, match="pass the optimizer to `fit_svi` or `svi_step`"):
        optimizer.step()
    forbid_direct(monkeypatch)
    with pytest.raises(ValueError, match="impossible because forbidden by the test"):
        fit(model, guide, x, y, elbo=TraceMeanField_ELBO())


# --- a start at the prior ---------------------------------------------------------------------------------------------


def narrow_prior_and_steep_data():
    """A prior N(1, 0.3^2), and data that agree with it but know much more: 400 rows with noise of scale 0.1."""
    torch.manual_seed(0)
    x = torch.randn(400, 1)
    net = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(net.weight), torch.nn.init.ones_(net.bias)
    shapes = {"net.weight": (1, 1), "net.bias": (1,)}
    prior = PosteriorPrior(
        {name: torch.ones(shape) for name, shape in shapes.items()},
        {name: torch.full(shape, 0.3) for name, shape in shapes.items()},
    )
    model = pb.BayesianModel(net, prior=prior, likelihood=pb.GaussianLikelihood(0.1), num_data=400)
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.3), scale_map=Precision())
    return model, guide, x, 1 + x + 0.1 * torch.randn(400, 1)


def furthest_excursion(optimizer):
    """Largest distance of a mean from its initial value in the first steps; the mean should stay there."""
    model, guide, x, y = narrow_prior_and_steep_data()
    furthest = 0.0
    with pb.svi_step(model, guide, optimizer) as step:
        for _ in range(10):
            step(x, y)
            furthest = max(furthest, *(float((loc - 1).abs().max()) for loc in guide.locations().values()))
    return furthest


def test_a_start_at_the_prior_is_warned_of_and_its_remedy_keeps_what_is_known():
    with pytest.warns(UserWarning, match=r"scales of the prior at `net.weight`, `net.bias`.*initial_hessian="):
        without = furthest_excursion(pb.optim.natural_gradient(0.05))
    remedied = furthest_excursion(pb.optim.natural_gradient(0.05, initial_hessian=100.0))  # the curvature, 1 / 0.1^2
    assert remedied < 0.1 < 1 < without


def test_a_falling_kl_weight_keeps_precisions_below_the_priors_positive():
    """A negative curvature of the data is not scaled up: ten times its size would exceed the prior's precision."""
    model, x, y = small_model(num_data=6)
    guide = precise(model, init=pb.NetworkInit(1.5))  # wider than the prior
    options = {"lr": 1e-9, "hessian_decay": 1 - 1e-12}
    with pb.svi_step(model, guide, pb.optim.natural_gradient(**options)) as step:
        with pytest.warns(UserWarning, match="scales of the prior"):
            step(x, y, kl_weight=1.0)
        step(x, y, kl_weight=0.1)
    scales = torch.cat([scale.flatten() for scale in guide.scales().values()])
    torch.testing.assert_close(scales, torch.full_like(scales, 1.5), rtol=1e-6, atol=0)
