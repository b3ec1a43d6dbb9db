"""Data, optimizers, schedules, callbacks and histories of a fit."""

import functools
import json

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb

from .fits import ADAM, fit, whole
from .tolerances import assert_identical


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
        optimizer=pb.scheduled(ADAM, functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)),
    )
    assert_identical([e.learning_rate for e in posterior.history.epochs], [0.01, 0.005, 0.0025])
    plateau = functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5)
    tiny = pb.NetworkInit(scale=1e-6)

    def rates(optimizer):
        guide = pb.MeanFieldGuide(model, init=tiny)
        kwargs = {"optimizer": pb.scheduled(optimizer, plateau), "elbo": TraceMeanField_ELBO(), "num_epochs": 6}
        return {record.learning_rate for record in fit(model, guide, x, y, **kwargs).history.epochs}

    assert rates(functools.partial(torch.optim.Adam, lr=0.05)) == {0.05}  # the objective improves: the rate stays
    assert len(rates(functools.partial(torch.optim.SGD, lr=1e-6))) > 1  # nothing improves: it falls
    guide = pb.MeanFieldGuide(model)
    before = torch.cat([p.detach().flatten().clone() for p in guide.parameters()])
    fit(model, guide, x, y, optimizer=pb.clipped(functools.partial(torch.optim.SGD, lr=1.0), 0.1), num_epochs=1)
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


@pytest.mark.gpu
def test_fits_and_predicts_on_the_gpu_from_cpu_data():
    model, x, y = whole("gaussian-latent")
    posterior = fit(model.to("cuda"), pb.MeanFieldGuide(model), x, y, batch_size=2)
    assert model.device.type == "cuda"
    assert pb.predict(model, posterior, x.cuda(), y=y.cuda(), num_samples=3).mean.is_cuda
    with pytest.raises(ValueError, match="`x` is on cpu"):
        pb.predict(model, posterior, x, num_samples=3)
