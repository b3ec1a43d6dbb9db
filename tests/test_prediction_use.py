"""Predictions in use: scores, rows, batches, seeds, and what is refused."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoLowRankMultivariateNormal, AutoNormal
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn.inference.guides import UniformInit
from pyro_bnn.scores.uncertainty import ClassificationPrediction, RegressionPrediction

from .cases import GUIDES, LIKELIHOODS, small_model, small_net
from .test_prediction import wide_guide
from .tolerances import agrees_in_mean, assert_identical

CLASSES = ["categorical", "bernoulli"]


# --- scores, rows -----------------------------------------------------------------------------------------------------


def test_scores_of_classes_are_the_metrics():
    model, x, y = small_model()
    prediction = pb.predict(model, wide_guide(model), x, y=y, num_samples=9, seed=1)
    scores = prediction.score()
    assert scores == prediction.score(y)
    assert scores["nll"] == pytest.approx(prediction.nll)
    assert scores["accuracy"] == pb.metrics.accuracy(prediction.probs, y)
    assert scores["brier"] == pb.metrics.brier_score(prediction.probs, y)
    assert scores["ece"] == pb.metrics.expected_calibration_error(prediction.probs, y)
    other = prediction.score((y + 1) % 3)
    expected = -float(prediction.probs.gather(-1, ((y + 1) % 3)[:, None]).log().mean())
    assert other["nll"] == pytest.approx(expected)
    sure = {name: torch.full_like(value, 1e3).copysign(value) for name, value in wide_guide(model).median().items()}
    wrong = pb.predict_point(model, sure, x, y=y)  # some labels have a probability that is rounded to 0
    assert wrong.score()["nll"] == pytest.approx(wrong.nll) != math.inf
    with pytest.raises(ValueError, match=r"`y` must have shape \(6,\)"):
        prediction.score(y[:3])
    with pytest.raises(ValueError, match=r"call `score\(y\)`, or `predict\(..., y=y\)`"):
        pb.predict(model, wide_guide(model), x, num_samples=2).score()


def test_scores_of_numbers_never_take_the_density_of_other_targets():
    model, x, y = small_model(likelihood="heteroscedastic")
    settings = {"num_samples": 9, "seed": 1}
    plain = pb.predict(model, wide_guide(model), x, y=y, keep_draws=False, **settings)
    kept = pb.predict(model, wide_guide(model), x, keep_draws=True, **settings)
    assert plain.score() == {"rmse": pb.metrics.root_mean_squared_error(plain.mean, y), "nll": plain.nll}
    assert plain.score(y.clone()) == plain.score()
    assert set(plain.score(y + 1)) == {"rmse"}
    assert set(plain[:3].score()) == {"rmse", "nll"}
    assert set(kept.score(y)) == {"rmse", "nll", "crps"}
    assert kept.score(y)["nll"] == pytest.approx(plain.nll)
    assert kept.score(y + 1)["nll"] == pytest.approx(-float(kept.log_prob(y + 1).mean()))


@pytest.mark.parametrize("likelihood", ["heteroscedastic", "mixture-density"])
def test_the_crps_of_a_prediction_is_that_of_its_draws(likelihood):
    model, x, y = small_model(likelihood=likelihood)
    prediction = pb.predict(model, wide_guide(model), x, num_samples=9, seed=1, keep_draws=True)
    each = torch.tensor([pb.metrics.crps_from_draws(prediction.sample(200, seed=seed), y) for seed in range(40)])
    assert agrees_in_mean(each, torch.tensor(prediction.crps(y)))
    assert not agrees_in_mean(each, torch.tensor(prediction.crps(y + 1)))


def test_the_crps_of_counts_is_the_sum_over_whole_numbers():
    model, x, y = small_model(likelihood="poisson")
    prediction = pb.predict(model, wide_guide(model), x, num_samples=9, seed=1, keep_draws=True)
    gaps = [prediction.cdf(torch.tensor(float(k))) - (y <= k).double() for k in range(200)]
    expected = float(torch.stack(gaps).square().sum(0).mean())
    assert prediction.crps(y) == pytest.approx(expected, rel=0.1)  # of 1000 draws
    assert prediction.crps(y + 3) > 1.5 * expected


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_rows_of_a_prediction_are_the_prediction_of_rows(likelihood):
    model, x, y = small_model(likelihood=likelihood)
    guide = wide_guide(model)
    whole = pb.predict(model, guide, x, y=y, num_samples=5, seed=4, keep_draws=True)
    mask = torch.tensor([True, False, True, True, False, False])
    part = pb.predict(model, guide, x[mask], y=y[mask], num_samples=5, seed=4, keep_draws=True)
    for rows in (mask, torch.tensor([0, 2, -3])):
        chosen = whole[rows]
        assert type(chosen) is type(whole)
        assert len(chosen) == 3
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                assert_identical(getattr(chosen, name), value)
        assert_identical(chosen.total, part.total)
        assert chosen.score() == pytest.approx(part.score(), rel=1e-9)
    assert_identical(whole[1:].expectation, whole.expectation[1:])
    for bad in ((0, 1), mask[:3], torch.tensor(True), torch.tensor([6]), torch.tensor([0.5])):
        with pytest.raises(ValueError, match=r"chosen with a boolean mask of shape \(6,\)"):
            whole[bad]


def test_a_prediction_of_the_other_kind_is_refused():
    model, x, _ = small_model()
    classes = pb.predict(model, wide_guide(model), x, num_samples=2)
    assert classes.as_kind(ClassificationPrediction) is classes
    with pytest.raises(ValueError, match="a RegressionPrediction is needed, got a ClassificationPrediction"):
        classes.as_kind(RegressionPrediction)
    model, x, _ = small_model(likelihood="poisson")
    numbers = pb.predict(model, wide_guide(model), x, num_samples=2)
    assert numbers.as_kind(RegressionPrediction) is numbers
    with pytest.raises(ValueError, match="a ClassificationPrediction is needed, got a RegressionPrediction"):
        numbers.as_kind(ClassificationPrediction)


# --- draws, batches, seeds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_batches_and_loaders_change_nothing(likelihood):
    model, x, y = small_model(likelihood=likelihood)
    guide = wide_guide(model)

    def fields(prediction):
        tensors = {name: value for name, value in vars(prediction).items() if isinstance(value, torch.Tensor)}
        return {**tensors, "total": prediction.total, "epistemic": prediction.epistemic}

    whole = fields(pb.predict(model, guide, x, y=y, num_samples=8, seed=4))
    batched = fields(pb.predict(model, guide, x, y=y, num_samples=8, seed=4, batch_size=4))
    loader = DataLoader(TensorDataset(x, y), batch_size=5)
    loaded = fields(pb.predict(model, guide, loader, num_samples=8, seed=4))
    for name, value in whole.items():
        assert_identical(batched[name], value)
        assert_identical(loaded[name], value)
    inputs_only = pb.predict(model, guide, DataLoader(x, batch_size=5), num_samples=8, seed=4)
    assert inputs_only.log_density is None


def test_kept_draws_of_a_loader_are_joined_along_the_data():
    model, x, y = small_model()
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    assert pb.predict(model, wide_guide(model), loader, num_samples=3, keep_draws=True).logits.shape == (3, 6, 3)
    model, x, y = small_model(likelihood="heteroscedastic")
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    prediction = pb.predict(model, wide_guide(model), loader, num_samples=3, keep_draws=True)
    assert prediction.components.batch_shape == (3, 6, 2)
    assert prediction.quantile(0.5).shape == (6, 2)
    assert len(prediction) == 6


def test_seeds_make_predictions_repeatable_and_leave_the_generator():
    model, x, _ = small_model()
    guide = wide_guide(model)
    state = torch.get_rng_state()
    a, b, c = (pb.predict(model, guide, x, num_samples=5, seed=seed).probs for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    unseeded = [pb.predict(model, guide, x, num_samples=5).probs for _ in range(2)]
    assert not torch.equal(*unseeded)


def test_modes_are_put_back_and_dropout_is_off():
    model, x, _ = small_model(net=nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)))
    model.net[1].train()
    model.net[0].eval()
    point = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1e-12))
    prediction = pb.predict(model, point, x, num_samples=5)
    assert float(prediction.epistemic.max()) < 1e-9
    assert (model.net[0].training, model.net[1].training, model.training) == (False, True, True)


@pytest.mark.parametrize("name", GUIDES)
def test_every_guide_of_ours_predicts(name):
    model, x, y = small_model(likelihood="gaussian-latent")
    assert math.isfinite(pb.predict(model, GUIDES[name](model), x, y=y, num_samples=4).nll)
    assert dict(pyro.get_param_store()) == {}


@pytest.mark.uses_param_store
@pytest.mark.daily("AutoNormal")  # the others are fitted in `test_pyro_tools.py`
@pytest.mark.parametrize("autoguide", [AutoNormal, AutoDelta, AutoLowRankMultivariateNormal])
def test_every_guide_of_pyros_predicts_with_what_it_learned(autoguide):
    x = torch.randn(60, 4)
    y = (x[:, 0] > 0).long()
    model, _, _ = small_model(num_data=60, prior=pb.NormalPrior(3.0))
    guide = autoguide(model)
    posterior = pb.fit_svi(
        model, (x, y), guide, optimizer=lambda p: torch.optim.Adam(p, lr=0.1), num_epochs=150, seed=0
    )
    nll = pb.predict(model, posterior, x, y=y, num_samples=50, seed=0).nll
    assert nll == pb.predict(model, guide, x, y=y, num_samples=50, seed=0).nll
    assert nll < 0.5 * math.log(3)


@pytest.mark.uses_param_store
def test_a_function_guide_predicts_with_its_parameters_from_the_store():
    model, x, _ = small_model(net=nn.Linear(4, 3, bias=False))

    def guide(x, y=None):
        loc = pyro.param("loc", torch.zeros(3, 4))
        pyro.sample("net.weight", dist.Normal(loc, 1e-9).to_event(2))

    guide(x)
    with torch.no_grad():
        pyro.param("loc").fill_(2.0)
    prediction = pb.predict(model, guide, x, num_samples=2)
    torch.testing.assert_close(prediction.probs, torch.full((6, 3), 1 / 3))
    with torch.no_grad():
        pyro.param("loc")[0].fill_(5.0)
    expected = (x @ pyro.param("loc").detach().T).softmax(-1)
    torch.testing.assert_close(pb.predict(model, guide, x, num_samples=2).probs, expected)


def test_the_point_prediction_is_the_network_at_those_weights():
    model, x, y = small_model()
    guide = wide_guide(model)
    prediction = pb.predict_point(model, guide.median(), x, y=y)
    weights = {name.removeprefix("net."): value for name, value in guide.median().items()}
    probs = functional_call(small_net(), weights, (x,)).softmax(-1)
    assert_identical(prediction.probs, probs)
    assert prediction.nll == pytest.approx(pb.metrics.negative_log_likelihood(probs, y))
    with pytest.raises(ValueError, match=r"lacks the latent variables \['net.2.bias'\]"):
        pb.predict_point(model, {n: v for n, v in guide.median().items() if n != "net.2.bias"}, x)
    with pytest.raises(ValueError, match=r"`values` has \['net.2.bas'\], which are neither"):
        pb.predict_point(model, guide.median() | {"net.2.bas": torch.zeros(3)}, x)


def test_posterior_samples_are_stacked_and_seeded():
    model, _, _ = small_model(likelihood="gaussian-latent")
    posterior = pb.GuidePosterior(wide_guide(model))
    samples = posterior.sample(7, seed=0)
    assert samples["net.0.weight"].shape == (7, 5, 4)
    assert samples["likelihood.scale"].shape == (7,)
    assert torch.equal(samples["net.2.bias"], posterior.sample(7, seed=0)["net.2.bias"])


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["categorical", "heteroscedastic"])
def test_one_draw_has_no_epistemic_part(likelihood):
    model, x, _ = small_model(likelihood=likelihood)
    prediction = pb.predict(model, wide_guide(model), x, num_samples=1)
    assert torch.isfinite(prediction.aleatoric).all()
    with pytest.raises(ValueError, match="needs at least 2 draws, got 1"):
        _ = prediction.epistemic


def test_what_was_not_asked_for_is_refused_with_the_remedy():
    model, x, _ = small_model(likelihood="heteroscedastic")
    prediction = pb.predict(model, wide_guide(model), x, num_samples=3, keep_draws=False)
    with pytest.raises(ValueError, match=r"call `predict\(..., keep_draws=True\)`"):
        prediction.quantile(0.5)
    with pytest.raises(ValueError, match=r"call `predict\(..., y=y\)`"):
        _ = prediction.nll
    with pytest.raises(ValueError, match=r"`y` must have shape \(6, 2\), got \(3, 2\)"):
        prediction.score(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"got BayesianModel; call `predict\(model, posterior, x\)`"):
        pb.predict(wide_guide(model), model, x)
    with pytest.raises(ValueError, match="`num_samples` must be a whole number of at least 1"):
        pb.predict(model, wide_guide(model), x, num_samples=0)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (lambda x: x[:, :3], None, r"cannot take `x` of shape \(6, 3\)"),
        (lambda x: x * math.nan, None, "`x` must be finite"),
        (lambda x: x[:0], None, "`x` must have at least one row"),
        (lambda x: x.float(), None, "`x` is torch.float32"),
        (lambda x: [], None, "the loader is empty"),
        (lambda x: DataLoader(x), lambda: torch.zeros(6), "`y` cannot be given with a loader"),
        (lambda x: x, lambda: torch.zeros(5, dtype=torch.long), "same number of rows"),
        (lambda x: x, lambda: torch.full((6,), 3), "class labels must lie in"),
    ],
)
def test_bad_input_is_named(x, y, message):
    model, inputs, _ = small_model()
    with pytest.raises(ValueError, match=message):
        pb.predict(model, wide_guide(model), x(inputs), y=y() if y else None, num_samples=2)


def test_memory_does_not_grow_with_the_number_of_draws():
    import tracemalloc

    model, x, _ = small_model()
    guide = wide_guide(model)
    peaks = []
    for num_samples in (50, 500):
        tracemalloc.start()
        pb.predict(model, guide, x, num_samples=num_samples)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


def test_a_guide_of_another_model_is_refused():
    """Pyro would silently draw the missing latent variables from their prior."""
    model, x, _ = small_model(likelihood="gaussian-latent")
    with pytest.raises(ValueError, match=r"lacks the latent variables \['net.0.weight'"):
        pb.predict(model, lambda *args: None, x, num_samples=2)
    weights = {name: model.initial_value(name) for name in model.site_names}
    with pytest.raises(ValueError, match=r"lacks the latent variables \['likelihood.scale'\]"):
        pb.predict_point(model, weights, x)
    values = {**weights, "likelihood.scale": torch.tensor(1.0), "net.0.weight": torch.zeros(1, 5, 4)}
    with pytest.raises(ValueError, match=r"`net.0.weight` has shape \(1, 5, 4\) but the model's \(5, 4\)"):
        pb.predict_point(model, values, x)


def test_a_tuple_is_several_inputs_and_no_loader():
    model, x, y = small_model()
    with pytest.raises(ValueError, match="the network Sequential is called with 2 input"):
        pb.predict(model, wide_guide(model), (x, y), num_samples=2)


def test_half_precision_draws_are_summed_in_single():
    probs = torch.rand(2000, 1, 2).bfloat16()
    accumulator = pb.uncertainty.ClassAccumulator()
    for logits in probs.log():
        accumulator.add(dist.Categorical(logits=logits, validate_args=False), keep=True)
    prediction = accumulator.prediction(None)
    assert prediction.probs.dtype == torch.float32
    torch.testing.assert_close(prediction.probs, prediction.logits.float().exp().mean(0), rtol=1e-3, atol=1e-3)


class StudentLikelihood(pb.Likelihood):
    """A user's likelihood, from a family that the library does not have."""

    def forward(self, output):
        return dist.StudentT(5.0, output, 0.5, validate_args=False)

    def check_values(self, output, y):
        pass

    def accumulator(self):
        return pb.uncertainty.MomentAccumulator()


def test_a_users_own_likelihood_predicts_and_keeps_draws():
    x, y = torch.randn(6, 4), torch.randn(6, 2)
    model = pb.BayesianModel(nn.Linear(4, 2), prior=pb.NormalPrior(), likelihood=StudentLikelihood(), num_data=6)
    guide = wide_guide(model)
    prediction = pb.predict(model, guide, x, y=y, num_samples=9, seed=0, keep_draws=True, batch_size=4)
    assert prediction.components.batch_shape == (9, 6, 2)
    expected = prediction.components.log_prob(y).sum(-1).logsumexp(0) - math.log(9)
    assert_identical(prediction.log_density, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: pb.predict(m.net, wide_guide(m), x), "`model` must be a BayesianModel, got Sequential"),
        (lambda m, x: pb.auto_guide(AutoNormal, m.net), "`model` must be a BayesianModel, got Sequential"),
        (lambda m, x: pb.MeanFieldGuide(m, init="uniform"), "`init` must be an Init.*got str"),
        (lambda m, x: pb.predict(m, wide_guide(m), x, num_samples="ten"), "`num_samples` must be a whole number"),
        (lambda m, x: pb.NormalPrior("1"), "`scale` must be a finite number above 0, got '1'"),
        (lambda m, x: UniformInit(rho=(0, -3)), "`rho` must be a range"),
        (lambda m, x: pb.NormalInit(loc_scale=-1), "`loc_scale` must be a finite number of at least 0"),
        (lambda m, x: pb.load_posterior("/nowhere.pt", m), "there is no file /nowhere.pt"),
    ],
)
def test_arguments_of_the_wrong_kind(call, message):
    model, x, _ = small_model()
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        call(model, x)


def test_a_latent_noise_scale_has_no_single_value():
    model, _, _ = small_model(likelihood="gaussian-latent")
    with pytest.raises(ValueError, match="noise scale is a latent variable"):
        model.likelihood.noise_scale()


def test_log_prob_on_a_table_names_the_shape_it_needs():
    model, x, _ = small_model(likelihood="gaussian-fixed")
    prediction = pb.predict(model, pb.MeanFieldGuide(model), x, num_samples=3, keep_draws=True)
    assert prediction.log_prob(torch.zeros(7, 1, 1)).shape == (7, 6)
    assert prediction.log_prob(torch.zeros(0, 6, 2)).shape == (0, 6)
    for y, got in ((torch.zeros(6), r"\(6,\)"), (torch.zeros(5, 2), r"\(5, 2\)")):
        with pytest.raises(ValueError, match=rf"shape \(\.\.\., 6, 2\), got {got}"):
            prediction.log_prob(y)


@pytest.mark.parametrize("likelihood", [pb.CategoricalLikelihood(), pb.GaussianLikelihood(0.5)])
def test_epig_refuses_predictions_of_different_draws(likelihood):
    num_outputs = 3 if isinstance(likelihood, pb.CategoricalLikelihood) else 1
    model = pb.BayesianModel(torch.nn.Linear(4, num_outputs), prior=pb.NormalPrior(), likelihood=likelihood, num_data=6)
    guide, x = pb.MeanFieldGuide(model), torch.randn(7, 4)

    def predicted(rows, seed):
        return pb.predict(model, guide, rows, num_samples=8, keep_draws=True, seed=seed)

    together = pb.acquisition.epig(predicted(x, 0)[:5], predicted(x, 0)[5:])
    torch.testing.assert_close(pb.acquisition.epig(predicted(x[:5], 0), predicted(x[5:], 0)), together)
    unseeded = predicted(x, None)
    assert len(pb.acquisition.epig(unseeded[:5], unseeded[5:])) == 5  # one call has the same draws
    for seeds in ((0, 1), (None, None), (0, None)):
        with pytest.raises(ValueError, match=r"got those of the seeds .*keep_draws=True, seed=0\)` for both"):
            pb.acquisition.epig(*map(predicted, (x[:5], x[5:]), seeds))
