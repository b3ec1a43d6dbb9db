"""The limit of noise that depends on the inputs: where it is, and what it changes."""

import pytest
import torch
from torch.autograd.functional import hessian

import pyro_bnn as pb
from pyro_bnn.inference.gauss_newton._matrices import root_of
from pyro_bnn.modelling.likelihoods import make_likelihood

from .chains import quietly
from .tolerances import assert_identical

OUTPUT = torch.tensor([[0.0, -3.0], [0.5, 1.0], [1.0, 50.0]])
"""Means and log variances; a limit of 2 changes only the last row."""


def test_only_larger_scales_change():
    free, limited = pb.HeteroscedasticGaussianLikelihood()(OUTPUT), pb.HeteroscedasticGaussianLikelihood(2.0)(OUTPUT)
    assert_identical(limited.mean, free.mean)
    assert_identical(limited.stddev[:2], free.stddev[:2])
    assert limited.stddev[2].item() == pytest.approx(2.0)


def test_noise_far_from_the_data_is_never_0_and_can_be_scored():
    output = torch.tensor([[0.0, -1e4], [0.0, -3.0]])
    found = pb.HeteroscedasticGaussianLikelihood()(output)
    assert found.stddev[0].item() == pytest.approx(1e-15)
    assert bool(found.log_prob(torch.ones(2, 1)).isfinite().all())
    assert_identical(found.stddev[1], torch.tensor([-1.5]).exp())


def test_the_curvature_is_the_expected_hessian():
    likelihood, output = pb.HeteroscedasticGaussianLikelihood(2.0), OUTPUT.double()
    noise = torch.randn(4000, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = likelihood(output).mean + likelihood(output).stddev * torch.cat([noise, -noise])

    def mean_loss(own):
        return -likelihood(own).log_prob(y).mean(0).sum()

    found = root_of(likelihood, output, y[0])
    expected = hessian(mean_loss, output).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    assert torch.allclose(found @ found.mT, expected, atol=0.05)
    assert (found @ found.mT)[2, 1, 1] == 0  # at the limit


def test_chains_in_c_and_in_torch_have_the_same_gradients():
    x = torch.linspace(-1, 1, 20)[:, None]
    likelihood = pb.HeteroscedasticGaussianLikelihood(0.5)
    model = pb.BayesianModel(pb.nets.mlp([1, 4, 2]), prior=pb.NormalPrior(), likelihood=likelihood, num_data=20)
    options = {"sampler": pb.HMC(max_steps=5), "num_samples": 20, "num_warmup": 20, "seed": 0, "dtype": torch.float64}
    in_c, in_torch = (quietly(pb.fit_mcmc, model, (x, x.sin()), compile=way, **options) for way in (True, False))
    assert in_c.path != in_torch.path
    for one, other in zip(in_c.draws(20), in_torch.draws(20), strict=True):
        for name, value in one.items():
            assert torch.allclose(value, other[name], atol=1e-4)


def test_the_command_line_and_the_estimators_have_a_limit():
    assert make_likelihood("heteroscedastic")(OUTPUT).stddev.max().item() == pytest.approx(10.0)
    assert "max_scale=10" in repr(make_likelihood("heteroscedastic"))


def test_the_limit_must_be_positive():
    with pytest.raises(ValueError, match="`max_scale` must be a finite number above 0"):
        pb.HeteroscedasticGaussianLikelihood(0.0)
