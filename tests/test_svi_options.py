"""Data, optimizers, schedules, callbacks and histories of a fit."""

import functools
import json
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn.inference.history import History
from pyro_bnn.inference.svi import _fit

from .fits import ADAM, fit, whole
from .tolerances import assert_identical


def test_a_loader_and_tensors_see_the_same_rows(path):
    model, x, y = whole()
    loader = DataLoader(TensorDataset(x, y), batch_size=6)
    freeze = functools.partial(torch.optim.SGD, lr=0.0)
    mean = {name: model.initial_value(name) for name in model.site_names}
    tiny = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1e-9))
    from_loader = pb.fit_svi(model, loader, tiny, optimizer=freeze, num_epochs=2, seed=0).history
    exact = 6 * -pb.predict_point(model, mean, x, y=y).nll
    assert from_loader.expected_log_likelihood == [pytest.approx(exact, rel=1e-6)] * 2
    seen = []
    spying = model_that_notes(seen)
    fit(spying, pb.MeanFieldGuide(spying), x, y, batch_size=4, num_epochs=1)
    assert [len(batch) for batch in seen[-2:]] == [4, 2]  # before, the model is tried out
    assert_identical(torch.cat(seen[-2:]).sort(0).values, x.sort(0).values)


def test_a_model_and_data_are_enough(monkeypatch):
    model, x, y = whole()
    monkeypatch.setattr(_fit, "STEPS", 60)
    posterior = pb.fit_svi(model, (x, y), batch_size=3, seed=0)
    assert isinstance(posterior.guide, pb.MeanFieldGuide)
    assert len(posterior.history.epochs) == _fit.FEWEST_EPOCHS
    assert len(pb.fit_svi(model, (x, y), seed=0).history.epochs) == 60
    with pytest.raises(ValueError, match=r"`data` must be a pair .* got MeanFieldGuide"):
        pb.fit_svi(model, posterior.guide, (x, y))
    with pytest.raises(ValueError, match="for a Pyro model of your own, pass a guide"):
        pb.fit_svi(lambda x, y: None, (x, y))


def model_that_notes(seen):
    """A model that adds its inputs to a list."""

    class Noting(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, inputs):
            seen.append(inputs.clone())
            return inputs[:, :3] * self.scale

    return pb.BayesianModel(Noting(), prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6)


def order_of_rows(*, seed, num_epochs=4):
    """Which row was seen when, shape (num_epochs, 6)."""
    x, y, seen = torch.arange(6.0)[:, None].expand(6, 4), torch.arange(6) % 3, []
    model = model_that_notes(seen)
    fit(model, pb.MeanFieldGuide(model), x, y, batch_size=2, num_epochs=num_epochs, seed=seed)
    return torch.cat(seen[-3 * num_epochs :])[:, 0].view(num_epochs, 6)


def test_the_seed_decides_the_order_of_rows_too(path):
    order = order_of_rows(seed=0)
    assert torch.equal(order.sort(1).values, torch.arange(6.0).expand(4, 6))
    assert len(order.unique(dim=0)) > 1
    assert torch.equal(order_of_rows(seed=0), order)
    assert not torch.equal(order_of_rows(seed=1), order)


def test_without_a_seed_torchs_own_generator_decides_the_order(path):
    orders = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        orders.append(order_of_rows(seed=None))
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])


def test_schedulers_step_once_an_epoch_and_clipping_bounds_the_step(path):
    model, x, y = whole()
    posterior = fit(
        model,
        pb.MeanFieldGuide(model),
        x,
        y,
        batch_size=2,
        optimizer=pb.optim.scheduled(ADAM, functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)),
    )
    assert_identical([e.learning_rate for e in posterior.history.epochs], [0.01, 0.005, 0.0025])
    plateau = functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5)
    tiny = pb.NetworkInit(scale=1e-6)

    def rates(optimizer):
        guide = pb.MeanFieldGuide(model, init=tiny)
        kwargs = {"optimizer": pb.optim.scheduled(optimizer, plateau), "elbo": TraceMeanField_ELBO(), "num_epochs": 6}
        return {record.learning_rate for record in fit(model, guide, x, y, **kwargs).history.epochs}

    assert rates(functools.partial(torch.optim.Adam, lr=0.05)) == {0.05}  # the objective improves: the rate stays
    assert len(rates(functools.partial(torch.optim.SGD, lr=1e-6))) > 1  # nothing improves: it falls
    guide = pb.MeanFieldGuide(model)
    before = torch.cat([p.detach().flatten().clone() for p in guide.parameters()])
    fit(model, guide, x, y, optimizer=pb.optim.clipped(functools.partial(torch.optim.SGD, lr=1.0), 0.1), num_epochs=1)
    after = torch.cat([p.detach().flatten() for p in guide.parameters()])
    assert float((after - before).norm()) == pytest.approx(0.1, rel=1e-4)


def test_a_schedule_that_waits_for_a_plateau_is_told_the_loss(path):
    """The loss is the weighted KL minus the expected log-likelihood: smaller is better."""
    told = []

    class Recording(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics):
            told.append(metrics)
            super().step(metrics)

    model, x, y = whole()
    optimizer = pb.optim.scheduled(functools.partial(torch.optim.SGD, lr=1e-3), Recording)
    history = fit(model, pb.MeanFieldGuide(model), x, y, optimizer=optimizer, kl_weight=0.3).history
    assert_identical(told, [0.3 * record.kl - record.expected_log_likelihood for record in history.epochs])
    assert all(record.kl > 0 > record.expected_log_likelihood for record in history.epochs)


def test_a_callback_can_watch_and_stop(path):
    model, x, y = whole()
    seen = []

    def watch(history):
        seen.append(history.epochs[-1].epoch)
        return len(seen) == 2

    posterior = fit(model, pb.MeanFieldGuide(model), x, y, num_epochs=10, callbacks=[watch])
    assert seen == [0, 1]
    assert "stopped by a callback after 2 of 10 epochs" in str(posterior.status)


def test_history_survives_json():

    model, x, y = whole()
    history = fit(model, pb.MeanFieldGuide(model), x, y).history
    assert History.from_dict(json.loads(json.dumps(history.to_dict()))) == history


def test_a_users_own_pyro_module_can_be_fitted():
    class Mean(PyroModule):
        def forward(self, data):
            mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
            with pyro.plate("data", len(data)):
                pyro.sample("obs", dist.Normal(mu, 1.0), obs=data)

    data = torch.full((50,), 3.0)
    guide = pb.MeanFieldGuide(Mean(), data)
    pb.fit_svi(Mean(), (data,), guide, optimizer=functools.partial(torch.optim.Adam, lr=0.05), num_epochs=400, seed=0)
    assert float(guide.median()["mu"]) == pytest.approx(150 / 50.01, abs=0.1)
    assert float(guide.scales()["mu"]) == pytest.approx(50.01**-0.5, rel=0.2)


@pytest.mark.gpu
def test_fits_and_predicts_on_the_gpu_from_cpu_data(path):
    model, x, y = whole("gaussian-latent")
    posterior = fit(model.to("cuda"), pb.MeanFieldGuide(model), x, y, batch_size=2)
    assert model.device.type == "cuda"
    assert pb.predict(model, posterior, x.cuda(), y=y.cuda(), num_samples=3).mean.is_cuda
    with pytest.raises(ValueError, match="`x` is on cpu"):
        pb.predict(model, posterior, x, num_samples=3)


def test_a_clipped_optimizer_needs_a_norm_above_zero():
    for norm in (-1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match="`max_norm` must be a finite number above 0"):
            pb.optim.clipped(ADAM, norm)


class Shifted(pb.GaussianLikelihood):
    """A likelihood with a learned parameter, which it reads as any module does."""

    def __init__(self):
        super().__init__(1.0)
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, output):
        return dist.Normal(output + self.shift, 1.0)


def test_what_a_users_likelihood_learns_stays_out_of_the_global_store_and_of_the_next_fit(path):
    learned = []
    for _ in range(2):
        torch.manual_seed(0)
        model = pb.BayesianModel(nn.Linear(4, 2), prior=pb.NormalPrior(), likelihood=Shifted(), num_data=6)
        fit(model, pb.MeanFieldGuide(model), torch.randn(6, 4), torch.randn(6, 2) + 3, num_epochs=30)
        learned.append(float(model.likelihood.shift.detach()))
        assert not pyro.get_param_store()
    assert learned[0] == learned[1] > 0.1
