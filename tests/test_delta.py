"""A point as a guide: the same fit on both paths, and by Pyro's own `AutoDelta`."""

import functools

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.infer.autoguide.initialization import init_to_value

import pyro_bnn as pb
from pyro_bnn.inference.guides import Noise, UniformInit

from .cases import LIKELIHOODS
from .fits import ADAM, ELBOS, MORE_PRIORS, assert_same, fit, fit_both, problem, whole
from .tolerances import assert_identical

somewhere = functools.partial(pb.DeltaGuide, init=pb.NormalInit())
"""A point in unconstrained space, whatever the sign of the network's own weights."""


@pytest.mark.daily("*-Trace_ELBO", "normal-*")
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", MORE_PRIORS)
def test_every_prior_gives_the_same_fit(monkeypatch, prior, elbo):
    assert_same(fit_both(monkeypatch, problem(prior, make_guide=somewhere), elbo=elbo(), batch_size=4))


@pytest.mark.daily("categorical-*", "gaussian-latent-0.3", "gaussian-learned-0.3", "own-0.3")
@pytest.mark.parametrize("kl_weight", [0.0, 0.3])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_gives_the_same_fit(monkeypatch, likelihood, kl_weight):
    make = problem("mixture", likelihood, make_guide=pb.DeltaGuide)
    assert_same(fit_both(monkeypatch, make, elbo=Trace_ELBO(num_particles=2), kl_weight=kl_weight))


def pyros_own(model, ours):
    """Pyro's guide, started where ours is."""
    return AutoDelta(model.sample_latents, init_loc_fn=init_to_value(values=ours.median()))


@pytest.mark.parametrize("likelihood", ["gaussian-latent", "gaussian-latent-vector"])
def test_the_fit_is_that_of_pyros_own_guide(likelihood):
    """With a latent noise scale, whose mode depends on the parametrisation in which it is searched."""
    medians = []
    for kind in (pb.DeltaGuide, lambda model: pyros_own(model, pb.DeltaGuide(model))):
        torch.manual_seed(0)
        model, x, y = whole(likelihood)
        posterior = fit(model, kind(model), x, y, num_epochs=50)
        medians.append(posterior.median())
    assert posterior.history.path == "pyro: the guide is of type AutoDelta"
    assert list(medians[0]) == list(medians[1])
    for name in medians[0]:
        torch.testing.assert_close(medians[0][name], medians[1][name], rtol=1e-9, atol=1e-11)
    torch.manual_seed(0)
    model, x, y = whole(likelihood)
    other = fit(model, pb.DeltaGuide(model), x, y, num_epochs=50, kl_weight=0.9).median()
    assert not torch.allclose(other["likelihood.scale"], medians[0]["likelihood.scale"], rtol=1e-6)


@pytest.mark.uses_param_store
def test_the_losses_are_those_of_pyros_own_guide_in_pyros_own_loop():
    losses = {}
    for name in ("ours", "pyro"):
        torch.manual_seed(0)
        model, x, y = whole("gaussian-latent")
        ours = pb.DeltaGuide(model)
        guide = ours if name == "ours" else pyros_own(model, ours)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        losses[name] = [svi.step(x, y) for _ in range(20)]
    torch.manual_seed(0)
    model, x, y = whole("gaussian-latent")
    losses["fit_svi"] = fit(model, pb.DeltaGuide(model), x, y, num_epochs=20).history.loss
    assert_identical(losses["ours"], losses["pyro"])
    assert_identical(losses["ours"], losses["fit_svi"])
    assert losses["ours"][0] > losses["ours"][-1]


def test_the_parameters_are_in_unconstrained_space():
    model, _, _ = whole("gaussian-latent")
    guide = pb.DeltaGuide(model)
    names = [name for name, _ in guide.named_parameters()]
    assert names == [f"loc.{site}" for site in model.latent_names]
    scale = guide.median()["likelihood.scale"]
    with torch.no_grad():
        guide.loc.get_parameter("likelihood.scale").sub_(100.0)
    shrunk = guide.median()["likelihood.scale"]
    assert_identical(shrunk, scale * torch.tensor(-100.0).exp())


def test_every_draw_is_the_point():
    model, x, _ = whole("gaussian-latent")
    guide = pb.DeltaGuide(model, init=UniformInit())
    median = guide.median()
    for draw in (guide(), guide(x), *guide.draws(2), *pb.GuidePosterior(guide).draws(2, x)):
        assert list(draw) == list(median)
        assert all(torch.equal(draw[name], median[name]) for name in median)


def test_changing_what_was_drawn_leaves_the_guide_as_it_was():
    model, _, _ = whole()
    guide = pb.DeltaGuide(model)
    before = {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}
    for value in guide.median().values():
        value.zero_()
    assert all(torch.equal(parameter, before[name]) for name, parameter in guide.named_parameters())


def test_an_estimator_has_nothing_to_work_on():
    model, x, y = whole()
    guide = pb.DeltaGuide(model)
    with pytest.raises(ValueError, match="`guide` must be a MeanFieldGuide"):
        fit(model, guide, x, y, estimator=pb.Flipout())
    with pytest.raises(
        ValueError, match="`estimator` needs random weights, but this guide is a point; leave `estimator` out"
    ):
        guide.flat(guide.joint(model), noise=Noise.DEVIATION, closed_form=False)


def test_weight_decay_like_optimizers_work_on_either_path(monkeypatch):
    adamw = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
    found = fit_both(monkeypatch, problem(make_guide=pb.DeltaGuide), optimizer=pb.optim.clipped(adamw, 1.0))
    assert_same(found)
    assert found[0][0].loss != fit_both(monkeypatch, problem(make_guide=pb.DeltaGuide), optimizer=ADAM)[0][0].loss
