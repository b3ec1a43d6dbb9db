"""Laplace's method with Gauss-Newton matrices: what a fit does not change, and what it refuses."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn.inference.batch_norm import PinnedPosterior
from pyro_bnn.modelling.priors import PosteriorPrior

from .cases import small_model
from .test_gauss_newton import NAMES, covariance_of


def test_the_model_the_loader_and_the_generators_stay_as_they_were():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    model, x, y = small_model(net=net, num_data=6)
    before, generator = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    linear = pb.layers(nn.Linear)
    posterior = pb.fit_gauss_newton(model, loader, where=linear)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert model.training
    assert all(module.training for module in model.modules())
    same = pb.fit_gauss_newton(model, (x, y), where=linear)
    torch.testing.assert_close(covariance_of(same), covariance_of(posterior))
    with pytest.raises(ValueError, match="but BatchNorm1d `1` is no such layer; leave it out"):
        pb.fit_gauss_newton(model, (x, y))
    assert pb.fit_gauss_newton(model, (x, y), structure="diagonal").random == model.site_names


REFUSED = {
    "prior": ({"prior": pb.LaplacePrior()}, {}, "must be Gaussian, got Laplace; use NormalPrior"),
    "hierarchical": ({"prior": pb.HierarchicalNormalPrior()}, {}, "latent variables"),
    "learned-prior": ({"prior": pb.LearnedNormalPrior()}, {}, 'prior_precision="evidence"'),
    "likelihood": ({"likelihood": "mixture-density"}, {}, "got MixtureDensityLikelihood; use `fit_laplace`"),
    "noise": ({"likelihood": "gaussian-latent-vector"}, {}, "Kronecker factors need one noise scale .* got 2; use"),
    "rows": ({"num_data": 7}, {}, "must have all 7 rows"),
    "structure": ({}, {"structure": "kron"}, "`structure` must be one of 'full', 'kronecker', 'diagonal', got 'kron'"),
    "structure-list": ({}, {"structure": []}, r"`structure` must be one of .*, got \[\]"),
    "per": ({}, {"per": "weight"}, "`per` must be one of 'network', 'layer', 'parameter', got 'weight'"),
    "per-list": ({}, {"per": ["layer"]}, "`per` must be one of"),
    "precision-list": ({}, {"prior_precision": []}, "`prior_precision` must be a finite number above 0"),
    "precision-array": ({}, {"prior_precision": torch.ones(2)}, "`prior_precision` must be a finite number above 0"),
    "progress": ({}, {"progress": 1}, "`progress` must be True or False"),
    "seed": ({}, {"seed": "a"}, "`seed` must be a whole number"),
    "precision": ({}, {"prior_precision": "best"}, "`prior_precision` must be a number"),
    "negative": ({}, {"prior_precision": -1.0}, "`prior_precision` must be a finite number above 0"),
    "init": ({}, {"init": 3}, "`init` must be a posterior, or values by site"),
    "noisy": (
        {"net": lambda: nn.Sequential(nn.Linear(4, 9), pb.nets.MCDropout(0.5), nn.Linear(9, 3))},
        {},
        "must give the same outputs for the same weights",
    ),
    "axes": (
        {"net": lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), "likelihood": "gaussian-fixed"},
        {},
        r"output must have shape \(N, C\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_with_a_remedy(name):
    of_model, of_fit, message = REFUSED[name]
    built = {"net": of_model["net"]()} if "net" in of_model else {}
    model, x, y = small_model(**{"num_data": 6, **of_model, **built})
    y = y[:, 0] if name == "axes" else y
    with pytest.raises(ValueError, match=message):
        pb.fit_gauss_newton(model, (x, y), **of_fit)


def test_other_data_and_points_are_refused_with_a_remedy():
    model, x, y = small_model(num_data=6)
    with pytest.raises(ValueError, match="readable several times, got an iterator"):
        pb.fit_gauss_newton(model, iter([(x, y)]))
    with pytest.raises(ValueError, match="must be a pair"):
        pb.fit_gauss_newton(model, [x])
    with pytest.raises(ValueError, match="must be a tuple of tensors, got an empty one"):
        pb.fit_gauss_newton(model, [])
    with pytest.raises(ValueError, match="has no `median"):
        pb.fit_gauss_newton(model, (x, y), init=pb.EnsemblePosterior([pb.GuidePosterior(pb.DeltaGuide(model))]))
    with pytest.raises(ValueError, match=r"lacks the latent variables"):
        pb.fit_gauss_newton(model, (x, y), init={})
    uneven = PosteriorPrior(
        {n: torch.zeros_like(model.initial_value(n)) for n in model.site_names},
        {n: torch.rand_like(model.initial_value(n)) + 0.1 for n in model.site_names},
    )
    model, x, y = small_model(num_data=6, prior=uneven)
    with pytest.raises(ValueError, match=r"the same prior scale for all weights of `net\.0\.weight`"):
        pb.fit_gauss_newton(model, (x, y))
    diagonal = pb.fit_gauss_newton(model, (x, y), structure="diagonal")
    assert diagonal.prior_precisions["net.0.weight"].shape == (5, 4)
    wide, x, y = small_model(net=nn.Sequential(nn.Linear(4, 2000), nn.Linear(2000, 3)), num_data=6)
    with pytest.raises(ValueError, match="for at most 6,000 random weights, got 16,003; choose fewer with `where`"):
        pb.fit_gauss_newton(wide, (x, y), structure="full")


def test_single_precision_is_kept():
    _, x, y = small_model(likelihood="gaussian-learned", num_data=6)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    scale = 0.8
    make = functools.partial(pb.BayesianModel, prior=pb.NormalPrior(0.7), num_data=6)
    single = make(net.float(), likelihood=pb.GaussianLikelihood(scale))
    double = make(net.double(), likelihood=pb.GaussianLikelihood(scale))
    for structure in NAMES:
        posterior = pb.fit_gauss_newton(single, (x.float(), y.float()), structure=structure)
        assert {value.dtype for value in posterior.sample(2, seed=0).values()} == {torch.float32}
        exact = pb.fit_gauss_newton(double, (x, y), structure=structure)
        assert posterior.log_evidence == pytest.approx(exact.log_evidence, rel=1e-4)


def test_a_pruned_point_is_refused_and_its_values_are_not():
    model, x, y = small_model(likelihood="gaussian-fixed", num_data=6)
    pruned = pb.pruning.prune(pb.GuidePosterior(pb.MeanFieldGuide(model)), fraction=0.5)
    with pytest.raises(ValueError, match=r"`init` must not be pruned.*pass `init.median\(\)`"):
        pb.fit_gauss_newton(model, (x, y), init=pruned)
    found = pb.fit_gauss_newton(model, (x, y), init=pruned.median()).median()
    for name, value in pruned.median().items():
        assert torch.equal(found[name], value)


def test_a_point_that_carries_another_body_is_refused():
    models = [small_model(num_data=6, where="net.2.*") for _ in range(2)]
    (model, x, y), (other, _, _) = models
    pinned = PinnedPosterior(model, pb.DeltaGuide(model))
    assert torch.isfinite(torch.tensor(pb.fit_gauss_newton(model, (x, y), init=pinned).log_evidence))
    for init in (pinned, pinned.median()):
        with pytest.raises(ValueError, match=r"must have the same values of \['net.0.weight', 'net.0.bias'\]"):
            pb.fit_gauss_newton(other, (x, y), init=init)


def test_a_softmax_is_warned_of():
    model, x, y = small_model(net=nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), num_data=6)
    with pytest.warns(UserWarning, match="Remove the softmax"):
        pb.fit_gauss_newton(model, (x, y))
