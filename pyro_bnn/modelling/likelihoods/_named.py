"""Likelihoods by name, for the command line and for the scikit-learn estimators."""

import re
from collections.abc import Callable, Collection, Iterable
from inspect import isfunction
from typing import NamedTuple

import pyro.distributions as dist

from ..._core import checks as _checks
from ..._core.names import nearest
from ._base import Likelihood
from ._classification import BernoulliLikelihood, CategoricalLikelihood
from ._regression import (
    GaussianLikelihood,
    HeteroscedasticGaussianLikelihood,
    MixtureDensityLikelihood,
    PoissonLikelihood,
)

NOISE_PRIOR = (-1.5, 1.5)  # heuristic: mean and sd of log(scale), for targets of sd 1; 95 % are from 0.012 to 4.2


def gaussian(scale: float | None = None) -> GaussianLikelihood:
    """Return a Gaussian for targets of standard deviation 1, whose noise scale is fixed, or latent if it is None."""
    return GaussianLikelihood(dist.LogNormal(*NOISE_PRIOR) if scale is None else scale)


MAX_NOISE = 10.0  # heuristic: for targets of sd 1; reached only for inputs unlike the training inputs


class _Choice(NamedTuple):
    """A likelihood that a text can name, such as ``poisson``, or ``gaussian:0.5`` with a number."""

    make: Callable[..., Likelihood]  # makes the likelihood; the number after the colon is an optional argument
    number: str  # name of this number; empty if the likelihood takes none
    targets: str  # kind of the targets: ``"classes"``, ``"numbers"`` or ``"counts"``


LIKELIHOODS: dict[str, _Choice] = {  # for two classes, bernoulli has one output, and categorical two
    "categorical": _Choice(CategoricalLikelihood, "", "classes"),
    "bernoulli": _Choice(BernoulliLikelihood, "", "classes"),
    "gaussian": _Choice(gaussian, "SCALE", "numbers"),
    "heteroscedastic": _Choice(lambda: HeteroscedasticGaussianLikelihood(MAX_NOISE), "", "numbers"),
    "mixture": _Choice(lambda components=3.0: MixtureDensityLikelihood(components), "COMPONENTS", "numbers"),
    "poisson": _Choice(PoissonLikelihood, "", "counts"),
}


CALLS = {  # calls that make likelihoods, by their names in other libraries
    **dict.fromkeys(["gaussian", "normal", "regression", "mse", "gaussiannll"], "GaussianLikelihood()"),
    **dict.fromkeys(["categorical", "classification", "softmax", "crossentropy"], "CategoricalLikelihood()"),
    **dict.fromkeys(["bernoulli", "binary", "sigmoid", "logistic", "bce", "bcewithlogits"], "BernoulliLikelihood()"),
    **dict.fromkeys(["poisson", "counts", "poissonnll"], "PoissonLikelihood()"),
    "heteroscedastic": "HeteroscedasticGaussianLikelihood()",
    **dict.fromkeys(["mixture", "mixturedensity"], "MixtureDensityLikelihood(3)"),
    "studentt": "likelihoods.StudentT()",
    "negativebinomial": "likelihoods.NegativeBinomial()",
    "ordinal": "likelihoods.Ordinal(num_classes)",
    "beta": "likelihoods.Beta()",
}


def nearest_call(value: object) -> str:
    """Suggest a call for a text, a class or another value that is no likelihood; "" if no key of `CALLS` is near."""
    if _checks.is_number(value):
        return f"GaussianLikelihood({value})"
    if isfunction(value):
        return "likelihoods.DistributionLikelihood(...)"
    kind = value if isinstance(value, type) else type(value)
    word = value if isinstance(value, str) else kind.__name__
    return CALLS.get(nearest(re.sub("[^a-z]|likelihood|loss", "", word.lower()), CALLS), "")


def likelihoods_in_words(names: Iterable[str]) -> str:
    """Join names to a text such as "categorical or gaussian[:SCALE]"."""
    numbers = {name: LIKELIHOODS[name].number for name in names}
    written = [name + (f"[:{number}]" if number else "") for name, number in numbers.items()]
    return " or ".join(", ".join(written).rsplit(", ", 1))


LIKELIHOOD_CHOICES = likelihoods_in_words(LIKELIHOODS)


def name_of_likelihood(likelihood: Likelihood, suited: Collection[str]) -> str:
    """Return a likelihood's name in :data:`LIKELIHOODS`. If it has none, raise an error that lists `suited`."""
    for name, choice in LIKELIHOODS.items():
        if type(choice.make()) is type(likelihood):
            return name
    raise ValueError(
        f"`likelihood` must be {likelihoods_in_words(suited)}, or an object of one of these, got "
        f"{type(likelihood).__name__}; for other likelihoods call `pyro_bnn.fit` with a BayesianModel."
    )


def make_likelihood(spec: str, suited: Collection[str] = LIKELIHOODS) -> Likelihood:
    """Make a likelihood from a text such as ``gaussian:0.5`` or ``mixture:5``. Errors for other texts list `suited`."""
    name, colon, number = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if name not in LIKELIHOODS:
        near = nearest(name, suited, similar=0.6)
        hint = f"did you mean {near!r}? Choose" if near else "choose"
        got = repr(spec) if isinstance(spec, str) else _checks.described(spec)
        raise ValueError(f"unknown likelihood {got}; {hint} {likelihoods_in_words(suited)}.")
    choice = LIKELIHOODS[name]
    if not colon:
        return choice.make()
    if not choice.number:
        raise ValueError(f"{spec!r} must have no number: write {name!r}.")
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"{spec!r} needs one number after the colon, {choice.number}.") from None
    return choice.make(value)
