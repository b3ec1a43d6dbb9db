"""A fit that fails names the fault and its remedy, and keeps the last finite parameters."""

import functools
import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from pyro_bnn.inference.posterior import ConvergenceWarning, warn_unless_ok
from pyro_bnn.inference.svi import NonFiniteError

from .cases import small_model
from .fits import ADAM, fit, whole


def test_a_loss_that_explodes_stops_with_the_last_finite_parameters(path):
    model, x, y = whole("poisson")
    guide = pb.MeanFieldGuide(model)
    with pytest.raises(NonFiniteError, match=r"not finite at epoch \d+, batch 0; the first bad site is `.*Try a lower"):
        fit(model, guide, x, y, optimizer=functools.partial(torch.optim.SGD, lr=1e6), num_epochs=50)
    assert all(torch.isfinite(p).all() for p in guide.parameters())


def test_a_gradient_that_is_not_finite_is_named(path):
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
    with pytest.raises(NonFiniteError, match=r"the gradient is not finite at epoch 0, batch 0.*`loc.net.layer.weight`"):
        fit(model, guide, x, y)
    assert all(torch.equal(a, b) for a, b in zip(guide.parameters(), before, strict=True))


@pytest.mark.daily("0.005-*")
@pytest.mark.parametrize(
    ("lr", "num_epochs", "label", "remedy"),
    [
        (5e-3, 200, "NOT OK: completed after", "Raise `num_epochs`, or the learning rate."),
        (5e-3, 30, "unknown: not judged: too few steps to see a plateau (30 epochs, 30 steps)", "Raise `num_epochs`."),
        (0.03, 3000, "ok", ""),
    ],
)
def test_an_objective_that_still_rises_is_reported_with_its_remedy(lr, num_epochs, label, remedy):
    """A slow fit is not over, thirty steps are too few to tell, and a long fit is over."""
    x = torch.linspace(-1, 1, 40)[:, None]
    model = pb.BayesianModel(
        nn.Linear(1, 1), prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.3), num_data=40
    )
    guide, adam = pb.MeanFieldGuide(model), functools.partial(torch.optim.Adam, lr=lr)
    elbo = TraceMeanField_ELBO()
    posterior = pb.fit_svi(model, (x, 2 * x), guide, optimizer=adam, num_epochs=num_epochs, elbo=elbo, seed=0)
    assert ("but the objective still rises, by" in str(posterior.status)) == (label == "NOT OK: completed after")
    assert posterior.status.remedy == remedy
    assert label in repr(posterior)


def test_a_falling_objective_is_reported_with_its_remedy(path):
    model, x, y = whole("gaussian-fixed")
    posterior = fit(
        model, pb.MeanFieldGuide(model), x, y, optimizer=functools.partial(torch.optim.SGD, lr=0.5), num_epochs=2
    )
    assert not posterior.status.ok
    assert posterior.status.remedy.startswith("Lower the learning rate")
    assert "{" not in posterior.status.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": lambda x: x[:5], "y": lambda y: y[:5]}, "`num_data` is 6 but the data has 5 rows"),
        ({"x": lambda x: x.clone().fill_(math.nan)}, "`x` must be finite, got 24 NaN"),
        ({"y": lambda y: y[:, None]}, r"call `y.squeeze\(-1\)`"),
        ({"y": lambda y: y + 5}, "class labels must lie in 0, ..., 2.*count from 0, as in `y - 5`"),
        ({"y": lambda y: torch.arange(6)}, "got 0 to 5; give the network one output per class"),
        ({"y": lambda y: torch.eye(3)[y]}, r"one class number a row; call `y.argmax\(-1\)` if the rows are one-hot"),
        ({"kl_weight": math.nan}, "a KL weight must be a finite number"),
    ],
)
def test_bad_arguments_are_named(change, message, path):
    model, x, y = whole()
    change = dict(change)
    x, y = (change.pop(name, lambda v: v)(value) for name, value in (("x", x), ("y", y)))
    with pytest.raises(ValueError, match=message):
        fit(model, pb.MeanFieldGuide(model), x, y, **change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: iter([(x, y)]), "must start anew in each of 2 epochs, got a generator or iterator"),
        (lambda x, y: [(x * math.nan, y)], "`x` must be finite"),
    ],
)
def test_bad_loaders_are_named(make, message, path):
    model, x, y = whole()
    with pytest.raises(ValueError, match=message):
        pb.fit_svi(model, make(x, y), pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=2)


def test_a_kl_weight_that_turns_negative_is_refused(path):
    model, x, y = whole()
    with pytest.raises(ValueError, match="finite number of at least 0, got -1"):
        fit(model, pb.MeanFieldGuide(model), x, y, kl_weight=lambda epoch, batch, num_batches: -1)


@pytest.mark.parametrize("elbo", [Trace_ELBO, pyro.infer.JitTrace_ELBO()])
def test_elbos_must_be_instances_that_work(elbo):
    model, x, y = whole()
    with pytest.raises(ValueError, match="`elbo` must be an instance such as"):
        fit(model, pb.MeanFieldGuide(model), x, y, elbo=elbo)


def test_a_loader_of_another_size_than_num_data_is_warned_about():
    model, x, y = small_model(num_data=7)
    with pytest.warns(UserWarning, match="`num_data` is 7 but an epoch has 12 rows"):
        pb.fit_svi(model, [(x, y), (x, y)], pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=1)
    model, x, y = small_model(num_data=100)
    with pytest.warns(UserWarning, match="`num_data` is 100 but an epoch has 6 rows") as caught:
        pb.fit_svi(model, [(x, y)], pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=1)
    assert caught[0].filename == __file__
    model, x, y = small_model(num_data=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(TensorDataset(x, y), batch_size=4, drop_last=True)  # drops less than a batch: no warning
        pb.fit_svi(model, loader, pb.MeanFieldGuide(model), optimizer=ADAM, num_epochs=1)


def test_stock_guides_are_refused_under_the_mean_field_elbo():
    """This ELBO would silently lose the Jacobian of the constrained noise scale (trap 1)."""
    model, x, y = whole("gaussian-latent")
    with pytest.raises(ValueError, match=r"AutoNormal samples auxiliary variables.*use `elbo=Trace_ELBO\(\)`"):
        fit(model, AutoNormal(model), x, y, elbo=TraceMeanField_ELBO())


@pytest.mark.uses_param_store
def test_a_guide_that_took_obs_for_a_latent_is_refused():
    """A stock guide first called without targets: the error would come much later and say something else (trap 7)."""
    model, x, y = whole("gaussian-learned")
    guide = AutoNormal(model)
    guide(x)
    with pytest.raises(ValueError, match=r"draws the observed site `obs`.*auto_guide"):
        fit(model, guide, x, y)


def test_guides_of_nothing_and_foreign_parameters_are_refused_with_the_remedy():
    model, x, y = whole()
    with pytest.raises(ValueError, match=r"made for another model: it lacks \['net.0.weight'"):
        fit(model, lambda *args: None, x, y)
    with pytest.raises(ValueError, match=r"`guide` must be an instance, got the class; pass `MeanFieldGuide\(model\)`"):
        fit(model, pb.MeanFieldGuide, x, y)

    class Global(PyroModule):
        def forward(self, *args):
            loc = pyro.param("loc", torch.zeros(5, 4))
            pyro.sample("net.0.weight", dist.Normal(loc, 0.1).to_event(2))

    with pytest.raises(ValueError, match="parameter `loc` must be in the guide, but is in Pyro's global store"):
        fit(*((m := whole())[0], Global(), *m[1:]))


@pytest.mark.parametrize("optimizer", ["adam", pyro.optim.Adam({"lr": 0.1}), torch.optim.Adam([torch.zeros(1)])])
def test_optimizers_must_be_makers_of_torch_optimizers(optimizer):
    model, x, y = whole()
    with pytest.raises(ValueError, match="`optimizer` must make a torch optimizer from parameters, such as"):
        fit(model, pb.MeanFieldGuide(model), x, y, optimizer=optimizer)


def test_an_unknown_status_is_no_reason_to_warn():
    warn_unless_ok(pb.Status(None, "Stopped by hand."))
    with pytest.warns(ConvergenceWarning, match=r"Stopped\."):
        warn_unless_ok(pb.Status(False, "Stopped."))
