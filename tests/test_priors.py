import math

import pytest
import torch
from torch import nn

import pyro_bnn as pb

from .cases import PRIORS
from .tolerances import assert_identical


def draws_of_what_it_depends_on(prior, *arguments, num_rows=()):
    parents = {key: p.expand_by(num_rows).sample() for key, p in prior.parents(*arguments).items()}
    return {**parents, **prior.learned(*arguments)}


@pytest.mark.parametrize("num_rows", [(), (3,), (3, 1)])
@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_has_the_parameters_shape_device_and_dtype(name, num_rows):
    prior = PRIORS[name]
    for dtype in (torch.float32, torch.float64):
        for layer in (nn.Linear(4, 5, dtype=dtype), nn.Conv2d(2, 3, 2, dtype=dtype)):
            for parameter_name, parameter in layer.named_parameters():
                arguments = (f"net.0.{parameter_name}", parameter.detach(), layer)
                values = draws_of_what_it_depends_on(prior, *arguments, num_rows=num_rows)
                distribution = prior.given(values, *arguments)
                draw = distribution.sample()
                expected = num_rows if prior.parents(*arguments) else ()
                assert (distribution.batch_shape, distribution.event_shape) == (expected, parameter.shape)
                assert (draw.dtype, draw.device) == (dtype, parameter.device)
                assert distribution.log_prob(draw).dtype == dtype


def test_densities_are_those_of_the_textbook():
    layer = nn.Linear(4, 2)
    w = torch.randn(2, 4)
    normal = pb.NormalPrior(0.7)("net.weight", layer.weight.detach(), layer)
    assert_identical(normal.log_prob(w), torch.distributions.Normal(0.0, 0.7).log_prob(w).sum())
    laplace = pb.LaplacePrior(0.5)("net.weight", layer.weight.detach(), layer)
    assert_identical(laplace.log_prob(w), (-(w.abs() / 0.5) - math.log(1.0)).sum())


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [(nn.Linear(4, 5), 4), (nn.Conv2d(3, 8, (3, 2)), 18), (nn.Conv2d(4, 8, 3, groups=2), 18), (nn.Conv1d(2, 3, 5), 10)],
)
def test_fan_in_scales_weights_and_biases_alike(layer, fan_in):
    prior = pb.FanInNormalPrior(2.0)
    for name, parameter in layer.named_parameters():
        assert_identical(
            prior(name, parameter.detach(), layer).stddev, torch.full_like(parameter, 2 / math.sqrt(fan_in))
        )


def test_fan_in_of_a_normalisation_layer_is_one():
    layer = nn.LayerNorm(6)
    assert_identical(pb.FanInNormalPrior(2.0)("weight", layer.weight.detach(), layer).stddev, torch.full((6,), 2.0))


def test_fan_in_keeps_the_prior_variance_of_outputs_free_of_the_width():
    torch.manual_seed(0)
    x = torch.randn(1, 50)
    variances = {}
    for width in (50, 400):
        net = pb.nets.mlp([50, width, 1])
        model = pb.BayesianModel(
            net, prior=pb.FanInNormalPrior(math.sqrt(2)), likelihood=pb.GaussianLikelihood(1.0), num_data=1
        )
        outputs = torch.stack([model(x).flatten() for _ in range(1000)])
        variances[width] = float(outputs.var())
    assert variances[400] / variances[50] == pytest.approx(1.0, rel=0.25)


def test_the_first_matching_glob_wins():
    prior = pb.PriorByName({"net.0.*": pb.NormalPrior(1.0), "**.bias": pb.NormalPrior(2.0), "**": pb.NormalPrior(3.0)})
    layer = nn.Linear(2, 1)

    def scale(name):
        return float(prior(name, layer.bias.detach(), layer).stddev)

    assert [scale(n) for n in ("net.0.bias", "net.1.bias", "net.1.weight")] == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=r'matches `net.9.bias`; add a last entry "\*\*"'):
        pb.PriorByName({"net.0.*": pb.NormalPrior()})("net.9.bias", layer.bias.detach(), layer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pb.NormalPrior(0.0),
        lambda: pb.LaplacePrior(-1.0),
        lambda: pb.FanInNormalPrior(math.nan),
        lambda: pb.ScaleMixturePrior(mixing=1.5),
        lambda: pb.ScaleMixturePrior(scale2=math.inf),
    ],
)
def test_impossible_numbers_are_refused_at_once(make):
    with pytest.raises(ValueError, match="must"):
        make()


def test_the_default_mixture_is_the_articles():
    prior = pb.ScaleMixturePrior()
    assert (prior.mixing, prior.scale1, prior.scale2) == (0.5, 1.0, math.exp(-6))


@pytest.mark.parametrize("kind", [pb.NormalPrior, pb.LaplacePrior])
def test_a_prior_says_that_its_mean_is_0_where_torch_expects_a_mean(kind):
    advice = rf"; {kind.__name__}\(scale\) has mean 0\."
    with pytest.raises(TypeError, match=rf"takes 1 argument by position \(scale\), got 2{advice}"):
        kind(0, 1)
    with pytest.raises(TypeError, match=rf"`loc`{advice}"):
        kind(loc=0, scale=1)


def test_arguments_that_cannot_be_named_are_not_to_be_passed_by_name():
    with pytest.raises(TypeError, match=r"got 2; leave the others out\. Example: FanInNormalPrior\(2\.0\)"):
        pb.FanInNormalPrior(1.0, 2.0)
