"""Specifications of priors and of other settings, which have names and numbers, and numbers in words."""

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.app import numbers, specs
from pyro_bnn.app.config import settings
from pyro_bnn.app.reports import scores
from pyro_bnn.app.reports.page import section
from pyro_bnn.app.tracking import AccuracyCurve

from .cases import small_model
from .fits import fit


@pytest.mark.parametrize("name", specs.PRIORS)
def test_every_prior_takes_its_numbers_in_order(name):
    kind, names = specs.PRIORS[name]
    numbers = [0.5 + 0.1 * index for index in range(len(names.split(",")))]
    assert specs.make_prior(f"{name}:{','.join(map(str, numbers))}") == kind(*numbers)
    own = specs.prior_spec(kind())
    assert specs.prior_spec(specs.make_prior(own)) == own
    assert specs.make_prior(f"**.bias={own}") == pb.PriorByName({"**.bias": specs.make_prior(own)})
    for spec in (name, f"{name}:", f"**.bias={name}"):  # a scale is not guessed
        with pytest.raises(ValueError, match=f"must be {name}:{names}, such as {own}"):
            specs.make_prior(spec)
    with pytest.raises(ValueError, match=rf"needs {len(numbers)} numbers? "):
        specs.make_prior(f"{name}:{','.join(map(str, [*numbers, 1]))}")


@pytest.mark.parametrize("name", specs.PRIORS)
def test_every_prior_that_can_be_typed_can_be_fitted(name):
    model, x, y = small_model(prior=specs.PRIORS[name][0](), num_data=6)
    assert fit(model, pb.MeanFieldGuide(model), x, y).history.path == "direct"


@pytest.mark.parametrize("name", specs.PRIORS)
def test_every_prior_is_in_the_help_and_in_the_error(name):
    choice = f"{name}:{specs.PRIORS[name][1]}"
    assert choice in specs.PRIOR_CHOICES
    assert choice in settings()["prior"].help
    with pytest.raises(ValueError, match=choice):
        specs.make_prior("no-such-prior")


def test_the_choices_are_a_sentence():
    assert specs.PRIOR_CHOICES.startswith("normal:SCALE, mixture:MIXING,SCALE1,SCALE2, laplace:SCALE")
    assert " or " in specs.PRIOR_CHOICES.rsplit(", ", 1)[1]


def test_the_numbers_of_other_specifications_arrive():
    priors = {"**.bias": pb.NormalPrior(1.0), "**": pb.NormalPrior(0.1)}
    assert specs.make_prior("**.bias=normal:1;**=normal:0.1") == pb.PriorByName(priors)
    inits = [specs.make_init(spec) for spec in ("network:0.3*prior", "network:0.1*weight")]
    assert (inits[0].prior_fraction, inits[1].weight_fraction) == (0.3, 0.1)
    [scale] = specs.make_inputs("scaled:5/2", torch.zeros(2, 1))
    assert float(scale(torch.tensor([1.0]))) == 2.5
    assert specs.make_kl_weight("warmup:2", 10)(0, 0, 1) == 0.5
    assert specs.make_kl_weight("per-weight", 10)(0, 0, 1) == 0.1


def test_numbers_have_as_many_digits_as_they_need():
    assert [numbers.percent(share) for share in (0.9721, 0.99996, 1.0)] == ["97.2 %", "99.996 %", "100.0 %"]
    assert numbers.percent(0.5, 0) == "50 %"
    assert numbers.percent(10.02, 0) == "1,002 %"
    assert [numbers.number(value) for value in (2.91, 123456.0, 5.88e-6)] == ["2.910", "123,456", "5.880e-06"]
    assert numbers.number(0.25, "+") == "+0.250"
    assert numbers.with_error(1.112, 0.113) == "1.112 ± 0.113"
    assert numbers.with_error(-0.00043, 0.00102, "+") == "-0.00043 ± 0.00102"
    assert [scores.shown_name(name) for name in ("rmse", "coverage_68.3")] == ["RMSE", "in 68.3 %"]
    assert [numbers.in_series(words) for words in (["a"], ["a", "b", "c"])] == ["a", "a, b and c"]
    assert section.wilson(100, 100) == (pytest.approx(0.974, abs=5e-4), 1.0)
    assert AccuracyCurve((0.9,), (0.8,)).table().splitlines() == [
        "accuracy at mean weights        train      test",
        "epoch  1                      90.00 %   80.00 %",
    ]
