"""`fit` without a method: chains from trained networks if possible, else a variational fit whose status says why."""

import functools
import random
import re
import time
import warnings

import numpy as np
import pyro
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn.auto import choosing
from pyro_bnn.auto.choosing import UnsuitableError, fit_best
from pyro_bnn.auto.fitting import _fit, _variational

from .tolerances import assert_identical

pytestmark = pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # short fits

ADAM = functools.partial(torch.optim.Adam, lr=0.01)
CHAINS = "Chains (MCLMC), because this network is small enough. MCLMC: 8 chains of 20 draws"


def wave(num_data=40):
    x = torch.rand(num_data, 1) * 4 - 2
    return x, torch.sin(2 * x) + 0.1 * torch.randn(num_data, 1)


def curve(*layers, num_data=40, likelihood=None, **options):
    layers = layers or (nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
    net = layers[0] if len(layers) == 1 else nn.Sequential(*layers)
    likelihood = likelihood or pb.GaussianLikelihood(0.1)
    return pb.BayesianModel(net.double(), prior=pb.NormalPrior(), likelihood=likelihood, num_data=num_data, **options)


@pytest.fixture
def quick(monkeypatch):
    """Chains of 20 draws after as many of warm-up."""
    monkeypatch.setattr(_fit, "fit_best", functools.partial(fit_best, max_draws=20))


@pytest.fixture
def short(monkeypatch):
    """Variational fits of three epochs."""
    short = functools.partial(_fit.fit_variational, num_epochs=3)
    monkeypatch.setattr(_fit, "fit_variational", short)


@pytest.mark.daily("dtype0-auto", "dtype1-mclmc")
@pytest.mark.parametrize("method", ["auto", "mclmc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_network_gets_chains_and_says_so(method, dtype, quick):
    x, y = (part.to(dtype) for part in wave())
    model = curve().to(dtype)
    posterior = pb.fit(model, (x, y), method=method, seed=0)
    assert isinstance(posterior, pb.MCMCPosterior)
    assert posterior.path == "C"
    assert CHAINS in str(posterior.status)
    assert re.match(r"\d of 8 chains |Each of 8 chains ", str(posterior.status))
    prediction = pb.predict(model, posterior, x, y=y, seed=0)
    assert prediction.mean.dtype == dtype
    assert prediction.mean.sub(y).abs().mean() < 0.2


def test_arrays_and_lists_get_chains_too(quick):
    x, y = wave()
    tensors, arrays = (pb.fit(curve(), data, seed=0) for data in ((x, y), [x.numpy(), y.numpy()]))
    assert type(tensors) is type(arrays) is pb.MCMCPosterior


def test_a_seed_repeats_chains_and_another_or_none_does_not(quick):
    model, data = curve(), wave()
    draws = (pb.fit(model, data, seed=seed).sample(160)["net.0.weight"] for seed in (0, 0, None, None))
    first, again, other, another = draws
    assert_identical(first, again)
    assert (first != other).any()
    assert (other != another).any()


def test_nothing_global_and_nothing_of_the_model_changes(quick):
    model, data = curve(), wave()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    pb.fit(model, data, seed=3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]  # noqa: NPY002
    assert not pyro.get_param_store().keys()
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.nightly
def test_chains_predict_at_least_as_well_as_a_variational_fit(quick):
    x, y = wave(240)
    model, data = curve(), (x[:40], y[:40])
    scores = {
        method: pb.predict(model, posterior, x[40:], y=y[40:], num_samples=160, seed=0).log_density.mean()
        for method, posterior in [
            ("auto", pb.fit(model, data, seed=0)),
            ("svi", pb.fit(model, data, method="svi", num_epochs=2000, seed=0)),
        ]
    }
    assert scores["auto"] >= scores["svi"]


# --- why not --------------------------------------------------------------------------------------------------------


WITHOUT_CHAINS = {
    # name -> layers, options, and the reason
    "transposed convolution": (
        [nn.Unflatten(1, (1, 1)), nn.ConvTranspose1d(1, 1, 1), nn.Flatten()],
        {},
        "an operation that is not",
    ),
    "dropout": ([nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1)], {}, "the network differs in train mode"),
    "dropout in draws": ([nn.Linear(1, 4), pb.nets.MCDropout(0.5), nn.Linear(4, 1)], {}, "random for given weights"),
    "batch normalisation": (
        [nn.Linear(1, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1)],
        {},
        r"in train mode, as with dropout or batch normalisation \(`model\.eval\(\)` would",
    ),
    "learned noise": (
        [],
        {"likelihood": pb.GaussianLikelihood(None)},
        r"the noise scale has no prior \(`GaussianLikelihood\(\)` has a weak one\)",
    ),
    "learned body": ([], {"where": "net.2.*"}, r"parameters that have no prior \(net.0.weight, net.0.bias\)"),
}


@pytest.mark.parametrize("name", WITHOUT_CHAINS)
def test_a_model_that_is_not_for_chains_gets_a_variational_fit(name, quick, short):
    layers, options, reason = WITHOUT_CHAINS[name]
    model, data = curve(*layers, **options), wave()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = pb.fit(model, data, seed=0)
    assert isinstance(posterior, pb.GuidePosterior)
    assert "The fit is variational, since the " in str(posterior.status)
    assert "3 epochs" in str(posterior.status)
    is_removable = name not in ("transposed convolution", "dropout in draws")
    *before, after = caught
    assert after.category is pb.ConvergenceWarning  # three epochs are too few
    said = [str(one.message) for one in before]
    assert len(said) == is_removable, said
    assert all(one.startswith("Variational inference is used in place of chains, since the") for one in said)
    with pytest.raises(UnsuitableError, match=rf'^method="mclmc" cannot fit this model, since .*{reason}'):
        pb.fit(model, data, method="mclmc", seed=0)


def test_dropout_that_is_off_and_the_default_noise_are_no_obstacles(quick):
    model = curve(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1), likelihood=pb.GaussianLikelihood()).eval()
    assert isinstance(pb.fit(model, wave(), seed=0), pb.MCMCPosterior)


def test_without_a_compiler_the_status_says_so(monkeypatch, short):
    monkeypatch.setenv("CC", "/bin/false")
    model = curve(nn.Linear(1, 7), nn.Tanh(), nn.Linear(7, 1))  # of no other test, whose C would be kept
    with pytest.warns(UserWarning, match="^Variational inference is used in place of chains, since the C compiler"):
        status = str(pb.fit(model, wave(), seed=0).status)
    assert "The fit is variational, since the C compiler failed" in status
    assert "compile=" not in status


def test_too_many_rows_for_chains_are_told(monkeypatch, short):
    monkeypatch.setattr(choosing._choose, "FEWEST_STEPS", 10**9)
    said = "40 rows of 19 multiplications each leave time for only 20000 steps of each chain"
    assert f"The fit is variational, since {said}" in str(pb.fit(curve(), wave(), seed=0).status)
    with pytest.raises(ValueError, match=rf"{said}.*; pass a longer `time_limit` in seconds, or use method=\"svi\""):
        pb.fit(curve(), wave(), method="mclmc", seed=0)


def test_chains_that_a_limit_makes_impossible_name_a_limit_that_is_enough():
    with pytest.raises(UnsuitableError, match=r"; pass `time_limit=(\d0)`, or use method=\"svi\"") as caught:
        pb.fit(curve(), wave(), method="mclmc", time_limit=0.01, seed=0)
    assert caught.value.enough >= 20


@pytest.mark.parametrize("is_list", [False, True])
def test_a_loader_gets_a_variational_fit(is_list, short):
    x, y = wave()
    loader = [(x, y)] if is_list else DataLoader(TensorDataset(x, y), batch_size=20)
    posterior = pb.fit(curve(), loader, seed=0)
    assert "The fit is variational, since the data are a loader" in str(posterior.status)
    with pytest.raises(UnsuitableError, match="the data are a loader"):
        pb.fit(curve(), loader, method="mclmc")


def test_several_inputs_get_a_variational_fit(short):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, first, second):
            return self.layer(first + second)

    x, y = wave()
    posterior = pb.fit(curve(Sum()), ((x, x), y), seed=0)
    assert "The fit is variational, since the network has several inputs" in str(posterior.status)


def test_an_lstm_gets_a_variational_fit(short):
    """Torch's own code for an LSTM on a CPU cannot be replayed outside of autograd."""

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.head = nn.LSTM(1, 2, batch_first=True), nn.Linear(2, 1)

        def forward(self, x):
            return self.head(self.cells(x[:, None])[0][:, -1])

    posterior = pb.fit(curve(Last()), wave(), seed=0)
    assert "The fit is variational, since the density has an operation that is not " in str(posterior.status)


@pytest.mark.parametrize(
    "option",
    [
        {"guide": lambda model: pb.MeanFieldGuide(model)},
        {"optimizer": ADAM},
        {"num_epochs": 2},
        {"batch_size": 10},
        {"validation": wave(10)},
        {"elbo": pyro.infer.Trace_ELBO()},
        {"estimator": pb.LocalReparameterization()},
        {"kl_weight": 0.5},
        {"kl_weight": pb.kl.linear_warmup(2)},
        {"callbacks": [lambda history: None]},
        {"execution": pb.Execution()},
        {"checkpoint": "fit.pt"},
        {"resume": "fit.pt"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_argument_of_a_variational_fit_asks_for_one(option, monkeypatch):
    calls, model, data = [], curve(), wave()
    monkeypatch.setattr(_fit, "fit_variational", lambda *args, **options: calls.append(options))
    monkeypatch.setattr(_fit, "fit_best", None)  # no chains
    ((name, value),) = option.items()
    value = value(model) if name == "guide" else value
    pb.fit(model, data, **{name: value})
    pb.fit(model, data, method="svi", **{name: value})
    assert [call[name] is value or call[name] == value for call in calls] == [True, True]
    with pytest.raises(ValueError, match=rf'^`{name}` needs variational inference, got method="mclmc"; leave it out'):
        pb.fit(model, data, method="mclmc", **{name: value})


@pytest.mark.parametrize("options", [{"method": "svi"}, {"num_epochs": 100_000}])
def test_a_time_limit_ends_a_variational_fit(options):
    begin = time.perf_counter()
    posterior = pb.fit(curve(), wave(), time_limit=0.5, **options, seed=0)
    assert time.perf_counter() - begin < 20  # the fit alone would take minutes; a busy machine is slow
    assert "cut short by the time limit, after " in str(posterior.status)


def test_the_shares_of_a_limit_are_those_of_the_time_that_chains_have_left(monkeypatch):
    """Otherwise, a fit after an attempt to run chains would begin with a low learning rate."""
    ends = []

    def fit_best(*args, **options):
        ends.append(time.perf_counter())
        raise UnsuitableError("the time was too short", enough=10)

    monkeypatch.setattr(_fit, "fit_best", fit_best)
    monkeypatch.setattr(_fit, "fit_variational", lambda *args, callbacks, **options: callbacks)
    (limit,) = pb.fit(curve(), wave(), time_limit=60)
    assert limit._begin > ends[0]


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_a_time_limit_ends_a_long_epoch_without_a_warning_of_missing_rows(monkeypatch):
    monkeypatch.setattr(_variational, "FEWEST_STEPS", 10)
    posterior = pb.fit(curve(), wave(), method="svi", batch_size=1, num_epochs=2, time_limit=1e-3, seed=0)
    assert len(posterior.history.elbo) == 10
    assert len(posterior.history.epochs) == 1
    assert "cut short by the time limit, after 1 epoch;" in str(posterior.status)


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_the_fewest_steps_may_not_take_long_after_the_limit(monkeypatch):
    monkeypatch.setattr(_variational, "GRACE", 0.0)
    posterior = pb.fit(curve(), wave(), method="svi", batch_size=1, time_limit=1e-3, seed=0)
    assert len(posterior.history.elbo) == 1


def test_arguments_that_say_nothing_do_not(quick):
    posterior = pb.fit(curve(), wave(), guide=None, kl_weight=1, callbacks=[], progress=False, seed=0)
    assert isinstance(posterior, pb.MCMCPosterior)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sv"}, "got 'sv'; did you mean 'svi'\\?"),
        ({"method": "best"}, r"`method` must be one of 'auto', 'svi', 'mclmc', 'ensemble', got 'best'\."),
        ({"method": "SVI"}, "got 'SVI'; did you mean 'svi'\\?"),
        (
            {"method": "nutz"},
            r"one of 'auto', .* 'ensemble', got 'nutz'; did you mean 'nuts'\? Call `fit_nuts\(model, data\)`",
        ),
        ({"method": None}, "`method` must be one of 'auto', 'svi', 'mclmc', 'ensemble', got None"),
        ({"time_limit": 0}, "`time_limit` must be a finite number above 0"),
        ({"time_limit": "long"}, "`time_limit` must be a finite number above 0"),
    ],
)
def test_wrong_arguments_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        pb.fit(curve(), wave(), **options)


@pytest.mark.parametrize("method", ["auto", "svi", "mclmc"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (wave(30), r"the model's `num_data` is 40 but the data has 30 rows, .* build the model with `num_data=30`"),
        ((wave(40)[0], wave(30)[1]), "`x` and `y` must have the same number of rows"),
        ((wave()[0] * torch.nan, wave()[1]), "`x` must be finite"),
        (wave()[:1], r"`data` must be a pair \(x, y\), got 1 part"),
        (wave()[0], r"`data` must be a pair \(x, y\) of tensors or arrays, .* got Tensor; pass \(x, y\)"),
    ],
)
def test_wrong_data_are_told_alike(data, message, method):
    with pytest.raises(ValueError, match=message) as caught:
        pb.fit(curve(), data, method=method)
    assert not isinstance(caught.value, UnsuitableError)


def test_other_faults_of_chains_are_raised(monkeypatch):
    def fit_mcmc(*args, **kwargs):
        raise ValueError("no start with a finite density was found")

    monkeypatch.setattr(choosing._choose, "fit_mcmc", fit_mcmc)
    with pytest.raises(ValueError, match=r"^no start with a finite density was found$"):
        pb.fit(curve(), wave(), seed=0)


def test_with_too_little_time_the_fit_is_variational_and_ends_at_the_limit(monkeypatch):
    monkeypatch.setattr(choosing._in_time, "slowdown", lambda: 1e6)
    with pytest.warns(pb.ConvergenceWarning) as warned:
        posterior = pb.fit(curve(), wave(), time_limit=0.5, seed=0)
    said = r"Variational .* of chains, .* Not converged: cut short by the time limit, after .* A `time_limit` of \d+0 s"
    assert re.match(said, str(warned[0].message))
    assert len(warned) == 1
    assert "s of the time limit are left" in posterior.status.message
    assert "cut short by the time limit, after" in posterior.status.message
    assert posterior.history.epochs
