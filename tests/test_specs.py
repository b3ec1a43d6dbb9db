"""Specifications of priors: each by its name and numbers, and in every list of priors."""

import pytest

import pyro_bnn as pb
from pyro_bnn.app import specs
from pyro_bnn.app.config import settings

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
