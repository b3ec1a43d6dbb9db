"""Signal and noise of gradients: against formulas for one weight, and between estimators."""

import math

import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import nn

import pyro_bnn as pb

from .cases import GUIDES
from .fits import fit, whole
from .tolerances import STANDARD_ERRORS

MU, SIGMA, PRIOR, TAU = 0.4, 0.3, 0.7, 0.5


def one_weight():
    """The model y = w x of known noise, and a guide N(MU, SIGMA^2)."""
    x = torch.randn(8, 1)
    model = pb.BayesianModel(
        nn.Linear(1, 1, bias=False), prior=pb.NormalPrior(PRIOR), likelihood=pb.GaussianLikelihood(TAU), num_data=8
    )
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=SIGMA))
    with torch.no_grad():
        guide.loc.net.weight.fill_(MU)
    return model, guide, x, 1.5 * x + 0.1


def rows_of(found):
    return {row.name: row for row in found.parameters}


@pytest.mark.daily("direct-*", "pyro-0.1")
@pytest.mark.parametrize("kl_weight", [1.0, 0.1])
def test_signal_and_noise_of_one_weight_have_a_formula(path, kl_weight):
    """The gradient in the mean is a - b + h SIGMA e, with h = sum x^2 / TAU^2 and e standard normal."""
    model, guide, x, y = one_weight()
    num_samples = 500
    found = pb.gradient_noise(
        model, guide, x, y, elbo=TraceMeanField_ELBO(), num_samples=num_samples, kl_weight=kl_weight
    )
    row = rows_of(found)["loc.net.weight"]
    curvature = float(x.square().sum()) / TAU**2
    noise = curvature * SIGMA
    signal = abs(curvature * MU - float((x * y).sum()) / TAU**2 + kl_weight * MU / PRIOR**2)
    assert row.noise == pytest.approx(noise, abs=STANDARD_ERRORS * noise / math.sqrt(2 * num_samples))
    assert row.signal == pytest.approx(signal, abs=STANDARD_ERRORS * noise / math.sqrt(num_samples))
    assert row.noise != pytest.approx(1.2 * noise, abs=STANDARD_ERRORS * noise / math.sqrt(2 * num_samples))
    assert row.signal_to_noise == row.signal / row.noise
    assert (row.num_numbers, found.num_samples) == (1, num_samples)


def test_there_is_no_signal_at_the_optimum_and_one_next_to_it():
    model, guide, x, y = one_weight()
    precision = float(x.square().sum()) / TAU**2 + 1 / PRIOR**2
    mean = float((x * y).sum()) / TAU**2 / precision
    for shift, is_seen in ((0.0, False), (0.5, True)):
        with torch.no_grad():
            guide.loc.net.weight.fill_(mean + shift)
            guide.rho.net.weight.copy_(guide.scale_map.inverse(torch.tensor(precision**-0.5)))
        rows = rows_of(pb.gradient_noise(model, guide, x, y, elbo=TraceMeanField_ELBO(), num_samples=500))
        limit = STANDARD_ERRORS / math.sqrt(500)
        assert (rows["loc.net.weight"].signal_to_noise > limit) is is_seen
        assert rows["rho.net.weight"].signal_to_noise < limit


def test_two_particles_halve_the_variance():
    model, guide, x, y = one_weight()
    one, two = (
        rows_of(pb.gradient_noise(model, guide, x, y, elbo=Trace_ELBO(num_particles=n), num_samples=500))
        for n in (1, 2)
    )
    ratio = two["loc.net.weight"].noise / one["loc.net.weight"].noise
    assert ratio == pytest.approx(0.5**0.5, abs=STANDARD_ERRORS * 0.5**0.5 / math.sqrt(500))


@pytest.mark.parametrize("name", [name for name in GUIDES if name != "pruned"])
def test_a_table_of_every_parameter_that_leaves_model_and_guide_alone(name):
    model, x, y = whole("gaussian-learned")
    guide = GUIDES[name](model)
    posterior = fit(model, guide, x, y, num_epochs=1)
    states = [{k: v.clone() for k, v in module.state_dict().items()} for module in (model, guide)]
    learned = [p for p in guide.parameters() if p.requires_grad]
    gradients = [p.grad.clone() for p in learned]
    found = pb.gradient_noise(model, posterior, x, y, num_samples=5, seed=3)
    assert [row.name for row in found.parameters] == [
        n for module in (guide, model) for n, p in module.named_parameters() if p.requires_grad
    ]
    assert all(math.isfinite(row.noise) for row in found.parameters)
    assert (max(row.noise for row in found.parameters) == 0) is (name == "auto-delta")
    for module, state in zip((model, guide), states, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
    assert all(torch.equal(p.grad, before) for p, before in zip(learned, gradients, strict=True))
    assert found == pb.gradient_noise(model, guide, x, y, num_samples=5, seed=3)
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found.parameters)
    assert len({len(line) for line in lines}) == 1


def test_misuse_is_told():
    model, guide, x, y = one_weight()
    with pytest.raises(ValueError, match="`num_samples` must be a whole number of at least 2"):
        pb.gradient_noise(model, guide, x, y, num_samples=1)
    with pytest.raises(ValueError, match="a guide that is a module"):
        pb.gradient_noise(model, lambda x, y: None, x, y)
