"""Several posteriors combined into one, and dropout as a posterior from one set of weights."""

import functools
import warnings

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.nets import MCDropout, mlp

from .cases import GUIDES, small_model
from .tolerances import STANDARD_ERRORS, assert_identical


def posterior_of(model, name="network"):
    return pb.GuidePosterior(GUIDES[name](model))


class Constant(pb.Posterior):
    """Always draws one value, and counts the requested draws."""

    def __init__(self, value, status=None, shape=(2,)):
        self.value, self.shape, self.asked = value, shape, []
        self.status = pb.Status(True, f"the value {value}.") if status is None else status

    def draws(self, num_samples, *args):
        self.asked.append((num_samples, args))
        for _ in range(num_samples):
            yield {"w": torch.full(self.shape, float(self.value))}


# --- ensembles --------------------------------------------------------------------------------------------------------


def test_draws_take_the_members_in_turn_and_pass_the_arguments_on():
    members = [Constant(value) for value in range(3)]
    draws = pb.EnsemblePosterior(members).sample(6)["w"]
    assert draws[:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    x = torch.zeros(1)
    assert len(list(pb.EnsemblePosterior(members).draws(7, x))) == 7
    assert [member.asked[-1] for member in members] == [(3, (x,)), (2, (x,)), (2, (x,))]


@pytest.mark.parametrize("name", GUIDES)
def test_an_ensemble_predicts_the_mixture_of_its_members(name):
    torch.manual_seed(0)
    models = [small_model(likelihood="heteroscedastic")[0] for _ in range(3)]
    members = [posterior_of(model, name) for model in models]
    _, x, y = small_model(likelihood="heteroscedastic")
    options = {"num_samples": 6 if name == "batch-ensemble" else 3, "keep_draws": True, "seed": 4}
    mixture = pb.predict(models[0], pb.EnsemblePosterior(members), x, y=y, **options)
    assert mixture.epistemic.min() > 0
    if name == "auto-delta":
        parts = [pb.predict(models[0], member, x, y=y, num_samples=1) for member in members]
        assert_identical(mixture.mean, torch.stack([part.mean for part in parts]).mean(0))
        assert_identical(mixture.epistemic, torch.stack([part.mean for part in parts]).var(0))
        log_density = torch.stack([part.log_density for part in parts])
        assert_identical(mixture.log_density, log_density.logsumexp(0) - torch.tensor(3.0).log())


def test_a_hundred_draws_of_five_members_just_work_and_a_seed_repeats_them():
    models = [small_model()[0] for _ in range(5)]
    ensemble = pb.EnsemblePosterior([posterior_of(model) for model in models])
    _, x, _ = small_model()
    first, second = (pb.predict(models[0], ensemble, x, num_samples=100, seed=1).probs for _ in range(2))
    assert torch.equal(first, second)


def points(num_members, **options):
    """A model, an ensemble of points, and inputs."""
    models = [small_model(**options)[0] for _ in range(num_members)]
    ensemble = pb.EnsemblePosterior([pb.GuidePosterior(pb.DeltaGuide(model)) for model in models])
    return models[0], ensemble, small_model(**options)[1]


def test_each_point_of_an_ensemble_is_drawn_once():
    model, ensemble, x = points(5)
    prediction = pb.predict(model, ensemble, x)
    each = [pb.predict_point(model, member, x).probs for member in ensemble.members]
    assert_identical(prediction.probs, torch.stack(each).mean(0))
    assert prediction.num_samples == 5
    assert ", 5 members\n" in repr(prediction[:2])
    assert ", 10 draws\n" in repr(pb.predict(model, ensemble, x, num_samples=10))
    assert pb.interop.PredictiveModule(model, ensemble, x).num_samples == 5


def test_other_posteriors_have_their_default_number_of_draws():
    model, ensemble, x = points(5, net=mlp([4, 5, 3], dropout=0.5).double())
    assert pb.predict(model, ensemble, x).num_samples == 100  # dropout draws, too
    model, ensemble, x = points(2)
    assert pb.predict(model, ensemble.members[0], x).epistemic.max() < 1e-9  # which needs two draws
    gaussian = pb.GuidePosterior(pb.MeanFieldGuide(model))
    mixed = pb.EnsemblePosterior([*ensemble.members, gaussian])
    for posterior in (mixed, gaussian):
        assert pb.predict(model, posterior, x).num_samples == 100


def test_an_ensemble_of_fits():
    posteriors = []
    for seed in range(3):
        torch.manual_seed(seed)
        model, x, y = small_model(num_data=6)
        adam = functools.partial(torch.optim.Adam, lr=0.01)
        posteriors.append(pb.fit_svi(model, (x, y), pb.DeltaGuide(model), optimizer=adam, num_epochs=5, seed=seed))
    ensemble = pb.EnsemblePosterior(posteriors)
    assert ensemble.status.ok is None
    assert str(ensemble.status).startswith("3 of 3 members were not judged. member 0: not judged: too few steps")
    assert ensemble.status.remedy == "Raise `num_epochs`."
    assert pb.predict(model, ensemble, x, num_samples=3).epistemic.max() > 1e-4
    assert pb.predict(model, posteriors[0], x, num_samples=3).epistemic.max() < 1e-12


def test_the_status_tells_of_members_that_failed():
    failed = Constant(1, pb.Status(False, "fell down; lower the learning rate."))
    status = pb.EnsemblePosterior([Constant(0), failed]).status
    assert not status
    assert str(status) == "1 of 2 members did not end well. member 1: fell down; lower the learning rate."


def test_the_status_is_unknown_if_no_fit_of_a_member_is_known():
    guide = pb.GuidePosterior(pb.DeltaGuide(small_model()[0]))
    status = pb.EnsemblePosterior([guide, guide]).status
    assert (status.ok, bool(status)) == (None, False)
    assert str(status).startswith("2 of 2 members were not judged. member 0: no fit of this guide is known. The others")


def test_fewer_draws_than_members_are_warned_of():
    members = [Constant(value) for value in range(3)]
    with pytest.warns(UserWarning, match=r"2 draws do not use 1 of the ensemble's 3 members; draw a multiple of 3"):
        assert pb.EnsemblePosterior(members).sample(2)["w"][:, 0].tolist() == [0, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.EnsemblePosterior(members).sample(4)


def test_errors_of_ensembles_say_the_remedy():
    with pytest.raises(ValueError, match="at least one posterior, got none"):
        pb.EnsemblePosterior([])
    model, x, _ = small_model()
    with pytest.raises(ValueError, match=r"wrap a guide in `GuidePosterior`, got MeanFieldGuide"):
        pb.EnsemblePosterior([pb.MeanFieldGuide(model)])
    with pytest.raises(ValueError, match=r"member 1 of the ensemble has sites .*\(3,\).* the first has .*\(2,\)"):
        pb.EnsemblePosterior([Constant(0), Constant(0, shape=(3,))]).sample(2)
    wide = small_model(net=mlp([4, 7, 3]))[0]
    with pytest.raises(ValueError, match="models of the same architecture"):
        pb.predict(model, pb.EnsemblePosterior([posterior_of(model), posterior_of(wide)]), x, num_samples=2)


# --- dropout ----------------------------------------------------------------------------------------------------------


def test_dropout_keeps_the_mean_in_both_modes():
    for mode in (True, False):
        kept = MCDropout(0.2).train(mode)(torch.ones(100_000))
        assert set(kept.unique().tolist()) == {0.0, 1 / (1 - 0.2)}
        assert abs(float((kept == 0).double().mean()) - 0.2) < STANDARD_ERRORS * (0.2 * 0.8 / 100_000) ** 0.5


def test_mlp_puts_dropout_after_each_activation():
    kinds = [type(layer).__name__ for layer in mlp([3, 4, 5, 2], dropout=0.1)]
    assert kinds == ["Linear", "ReLU", "MCDropout", "Linear", "ReLU", "MCDropout", "Linear"]
    assert [type(layer).__name__ for layer in mlp([3, 4, 2])] == ["Linear", "ReLU", "Linear"]
    for bad in (0.0, 1.0, -1):
        with pytest.raises(ValueError, match="`p` must lie strictly between 0 and 1"):
            mlp([3, 4, 2], dropout=bad)


def dropout_model(layer):
    net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), layer, nn.Linear(30, 1))
    return small_model(likelihood="gaussian-fixed", net=net)


def test_only_mc_dropout_makes_a_point_uncertain():
    torch.manual_seed(0)
    model, x, _ = dropout_model(MCDropout(0.2))
    uncertain = pb.predict(model, pb.DeltaGuide(model), x, num_samples=50)
    assert uncertain.epistemic.min() > 0
    torch.manual_seed(0)
    model, x, _ = dropout_model(nn.Dropout(0.2))
    certain = pb.predict(model, pb.DeltaGuide(model), x, num_samples=50)
    assert certain.epistemic.max() < 1e-20
    assert uncertain.epistemic.min() > 1e6 * certain.epistemic.max()


def test_dropout_has_the_variance_that_the_masks_imply():
    """A linear read-out a of hidden units h: var = p / (1 - p) sum (a h)^2."""
    model, x, _ = dropout_model(MCDropout(0.3))
    hidden = torch.tanh(x @ model.initial_value("net.0.weight").T + model.initial_value("net.0.bias"))
    exact = 0.3 / 0.7 * (hidden * model.initial_value("net.3.weight")).square().sum(-1, keepdim=True)
    prediction = pb.predict(model, pb.DeltaGuide(model), x, num_samples=4000, keep_draws=True)
    means = prediction.components.mean  # (S, N, 1)
    squares = (means - means.mean(0)).square()
    error = squares.std(0) / 4000**0.5
    assert ((squares.mean(0) - exact).abs() < STANDARD_ERRORS * error).all()
    assert not ((squares.mean(0) - 1.3 * exact).abs() < STANDARD_ERRORS * error).any()


def test_a_seed_repeats_dropout_for_the_same_rows_and_batches():
    model, x, _ = dropout_model(MCDropout(0.2))
    guide = pb.DeltaGuide(model)
    first, second, in_parts, other = (
        pb.predict(model, guide, x, num_samples=10, batch_size=size, seed=seed).mean
        for size, seed in ((100, 1), (100, 1), (2, 1), (100, 2))
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, in_parts)  # masks are drawn per row, in the order in which rows are run
    assert not torch.equal(first, other)


# --- weight decay -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1, 2])
def test_a_prior_from_weight_decay_has_the_gradient_of_torchs(factor):
    """One step of SGD(weight_decay) on the mean loss, against one on the negative log joint divided by N."""
    weight_decay, lr, num_data = 0.03, 0.1, 6
    model, x, y = small_model(
        likelihood="heteroscedastic",
        num_data=num_data,
        prior=pb.NormalPrior.from_weight_decay(factor * weight_decay, num_data=num_data),
    )
    sgd = functools.partial(torch.optim.SGD, lr=lr / num_data)
    ours = pb.fit_svi(model, (x, y), pb.DeltaGuide(model), optimizer=sgd, num_epochs=5).median()

    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
    net.load_state_dict({name: model.initial_value(f"net.{name}") for name in net.state_dict()})
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, weight_decay=weight_decay)
    for _ in range(5):
        optimizer.zero_grad()
        mean, log_variance = net(x).chunk(2, -1)
        loss = 0.5 * (log_variance + (y - mean).square() / log_variance.exp()).sum(-1).mean()
        loss.backward()
        optimizer.step()
    agrees = [torch.allclose(ours[f"net.{name}"], p.detach(), rtol=1e-9) for name, p in net.named_parameters()]
    assert all(agrees) if factor == 1 else not any(agrees)


def test_weight_decay_must_be_positive():
    for arguments, message in (((0.0, 5), "`weight_decay` must be a finite number above 0"), ((0.1, 0), "`num_data`")):
        with pytest.raises(ValueError, match=message):
            pb.NormalPrior.from_weight_decay(arguments[0], num_data=arguments[1])
