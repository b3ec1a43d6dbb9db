"""Every loop minimises the negative ELBO of the whole data set, and changes nothing else."""

import functools
import itertools
import math

import pyro
import pytest
import torch
from pyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from pyro.infer.autoguide.initialization import init_to_uniform

import pyro_bnn as pb
from pyro_bnn.inference.svi import FEW, LONGER

from .cases import GUIDES, LIKELIHOODS, pairs
from .fits import ADAM, fit, whole
from .tolerances import assert_identical

# --- three ways to train ----------------------------------------------------------------------------------------------


@pytest.mark.uses_param_store
@pytest.mark.daily("*latent*global*", "*categorical*module*", "*learned-TraceMean*module*")
@pytest.mark.parametrize("setting", [False, True], ids=["global-params", "module-local-params"])
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian-learned", "gaussian-latent"])
def test_fit_svi_pyros_loop_and_torchs_loop_give_the_same_losses(likelihood, elbo, setting, path):
    """One seed, one pair of model and guide, three loops."""
    num_steps, losses = 10, {}

    def fresh():
        torch.manual_seed(11)
        model, x, y = whole(likelihood, where="**.weight")
        return model, pb.MeanFieldGuide(model, init=pb.NormalInit()), x, y

    with pyro.settings.context(module_local_params=setting):
        model, guide, x, y = fresh()
        losses["ours"] = fit(model, guide, x, y, num_epochs=num_steps, elbo=elbo(num_particles=2), seed=5).history.loss

        model, guide, x, y = fresh()
        torch.manual_seed(5)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo(num_particles=2))
        losses["pyro"] = [svi.step(x, y) for _ in range(num_steps)]

        model, guide, x, y = fresh()
        torch.manual_seed(5)
        objective = elbo(num_particles=2)(model, guide)
        optimizer = ADAM(objective.parameters())
        losses["torch"] = []
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss = objective(x, y)
            loss.backward()
            optimizer.step()
            losses["torch"].append(loss.item())
    assert_identical(losses["ours"], losses["pyro"])
    assert_identical(losses["ours"], losses["torch"])
    assert losses["ours"][0] != losses["ours"][-1]


@pytest.mark.daily("network-*", "[!a]*-categorical", "auto-[!fl]*-categorical")  # autos are slow
@pytest.mark.parametrize(
    ("guide", "likelihood"), pairs(GUIDES, LIKELIHOODS, daily={"network", "categorical", "gaussian-latent"})
)
def test_training_raises_the_elbo(guide, likelihood):
    model, x, y = whole(likelihood)
    posterior = fit(model, GUIDES[guide](model), x, y, num_epochs=40, elbo=Trace_ELBO(num_particles=8))
    epochs = posterior.history.epochs
    assert sum(e.elbo for e in epochs[-10:]) > sum(e.elbo for e in epochs[:10])
    assert posterior.status.remedy in ("", FEW, LONGER)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO])
def test_other_guides_and_elbos_of_pyros_fit_too(elbo):
    model, x, y = whole("gaussian-latent")
    guide = AutoLowRankMultivariateNormal(model, rank=2)
    assert fit(model, guide, x, y, elbo=elbo(), num_epochs=5).history.elbo


# --- isolation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make_guide",
    [pb.MeanFieldGuide, functools.partial(pb.auto_guide, AutoNormal), AutoNormal],
    ids=["ours", "auto_guide", "AutoNormal"],
)
def test_two_fits_in_one_process_do_not_touch_each_other(make_guide, path):
    torch.manual_seed(1)
    first_model, x, y = whole("gaussian-learned")
    first = fit(first_model, make_guide(first_model), x, y)
    before = {name: value.clone() for name, value in first.guide.state_dict().items()}
    torch.manual_seed(2)
    second_model, _, _ = whole("gaussian-learned")
    alone = fit(second_model, make_guide(second_model), x, y).history.loss
    torch.manual_seed(2)
    second_model, _, _ = whole("gaussian-learned")
    again = fit(second_model, make_guide(second_model), x, y).history.loss
    assert alone == again
    assert all(torch.equal(value, before[name]) for name, value in first.guide.state_dict().items())


@pytest.mark.uses_param_store
def test_what_others_keep_in_the_parameter_store_stays():
    pyro.param("theirs", torch.tensor(1.0))
    model, x, y = whole()
    fit(model, AutoNormal(model), x, y)
    assert list(pyro.get_param_store().keys()) == ["theirs"]


@pytest.mark.uses_param_store
def test_a_stock_guide_does_not_start_from_a_namesake_in_the_store():
    model, x, y = whole()
    stale = AutoNormal(model)
    svi = SVI(model, stale, pyro.optim.Adam({"lr": 0.5}), Trace_ELBO())
    for _ in range(20):
        svi.step(x, y)
    fresh = AutoNormal(model)
    fit(model, fresh, x, y, optimizer=functools.partial(torch.optim.SGD, lr=0.0))
    assert float(dict(fresh.named_parameters())["scales.net.0.bias_unconstrained"].detach().std()) < 1e-6
    store = pyro.get_param_store()
    assert (
        float(store["AutoNormal.scales.net.0.bias"].detach().std()) > 1e-3
    )  # the other guide's values are still there


def test_the_generator_is_left_as_it_was_when_a_seed_is_given(path):
    model, x, y = whole()
    guide = pb.MeanFieldGuide(model)
    state = torch.get_rng_state()
    fit(model, guide, x, y, batch_size=2, seed=3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_the_same_seed_gives_the_same_fit_and_another_one_another(batch_size, path):
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(9)
        model, x, y = whole()
        results.append(fit(model, pb.MeanFieldGuide(model), x, y, batch_size=batch_size, seed=seed).history.loss)
    assert results[0] == results[1] != results[2]


def test_the_seed_reaches_a_guide_that_sets_itself_up_on_first_call():
    starts = []
    for seed in (0, 0, 1):
        model, x, y = whole()
        guide = AutoNormal(model, init_loc_fn=init_to_uniform)
        freeze = functools.partial(torch.optim.SGD, lr=0.0)
        pb.fit_svi(model, (x, y), guide, optimizer=freeze, num_epochs=1, seed=seed)
        starts.append(guide.median()["net.0.weight"])
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


# --- the two terms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("weight", [1.0, 0.1, 7.0, 1e-5, 0.0])
def test_history_splits_the_loss_whatever_the_kl_weight(weight, elbo, path):
    """With a learning rate of zero the two terms do not depend on the weight."""
    freeze = functools.partial(torch.optim.SGD, lr=0.0)
    model, x, y = whole("gaussian-latent")
    guide = pb.MeanFieldGuide(model, init=pb.NormalInit())
    reference = fit(model, guide, x, y, optimizer=freeze).history
    history = fit(model, guide, x, y, optimizer=freeze, kl_weight=weight, elbo=elbo()).history
    assert_identical(history.expected_log_likelihood, reference.expected_log_likelihood)
    assert_identical(history.elbo, [a - b for a, b in zip(history.expected_log_likelihood, history.kl, strict=True)])
    expected = [weight * kl - ll for kl, ll in zip(history.kl, history.expected_log_likelihood, strict=True)]
    assert_identical(history.loss, expected)
    assert all(kl > 0 for kl in reference.kl)
    if (
        path == "pyro" and weight < 1e-3
    ):  # then Pyro's closed form is not divided out, and the record is that of the draw
        elbo = Trace_ELBO
    reference = fit(model, guide, x, y, optimizer=freeze, elbo=elbo()).history
    torch.testing.assert_close(torch.tensor(history.kl), torch.tensor(reference.kl), rtol=1e-8, atol=1e-8)


def test_an_epoch_of_minibatches_records_the_whole_data_sets_elbo(path):
    """With a nearly deterministic guide every epoch's mean is the full-batch value, uneven batches or not."""
    model, x, y = whole()
    freeze = functools.partial(torch.optim.SGD, lr=0.0)
    tiny = pb.NetworkInit(scale=1e-9)
    records = [
        fit(model, pb.MeanFieldGuide(model, init=tiny), x, y, optimizer=freeze, batch_size=size).history.epochs[0]
        for size in (None, 3, 4)
    ]
    for record in records[1:]:
        assert record.expected_log_likelihood == pytest.approx(records[0].expected_log_likelihood, rel=1e-6)


@pytest.mark.nightly
def test_the_history_of_another_bound_is_still_that_of_the_elbo():
    """Renyi's bound is not a sum of two terms; the record contains those of the ELBO."""
    model, x, y = whole()
    freeze = functools.partial(torch.optim.SGD, lr=0.0)
    guide = pb.MeanFieldGuide(model, init=pb.NormalInit())
    kls = {
        elbo: fit(model, guide, x, y, optimizer=freeze, elbo=elbo(num_particles=2), num_epochs=200).history.kl
        for elbo in (Trace_ELBO, RenyiELBO)
    }
    assert_identical(kls[Trace_ELBO], kls[RenyiELBO])


# --- KL weights -------------------------------------------------------------------------------------------------------


def test_blundell_weights_sum_to_the_number_of_batches_for_any_number():
    for num_batches in (1, 2, 10, 600, 5000):
        weights = [pb.kl.blundell()(0, batch, num_batches) for batch in range(num_batches)]
        assert math.fsum(weights) == pytest.approx(num_batches, rel=1e-12)
        assert all(a >= b >= 0 for a, b in itertools.pairwise(weights))
    weights = [pb.kl.blundell()(0, batch, 4) / 4 for batch in range(4)]
    assert_identical(weights, [8 / 15, 4 / 15, 2 / 15, 1 / 15])  # 2^(M-i) / (2^M - 1)


def test_kl_weights_are_recorded_as_they_were_used(path):
    model, x, y = whole()
    history = fit(model, pb.MeanFieldGuide(model), x, y, batch_size=3, kl_weight=pb.kl.linear_warmup(2)).history
    assert_identical(history.kl_weight, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    assert pb.kl.per_weight(50)(0, 0, 1) == 0.02
    with pytest.raises(ValueError, match="finite number of at least 0, got -1"):
        pb.kl.constant(-1)
