"""Choice of a design: held-out rows choose network and noise, and the time limit determines the lengths of chains."""

import re
import time

import numpy as np
import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.auto import choosing
from pyro_bnn.auto.choosing import Budget, Design, UnsuitableError, fit_best
from pyro_bnn.auto.choosing._unsuitable import num_products
from pyro_bnn.auto.fitting import _variational

from .tolerances import assert_identical

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

QUICK = {"max_iter": 20, "num_samples": 100, "random_state": 0}
"""200 steps of each chain, after as many of warm-up."""

TWO = {**QUICK, "hidden_layer_sizes": (4,), "activation": "tanh", "prior": pb.NormalPrior(1.0)}
"""Leaves open what noise there is."""


@pytest.fixture(autouse=True)
def short_descent(monkeypatch):
    monkeypatch.setattr(choosing._budget, "MOST_DESCENT", 500)


def wave(num_data=90, *, slope=0.0):
    """A sine and a straight line, with noise of a tenth."""
    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, (num_data, 1))
    return x, (1 - slope) * np.sin(3 * x[:, 0]) + slope * x[:, 0] + 0.1 * random.normal(size=num_data)


def as_tensors(x, y):
    return torch.from_numpy(x), torch.from_numpy(y)[:, None]


def makers(num_hidden=8):
    """A straight line, and a network that can bend."""

    def make(*sizes):
        def model(num_rows):
            torch.manual_seed(0)
            net = pb.nets.mlp(sizes, activation=nn.Tanh).double()
            return pb.BayesianModel(
                net, prior=pb.FanInNormalPrior(2.0), likelihood=pb.GaussianLikelihood(0.1), num_data=num_rows
            )

        return model

    return {"line": make(1, 1), "curve": make(1, num_hidden, 1)}


@pytest.mark.daily("1.0-line")
@pytest.mark.parametrize(("slope", "best"), [(0.0, "curve"), (1.0, "line")])
def test_held_out_rows_choose_the_model_that_the_data_came_from(slope, best):
    chosen = fit_best(makers(), as_tensors(*wave(slope=slope)), max_draws=20, seed=0)
    assert chosen.name == best
    assert chosen.scores[best] > chosen.scores["line" if best == "curve" else "curve"]
    assert f"Chosen: {best} (" in chosen.posterior.status.message
    assert chosen.model.num_data == 90


def test_what_held_out_rows_say_of_a_model_is_what_new_rows_say():
    """The score of a comparison is near the log-density of rows that no fit has seen."""
    x, y = as_tensors(*wave(400))
    chosen = fit_best(makers(), (x[:120], y[:120]), max_draws=30, seed=0)
    found = pb.predict(chosen.model, chosen.posterior, x[120:], y=y[120:], num_samples=80, seed=0).log_density
    error = found.std() / 120**0.5
    assert abs(chosen.scores["curve"] - found.mean()) < 5 * error
    assert abs(chosen.scores["line"] - found.mean()) > 5 * error  # must fail


def test_copies_of_fitted_rows_do_not_choose():
    """If held-out rows are copies of fitted rows, their score says nothing about new rows."""
    x = torch.arange(50.0)[:, None].repeat(2, 1)
    for fitted, held_out in choosing._choose._folds(x, 0):
        assert not {*x[fitted, 0].tolist()} & {*x[held_out, 0].tolist()}
        assert 0 < len(held_out) < 33  # some were copies
    once = torch.arange(99.0)[:, None]
    assert [len(held_out) for _, held_out in choosing._choose._folds(once, 0)] == [33, 33, 33]
    many = torch.arange(2000.0)[:, None]
    ((fitted, held_out),) = choosing._choose._folds(many, 0)
    assert (len(fitted), len(held_out)) == (1600, 400)


def test_a_seed_repeats_a_fit_and_another_does_not():
    x, y = wave(60)
    first, again, other = (
        pb.BNNRegressor(likelihood="gaussian", **TWO | {"random_state": seed}).fit(x, y).predict(x)
        for seed in (0, 0, 1)
    )
    assert_identical(first, again)
    assert (first != other).any()


def test_two_rows_are_too_few_to_hold_any_out():
    regressor = pb.BNNRegressor(**TWO | {"max_iter": 8}).fit([[0.0], [1.0]], [0.0, 1.0])
    assert "chosen" not in regressor.status_
    assert np.isfinite(regressor.predict([[0.5]])).all()


def test_grades_get_the_same_noise_everywhere():
    """With separate noise for each row, the density of equal targets is unbounded."""
    x, y = wave(60)
    assert "heteroscedastic" not in pb.BNNRegressor(**TWO).fit(x, np.round(y)).status_
    assert pb.BNNRegressor(**TWO, likelihood="heteroscedastic").fit(x, np.round(y)).posterior_.num_chains == 8


def test_settings_restrict_what_is_chosen_from():
    def designs(**settings):
        return pb.BNNRegressor(**settings)._designs(choosing.OF_NUMBERS, "gaussian", settings.get("likelihood"))

    assert designs() == list(choosing.OF_NUMBERS)
    assert {design.likelihood for design in designs(likelihood="gaussian:0.1")} == {"gaussian:0.1"}
    assert {design.hidden for design in designs(hidden_layer_sizes=7)} == {(7,)}
    one = {"hidden_layer_sizes": (3, 2), "activation": "relu", "prior": pb.NormalPrior(2.0), "likelihood": "gaussian"}
    assert designs(**one) == [Design((3, 2), nn.ReLU, pb.NormalPrior(2.0), "gaussian")]
    assert designs(method="svi") == [Design((20,), nn.Tanh, pb.FanInNormalPrior(2.0), "gaussian")]


def test_the_status_says_what_was_chosen_and_how_long_it_took():
    regressor = pb.BNNRegressor(**TWO).fit(*wave(60))
    assert "Chosen: 4 Tanh units" in regressor.status_
    assert "mean log-density of held-out rows" in regressor.status_
    assert "400 steps of each chain in C" in regressor.status_
    assert regressor.posterior_.path == "C"
    assert regressor.n_iter_ == 20


def test_without_a_compiler_the_fit_is_variational_and_says_why(monkeypatch):
    monkeypatch.setenv("CC", "/bin/false")
    regressor = pb.BNNRegressor(**TWO).fit(*wave(31))
    assert isinstance(regressor.posterior_, pb.GuidePosterior)
    assert regressor.status_.startswith("variational inference, since")
    assert "the C compiler failed" in regressor.status_


def test_other_faults_than_those_of_c_are_raised(monkeypatch):
    def fit(*args, **kwargs):
        raise ValueError("the other run draws in C")

    monkeypatch.setattr(choosing._choose, "fit_mcmc", fit)
    with pytest.raises(ValueError, match=r"^the other run draws in C$") as caught:
        fit_best(makers(), as_tensors(*wave(30)), max_draws=20, seed=0)
    assert not isinstance(caught.value, UnsuitableError)


@pytest.mark.filterwarnings("ignore::pyro_bnn.PosteriorWarning")
def test_with_too_many_rows_for_chains_the_fit_is_variational_and_says_why(monkeypatch):
    monkeypatch.setattr(choosing._choose, "FEWEST_STEPS", 10**9)
    x, y = wave(30)
    with pytest.raises(UnsuitableError, match="30 rows of 25 multiplications each leave time for only 20000 steps"):
        fit_best({"curve": makers()["curve"]}, as_tensors(x, y), seed=0)
    monkeypatch.setattr(_variational, "MOST_STEPS", 500)
    regressor = pb.BNNRegressor((3,), likelihood="gaussian", random_state=0).fit(x, y)
    assert regressor.status_.startswith("variational inference, since 30 rows of 10")


def test_lengths_follow_from_the_time(monkeypatch):
    monkeypatch.setattr(choosing._budget, "MOST_DESCENT", 2000)
    one, two = (Budget(seconds).lengths(1.0, 1000, 500, 8) for seconds in (5.0, 10.0))
    assert two.num_warmup == pytest.approx(2 * one.num_warmup, abs=2)
    assert two.num_descent == pytest.approx(2 * one.num_descent, abs=2)
    spent = 8 * (one.num_descent + 2 * one.num_steps) * Budget(5.0).gradient(1000, 500)
    assert spent == pytest.approx(5.0, rel=0.01)
    slow = Budget(5.0, slowness=2.0).lengths(1.0, 1000, 500, 8)
    assert slow.num_warmup == pytest.approx(one.num_warmup / 2, abs=2)
    assert Budget(1e9).lengths(1.0, 10, 10, 8).num_steps == 2 * Budget(1e9).most_steps
    assert Budget.of_rows(10).seconds < Budget.of_rows(1000).seconds < Budget.of_rows(10**6).seconds


@pytest.mark.parametrize(("slowness", "factor"), [(1.0, 2), (None, 20)])
def test_a_longer_limit_makes_longer_chains(slowness, factor, monkeypatch):
    """Chains are proportional to the time limit at the nominal speed; a measured speed depends on other programs."""
    monkeypatch.setattr(choosing._choose, "FEWEST_STEPS", 1)
    if slowness is not None:
        monkeypatch.setattr(choosing._choose, "_slowness", lambda *_: slowness)
    model, data = {"curve": makers(20)["curve"]}, as_tensors(*wave(250))
    short, long = (
        fit_best(model, data, seconds=seconds, num_chains=2, seed=0).posterior.num_stored
        for seconds in (0.04, 0.04 * factor)
    )
    assert long > short > 0
    if slowness is not None:
        assert long == pytest.approx(factor * short, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_limit": 0}, "`time_limit` must be a finite number above 0"),
        ({"time_limit": 9, "method": "svi"}, '`time_limit` needs method="auto"'),
        ({"method": "best"}, "`method` must be one of 'auto', 'svi'"),
        ({"activation": "step"}, "`activation` must be 'relu'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        pb.BNNRegressor(**settings).fit(*wave(30))


@pytest.mark.nightly
def test_classes_are_chosen_by_a_linear_model_where_a_line_divides_them():
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 2))
    y = np.where(x @ [2.0, -1.0] + 0.5 * random.normal(size=80) > 0, "yes", "no")
    classifier = pb.BNNClassifier(**QUICK).fit(x, y)
    assert "a linear model" in classifier.status_.split("(")[0]
    assert classifier.score(x, y) > 0.85
    assert (classifier.predict_distribution(x).epistemic > 0).all()


@pytest.mark.nightly
def test_weights_of_rows_count_in_the_choice_and_the_fit():
    x, y = wave(60)
    y[:30] = 5.0  # rows of weight 0
    weights = np.r_[np.zeros(30), np.full(30, 2.0)]
    regressor = pb.BNNRegressor(**TWO).fit(x, y, sample_weight=weights)
    assert regressor.model_.num_data == 30
    assert abs(regressor.predict(x[30:])).max() < 3


@pytest.mark.parametrize(
    ("layers", "shape", "expected"),
    [
        ([nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)], (5,), 5 * 7 + 7 * 3 + 7 + 3),  # weights, biases included
        ([nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3)], (1, 8, 8), 6 * 6 * 4 * 9 + 144 * 3),
        (
            [nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)],
            (50, 4),
            50 * (4 * 12 + 4 * 4 + 2 * 32) + 2 * 50 * 50 * 4,
        ),
        ([nn.Embedding(50, 2), nn.Flatten(), nn.Linear(6, 3)], None, 50 * 2 + 6 * 3 + 3),
    ],
)
def test_the_time_of_a_gradient_follows_the_multiplications_for_a_row(layers, shape, expected):
    x = torch.randint(50, (4, 3)) if shape is None else torch.randn(4, *shape)
    net = nn.Sequential(*layers).double()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(1.0), likelihood=pb.CategoricalLikelihood(), num_data=4)
    assert num_products(model, x) == expected


def test_a_slow_comparison_shortens_the_chains_so_that_the_limit_is_kept(monkeypatch):
    def slow(*args):
        time.sleep(0.9)
        return {"line": 1.0, "curve": 0.0}

    def steps():
        message = fit_best(makers(), as_tensors(*wave(60)), seconds=1.0, seed=0).posterior.status.message
        return int(re.search(r"(\d+) steps of each chain", message)[1])

    monkeypatch.setattr(choosing._choose, "_slowness", lambda *args: 30.0)  # the same lengths on every machine
    monkeypatch.setattr(choosing._choose, "FEWEST_STEPS", 10)
    monkeypatch.setattr(choosing._choose, "_compared", lambda *args: {"line": 1.0, "curve": 0.0})
    planned = steps()
    monkeypatch.setattr(choosing._choose, "_compared", slow)
    assert 10 <= steps() < 0.3 * planned


def test_the_status_says_how_many_networks_were_not_compared(monkeypatch):
    monkeypatch.setattr(choosing._choose, "_compared", lambda *args: {"curve": 0.0})
    message = fit_best(makers(), as_tensors(*wave(60)), max_draws=10, seed=0).posterior.status.message
    assert message.startswith("Curve; 1 network not compared, for lack of time or of C code. MCLMC: ")


def test_a_comparison_that_takes_its_share_of_the_limit_is_cut_short(monkeypatch):
    def slow(*args):
        time.sleep(0.3)
        return 0.5

    monkeypatch.setattr(choosing._choose, "_slowness", lambda *args: 30.0)
    monkeypatch.setattr(choosing._choose, "FEWEST_STEPS", 10)
    monkeypatch.setattr(choosing._choose, "_held_out_score", slow)
    chosen = fit_best(makers(), as_tensors(*wave(60)), seconds=0.5, seed=0)
    assert len(chosen.scores) == 1
    assert "1 network not compared" in chosen.posterior.status.message
