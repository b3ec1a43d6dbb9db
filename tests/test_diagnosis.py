"""A bad posterior is recognised by its weights, at the prior or collapsed; a good posterior causes no warning."""

import functools
import math

import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn import kl, nets, pruning
from pyro_bnn.inference.guides import UniformInit
from pyro_bnn.inference.svi import FEW, LONGER

from .cases import HIERARCHICAL_PRIORS, LEARNED_PRIORS, small_model
from .fits import MORE_PRIORS, JointPrior, PerWeightPrior, whole
from .tolerances import IDENTITY, STANDARD_ERRORS

N = 60
HEADING = ["weights", "KL", "(nats)", "per", "weight", "at", "prior", "collapsed", "median", "sd", "|mean|/sd"]
KINDS = {
    "mean-field": pb.MeanFieldGuide,
    "low-rank": functools.partial(pb.LowRankGuide, rank=3),
    "auto-normal": functools.partial(pb.auto_guide, AutoNormal),
    "auto-full-rank": functools.partial(pb.auto_guide, AutoMultivariateNormal),
    "auto-low-rank": functools.partial(functools.partial(pb.auto_guide, AutoLowRankMultivariateNormal), rank=3),
}


def curve(seed, *, prior=None, width=20, noise=0.1, depends=True):
    """A model of a noisy sine, or of targets that do not depend on the inputs, and its data."""
    torch.manual_seed(seed)
    x = torch.linspace(-1, 1, N)[:, None]
    y = torch.sin(3 * x) + 0.1 * torch.randn(N, 1) if depends else torch.randn(N, 1)
    prior = prior or pb.NormalPrior(1.0)
    likelihood = pb.GaussianLikelihood(noise if depends else 1.0)
    return pb.BayesianModel(nets.mlp([1, width, 1]), prior=prior, likelihood=likelihood, num_data=N), (x, y)


def fitted(model, data, guide=pb.MeanFieldGuide, *, lr=0.02, steps=400, init=None, **options):
    adam = functools.partial(torch.optim.Adam, lr=lr)
    return pb.fit_svi(model, data, guide(model, init=init), optimizer=adam, num_epochs=steps, seed=0, **options)


def with_states(model, loc, scale):
    """A guide of which every weight has this location and scale."""
    guide = pb.MeanFieldGuide(model)
    with torch.no_grad():
        for name, parameter in guide.named_parameters():
            value = loc if name.startswith("loc") else guide.scale_map.inverse(torch.as_tensor(scale).to(parameter))
            parameter.copy_(torch.as_tensor(value).expand_as(parameter))
    return guide


def diagnosis(model, loc, scale):
    return pb.GuidePosterior(with_states(model, loc, scale)).diagnose(model)


# --- the fits ---------------------------------------------------------------------------------------------------------


@pytest.mark.daily("mean-field-0")
@pytest.mark.parametrize(
    ("kind", "seed"), [("mean-field", 0), ("mean-field", 1), ("mean-field", 2), ("low-rank", 0), ("auto-normal", 0)]
)
def test_a_fit_that_weighs_the_prior_too_much_is_prior_dominated(kind, seed):
    model, data = curve(seed)
    with pytest.warns(pb.PosteriorWarning, match=r"^prior-dominated: the weights of every layer .*Lower the KL weight"):
        posterior = fitted(model, data, KINDS[kind], kl_weight=1e4)
    assert not posterior.status.ok
    assert "Prior-dominated: the weights of every layer" in posterior.status.message
    assert posterior.diagnose(model).share_at_prior > 0.9


@pytest.mark.daily("0")
@pytest.mark.parametrize("seed", range(3))
def test_a_layer_without_information_is_named(seed):
    model, data = curve(seed, prior=pb.NormalPrior(0.3), depends=False)
    with pytest.warns(pb.PosteriorWarning, match=r"the weights of the layer `net.0` are still .*targets depend on the"):
        fitted(model, data, elbo=TraceMeanField_ELBO(), steps=800)


@pytest.mark.daily("mean-field-0")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_fit_from_scales_close_to_zero_is_collapsed(kind, seed):
    model, data = curve(seed)
    with pytest.warns(pb.PosteriorWarning, match=r"^collapsed: .*NetworkInit\(scale=0.01\)") as caught:
        posterior = fitted(model, data, KINDS[kind], init=pb.NetworkInit(scale=1e-8), steps=100)
    assert caught[0].filename == __file__
    assert not posterior.status.ok
    assert posterior.diagnose(model).share_collapsed > 0.9


@pytest.mark.daily("problem0-*-0", "problem3-*-0", "problem10-*-0")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("problem", "options"),
    [
        ({}, {}),
        ({"width": 500}, {}),
        ({"noise": 0.03}, {"guide": KINDS["low-rank"]}),
        ({"prior": pb.NormalPrior(0.3)}, {}),  # the prior with which a layer of targets without inputs is silent
        ({"prior": pb.ScaleMixturePrior()}, {}),
        ({"prior": pb.LaplacePrior(0.5)}, {"guide": functools.partial(pb.auto_guide, AutoNormal), "steps": 150}),
        ({"prior": pb.LearnedNormalPrior()}, {"steps": 150}),
        ({"prior": pb.HierarchicalNormalPrior()}, {"steps": 150}),
        ({}, {"kl_weight": kl.linear_warmup(100)}),
        ({}, {"kl_weight": 0.001}),
        ({}, {"init": UniformInit(), "steps": 100}),
        ({}, {"estimator": pb.LocalReparameterization(), "elbo": TraceMeanField_ELBO()}),
    ],
)
def test_good_fits_are_left_alone(problem, options, seed):
    model, data = curve(seed, **problem)
    posterior = fitted(model, data, **options)  # a warning would be an error
    assert posterior.status.remedy in ("", FEW, LONGER)
    assert posterior.diagnose(model).warnings == ()


def test_a_fit_that_just_began_is_not_judged_though_its_posterior_can_be():
    model, data = curve(0)
    posterior = fitted(model, data, init=pb.NetworkInit(scale=1e-8), steps=99)
    assert posterior.status.remedy in ("", FEW, LONGER)
    assert posterior.diagnose().warnings[0].startswith("collapsed")


def test_weights_that_explain_the_data_together_carry_information_though_each_is_close_to_the_prior():
    torch.manual_seed(0)
    num_inputs, num_data = 1000, 100
    x = torch.randn(num_data, num_inputs)
    y = x @ torch.randn(num_inputs, 1) / num_inputs**0.5
    prior = pb.NormalPrior(num_inputs**-0.5)
    model = pb.BayesianModel(
        nn.Linear(num_inputs, 1), prior=prior, likelihood=pb.GaussianLikelihood(1.0), num_data=num_data
    )
    init = pb.NetworkInit(prior_fraction=1.0)
    posterior = fitted(model, (x, y), init=init, lr=0.001, elbo=TraceMeanField_ELBO())
    found = posterior.diagnose()
    assert found.share_at_prior > 0.99
    assert found.warnings == ()
    # The must-fail twin: the same fit, of targets that are noise.
    with pytest.warns(pb.PosteriorWarning, match="prior-dominated"):
        fitted(model, (x, torch.zeros(num_data, 1)), init=init, lr=0.001, elbo=TraceMeanField_ELBO())


# --- the states of weights --------------------------------------------------------------------------------------------


@pytest.mark.daily("mean-field", "low-rank", "auto-full-rank")
@pytest.mark.parametrize("kind", list(KINDS))
def test_divergences_are_those_of_the_marginals(kind):
    model, _, _ = whole(prior=PerWeightPrior())
    guide = KINDS[kind](model, init=pb.NetworkInit(scale=0.2))
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.rand_like(parameter))
    draws = pb.GuidePosterior(guide).sample(1000, seed=0)
    for row in pb.GuidePosterior(guide).diagnose(model).sites:
        prior = model.prior_of(row.site).base_dist
        loc, scale = draws[row.site].mean(0), draws[row.site].std(0)
        expected = float(torch.distributions.kl_divergence(dist.Normal(loc, scale), prior).sum())
        # The error of a scale is 1 / sqrt(2 S), that of a mean scale / sqrt(S); five standard errors of their effect.
        slope_loc, slope_scale = (loc - prior.mean) / prior.variance, scale / prior.variance - 1 / scale
        error = ((slope_loc * scale).square() + (slope_scale * scale).square() / 2).sum().sqrt() / 1000**0.5
        assert row.kl == pytest.approx(expected, abs=5 * float(error) + 0.01)
        assert row.median_scale == pytest.approx(float(scale.median()), rel=0.1)


def test_a_mean_field_divergence_is_that_of_the_guide_exactly():
    model, _, _ = whole(prior=pb.NormalPrior(0.7))
    guide = pb.MeanFieldGuide(model, init=pb.NormalInit(rho=-1.0))
    found = pb.GuidePosterior(guide).diagnose(model)
    expected = sum(
        torch.distributions.kl_divergence(dist.Normal(loc, guide.scales()[name]), dist.Normal(0.0, 0.7)).sum()
        for name, loc in guide.locations().items()
    )
    torch.testing.assert_close(torch.tensor(found.kl), expected, **IDENTITY)
    assert found.num_weights == 43


def test_a_divergence_without_closed_form_is_estimated():
    model, _, _ = whole(prior=pb.ScaleMixturePrior())
    found = diagnosis(model, 0.3, 0.5)
    q, p = dist.Normal(0.3, 0.5), pb.distributions.ScaleMixtureNormal(0.5, 1.0, math.exp(-6))
    w = torch.linspace(-5, 5, 400_001)
    density, log_ratio = q.log_prob(w).exp(), q.log_prob(w) - p.log_prob(w)
    mean = torch.trapezoid(density * log_ratio, w)
    sd = torch.trapezoid(density * (log_ratio - mean).square(), w).sqrt()
    z = (found.kl / 43 - mean) / (sd / (43 * 30) ** 0.5)
    assert abs(z) < STANDARD_ERRORS
    assert abs(found.kl / 43 - 1.2 * mean) / (sd / (43 * 30) ** 0.5) > STANDARD_ERRORS  # a wrong value is seen


@pytest.mark.parametrize(
    ("loc", "scale", "is_at_prior"),
    [
        (0.0, 0.7, True),
        (0.7 * 0.63, 0.7, True),  # 0.198 nats
        (0.7 * 0.64, 0.7, False),  # 0.205 nats
        (0.0, 0.7 * 0.6, True),  # 0.191 nats
        (0.0, 0.7 * 0.58, False),  # 0.213 nats
        (0.0, 0.7 * 1.7, False),
    ],
)
def test_a_weight_at_the_prior_learned_less_than_a_fifth_of_a_nat(loc, scale, is_at_prior):
    model, _, _ = whole(prior=pb.NormalPrior(0.7))
    assert diagnosis(model, loc, scale).share_at_prior == float(is_at_prior)


@pytest.mark.parametrize(
    ("prior", "scale", "share"),
    [
        ("laplace", 0.5 * math.sqrt(math.pi / 2), 1.0),  # the Gaussian nearest to a Laplace distribution, by hand
        ("laplace", 0.5 * math.sqrt(math.pi / 2) * 0.5, 0.0),
        ("mixture", 0.95, 1.0),  # close to the slab
        ("mixture", math.exp(-6), 1.0),  # close to the spike
        ("mixture", 0.05, 0.0),  # between the two
        ("fan-in", None, 1.0),
    ],
)
def test_the_prior_of_another_kind_is_met_at_the_gaussians_nearest_to_it(prior, scale, share):
    model, _, _ = whole(prior=MORE_PRIORS[prior])
    if scale is None:
        guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(prior_fraction=1.0))
        with torch.no_grad():
            for site in guide.sites:
                guide.loc.get_parameter(site.name).zero_()
        assert pb.GuidePosterior(guide).diagnose(model).share_at_prior == share
    else:
        assert diagnosis(model, 0.0, scale).share_at_prior == share


def test_a_collapsed_scale_is_that_which_no_number_of_rows_explains_or_no_digit_resolves():
    model, _, _ = whole(prior=pb.NormalPrior(0.7))  # six rows
    limit = 0.003 * 0.7 / math.sqrt(6)
    assert diagnosis(model, 0.0, 1.01 * limit).share_collapsed == 0
    assert diagnosis(model, 0.0, 0.99 * limit).share_collapsed == 1
    assert diagnosis(model, 1e14, 1e-2).share_collapsed == 1  # neighbouring numbers are 0.016 apart there
    assert diagnosis(model, 1e14, 1.0).share_collapsed == 0


def test_removed_weights_are_not_counted():
    model, _, _ = whole()
    guide = pruning.prune(with_states(model, 0.0, 0.7), fraction=0.5).guide
    found = pb.GuidePosterior(guide).diagnose(model)
    assert (found.num_weights, found.share_collapsed, found.share_at_prior) == (21, 0, 1)
    empty = pruning.prune(guide, fraction=1.0, where="net.0.*").guide
    found = pb.GuidePosterior(empty).diagnose(model)
    assert {row.site for row in found.sites} == {"net.2.weight", "net.2.bias"}
    assert found.left_out["net.0.weight"] == "all of its weights were removed"
    nothing = pruning.prune(guide, fraction=1.0)
    with pytest.raises(ValueError, match="there is no weight to diagnose"):
        nothing.diagnose(model)


@pytest.mark.parametrize("prior", [*HIERARCHICAL_PRIORS, *LEARNED_PRIORS])
def test_priors_that_depend_on_other_numbers_are_those_of_the_model(prior):
    model, _, _ = small_model(prior={**HIERARCHICAL_PRIORS, **LEARNED_PRIORS}[prior])
    posterior = pb.GuidePosterior(pb.MeanFieldGuide(model))
    found = posterior.diagnose(model)
    assert [row.site for row in found.sites] == list(model.site_names)
    assert set(found.left_out) == set(model.latent_names) - set(model.site_names)
    assert math.isfinite(found.kl)
    posterior.history.num_data = model.num_data
    with pytest.raises(ValueError, match=r"`model` is needed for .*`posterior.diagnose\(model\)`"):
        posterior.diagnose()


def test_sites_whose_weights_cannot_be_told_apart_are_left_out():
    model, _, _ = whole(prior=JointPrior())
    with pytest.raises(ValueError, match="its elements depend on each other under the prior"):
        pb.GuidePosterior(pb.MeanFieldGuide(model)).diagnose(model)
    model, _, _ = whole(prior=MORE_PRIORS["positive"])
    found = pb.GuidePosterior(pb.MeanFieldGuide(model)).diagnose(model)
    assert found.left_out == {"net.2.weight": "it is not a site of real numbers"}


# --- what it says -----------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_per_site_and_the_verdict():
    model, data = curve(0)
    posterior = fitted(model, data)
    lines = str(posterior.diagnose()).splitlines()
    assert lines[0].split() == HEADING
    assert [line.split()[0] for line in lines[1:5]] == list(model.site_names)
    assert lines[5].startswith("all weights")
    assert {len(line) for line in lines[:5]} == {len(lines[0])}
    assert lines[-1] == "No sign of a collapsed or prior-dominated posterior."
    assert str(diagnosis(model, 0.0, 1.0)).splitlines()[-1].startswith("prior-dominated: ")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: pb.GuidePosterior(pb.MeanFieldGuide(model)).diagnose(), "posterior without a fit; call"),
        (lambda model: pb.GuidePosterior(pb.DeltaGuide(model)).diagnose(model), "Gaussian marginals.*got DeltaGuide"),
        (lambda model: pb.GuidePosterior(lambda x, y: None).diagnose(model), "got function; look at draws"),
        (
            lambda model: pb.GuidePosterior(pb.MeanFieldGuide(curve(0)[0])).diagnose(model),
            "the guide was made for another model: it",
        ),
        (
            lambda model: pb.GuidePosterior(pb.MeanFieldGuide(curve(0)[0])).diagnose(curve(0, width=3)[0]),
            "made for another model: its `net.0.weight` has shape",
        ),
        (lambda model: pb.GuidePosterior(pb.MeanFieldGuide(model)).diagnose(7), "`model` must be a BayesianModel"),
        (lambda model: pb.GuidePosterior(pb.MeanFieldGuide(model)).diagnose(model, num_samples=1), "at least 2"),
    ],
)
def test_misuse_is_told_with_its_remedy(call, message):
    model, _, _ = whole()
    with pytest.raises(ValueError, match=message):
        call(model)


def test_a_diagnosis_in_single_precision_on_a_moved_model_takes_its_numbers():
    model, _, _ = whole()
    guide = pb.MeanFieldGuide(model)
    model.float(), guide.float()
    posterior = pb.GuidePosterior(guide)
    posterior.history.num_data = 6
    assert str(posterior.diagnose()) == str(posterior.diagnose(model))
