"""Steps on a GPU for which the program does not wait, and steps that are recorded and replayed."""

import functools
import math
import warnings

import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.svi import NonFiniteError, _graph
from pyro_bnn.inference.svi._graph import RecordingError

from .cases import GUIDES, small_model
from .fits import FUSED, PLAIN_OR_ESTIMATOR, linear, problem, six_rows
from .recorder import record_steps, without_waiting

pytestmark = pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # short fits

DECAYING = pb.optim.scheduled(FUSED, functools.partial(torch.optim.lr_scheduler.StepLR, step_size=4, gamma=0.1))


# --- steps that are not waited for ------------------------------------------------------------------------------------


def test_steps_that_are_not_waited_for_give_the_same_fit(monkeypatch):
    found = []
    for waits in (True, False):
        torch.manual_seed(0)
        model, guide, data = problem()()
        with monkeypatch.context() as patch:
            if not waits:
                without_waiting(patch)
            found.append(pb.fit_svi(model, data, guide, optimizer=FUSED, num_epochs=5, batch_size=2, seed=1).history)
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
                    pb.fit_svi(model, loader, guide, optimizer=FUSED, num_epochs=1, seed=1)
            else:
                without_waiting(patch)
                with pytest.raises(NonFiniteError, match="epoch 0, batch 3"):
                    pb.fit_svi(model, loader, guide, optimizer=FUSED, num_epochs=1, seed=1)
        found.append(torch.cat([p.detach().flatten() for p in guide.parameters()]))
    assert torch.equal(*found)
    assert bool(found[0].isfinite().all())


# --- steps that are recorded ------------------------------------------------------------------------------------------


BY_BATCH = lambda epoch, batch, num: 1.0 + batch / num  # noqa: E731
CHANGING = pb.optim.scheduled(FUSED, functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9))


@pytest.mark.parametrize(
    ("weight", "optimizer", "num_recorded"),
    [
        (1.0, FUSED, 2),  # one for each batch size
        (1.0, DECAYING, 6),  # and for each of three rates
        (BY_BATCH, FUSED, 2),
        (BY_BATCH, DECAYING, 6),
        (1.0, CHANGING, 0),  # no batch size occurs twice at the same rate
    ],
)
def test_steps_that_are_replayed_give_the_same_fit(monkeypatch, weight, optimizer, num_recorded):
    found = []
    for is_recorded in (False, True):
        torch.manual_seed(0)
        model, guide, data = problem()()
        with monkeypatch.context() as patch:
            recorded = record_steps(patch) if is_recorded else []
            options = {"num_epochs": 12, "batch_size": 4, "kl_weight": weight, "seed": 1}
            found.append(
                pb.fit_svi(
                    model, data, guide, optimizer=optimizer, execution=pb.Execution(cuda_graph=is_recorded), **options
                ).history
            )
    assert found[0].loss == found[1].loss
    assert len(recorded) == num_recorded


def replayed_fits(monkeypatch, make, **options):
    """The losses and final parameters of a fit with ordinary steps and of one with replayed steps."""
    found = []
    for is_recorded in (False, True):
        torch.manual_seed(0)
        model, guide, data = make()
        with monkeypatch.context() as patch:
            recorded = record_steps(patch) if is_recorded else []
            execution = pb.Execution(cuda_graph=is_recorded)
            history = pb.fit_svi(model, data, guide, execution=execution, seed=1, **options).history
        found.append((history.loss, [value.detach().clone() for value in guide.state_dict().values()]))
    assert recorded
    return found


@pytest.mark.daily(
    "Trace_ELBO-low-rank",
    "Trace_ELBO-pruned",
    "Trace_ELBO-frozen",
    "Trace_ELBO-batch-ensemble",
    "Trace_ELBO-capped",
    "*-normal",
)
@pytest.mark.parametrize("guide", [name for name in GUIDES if not name.startswith("auto-")])
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_replays_of_any_guide_give_the_same_fit(monkeypatch, guide, elbo):
    def make():
        model, x, y = small_model(num_data=6)
        return model, GUIDES[guide](model), (x, y)

    options = {"optimizer": FUSED, "num_epochs": 8, "batch_size": 3, "elbo": elbo()}
    (losses, parameters), (again, same) = replayed_fits(monkeypatch, make, **options)
    assert losses == again
    torch.testing.assert_close(parameters, same, rtol=0, atol=0)


@pytest.mark.parametrize("estimator", [pb.LocalReparameterization, pb.Flipout])
def test_replays_of_an_estimator_give_the_same_fit(monkeypatch, estimator):
    options = {"optimizer": FUSED, "num_epochs": 8, "batch_size": 3, "estimator": estimator()}
    (losses, parameters), (again, same) = replayed_fits(monkeypatch, problem(), **options)
    assert losses == again
    torch.testing.assert_close(parameters, same, rtol=0, atol=0)


@pytest.mark.daily("constant-{'gauss_newton_every': 3}", "by-batch-{}")
@pytest.mark.parametrize("options", [{}, {"gauss_newton_every": 3}, {"num_warmup": 7}, {"clip": 0.01}], ids=str)
@pytest.mark.parametrize("weight", [1.0, BY_BATCH], ids=["constant", "by-batch"])
def test_replays_of_natural_gradients_give_the_same_fit(monkeypatch, options, weight):
    """A part of the weights is random; another optimizer updates the others. The rate falls during the fit."""

    def make():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        model = pb.BayesianModel(
            net,
            prior=pb.NormalPrior(),
            likelihood=pb.GaussianLikelihood(None),
            num_data=6,
            where="net.2.*",
        )
        return model, pb.MeanFieldGuide(model, scale_map=pb.scale_maps.Precision()), six_rows()

    natural = pb.optim.natural_gradient(0.05, initial_hessian=0.5, others=functools.partial(FUSED, lr=0.01), **options)
    optimizer = pb.optim.scheduled(natural, functools.partial(torch.optim.lr_scheduler.StepLR, step_size=20, gamma=0.1))
    fits = replayed_fits(monkeypatch, make, optimizer=optimizer, num_epochs=50, batch_size=3, kl_weight=weight)
    (losses, parameters), (again, same) = fits
    assert losses == again
    torch.testing.assert_close(parameters, same, rtol=0, atol=0)


def test_recording_is_refused_where_it_is_impossible():
    model, guide, data = problem()()
    with pytest.raises(ValueError, match="fused=True"):
        pb.fit_svi(model, data, guide, optimizer=FUSED, num_epochs=1, execution=pb.Execution(cuda_graph=True))
    with pytest.raises(ValueError, match="AutoNormal"):
        pb.fit_svi(
            model,
            data,
            pb.auto_guide(AutoNormal, model),
            optimizer=FUSED,
            num_epochs=1,
            execution=pb.Execution(cuda_graph=True),
        )


def test_steps_of_a_sampler_are_not_recorded(monkeypatch):
    """A replay would not store draws."""
    model, _, data = problem()()
    record_steps(monkeypatch)
    with pytest.raises(ValueError, match="stochastic-gradient sampler cannot be recorded"):
        pb.fit_sgmcmc(
            model, data, sampler=pb.SGLD(1e-4), num_epochs=4, num_samples=2, execution=pb.Execution(cuda_graph=True)
        )


class Own(nn.Linear):
    """A module whose Python code a replay would leave out."""


@pytest.mark.parametrize(
    ("layer", "options", "is_recorded"),
    [
        (nn.Linear, {}, True),
        (Own, {}, False),
        (nn.Linear, {"callbacks": [lambda history: None]}, False),
        (nn.Linear, {"execution": pb.Execution()}, False),
        (nn.Linear, {"optimizer": functools.partial(torch.optim.Adam, lr=0.05)}, False),
        (nn.Linear, {"time_limit": 1000}, True),
    ],
)
def test_fit_records_steps_if_no_code_of_the_user_is_left_out(monkeypatch, layer, options, is_recorded):
    torch.manual_seed(0)
    x, y = six_rows()
    model = pb.BayesianModel(layer(4, 2), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(None), num_data=6)
    recorded = record_steps(monkeypatch)
    pb.fit(model, (x, y), **{"method": "svi", "optimizer": FUSED, "num_epochs": 9, "seed": 0, **options})
    assert bool(recorded) == is_recorded


def test_without_a_recording_fit_makes_ordinary_steps(monkeypatch):
    def record(function, beside):
        raise RecordingError("no")

    found = []
    for fails in (False, True):
        torch.manual_seed(0)
        x, y = six_rows()
        model = pb.BayesianModel(
            nn.Linear(4, 2), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(None), num_data=6
        )
        fit = functools.partial(pb.fit, model, (x, y), method="svi", optimizer=FUSED, num_epochs=9, seed=0)
        with monkeypatch.context() as patch:
            if fails:
                record_steps(patch)
                patch.setattr(_graph, "record", record)
                with pytest.warns(UserWarning, match="All steps are ordinary ones"):
                    found.append(fit().history.loss)
            else:
                found.append(fit().history.loss)
    assert found[0] == found[1]


@pytest.mark.gpu
def test_after_a_recording_that_fails_the_gpu_works():
    """Batch normalisation that averages over all batches reads their number in each step."""
    x, y = (part.cuda() for part in six_rows())
    net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, momentum=None, affine=False))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(None), num_data=6)
    fit = functools.partial(pb.fit, model.cuda(), (x, y), method="svi", num_epochs=9, seed=0)
    with pytest.raises(RecordingError, match="the network waits for the GPU"):
        fit(execution=pb.Execution(cuda_graph=True))
    with pytest.warns(UserWarning, match="All steps are ordinary ones"):
        fit()
    assert torch.randn(3, device="cuda").isfinite().all()


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
        history = pb.fit_svi(model, (x, y), guide, optimizer=FUSED, num_epochs=9, **options).history
        found.append(torch.tensor(history.expected_log_likelihood))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


NATURAL = pb.optim.natural_gradient(
    0.05, initial_hessian=0.5, gauss_newton_every=3, others=functools.partial(FUSED, lr=0.01)
)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", [FUSED, DECAYING, NATURAL], ids=["adam", "decay", "natural"])
def test_on_a_gpu_replays_give_the_same_fit(optimizer):
    found = []
    for cuda_graph in (False, True):
        torch.manual_seed(0)
        model, x, y = small_model(num_data=6)
        scale_map = pb.scale_maps.Precision() if optimizer is NATURAL else pb.scale_maps.Softplus()
        guide = pb.MeanFieldGuide(model.cuda(), scale_map=scale_map)
        options = {"optimizer": optimizer, "num_epochs": 40, "batch_size": 3, "seed": 1}
        execution = pb.Execution(cuda_graph=cuda_graph)
        found.append(pb.fit_svi(model, (x.cuda(), y.cuda()), guide, execution=execution, **options).history.loss)
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
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
        pb.fit_svi(model, (x, y), guide, optimizer=FUSED, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert forbidden == [1, 2, 3, 4] * 2
