"""The arguments that fits share are checked alike in all of them, before anything is computed."""

import functools
import inspect

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn._core import checks

from .chains import quietly

ADAM = functools.partial(torch.optim.Adam, lr=0.01)

# what each fit needs besides the model and the data
FITS = {
    pb.fit: {"num_epochs": 1},
    pb.fit_svi: {"optimizer": ADAM, "num_epochs": 1},
    pb.fit_nuts: {"num_samples": 4, "num_warmup": 1, "num_chains": 1},
    pb.fit_mcmc: {"sampler": pb.HMC(2), "num_samples": 4, "num_warmup": 1, "num_chains": 1},
    pb.fit_sgmcmc: {"sampler": pb.SGLD(1e-3), "num_epochs": 2, "num_samples": 1},
    pb.fit_laplace: {},
    pb.fit_gauss_newton: {},
}

WRONG = {
    "checkpoint": [3, "", True, b"file", ["file"]],
    "resume": [3, "", True, b"file", ["file"]],
    "seed": [-1, "a", 0.5, 2**64, True, torch.nan],
    "progress": [3, "yes"],
    "callbacks": [3, None, print, [3], "callback", {"a": print}],
    "execution": [3, "cpu", pb.Execution],
    "num_epochs": [0, -1, 1.5, "x", torch.inf],
    "num_samples": [0, -1, 1.5, "x", None],
    "num_chains": [0, -1, 1.5, "x", None],
    "batch_size": [0, -1, 1.5, "x"],
}


def called(fit, options):
    """The fit on five rows."""
    net = nn.Linear(2, 1)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=5)
    x, y = torch.randn(5, 2), torch.randn(5, 1)
    return fit(model, (x, y), **{**FITS[fit], **options})


CASES = [
    (fit, name, value)
    for fit in FITS
    for name, values in WRONG.items()
    for value in values
    if name in inspect.signature(fit).parameters
]


@pytest.mark.parametrize(("fit", "name", "value"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_wrong_value_is_refused_by_the_name_of_its_argument(fit, name, value):
    with pytest.raises(ValueError, match=rf"`{name}` must"):
        called(fit, {name: value})


@pytest.mark.parametrize("fit", [pb.fit, pb.fit_svi, pb.fit_sgmcmc])
def test_callbacks_may_come_from_a_generator(fit):
    calls = []
    quietly(called, fit, {"callbacks": (callback for callback in [lambda history: calls.append(1)])})
    assert calls


@pytest.mark.parametrize("make", [pb.SGLD, pb.SGHMC])
@pytest.mark.parametrize("settings", [{"lr": 1e300}, {"lr": 1e-300}, {"lr": 1e-3, "temperature": 1e200}])
def test_settings_that_single_precision_cannot_hold_are_refused(make, settings):
    with pytest.raises(ValueError, match=r"`(lr|temperature)` must"):
        make(**settings)


MODEL = pb.BayesianModel(nn.Linear(2, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.5), num_data=5)
X, Y = torch.zeros(5, 2), torch.zeros(5, 1)
POSTERIOR = pb.GuidePosterior(pb.MeanFieldGuide(MODEL))

MISTAKES = [
    (lambda: pb.fit(MODEL, (X, Y), epochs=5), r"fit\(\) got .* `epochs`; did you mean `num_epochs`\?"),
    (lambda: pb.fit(MODEL, (X, Y), num_step=5), r"`num_step`; did you mean `num_epochs`\?"),
    (lambda: pb.fit(MODEL, (X, Y), num_steps=5), r"`num_steps`; did you mean `num_epochs`\?"),
    (lambda: pb.fit(MODEL, (X, Y), num_iters=5), r"did you mean `num_epochs`\?"),
    (lambda: pb.fit_svi(MODEL, (X, Y), MODEL, steps=5), r"did you mean `num_epochs`\?"),
    (lambda: pb.fit_nuts(MODEL, (X, Y), disable_progbar=True), r"did you mean `progress`\?"),
    (lambda: pb.fit(MODEL, (X, Y), validation_data_loader=5), r"did you mean `validation`\?"),
    (lambda: pb.fit_nuts(MODEL, (X, Y), warmup_steps=5), r"`warmup_steps`; did you mean `num_warmup`\?"),
    (lambda: pb.fit_nuts(MODEL, (X, Y), num_burnin_steps=5), r"did you mean `num_warmup`\?"),
    (lambda: pb.fit_svi(MODEL, (X, Y), MODEL, loss=5), r"did you mean `elbo`\?"),
    (lambda: pb.fit_svi(MODEL, (X, Y), MODEL, lr=0.1), r"`lr`; pass `functools.partial.* as `optimizer`"),
    (lambda: pb.fit_svi(MODEL, (X, Y), MODEL, epochs=5), "did you mean `num_epochs`"),
    (lambda: pb.fit(MODEL, (X, Y), num_samples=5), "`num_samples`; pass it to `predict`"),
    (lambda: pb.fit(MODEL, (X, Y), unlike=5), "`unlike`; its arguments are `model`, `data`, `method`.* and `seed`"),
    (lambda: pb.fit(MODEL, X, Y), r"got 3; .* one argument, a pair\. Example: fit\(model, \(x, y\)\)"),
    (lambda: pb.fit(MODEL, x=X, y=Y), r"`x`; pass inputs and targets as one argument, a pair\. Example: fit\(model"),
    (lambda: pb.fit_svi(MODEL), "needs `data`, which.* Example: fit_svi"),
    (lambda: pb.fit_nuts(MODEL, (X, Y), chains=1), "did you mean `num_chains`"),
    (
        lambda: pb.predict(MODEL, X),
        r"predict\(\) needs `posterior`, got Tensor in its place\. Example: predict\(model, p",
    ),
    (lambda: pb.predict(POSTERIOR, X), r"predict\(\) needs `model`, got GuidePosterior in its place"),
    (lambda: pb.predict(MODEL, POSTERIOR), r"predict\(\) needs `x`"),
    (lambda: pb.predict_point(MODEL, X), r"needs `values`, got Tensor"),
    (lambda: pb.predict(MODEL, MODEL, X, n_samples=1), "did you mean `num_samples`"),
    (lambda: pb.BNNRegressor(hiden=(3,)), "did you mean `hidden_layer_sizes`"),
    (lambda: pb.BNNRegressor().fit(X), r"BNNRegressor.fit\(\) needs `y`.*Example: regressor.fit"),
    (lambda: pb.BNNRegressor().predict(X, std=True), "`std`; did you mean `return_std`"),
    (lambda: pb.BNNRegressor().predict_interval(X, alpha=0.1), "`alpha`; pass `level=1 - alpha`"),
    (lambda: pb.BNNClassifier().predict(X, return_std=True), "`return_std`; classes have no .* `predict_proba"),
    (lambda: pb.BNNClassifier().predict_set(X, levle=0.9), "did you mean `level`"),
    (lambda: pb.BNNRegressor(hidden=3), r"BNNRegressor\(\) got .* did you mean `hidden_layer_sizes`"),
    (lambda: pb.BNNRegressor(device="cuda"), "`device`; estimators compute on the CPU"),
    (lambda: pb.BNNClassifier(seed=3), "did you mean `random_state`"),
    (lambda: pb.NormalPrior(sigma=3), "did you mean `scale`"),
    (lambda: pb.MeanFieldGuide(MODEL, scale=1), "unexpected argument `scale`; `init` sets"),
    (lambda: pb.BayesianModel(nn.Linear(2, 1)), "needs `prior`, `likelihood` and `num_data`.*PoissonLikelihood"),
    (lambda: pb.nets.Standardize(X), r"needs `scale`, .* Example: Standardize\.of\(x\)"),
    (lambda: pb.predict(MODEL, POSTERIOR, X).interval(alpha=0.1), "`alpha`; pass `level=1 - alpha`"),
    (lambda: pb.nets.mlp(1, 10, 1), r"takes 1 argument by .* got 3; .*Example: mlp\(\[1, 50, 50, 1\]\)"),
    (lambda: pb.save_posterior(MODEL, "x.pt"), "needs `model`, .*Example: save_posterior"),
    (lambda: pb.load_posterior("x.pt"), "needs `model`, .*Example: load_posterior"),
    (lambda: pb.plotting.regression_bands(X), "needs `prediction`, .*Example: regression_bands"),
    (lambda: pb.plotting.weight_histograms(), "needs `locations`, .*Example: weight_histograms"),
    (lambda: pb.auto_guide(MODEL), "needs `model`, .*Example: auto_guide"),
    (lambda: pb.fit(MODEL, model=MODEL, data=(X, Y)), "multiple values for argument 'model'. Example"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_a_call_that_does_not_match_the_signature_says_what_to_change(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize("fit", [pb.fit, pb.fit_laplace, pb.fit_gauss_newton])
def test_a_network_in_place_of_a_model_is_told_how_to_make_one(fit):
    with pytest.raises(
        ValueError, match=r"must be a BayesianModel.*, got Linear; make one, such as BayesianModel\(net, p"
    ):
        fit(nn.Linear(2, 1), (X, Y))
    with pytest.raises(ValueError, match=r"For a plain network make a BayesianModel\."):
        pb.fit_nuts(nn.Linear(2, 1), (X, Y))


def test_a_pyro_model_in_place_of_a_model_is_told_which_fits_take_it():
    with pytest.raises(ValueError, match=r"got function; for a Pyro model of your own, call `fit_svi`"):
        pb.fit(lambda x, y=None: None, (X, Y))


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # two epochs
def test_a_list_of_inputs_and_targets_is_a_pair_with_the_same_defaults():
    ours, theirs = (pb.fit(MODEL, data, method="svi", num_epochs=2, seed=0) for data in ([X, Y], (X, Y)))
    assert str(ours.status) == str(theirs.status)
    assert "all rows at once" in str(ours.status)
    ours, theirs = (pb.fit_laplace(MODEL, data, seed=0) for data in ([X, Y], (X, Y)))
    assert torch.equal(ours.location, theirs.location)
    for fit in (pb.fit, pb.fit_laplace, pb.fit_gauss_newton):
        with pytest.raises(ValueError, match=r"got a dictionary with the keys \['x', 'y'\]; pass \(x, y\)\."):
            fit(MODEL, {"x": X, "y": Y})


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # one epoch
def test_a_seed_may_come_from_numpy():
    assert pb.fit(MODEL, (X, Y), method="ensemble", num_members=2, num_epochs=1, seed=np.int64(3)).members
    ours, theirs = (
        quietly(pb.fit_mcmc, MODEL, (X, Y), **FITS[pb.fit_mcmc], seed=seed).sample(1, seed=0)
        for seed in (np.int64(3), 3)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("method", ["vi", "ADVI", "variational", "nuts", "mcmc", "hmc", "laplace", "map", "sghmc"])
def test_other_names_of_methods_lead_to_a_call_that_runs(method):
    with pytest.raises(ValueError, match=r"`method` must be one of .*; call `\w*fit\w*\(model") as caught:
        pb.fit(MODEL, (X, Y), method=method)
    call = str(caught.value).partition("call `")[2].rpartition("`")[0].replace("...", "num_epochs=2, num_samples=1")
    name = call.partition("(")[0]
    signature = inspect.signature(getattr(pb, name))
    assert eval(
        call,
        {
            "HMC": pb.HMC,
            "SGHMC": pb.SGHMC,
            "DeltaGuide": pb.DeltaGuide,
            "model": MODEL,
            "data": (X, Y),
            name: signature.bind,
        },
    )


@pytest.mark.parametrize(("method", "meant"), [("hcm", "hmc"), ("nust", "nuts"), ("mclcm", "mclmc")])
def test_letters_of_a_method_in_another_order_are_recognised(method, meant):
    with pytest.raises(ValueError, match=f"got {method!r}; did you mean {meant!r}"):
        pb.fit(MODEL, (X, Y), method=method)


def test_one_number_that_is_not_finite_is_counted_as_one():
    for count, words in ((1, "1 NaN or infinite value of 5;"), (2, "2 NaN or infinite values of 5;")):
        with pytest.raises(ValueError, match=words):
            checks.finite("x", torch.tensor([0.0] * (5 - count) + [torch.nan] * count))


class Counted(nn.Linear):
    """A linear layer that counts its calls."""

    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x)


@pytest.mark.parametrize("method", ["auto", "svi", "ensemble"])
@pytest.mark.parametrize("kind", ["tensors", "loader"])
def test_targets_without_their_axis_are_told_before_the_fit_begins(method, kind):
    y = Y[:, 0]
    data = (X, y) if kind == "tensors" else DataLoader(TensorDataset(X, y), 5)
    with pytest.raises(ValueError, match=r"expects `y` of shape \(5, 1\), got \(5,\); pass `y\[:, None\]`") as caught:
        pb.fit(MODEL, data, method=method, seed=0)
    assert len(caught.traceback) <= (11 if method == "ensemble" else 8)  # the steps of a fit are 10 calls deeper


def test_targets_are_checked_before_the_steps_and_not_in_each(monkeypatch):
    model = pb.BayesianModel(Counted(2, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(None), num_data=5)
    data, calls = (torch.zeros(5, 2), torch.zeros(5, 1)), []
    for num_epochs in (2, 12):
        monkeypatch.setattr(Counted, "calls", 0)
        pb.fit_svi(model, data, pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=num_epochs, seed=0)
        calls.append(Counted.calls)
    assert calls[1] - calls[0] == 10  # one call of the network in each step


def test_a_network_that_needs_several_rows_can_be_fitted():
    class Pairs(nn.Linear):
        def forward(self, x):
            return super().forward(x.reshape(-1, 2, 2)).reshape(-1, 1)

    model = pb.BayesianModel(Pairs(2, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(None), num_data=6)
    data = torch.zeros(6, 2), torch.zeros(6, 1)
    posterior = pb.fit_svi(model, data, pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=2, seed=0)
    assert len(posterior.history.epochs) == 2
