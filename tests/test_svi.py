import functools
import itertools
import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.nn import PyroModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb

from .cases import GUIDES, LIKELIHOODS, small_model
from .tolerances import assert_identical

ADAM = functools.partial(torch.optim.Adam, lr=0.01)


def fit(model, guide, x, y, **kwargs):
    return pb.fit_svi(model, guide, (x, y), **{"optimizer": ADAM, "num_epochs": 3, "seed": 0, **kwargs})


def whole(likelihood="categorical", **kwargs):
    """A model whose data set is the six rows at hand."""
    return small_model(likelihood=likelihood, num_data=6, **kwargs)


# --- three ways to train ----------------------------------------------------------------------------------------------


@pytest.mark.uses_param_store
@pytest.mark.parametrize("setting", [False, True], ids=["global-params", "module-local-params"])
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian-learned", "gaussian-latent"])
def test_fit_svi_pyros_loop_and_torchs_loop_give_the_same_losses(likelihood, elbo, setting):
    """One seed, one pair of model and guide, three loops."""
    num_steps, losses = 10, {}

    def fresh():
        torch.manual_seed(11)
        model, x, y = whole(likelihood, where="**.weight")
        return model, pb.MeanFieldGuide(model, init=pb.NormalInit()), x, y

    with pyro.settings.context(module_local_params=setting):
        model, guide, x, y = fresh()
        losses["ours"] = fit(model, guide, x, y, num_epochs=num_steps, elbo=elbo, num_particles=2, seed=5).history.loss

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


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("guide", GUIDES)
def test_training_raises_the_elbo(guide, likelihood):
    model, x, y = whole(likelihood)
    posterior = fit(model, GUIDES[guide](model), x, y, num_epochs=60, num_particles=4)
    epochs = posterior.history.epochs
    assert sum(e.elbo for e in epochs[-10:]) > sum(e.elbo for e in epochs[:10])
    assert posterior.status.ok


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO])
def test_other_guides_and_elbos_of_pyros_fit_too(elbo):
    model, x, y = whole("gaussian-latent")
    guide = AutoLowRankMultivariateNormal(model, rank=2)
    assert fit(model, guide, x, y, elbo=elbo, num_epochs=5).history.elbo


# --- isolation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_guide", [pb.MeanFieldGuide, pb.auto_normal, AutoNormal], ids=lambda f: f.__name__)
def test_two_fits_in_one_process_do_not_touch_each_other(make_guide):
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


def test_the_generator_is_left_as_it_was_when_a_seed_is_given():
    model, x, y = whole()
    guide = pb.MeanFieldGuide(model)
    state = torch.get_rng_state()
    fit(model, guide, x, y, batch_size=2, seed=3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_the_same_seed_gives_the_same_fit_and_another_one_another(batch_size):
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(9)
        model, x, y = whole()
        results.append(fit(model, pb.MeanFieldGuide(model), x, y, batch_size=batch_size, seed=seed).history.loss)
    assert results[0] == results[1] != results[2]


# --- the objective ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("weight", [1.0, 0.1, 7.0, 1e-5, 0.0])
def test_history_splits_the_loss_whatever_the_kl_weight(weight, elbo):
    """With a learning rate of zero the two terms do not depend on the weight."""
    freeze = functools.partial(torch.optim.SGD, lr=0.0)
    model, x, y = whole("gaussian-latent")
    guide = pb.MeanFieldGuide(model, init=pb.NormalInit())
    reference = fit(model, guide, x, y, optimizer=freeze).history
    history = fit(model, guide, x, y, optimizer=freeze, kl_weight=weight, elbo=elbo).history
    assert_identical(history.expected_log_likelihood, reference.expected_log_likelihood)
    assert_identical(history.elbo, [a - b for a, b in zip(history.expected_log_likelihood, history.kl, strict=True)])
    expected = [weight * kl - ll for kl, ll in zip(history.kl, history.expected_log_likelihood, strict=True)]
    assert_identical(history.loss, expected)
    assert all(kl > 0 for kl in reference.kl)
    reference = fit(model, guide, x, y, optimizer=freeze, elbo=elbo).history
    torch.testing.assert_close(torch.tensor(history.kl), torch.tensor(reference.kl), rtol=1e-8, atol=1e-8)


def test_the_kl_weight_acts_on_the_gradient_of_the_kl_alone():
    """loss(w) is linear in w, with the KL as its slope: so are the gradients."""
    model, x, y = whole("gaussian-fixed")
    gradients = {}
    for weight in (0.0, 1.0, 3.0):
        guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.1))
        fit(model, guide, x, y, optimizer=functools.partial(torch.optim.SGD, lr=0.0), num_epochs=1, kl_weight=weight)
        gradients[weight] = torch.cat([p.grad.flatten() for p in guide.parameters()])
    assert_identical(gradients[3.0] - gradients[0.0], 3 * (gradients[1.0] - gradients[0.0]))
    assert (gradients[1.0] - gradients[0.0]).abs().max() > 0.1


def test_an_epoch_of_minibatches_records_the_whole_data_sets_elbo():
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


def test_blundell_weights_sum_to_the_number_of_batches_for_any_number():
    for num_batches in (1, 2, 10, 600, 5000):
        weights = [pb.kl.blundell()(0, batch, num_batches) for batch in range(num_batches)]
        assert math.fsum(weights) == pytest.approx(num_batches, rel=1e-12)
        assert all(a >= b >= 0 for a, b in itertools.pairwise(weights))
    weights = [pb.kl.blundell()(0, batch, 4) / 4 for batch in range(4)]
    assert_identical(weights, [8 / 15, 4 / 15, 2 / 15, 1 / 15])  # 2^(M-i) / (2^M - 1)


def test_kl_weights_are_recorded_as_they_were_used():
    model, x, y = whole()
    history = fit(model, pb.MeanFieldGuide(model), x, y, batch_size=3, kl_weight=pb.kl.linear_warmup(2)).history
    assert_identical(history.kl_weight, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    assert pb.kl.per_weight(50)(0, 0, 1) == 0.02
    with pytest.raises(ValueError, match="finite number of at least 0, got -1"):
        pb.kl.constant(-1)


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_loader_and_tensors_see_the_same_rows():
    model, x, y = whole()
    loader = DataLoader(TensorDataset(x, y), batch_size=6)
    freeze = functools.partial(torch.optim.SGD, lr=0.0)
    mean = {name: model.initial_value(name) for name in model.site_names}
    tiny = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1e-9))
    from_loader = pb.fit_svi(model, tiny, loader, optimizer=freeze, num_epochs=2, seed=0).history
    exact = 6 * -pb.predict_point(model, mean, x, y=y).nll
    assert from_loader.expected_log_likelihood == [pytest.approx(exact, rel=1e-6)] * 2
    seen = []

    class Spy(nn.Module):
        def forward(self, inputs):
            seen.append(inputs.clone())
            return inputs[:, :3] * self.scale

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

    spying = pb.BayesianModel(Spy(), prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6)
    fit(spying, pb.MeanFieldGuide(spying), x, y, batch_size=4, num_epochs=1)
    seen = seen[1:]  # the first is a trial
    assert [len(batch) for batch in seen] == [4, 2]
    assert_identical(torch.cat(seen).sort(0).values, x.sort(0).values)


def test_schedulers_step_once_an_epoch_and_clipping_bounds_the_step():
    model, x, y = whole()
    posterior = fit(
        model,
        pb.MeanFieldGuide(model),
        x,
        y,
        batch_size=2,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
    )
    assert_identical([e.learning_rate for e in posterior.history.epochs], [0.01, 0.005, 0.0025])
    plateau = functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5)
    tiny = pb.NetworkInit(scale=1e-6)

    def rates(optimizer):
        guide = pb.MeanFieldGuide(model, init=tiny)
        kwargs = {"scheduler": plateau, "optimizer": optimizer, "elbo": TraceMeanField_ELBO, "num_epochs": 6}
        return {record.learning_rate for record in fit(model, guide, x, y, **kwargs).history.epochs}

    assert rates(functools.partial(torch.optim.Adam, lr=0.05)) == {0.05}  # the objective improves: the rate stays
    assert len(rates(functools.partial(torch.optim.SGD, lr=1e-6))) > 1  # nothing improves: it falls
    guide = pb.MeanFieldGuide(model)
    before = torch.cat([p.detach().flatten().clone() for p in guide.parameters()])
    fit(model, guide, x, y, optimizer=functools.partial(torch.optim.SGD, lr=1.0), clip_norm=0.1, num_epochs=1)
    after = torch.cat([p.detach().flatten() for p in guide.parameters()])
    assert float((after - before).norm()) == pytest.approx(0.1, rel=1e-4)


def test_a_callback_can_watch_and_stop(capsys):
    model, x, y = whole()
    seen = []

    def watch(history):
        seen.append(history.epochs[-1].epoch)
        return len(seen) == 2

    posterior = fit(model, pb.MeanFieldGuide(model), x, y, num_epochs=10, callbacks=[watch], progress=True)
    assert seen == [0, 1]
    assert "stopped by a callback after 2 of 10 epochs" in str(posterior.status)
    assert "epoch" in capsys.readouterr().err


def test_history_survives_json():
    import json

    model, x, y = whole()
    history = fit(model, pb.MeanFieldGuide(model), x, y).history
    assert pb.History.from_dict(json.loads(json.dumps(history.to_dict()))) == history


def test_a_users_own_pyro_module_can_be_fitted():
    class Mean(PyroModule):
        def forward(self, data):
            mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
            with pyro.plate("data", len(data)):
                pyro.sample("obs", dist.Normal(mu, 1.0), obs=data)

    data = torch.full((50,), 3.0)
    guide = pb.MeanFieldGuide(Mean(), data)
    pb.fit_svi(Mean(), guide, (data,), optimizer=functools.partial(torch.optim.Adam, lr=0.05), num_epochs=400, seed=0)
    assert float(guide.median()["mu"]) == pytest.approx(150 / 50.01, abs=0.1)
    assert float(guide.scales()["mu"]) == pytest.approx(50.01**-0.5, rel=0.2)


# --- trouble ----------------------------------------------------------------------------------------------------------


def test_a_loss_that_explodes_stops_with_the_last_finite_parameters():
    model, x, y = whole("poisson")
    guide = pb.MeanFieldGuide(model)
    with pytest.raises(
        pb.NonFiniteError, match=r"not finite at epoch \d+, batch 0; the first bad site is `.*Try a lower"
    ):
        fit(model, guide, x, y, optimizer=functools.partial(torch.optim.SGD, lr=1e6), num_epochs=50)
    assert all(torch.isfinite(p).all() for p in guide.parameters())


def test_a_gradient_that_is_not_finite_is_named():
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * math.nan

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return Root.apply(self.layer(x))

    model, x, y = whole(net=Net())
    guide = pb.MeanFieldGuide(model)
    before = [p.detach().clone() for p in guide.parameters()]
    with pytest.raises(
        pb.NonFiniteError, match=r"the gradient is not finite at epoch 0, batch 0.*`loc.net.layer.weight`"
    ):
        fit(model, guide, x, y)
    assert all(torch.equal(a, b) for a, b in zip(guide.parameters(), before, strict=True))


def test_a_falling_objective_is_reported_with_its_remedy():
    model, x, y = whole("gaussian-fixed")
    posterior = fit(
        model, pb.MeanFieldGuide(model), x, y, optimizer=functools.partial(torch.optim.SGD, lr=0.5), num_epochs=2
    )
    assert not posterior.status.ok
    assert "lower the learning rate" in posterior.status.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": lambda x: x[:0], "y": lambda y: y[:0]}, "`data` has no rows"),
        ({"x": lambda x: x[:5]}, r"same number of rows, got shapes \(5, 4\) and \(6,\)"),
        ({"x": lambda x: x[:5], "y": lambda y: y[:5]}, "`num_data` is 6 but the data has 5 rows"),
        ({"x": lambda x: x.clone().fill_(math.nan)}, "`x` must be finite, got 24 NaN"),
        ({"y": lambda y: y[:, None]}, r"call `y.squeeze\(-1\)`"),
        ({"y": lambda y: y + 5}, "class labels must lie in 0, ..., 2"),
        ({"num_epochs": 0}, "`num_epochs` must be a whole number of at least 1"),
        ({"num_particles": 0}, "`num_particles` must be"),
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"clip_norm": -1.0}, "`clip_norm` must be a finite number above 0"),
        ({"kl_weight": math.nan}, "a KL weight must be a finite number"),
    ],
)
def test_bad_arguments_are_named(change, message):
    model, x, y = whole()
    x, y = (change.pop(name, lambda v: v)(value) for name, value in (("x", x), ("y", y)))
    with pytest.raises(ValueError, match=message):
        fit(model, pb.MeanFieldGuide(model), x, y, **change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: DataLoader(TensorDataset(x[:0], y[:0])), "the loader is empty"),
        (lambda x, y: iter([(x, y)]), "must be a DataLoader or a tuple of tensors, got list_iterator"),
        (lambda x, y: [(x, y, y)], r"must be a pair \(x, y\), got 3 parts"),
        (lambda x, y: [(x * math.nan, y)], "`x` must be finite"),
    ],
)
def test_bad_loaders_are_named(make, message):
    model, x, y = whole()
    with pytest.raises(ValueError, match=message):
        pb.fit_svi(model, pb.MeanFieldGuide(model), make(x, y), optimizer=ADAM, num_epochs=1)


def test_a_kl_weight_that_turns_negative_is_refused():
    model, x, y = whole()
    with pytest.raises(ValueError, match="finite number of at least 0, got -1"):
        fit(model, pb.MeanFieldGuide(model), x, y, kl_weight=lambda epoch, batch, num_batches: -1)


@pytest.mark.parametrize("elbo", [Trace_ELBO(), pyro.infer.JitTrace_ELBO])
def test_elbos_must_be_classes_that_work(elbo):
    model, x, y = whole()
    with pytest.raises(ValueError, match="`elbo` must be a class such as"):
        fit(model, pb.MeanFieldGuide(model), x, y, elbo=elbo)


def test_the_history_of_another_bound_is_still_that_of_the_elbo():
    """Renyi's bound is no sum of two terms; the record keeps the ELBO's own."""
    model, x, y = whole()
    freeze = functools.partial(torch.optim.SGD, lr=0.0)
    guide = pb.MeanFieldGuide(model, init=pb.NormalInit())
    kls = {
        elbo: fit(model, guide, x, y, optimizer=freeze, elbo=elbo, num_particles=2, num_epochs=200).history.kl
        for elbo in (Trace_ELBO, RenyiELBO)
    }
    assert_identical(kls[Trace_ELBO], kls[RenyiELBO])


def test_the_seed_reaches_a_guide_that_sets_itself_up_on_first_call():
    starts = []
    for seed in (0, 0, 1):
        model, x, y = whole()
        guide = AutoNormal(model, init_loc_fn=init_to_uniform)
        freeze = functools.partial(torch.optim.SGD, lr=0.0)
        pb.fit_svi(model, guide, (x, y), optimizer=freeze, num_epochs=1, seed=seed)
        starts.append(guide.median()["net.0.weight"])
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_a_loader_of_another_size_than_num_data_is_warned_about():
    model, x, y = small_model(num_data=7)
    with pytest.warns(UserWarning, match="`num_data` is 7 but an epoch has 12 rows"):
        pb.fit_svi(model, pb.MeanFieldGuide(model), [(x, y), (x, y)], optimizer=ADAM, num_epochs=1)
    model, x, y = small_model(num_data=100)
    with pytest.warns(UserWarning, match="`num_data` is 100 but an epoch has 6 rows") as caught:
        pb.fit_svi(model, pb.MeanFieldGuide(model), [(x, y)], optimizer=ADAM, num_epochs=1)
    assert caught[0].filename == __file__
    model, x, y = small_model(num_data=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(TensorDataset(x, y), batch_size=4, drop_last=True)  # drops less than a batch: no warning
        pb.fit_svi(model, pb.MeanFieldGuide(model), loader, optimizer=ADAM, num_epochs=1)


def test_stock_guides_are_refused_under_the_mean_field_elbo():
    """It would lose the Jacobian of the constrained noise scale without a word (trap 1)."""
    model, x, y = whole("gaussian-latent")
    with pytest.raises(ValueError, match=r"AutoNormal samples auxiliary variables.*use `elbo=Trace_ELBO`"):
        fit(model, AutoNormal(model), x, y, elbo=TraceMeanField_ELBO)


@pytest.mark.uses_param_store
def test_a_guide_that_took_obs_for_a_latent_is_refused():
    """A stock guide first called without targets: the error would come much later and say something else (trap 7)."""
    model, x, y = whole("gaussian-learned")
    guide = AutoNormal(model)
    guide(x)
    with pytest.raises(ValueError, match=r"draws the observed site `obs`.*auto_normal"):
        fit(model, guide, x, y)


def test_function_guides_and_foreign_parameters_are_refused_with_the_remedy():
    model, x, y = whole()
    with pytest.raises(ValueError, match=r"`guide` must be a module, got function.*pyro.infer.SVI"):
        fit(model, lambda *args: None, x, y)

    class Global(PyroModule):
        def forward(self, *args):
            loc = pyro.param("loc", torch.zeros(5, 4))
            pyro.sample("net.0.weight", dist.Normal(loc, 0.1).to_event(2))

    with pytest.raises(ValueError, match="parameter `loc` lives in Pyro's global store"):
        fit(*((m := whole())[0], Global(), *m[1:]))


@pytest.mark.gpu
def test_fits_and_predicts_on_the_gpu_from_cpu_data():
    model, x, y = whole("gaussian-latent")
    posterior = fit(model, pb.MeanFieldGuide(model), x, y, device="cuda", batch_size=2)
    assert model.device.type == "cuda"
    assert pb.predict(model, posterior, x.cuda(), y=y.cuda(), num_samples=3).mean.is_cuda
    with pytest.raises(ValueError, match="`x` is on cpu"):
        pb.predict(model, posterior, x, num_samples=3)


@pytest.mark.parametrize("optimizer", ["adam", pyro.optim.Adam({"lr": 0.1}), torch.optim.Adam([torch.zeros(1)])])
def test_optimizers_must_be_makers_of_torch_optimizers(optimizer):
    model, x, y = whole()
    with pytest.raises(ValueError, match="`optimizer` must make a torch optimizer from parameters, such as"):
        fit(model, pb.MeanFieldGuide(model), x, y, optimizer=optimizer)
