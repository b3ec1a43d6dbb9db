"""The likelihood of a `BNNRegressor` as an object; and what the error says about a wrong likelihood or prior."""

import numpy as np
import pytest
from sklearn.base import clone

import pyro_bnn as pb

X = np.linspace(-1, 1, 30)[:, None]
Y = 3 + 2 * X[:, 0]
OBJECTS = {
    "gaussian:0.3": pb.GaussianLikelihood(0.3),
    "heteroscedastic": pb.HeteroscedasticGaussianLikelihood(),
    "mixture:2": pb.MixtureDensityLikelihood(2),
    "poisson": pb.PoissonLikelihood(),
}


def regressor(likelihood, **options):
    chosen = {"method": "svi", "max_iter": 20, "random_state": 0} | options
    return pb.BNNRegressor((3,), likelihood=likelihood, **chosen)


def targets(name):
    return np.round(Y) if name == "poisson" else Y


@pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", OBJECTS)
def test_a_likelihood_object_is_the_likelihood_of_its_name(name):
    by_name, by_object = (regressor(likelihood).fit(X, targets(name)) for likelihood in (name, OBJECTS[name]))
    np.testing.assert_array_equal(by_object.predict(X, return_std=True), by_name.predict(X, return_std=True))
    copied = clone(by_object).fit(X, targets(name))
    np.testing.assert_array_equal(copied.predict(X), by_object.predict(X))


@pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning")
def test_a_likelihood_object_works_with_parts_weights_and_several_targets():
    likelihood = pb.GaussianLikelihood(0.3)
    parts = regressor(likelihood).partial_fit(X[:20], Y[:20]).partial_fit(X[20:], Y[20:])
    assert parts.model_.likelihood.noise_scale() == pytest.approx(0.3)
    weighted = regressor(likelihood).fit(X, Y, np.arange(30) % 2)
    assert weighted.predict(X).shape == (30,)
    assert not likelihood.has_row_weights  # the object that was passed is unchanged
    several = regressor(likelihood).fit(X, np.stack([Y, -Y], axis=1))
    assert several.predict(X).shape == (30, 2)
    assert several.model_.likelihood.noise_scale() == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"likelihood": pb.CategoricalLikelihood()}, "use a BNNClassifier"),
        ({"likelihood": pb.likelihoods.StudentT()}, r"must be gaussian\[:SCALE\], .*got StudentT; .*`pyro_bnn.fit`"),
        ({"likelihood": pb.GaussianLikelihood}, r"unknown likelihood the class GaussianLikelihood; choose gaussian"),
        ({"likelihood": "normal"}, "did you mean 'gaussian'"),
        ({"likelihood": None, "prior": "laplace"}, r"got 'laplace'; write LaplacePrior\(1.0\)"),
        ({"likelihood": None, "prior": "horse_shoe"}, r"write HorseshoePrior\(\)"),
        ({"likelihood": None, "activation": "sigmoid"}, "did you mean 'logistic'"),
    ],
)
def test_a_wrong_likelihood_or_prior_is_told_what_to_write(options, said):
    with pytest.raises(ValueError, match=said):
        regressor(**options).fit(X, Y)
