"""Estimators for scikit-learn: what Laplace's method and ensembles give."""

import functools

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.interop.scikit import standard_units

from .test_scikit import NOISE, SHORT, curve

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_laplace_predicts_with_the_network_that_is_linear_in_its_weights(kind):
    """So its mean is near that of the point estimate; the network at drawn weights is far from it."""
    X, y = curve(60)
    X_test, y_test = curve(300, seed=1)
    settings = {**SHORT, "max_iter": 400, "hidden_layer_sizes": (20,), "learning_rate": 0.03, "num_samples": 100}
    if kind == "classifier":
        y, y_test = y > 500, y_test > 500
    make = pb.BNNRegressor if kind == "regressor" else pb.BNNClassifier
    laplace = make(**settings | {"method": "laplace"}).fit(X, y)
    point = make(**settings | {"method": "ensemble"}, num_members=1).fit(X, y)
    assert laplace.posterior_.is_linearised
    score, of_point = laplace.score(X_test, y_test), point.score(X_test, y_test)
    assert score > of_point - 0.03
    predict = functools.partial(pb.predict, laplace.model_, laplace.posterior_, torch.from_numpy(X_test), seed=0)
    if kind == "regressor":
        mean, scale = standard_units(torch.from_numpy(y)[:, None], None)
        of_draws = (mean + scale * predict(linearised=False).mean).numpy()[:, 0]
        assert 1 - ((of_draws - y_test) ** 2).mean() / y_test.var() < of_point - 0.2  # must fail
    else:
        found = laplace.predict_proba(X_test)
        linear, drawn = (predict(linearised=flag, num_samples=1000).probs.numpy() for flag in (True, False))
        of_linear, of_drawn = (np.abs(found - other).mean() for other in (linear, drawn))
        assert of_linear < 0.02
        assert of_drawn > 2 * of_linear  # must fail


def test_laplace_chooses_noise_and_prior_and_keeps_a_prior_that_was_named():
    X, y = curve(200)
    settings = {**SHORT, "method": "laplace", "max_iter": 400}
    chosen = pb.BNNRegressor(**settings).fit(X, y)
    noise = float(chosen.predict_distribution(X).aleatoric.sqrt().mean())
    assert noise == pytest.approx(20 * NOISE, rel=0.25)
    assert "precisions chosen by the evidence" in chosen.status_
    assert "noise scale is held at its most probable value" in chosen.status_
    named = pb.BNNRegressor(**settings, prior=pb.NormalPrior(0.5)).fit(X, y)
    assert {*named.posterior_.prior_precisions.values()} == {4.0}
    two = pb.BNNRegressor(**settings).fit(*curve(100, num_targets=2))
    assert two.posterior_.median()["likelihood.scale"].shape == (2,)
    wide = pb.BNNRegressor(**settings | {"hidden_layer_sizes": (40, 30), "max_iter": 20}).fit(X, y)
    assert wide.posterior_.random == ("net.5.weight", "net.5.bias")  # of the last layer alone
    with pytest.raises(ValueError, match='must not be a mixture for method="laplace"'):
        pb.BNNRegressor(**settings, likelihood="mixture:2").fit(X, y)


@pytest.mark.parametrize("likelihood", ["gaussian", "gaussian:0.4", "heteroscedastic", "poisson"])
def test_laplace_takes_weights_of_rows(likelihood):
    """A weight of two is the same row twice, up to the training, which draws batches: here all rows at once."""
    X, y = curve(40)
    y = np.abs(np.round(y / 100)) if likelihood == "poisson" else y
    weights = np.arange(40) % 3
    settings = {**SHORT, "method": "laplace", "max_iter": 100, "likelihood": likelihood}
    weighted = pb.BNNRegressor(**settings).fit(X, y, weights)
    rows = np.repeat(np.arange(40), weights)
    twice = pb.BNNRegressor(**settings).fit(X[rows], y[rows])
    np.testing.assert_allclose(weighted.predict(X), twice.predict(X), rtol=1e-4)
    plain = pb.BNNRegressor(**settings).fit(X, y)
    assert np.abs(plain.predict(X) / twice.predict(X) - 1).max() > 1e-3  # must fail


def test_neighbouring_seeds_of_ensembles_share_no_member():
    X, y = curve(30)
    settings = {**SHORT, "method": "ensemble", "num_members": 3, "max_iter": 1, "learning_rate": 1e-9}

    def starts(seed, monkeypatch):
        monkeypatch.setattr(pb.BNNRegressor, "_drawn_seed", lambda self: seed)
        members = pb.BNNRegressor(**settings).fit(X, y).posterior_.members
        return [member.median()["net.1.weight"] for member in members]

    with pytest.MonkeyPatch.context() as monkeypatch:
        first, second = (starts(seed, monkeypatch) for seed in (5, 6))
        again = starts(5, monkeypatch)
    for i, one in enumerate(first):
        assert torch.equal(one, again[i])
        assert all(not torch.allclose(one, other, atol=1e-6) for other in [*second, *first[:i]])


@pytest.mark.parametrize("estimator", [pb.BNNRegressor, pb.BNNClassifier])
def test_an_unknown_setting_is_said_to_be_one_of_the_estimator(estimator):
    with pytest.raises(TypeError, match=rf"{estimator.__name__}.*'max_epochs'"):
        estimator(max_epochs=2)
