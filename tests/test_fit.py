"""The function `fit`: it fits without tuning, ends at a plateau, and says so."""

import functools
import re

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import nets
from pyro_bnn.auto.fitting import Plateau, _variational
from pyro_bnn.inference.history import History
from pyro_bnn.inference.svi import StatefulCallback, trend_of

from .tolerances import STANDARD_ERRORS, assert_identical

pytestmark = pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # short fits

NOISE = 0.1


def line(num_data=40):
    """Bayesian linear regression with its exact posterior: mean and precision of slope and offset."""
    x = torch.linspace(-1, 1, num_data)[:, None]
    y = 0.7 * x - 0.2 + NOISE * torch.randn(num_data, 1)
    model = pb.BayesianModel(
        nn.Linear(1, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(NOISE), num_data=num_data
    )
    features = torch.cat([x, torch.ones_like(x)], 1)
    precision = torch.eye(2) + features.T @ features / NOISE**2
    return model, x, y, torch.linalg.solve(precision, features.T @ y / NOISE**2)[:, 0], precision


def test_without_any_option_it_finds_the_best_gaussian():
    model, x, y, mean, precision = line()
    posterior = pb.fit(model, (x, y), method="svi", seed=0)
    assert posterior.status
    assert str(posterior.status).startswith("converged: the ELBO rose by less than")
    found = posterior.median()
    found = torch.stack([found["net.weight"].flatten(), found["net.bias"]]).flatten()
    scale = precision.diagonal().rsqrt()  # of the mean-field optimum
    assert ((found - mean) / scale).abs().max() < 0.2
    scales = posterior.guide.scales()
    assert_close_in_ratio(torch.stack([scales["net.weight"].flatten(), scales["net.bias"]]).flatten(), scale)


def assert_close_in_ratio(found, expected):
    assert ((found / expected).log().abs() < 0.1).all()


def test_the_status_says_what_was_chosen():
    model, x, y, _, _ = line()
    said = str(pb.fit(model, (x, y), seed=0, num_epochs=3).status)
    assert "not converged: stopped after 3 epochs, too few to see a plateau; " in said
    remedy = "Raise `num_epochs`. If the ELBO rises steadily, pass an `optimizer` with a higher learning rate."
    assert said.endswith(remedy)
    assert "see a plateau; all rows at once, Adam lr 0.02, LocalReparameterization" in said
    assert said.count("3 epochs") == 1
    model, x, y, _, _ = line(2400)
    sgd = functools.partial(torch.optim.SGD, lr=1e-6)
    said = str(pb.fit(model, (x, y), seed=0, num_epochs=2, optimizer=sgd).status)
    assert re.search(r"stopped after 2 epochs.*; batches of 800, SGD lr 1e-06", said)
    assert "batches of 7," in str(pb.fit(model, (x, y), seed=0, num_epochs=2, batch_size=7).status)


def test_a_fit_that_still_rises_is_told_by_how_much():
    model, x, y, _, _ = line()
    slow = functools.partial(torch.optim.Adam, lr=1e-4)
    status = pb.fit(model, (x, y), seed=0, num_epochs=400, optimizer=slow).status
    assert not status
    assert "while the ELBO still rose: by" in str(status)
    assert "nats over 400 epochs, with a standard error of" in str(status)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", ["svi", "ensemble"])
def test_a_fit_that_did_not_end_well_warns_once_with_its_status(method):
    model, x, y, *_ = line()
    options = {"method": method, "num_members": 2, "num_workers": 1} if method == "ensemble" else {"method": method}
    with pytest.warns(pb.ConvergenceWarning) as caught:
        posterior = pb.fit(model, (x, y), num_epochs=5, seed=0, **options)
    assert [str(warning.message) for warning in caught] == [posterior.status.warning()]
    assert str(caught[0].message).startswith(
        ("Not converged: stopped after 5", "2 of 2 members did not end well. Raise")
    )
    assert caught[0].filename == __file__
    pb.predict(model, posterior, x, num_samples=3)  # without a warning


def test_a_seed_repeats_the_fit_and_another_does_not():
    model, x, y, _, _ = line()
    before = torch.get_rng_state()
    fits = [pb.fit(model, (x, y), seed=seed, num_epochs=20).history.elbo for seed in (3, 3, 4)]
    assert fits[0] == fits[1] != fits[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_everything_explicit_is_used():
    model, x, y, _, _ = line()
    guide, epochs = pb.LowRankGuide(model, rank=1), []
    posterior = pb.fit(
        model, (x, y), guide=guide, num_epochs=9, kl_weight=0.5, callbacks=[lambda h: epochs.append(h)], seed=0
    )
    assert posterior.guide is guide
    assert len(epochs) == len(posterior.history.epochs) == 9
    assert set(posterior.history.kl_weight) == {0.5}


def test_a_schedule_of_the_users_own_keeps_its_learning_rates():
    model, x, y, _, _ = line()
    halving = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    maker = pb.optim.scheduled(functools.partial(torch.optim.Adam, lr=0.1), halving)
    rates = [record.learning_rate for record in pb.fit(model, (x, y), optimizer=maker, num_epochs=3).history.epochs]
    assert rates == [0.1, 0.05, 0.025]


def test_a_loader_works_too():
    model, x, y, _, _ = line()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    posterior = pb.fit(model, loader, num_epochs=4, seed=0)
    assert len(posterior.history.elbo) == 20
    assert re.search(r"stopped after 4 epochs.*; a loader, Adam", str(posterior.status))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_epochs": 0}, "`num_epochs` must be a whole number of at least 1"),
        ({"optimizer": 0.1}, "`optimizer` must make a torch optimizer"),
        ({"optimizer": lambda parameters: "sgd"}, "optimizer"),
        ({"validation": 3}, r"`validation` must be a pair \(x, y\), got int"),
    ],
)
def test_wrong_arguments_are_told(options, message):
    model, x, y, _, _ = line()
    with pytest.raises(ValueError, match=message):
        pb.fit(model, (x, y), **options)


# --- the gradient estimator ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "shape", "is_local"),
    [
        (nets.mlp([4, 3, 2]), (6, 4), True),
        (nets.mlp([4, 3, 2], first=[nets.Standardize(torch.zeros(4), torch.ones(4))]), (6, 4), True),
        (nets.mlp([4, 3, 2], first=[nn.Flatten()]), (6, 2, 2), True),
        (nn.Sequential(nn.Conv1d(2, 2, 1), nn.Flatten(), nn.Linear(4, 2)), (6, 2, 2), False),
        (nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2)), (6, 4), False),
        (nn.Sequential(nn.Linear(2, 3), nn.Flatten(), nn.Linear(6, 2)), (6, 2, 2), False),
    ],
    ids=["table", "standardised", "flattened", "convolution", "normalised", "positions"],
)
def test_local_reparameterization_is_used_where_it_applies(net, shape, is_local):
    x, y = torch.randn(shape), torch.arange(6) % 2
    net = net.double()
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6)
    status = pb.fit(model, (x, y), num_epochs=2, seed=0).status
    assert ("LocalReparameterization" in str(status)) is is_local
    status = pb.fit(model, (x, y), num_epochs=2, seed=0, guide=pb.DeltaGuide(model)).status
    assert "LocalReparameterization" not in str(status)


# --- the plateau --------------------------------------------------------------------------------------------------


def test_the_status_of_a_collapsed_fit_says_that_it_ended_on_a_plateau():
    plateau = Plateau()
    plateau.is_converged = True
    status = pb.Status(False, "stopped by a callback after 9 of 20 epochs. Collapsed.", remedy="Start wider.")
    found = _variational._status(pb.GuidePosterior(print, status), "", plateau, None, None)
    assert found.message.startswith("stopped on a plateau after 9 of 20 epochs. Collapsed.")


def test_the_trend_of_a_straight_line_is_exact():
    trend = trend_of([2.0 * epoch for epoch in range(100)])
    assert_identical(trend.rise, 200.0)
    assert_identical(trend.noise, 0.0)
    assert trend.num_values == 100


def test_the_standard_error_of_the_trend_is_the_spread_of_its_rises():
    """For 1000 noise series without a trend, the mean square of the rise is the mean squared standard error."""
    trends = [trend_of(row) for row in torch.randn(1000, 200).tolist()]
    differences = torch.tensor([trend.rise**2 - trend.noise**2 for trend in trends])
    assert abs(differences.mean()) < STANDARD_ERRORS * differences.std() / 1000**0.5
    twice = torch.tensor([(2 * trend.rise) ** 2 - trend.noise**2 for trend in trends])  # must fail
    assert abs(twice.mean()) > STANDARD_ERRORS * twice.std() / 1000**0.5


def run(plateau, objective):
    """The epoch after which a plateau ends a fit with these values, and the factors of the learning rate."""
    history, factors = History(100), []
    for value in objective:
        history.add_step(value, 0.0, 1.0)
        history.end_epoch([100], 0.1, 0.0)
        factors.append(plateau.factor)
        if plateau(history):
            break
    return len(history.epochs), factors


def test_noise_ends_a_fit_after_all_learning_rates_and_a_trend_does_not():
    noise = 10 * torch.randn(3000)
    num_epochs, factors = run(Plateau(), noise.tolist())
    assert 1200 <= num_epochs < 2500
    assert sorted({*factors}, reverse=True) == [1.0, 0.3, 0.1]
    rising = noise + torch.arange(3000)
    assert run(Plateau(), rising.tolist()) == (3000, [1.0] * 3000)


def test_a_fit_does_not_end_while_the_kl_weight_changes():
    """Objectives with different KL weights are not comparable, so a flat record of such objectives is not a plateau."""

    def stages(weight_at):
        plateau, history = Plateau(), History(100)
        for epoch in range(3000):
            history.add_step(-100.0, 0.0, weight_at(epoch))
            history.end_epoch([100], 0.1, 0.0)
            if plateau(history):
                break
        return plateau.is_converged, plateau.factor, len(history.epochs)

    assert stages(lambda epoch: 0.3)[0]
    assert stages(lambda epoch: (epoch + 1) / 3000) == (False, 1.0, 3000)


def test_what_a_plateau_remembers_can_be_saved():
    noise = (10 * torch.randn(3000)).tolist()
    plateau, again = Plateau(), Plateau()
    assert isinstance(plateau, StatefulCallback)
    run(plateau, noise[:500])
    again.load_state_dict(plateau.state_dict())
    assert again.factor == plateau.factor == 0.3
    assert again.trend == plateau.trend is not None


@pytest.mark.daily("epochs1-True")
@pytest.mark.parametrize(("epochs", "looks"), [((700, 900), False), ((50, 90), True)])
def test_a_fit_can_go_on_from_a_checkpoint(tmp_path, epochs, looks):
    """The checkpoint is from after a plateau, which lowered the learning rate, and after scores on validation rows."""
    model, x, y, _, _ = line()
    file, options = tmp_path / "fit.pt", {"optimizer": functools.partial(torch.optim.Adam, lr=0.1), "seed": 0}
    options |= {"validation": (x[:5], y[:5])} if looks else {}
    interrupted, total = epochs
    whole = pb.fit(model, (x, y), num_epochs=total, **options)
    pb.fit(model, (x, y), num_epochs=interrupted, checkpoint=file, **options)
    resumed = pb.fit(model, (x, y), num_epochs=total, checkpoint=file, resume=file, **options)
    assert len(whole.history.epochs) == total
    assert resumed.history.elbo == whole.history.elbo
    assert str(resumed.status) == str(whole.status)
    assert len({record.learning_rate for record in whole.history.epochs}) == (1 if looks else 2)


# --- early stopping -----------------------------------------------------------------------------------------------


def test_early_stopping_keeps_the_posterior_that_predicts_best():
    """A network with far too many weights for ten rows of noise, at a point: more epochs predict worse."""
    numbers = torch.Generator().manual_seed(0)  # how much is lost depends on the ten rows
    x, y = torch.randn(60, 5, generator=numbers), torch.randn(60, 1, generator=numbers)
    train, held_out = (x[:10], y[:10]), (x[10:], y[10:])
    scores = {}
    for name, validation in (("early", held_out), ("late", None)):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nets.mlp([5, 30, 1], activation=nn.Tanh)
        model = pb.BayesianModel(net, prior=pb.NormalPrior(3.0), likelihood=pb.GaussianLikelihood(0.3), num_data=10)
        guide = pb.DeltaGuide(model)
        posterior = pb.fit(model, train, guide=guide, validation=validation, num_epochs=1000, seed=0)
        scores[name] = float(
            pb.predict(model, posterior, *held_out[:1], y=held_out[1], num_samples=1).log_density.mean()
        )
        if validation is not None:
            assert posterior.status
            assert "stopped early: the log-density of the validation rows was best after" in str(posterior.status)
    assert scores["early"] > scores["late"] + 1
