"""Choice of a design: held-out rows choose network and noise, and the time limit determines the lengths of chains."""

import math
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.auto import choosing
from pyro_bnn.auto.choosing import Budget, Deadline, Design, UnsuitableError, fit_best
from pyro_bnn.auto.choosing._unsuitable import num_products
from pyro_bnn.auto.fitting import _variational
from pyro_bnn.inference.mcmc import ChainLengths, Ends, NotInCError, TimedChains

from .tolerances import assert_identical

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

QUICK = {"max_iter": 20, "num_samples": 100, "random_state": 0}
"""200 steps of each chain, after as many of warm-up."""

TWO = {**QUICK, "hidden_layer_sizes": (4,), "activation": "tanh", "prior": pb.NormalPrior(1.0)}
"""Leaves open what noise there is."""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(choosing._budget, "MOST_DESCENT", 300)
    monkeypatch.setattr(choosing._chosen, "NUM_FOLDS", 2)


def said(estimator):
    """The status in a single line."""
    return " ".join(estimator.status_.split())


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


@pytest.mark.nightly
def test_what_held_out_rows_say_of_a_model_is_what_new_rows_say():
    """The score of a comparison is near the log-density of rows that no fit has seen."""
    x, y = as_tensors(*wave(400))
    chosen = fit_best(makers(), (x[:120], y[:120]), max_draws=30, seed=0)
    found = pb.predict(chosen.model, chosen.posterior, x[120:], y=y[120:], num_samples=80, seed=0).log_density
    error = found.std() / 120**0.5
    assert abs(chosen.scores["curve"] - found.mean()) < 5 * error
    assert abs(chosen.scores["line"] - found.mean()) > 5 * error  # must fail


def test_copies_of_fitted_rows_do_not_choose(monkeypatch):
    """If held-out rows are copies of fitted rows, their score says nothing about new rows."""
    monkeypatch.setattr(choosing._chosen, "NUM_FOLDS", 3)
    x = torch.arange(50.0)[:, None].repeat(2, 1)
    for fitted, held_out in choosing._chosen.folds_of(x, 0):
        assert not {*x[fitted, 0].tolist()} & {*x[held_out, 0].tolist()}
        assert 0 < len(held_out) < 33  # some were copies
    once = torch.arange(99.0)[:, None]
    assert [len(held_out) for _, held_out in choosing._chosen.folds_of(once, 0)] == [33, 33, 33]
    many = torch.arange(2000.0)[:, None]
    ((fitted, held_out),) = choosing._chosen.folds_of(many, 0)
    assert (len(fitted), len(held_out)) == (1600, 400)


def test_only_the_longest_chains_take_small_steps():
    small, large = (choosing._budget.Budget.of_rows(100).lengths(1.0, 100, size, 8) for size in (50, 5000))
    assert (small.num_steps, small.energy_error) == (20_000, 0.005)
    assert large.num_steps < 20_000
    assert large.energy_error == pb.MCLMC().energy_error


def test_timed_chains_of_the_largest_length_take_small_steps():
    chains = SimpleNamespace(seconds_of_descent=1e-6, seconds_of_step=1e-6)
    lengths = [choosing._in_time._lengths(chains, seconds, 8, choosing._in_time.MOST_STEPS) for seconds in (100.0, 0.1)]
    assert [found.energy_error for found in lengths] == [0.005, pb.MCLMC().energy_error]


def test_a_seed_repeats_a_fit_and_another_does_not():
    x, y = wave(60)
    first, again, other = (
        pb.BNNRegressor(likelihood="gaussian", **TWO | {"random_state": seed}).fit(x, y).predict(x)
        for seed in (0, 0, 1)
    )
    assert_identical(first, again)
    assert (first != other).any()


def test_two_rows_are_too_few_to_hold_any_out():
    with pytest.warns(UserWarning, match="there are only 2 rows to fit"):
        regressor = pb.BNNRegressor(**TWO | {"max_iter": 8}).fit([[0.0], [1.0]], [0.0, 1.0])
    assert "Chosen" not in said(regressor)
    assert np.isfinite(regressor.predict([[0.5]])).all()


@pytest.mark.nightly
def test_grades_get_the_same_noise_everywhere():
    """With separate noise for each row, the density of equal targets is unbounded."""
    x, y = wave(60)
    assert "heteroscedastic" not in said(pb.BNNRegressor(**TWO).fit(x, np.round(y)))
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
    assert "Chosen: 4 Tanh units" in said(regressor)
    assert " (best of 2 networks, log-density 0." in said(regressor)
    lines = regressor.status_.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("Chosen: ", "MCLMC: 8 chains of 20 draws in ")) for line in lines) == 2
    assert re.match(r"\d of 8 chains |Each of 8 chains ", lines[0])
    assert regressor.posterior_.path == "C"
    assert regressor.n_iter_ == 20


@pytest.mark.nightly
@pytest.mark.usefixtures("short_chains")
def test_the_chosen_chains_have_the_verdict_of_fit_mcmc(monkeypatch):
    found = []

    def watched(*args, **kwargs):
        posterior = pb.fit_mcmc(*args, **kwargs)
        found.append(posterior.status)
        return posterior

    monkeypatch.setattr(choosing._choose, "fit_mcmc", watched)
    regressor = pb.BNNRegressor(4, max_iter=10, random_state=0, prior=pb.NormalPrior()).fit(*wave(60))
    assert not found[-1]
    assert "too short to explore their modes" in str(found[-1])
    assert not regressor.posterior_.status
    assert said(regressor).endswith("Raise `max_iter`, the number of draws of each chain and of its warm-up.")
    assert repr(regressor.posterior_).count("NOT OK: ") == 1


def test_without_a_compiler_the_fit_is_variational_and_says_why(monkeypatch):
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.warns(UserWarning, match="^Variational inference is used in place of chains, since the C compiler"):
        regressor = pb.BNNRegressor(**TWO).fit(*wave(31))
    assert isinstance(regressor.posterior_, pb.GuidePosterior)
    assert "The fit is variational, since " in said(regressor)
    assert "the C compiler failed" in said(regressor)
    assert "networks were not compared, and the first was fitted." in said(regressor)


@pytest.mark.filterwarnings("ignore::pyro_bnn.PosteriorWarning")
def test_with_too_many_rows_for_chains_the_fit_is_variational_and_says_why(monkeypatch):
    monkeypatch.setattr(choosing._choose, "FEWEST_STEPS", 10**9)
    x, y = wave(30)
    with pytest.raises(UnsuitableError, match="30 rows of 25 multiplications each leave time for only 20000 steps"):
        fit_best({"curve": makers()["curve"]}, as_tensors(x, y), seed=0)
    monkeypatch.setattr(_variational, "MOST_STEPS", 500)
    regressor = pb.BNNRegressor((3,), likelihood="gaussian", random_state=0).fit(x, y)
    assert "The fit is variational, since 30 rows of 10" in said(regressor)
    skipped = r"The [2-9] networks were not compared, and the first was fitted; a larger time limit would allow it\."
    assert re.search(skipped, said(regressor))


def test_lengths_follow_from_the_time(monkeypatch):
    monkeypatch.setattr(choosing._budget, "MOST_DESCENT", 2000)
    one, two = (Budget(seconds, 10_000).lengths(1.0, 1000, 500, 8) for seconds in (5.0, 10.0))
    assert two.num_warmup == pytest.approx(2 * one.num_warmup, abs=2)
    assert two.num_descent == pytest.approx(2 * one.num_descent, abs=2)
    spent = 8 * (one.num_descent + 2 * one.num_steps) * Budget.gradient(1000, 500)
    assert spent == pytest.approx(5.0, rel=0.01)
    assert Budget(1e9, 10_000).lengths(1.0, 10, 10, 8).num_steps == 20_000
    assert Budget.of_rows(10).seconds < Budget.of_rows(1000).seconds < Budget.of_rows(10**6).seconds


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_limit": 0}, "`time_limit` must be a finite number above 0"),
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
    assert "a linear model" in said(classifier).split("(")[0]
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


def test_the_status_says_how_many_networks_were_not_compared(monkeypatch):
    monkeypatch.setattr(choosing._choose, "_compared", lambda *args: {"curve": 0.0})
    message = fit_best(makers(), as_tensors(*wave(60)), max_draws=10, seed=0).posterior.status.message
    assert ". Curve; 1 network not compared, for lack of C code. MCLMC: " in message


@pytest.mark.nightly
def test_the_seconds_of_the_posterior_are_those_of_the_whole_call():
    begin = time.perf_counter()
    posterior = fit_best(makers(), as_tensors(*wave(60)), max_draws=10, seed=0).posterior
    passed = time.perf_counter() - begin
    assert 0.9 * passed < posterior.seconds <= passed
    assert posterior.statistics.seconds == posterior.seconds  # a file stores them


# --- with a time limit ------------------------------------------------------------------------------------------------


LENGTHS = ChainLengths(num_chains=2, num_descent=10**9, num_warmup=10**9, num_samples=10**9, steps_per_draw=10)


@pytest.mark.filterwarnings("ignore::pyro_bnn.inference.mcmc.ConvergenceWarning")
def test_all_parts_of_chains_end_early_when_their_time_is_over():
    chains = TimedChains(makers()["curve"](60), as_tensors(*wave(60)), timeout=600, seed=0)
    posterior = chains.explore(LENGTHS, Ends(0.0, 0.0, 0.0))
    assert (posterior.num_chains, posterior.num_stored) == (2, 8)  # the fewest that can be judged
    now = time.perf_counter()
    longer = chains.explore(LENGTHS, Ends(now, now + 0.5, now + 1.0), is_judged=False)
    assert longer.num_stored > posterior.num_stored
    assert 0 < chains.seconds_of_step < 1e-2
    assert 0 < chains.seconds_of_descent < 1e-1


def test_steps_are_timed_on_a_machine_too_busy_for_a_step_within_the_time(monkeypatch):
    monkeypatch.setattr("pyro_bnn.inference.mcmc._in_time.TIMED_SECONDS", 0.0)
    chains = TimedChains(makers()["curve"](60), as_tensors(*wave(60)), timeout=600, seed=0)
    assert 0 < chains.seconds_of_step < math.inf
    assert 0 < chains.seconds_of_descent < math.inf


def test_a_compiler_that_takes_too_long_is_ended(monkeypatch, tmp_path):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 600\n")  # in a process of its own, which has to end, too
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    begin = time.perf_counter()
    with pytest.raises(NotInCError, match=r"the C compiler did not finish in the 0\.2 s that it had"):
        TimedChains(makers(9)["curve"](60), as_tensors(*wave(60)), timeout=0.2, seed=0)
    assert time.perf_counter() - begin < 60


@pytest.fixture
def idle(monkeypatch):
    """A machine on which no other program runs, and short chains."""
    monkeypatch.setattr(choosing._in_time, "slowdown", lambda: 1.0)
    monkeypatch.setattr(choosing._in_time, "MOST_TRIAL_STEPS", 200)
    monkeypatch.setattr(choosing._in_time, "MOST_STEPS", 200)


@pytest.mark.usefixtures("idle")
@pytest.mark.nightly
def test_with_time_enough_a_limit_changes_little():
    chosen = fit_best(makers(), as_tensors(*wave()), deadline=Deadline.after(300), seed=0)
    assert chosen.name == "curve"
    assert {*chosen.scores} == {"line", "curve"}
    assert chosen.posterior.num_chains == 8
    assert "time" not in chosen.posterior.status.message
    assert chosen.posterior.seconds < 300


@pytest.mark.usefixtures("idle")
def test_with_little_time_nothing_is_compared_and_the_status_says_so(monkeypatch):
    monkeypatch.setattr(choosing._in_time, "SEARCH", 0.0)
    message = fit_best(makers(), as_tensors(*wave()), deadline=Deadline.after(300), seed=0).posterior.status.message
    assert ". Line; 1 network not compared, for lack of time (a larger time limit would " in message
    assert "allow it); chains of 400 steps, the most that a fit makes. MCLMC: 8 chains" in message


@pytest.mark.usefixtures("idle")
def test_with_little_time_there_are_fewer_chains_and_the_status_says_so(monkeypatch):
    monkeypatch.setattr(choosing._in_time, "_time_left", lambda chains, _: 1500 * chains.seconds_of_step)
    data = as_tensors(*wave())
    message = fit_best(
        {"curve": makers()["curve"]}, data, deadline=Deadline.after(300), max_draws=20, seed=0
    ).posterior.status.message
    assert ". Curve; 2 chains in place of 8, for lack of time. MCLMC: 2 chains" in message


@pytest.mark.usefixtures("idle")
def test_chains_that_end_early_are_in_the_status(monkeypatch):
    monkeypatch.setattr(choosing._in_time, "_lengths", lambda *_: LENGTHS)
    monkeypatch.setattr(choosing._in_time, "_time_left", lambda *_: 0.3)
    curve = {"curve": makers()["curve"]}
    message = fit_best(curve, as_tensors(*wave()), deadline=Deadline.after(300), seed=0).posterior.status.message
    for part in ("warm-up", "sampling"):
        assert re.search(rf"; {part} cut short by the time limit, after \d+ of 1000000000 draws", message)


def test_a_network_that_chains_cannot_fit_is_not_told_to_wait():
    net = nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.1), num_data=90)
    with pytest.raises(choosing.UnsuitableError, match="batch normalisation") as caught:
        fit_best({"own": lambda _: model}, as_tensors(*wave()), deadline=Deadline.after(1e-3), seed=0)
    assert not caught.value.lacks_time


@pytest.mark.filterwarnings("ignore::pyro_bnn.PosteriorWarning")
def test_a_busy_machine_gets_a_variational_fit_that_ends_at_the_limit(monkeypatch):
    monkeypatch.setattr(choosing._in_time, "slowdown", lambda: 1e6)
    regressor = pb.BNNRegressor((3,), likelihood="gaussian", time_limit=0.5, random_state=0).fit(*wave(30))
    assert re.search(
        r"since chains need about 2\d{6} s to start, and 0\.\d s of the time limit are left", said(regressor)
    )
    assert re.match(r"Variational .* chains, since the time limit was too short\. ", said(regressor))
    assert re.search(r"Not converged: cut short by the time limit, after \d+ epochs", said(regressor))
    assert re.search(r"A `time_limit` of \d0 s is probably enough for chains\.$", said(regressor))
    assert regressor.n_iter_ >= 20  # epochs of one step, on a busy machine


def test_a_good_fit_by_another_method_warns_of_a_reason_that_can_be_changed():
    with pytest.warns(UserWarning, match="^Variational inference .* in place of chains.*A `time_limit` of 20 s is"):
        status = UnsuitableError("chains are slow", enough=20).instead(pb.Status(True, "converged: it is flat."))
    assert re.match("Variational .* short. Converged: it is flat. The fit is variational, since ch", str(status))
    assert status.ok
    with pytest.warns(UserWarning, match=r'^Vari.* of chains, since no prior; `method="svi"` makes the') as caught:
        UnsuitableError("no prior", is_removable=True).warn()
    assert [warning.filename for warning in caught] == [__file__]
