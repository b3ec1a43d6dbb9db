"""Steps on a GPU for which the program does not wait, and steps that are recorded and replayed."""

import functools
import math
import warnings

import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.svi import NonFiniteError, _graph
from pyro_bnn.inference.svi._step import GradientStep

from .cases import small_model
from .fits import FUSED, PLAIN_OR_ESTIMATOR, linear, problem, six_rows

DECAYING = pb.optim.scheduled(FUSED, functools.partial(torch.optim.lr_scheduler.StepLR, step_size=4, gamma=0.1))


# --- steps that are not waited for ------------------------------------------------------------------------------------


def without_waiting(monkeypatch):
    """Make fits behave as on a GPU with a fused optimizer."""
    init = GradientStep.__init__

    def patched(self, *args):
        init(self, *args)
        self.waits = False

    monkeypatch.setattr(GradientStep, "__init__", patched)


def test_steps_that_are_not_waited_for_give_the_same_fit(monkeypatch):
    found = []
    for waits in (True, False):
        torch.manual_seed(0)
        model, guide, data = problem()()
        with monkeypatch.context() as patch:
            if not waits:
                without_waiting(patch)
            found.append(pb.fit_svi(model, guide, data, optimizer=FUSED, num_epochs=5, batch_size=2, seed=1).history)
    assert found[0].loss == found[1].loss


def test_after_a_step_that_is_not_finite_none_has_an_effect(monkeypatch, path):
    """Batch 3 of 6 is bad. The later batches are fine, but must not change the parameters."""

    class Fragile(nn.Linear):
        bad = None

        def forward(self, x):
            is_bad = (x == self.bad).all(-1, keepdim=True)
            return super().forward(x) * torch.where(is_bad, math.nan, 1.0)

    found = []
    for stops_at in (3, 6):
        torch.manual_seed(0)
        model, guide = linear(Fragile(4, 2))
        x, y = six_rows()
        Fragile.bad = x[3]
        loader = [(x[i : i + 1], y[i : i + 1]) for i in range(stops_at)]
        with monkeypatch.context() as patch:
            if stops_at == 3:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of `num_data`
                    pb.fit_svi(model, guide, loader, optimizer=FUSED, num_epochs=1, seed=1)
            else:
                without_waiting(patch)
                with pytest.raises(NonFiniteError, match="epoch 0, batch 3"):
                    pb.fit_svi(model, guide, loader, optimizer=FUSED, num_epochs=1, seed=1)
        found.append(torch.cat([p.detach().flatten() for p in guide.parameters()]))
    assert torch.equal(*found)
    assert bool(found[0].isfinite().all())


# --- steps that are recorded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, lambda epoch, batch, num: 1.0 + batch / num], ids=["constant", "by-batch"])
@pytest.mark.parametrize("optimizer", [FUSED, DECAYING], ids=["", "decay"])
def test_steps_that_are_replayed_give_the_same_fit(monkeypatch, weight, optimizer):
    """Calls of a function stand in for its recording and replay on a GPU."""
    found, num_recorded = [], []
    for recorded in (False, True):
        torch.manual_seed(0)
        model, guide, data = problem()()
        with monkeypatch.context() as patch:
            if recorded:
                without_waiting(patch)
                patch.setattr(_graph, "on_own_stream", lambda function: function())
                patch.setattr(_graph, "record", lambda function: (num_recorded.append(1), function)[1])
            options = {"num_epochs": 12, "batch_size": 4, "kl_weight": weight, "seed": 1}
            found.append(
                pb.fit_svi(
                    model, guide, data, optimizer=optimizer, execution=pb.Execution(cuda_graph=recorded), **options
                ).history
            )
    assert found[0].loss == found[1].loss
    assert len(num_recorded) == (2 if optimizer is FUSED else 6)  # each batch size, or batch, at each rate


def test_recording_is_refused_where_it_is_impossible():
    model, guide, data = problem()()
    with pytest.raises(ValueError, match="fused=True"):
        pb.fit_svi(model, guide, data, optimizer=FUSED, num_epochs=1, execution=pb.Execution(cuda_graph=True))
    with pytest.raises(ValueError, match="AutoNormal"):
        pb.fit_svi(
            model,
            pb.auto_guide(AutoNormal, model),
            data,
            optimizer=FUSED,
            num_epochs=1,
            execution=pb.Execution(cuda_graph=True),
        )


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("estimator", PLAIN_OR_ESTIMATOR)
def test_on_a_gpu_the_losses_are_those_of_the_cpu(estimator, cuda_graph):
    """With scales near zero draws make no difference."""
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model, x, y = small_model(num_data=6)
        guide = pb.MeanFieldGuide(model.to(device), init=pb.NetworkInit(scale=1e-7))
        options = {
            "estimator": PLAIN_OR_ESTIMATOR[estimator],
            "execution": pb.Execution(cuda_graph=cuda_graph and device == "cuda"),
            "seed": 1,
        }
        history = pb.fit_svi(model, guide, (x, y), optimizer=FUSED, num_epochs=9, **options).history
        found.append(torch.tensor(history.expected_log_likelihood))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_gpu_is_not_waited_for_in_a_step(cuda_graph):
    """From the second step of an epoch to the last but one, since the fit waits after the last step."""
    model, x, y = small_model(num_data=6)
    guide = pb.MeanFieldGuide(model.to("cuda"))
    forbidden = []

    def weight(epoch, batch, num_batches):
        is_inside = epoch > 5 and 0 < batch < num_batches - 1
        torch.cuda.set_sync_debug_mode("error" if is_inside else "default")
        forbidden.extend([batch] if is_inside else [])
        return 1.0

    try:
        options = {
            "num_epochs": 8,
            "batch_size": 1,
            "execution": pb.Execution(cuda_graph=cuda_graph),
            "kl_weight": weight,
        }
        pb.fit_svi(model, guide, (x, y), optimizer=FUSED, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert forbidden == [1, 2, 3, 4] * 2
