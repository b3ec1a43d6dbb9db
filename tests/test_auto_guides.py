import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO

import pyro_bnn as pb

from .cases import GUIDES, small_model
from .tolerances import assert_identical

AUTO = {name: make for name, make in GUIDES.items() if name.startswith("auto")}


@pytest.mark.parametrize("name", AUTO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autoguides_follow_their_model_to_another_dtype(name, dtype):
    model, x, y = small_model(likelihood="gaussian-latent", num_data=6)
    model.to(dtype)
    x, y = x.to(dtype), y.to(dtype)
    for guide in (AUTO[name](model), AUTO[name](small_model(likelihood="gaussian-latent")[0]).to(dtype)):
        posterior = pb.fit_svi(model, (x, y), guide, optimizer=torch.optim.Adam, num_epochs=2)
        assert pb.predict(model, posterior, x, num_samples=2).mean.dtype == dtype
        assert all(value.dtype == dtype for value in posterior.sample(1).values())


@pytest.mark.uses_param_store
@pytest.mark.parametrize("name", AUTO)
def test_autoguides_work_in_pyros_own_loop(name):
    model, x, y = small_model(num_data=6)
    guide = AUTO[name](model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    losses = [svi.step(x, y) for _ in range(100)]
    assert sum(losses[-10:]) < sum(losses[:10])
    trained, other = (pb.GuidePosterior(g).median()["net.0.weight"] for g in (guide, AUTO[name](model)))
    assert not torch.equal(trained, model.initial_value("net.0.weight"))
    assert_identical(other, model.initial_value("net.0.weight"))  # not what the store now holds
