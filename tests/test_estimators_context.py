"""An estimator's context leaves no trace, and errors name what it does not support."""

import copy
import pickle

import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb

from .cases import ESTIMATORS, small_model
from .fits import fit
from .layers import output, outputs, pair
from .tolerances import assert_identical


def draw_with_seed(model, guide, x):
    torch.manual_seed(3)
    return output(model, guide, x)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_after_the_context_all_is_as_before_even_after_an_error(estimator):
    model, x, y = small_model()
    guide = pb.MeanFieldGuide(model)
    before, keys = draw_with_seed(model, guide, x), (list(model.state_dict()), list(guide.state_dict()))
    applied = ESTIMATORS[estimator].applied(model, guide)
    with applied:
        assert not torch.equal(draw_with_seed(model, guide, x), before)
    with pytest.raises(ValueError, match="rows"), applied:  # it may be used again, and fail inside the model
        Trace_ELBO().loss(model, guide, x, y[:3])
    assert torch.equal(draw_with_seed(model, guide, x), before)
    assert (list(model.state_dict()), list(guide.state_dict())) == keys
    assert_identical(draw_with_seed(copy.deepcopy(model), pickle.loads(pickle.dumps(guide)), x), before)


# --- refusals ---------------------------------------------------------------------------------------------------------


class Using(nn.Module):
    """A network whose forward pass is given."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.run = forward

    def forward(self, x):
        return self.run(self.layers, x)


def twice(layers, x):
    return layers["a"](layers["a"](x))


def tied():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, second)


def attention(layers, x):
    return layers["a"](x[:, None], x[:, None], x[:, None])[0].squeeze(1)


MISUSES = {
    # name -> (network of four inputs, what the error names)
    "transposed": (Using(lambda m, x: x @ m["a"].weight.t(), a=nn.Linear(4, 4, bias=False)), r"a\.weight.*Tensor\.t\b"),
    "recurrent": (
        Using(lambda m, x: m["a"](x[:, None])[0].squeeze(1), a=nn.LSTM(4, 4, batch_first=True)),
        r"a\.weight_ih_l0.*lstm",
    ),
    "attention": (
        Using(attention, a=nn.MultiheadAttention(4, 2, batch_first=True)),
        r"a\.in_proj_weight.*multi_head_attention_forward",
    ),
    "embedding": (Using(lambda m, x: m["a"](x.long() * 0).mean(1), a=nn.Embedding(3, 4)), r"a\.weight.*embedding"),
    "normalisation": (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), r"net\.1\.weight.*layer_norm"),
    "batch-normalisation": (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "LayerNorm or GroupNorm"),
    "transposed-convolution": (
        Using(lambda m, x: m["a"](x[:, :, None]).squeeze(2), a=nn.ConvTranspose1d(4, 4, 1)),
        r"a\.weight.*conv_transpose1d",
    ),
    "weight-as-input": (
        Using(lambda m, x: x + nn.functional.linear(m["a"].weight, x[:4]).sum(), a=nn.Linear(4, 4, bias=False)),
        r"a\.weight.*linear",
    ),
    "used-twice": (Using(twice, a=nn.Linear(4, 4)), r"a\.weight.*used twice"),
    "tied": (tied(), r"net\.0\.weight.*used twice"),
    "unused": (Using(lambda m, x: m["a"](x), a=nn.Linear(4, 4), b=nn.Linear(4, 4)), r"b\.bias.*did not appear"),
    "merged-rows": (
        Using(lambda m, x: m["a"](x.reshape(-1, 2)).reshape(-1, 4), a=nn.Linear(2, 2)),
        r"a\.weight.*\(12, 2\).*6 rows",
    ),
    "no-rows": (Using(lambda m, x: x + m["a"](x[0]), a=nn.Linear(4, 4)), r"a\.weight.*\(4,\).*6 rows"),
    "unbatched": (
        Using(lambda m, x: m["a"](x).reshape(6, -1), a=nn.Conv1d(6, 6, 1)),
        r"a\.weight.*\(6, 4\).*3 (axes|dimensions)",
    ),
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", MISUSES)
def test_other_uses_of_a_random_parameter_are_refused_by_name(name, estimator):
    net, message = MISUSES[name]
    model, guide = pair(copy.deepcopy(net).double(), prior=pb.NormalPrior(0.5))
    x = torch.randn(6, 4)
    applied = ESTIMATORS[estimator].applied(model, guide)
    with applied, pytest.raises(ValueError, match=message) as caught:
        output(model, guide, x)
    assert "without an estimator" in str(caught.value)
    assert len(output(model, guide, x)) == 6  # as it is without


def test_what_a_network_asks_about_a_weight_is_no_use_of_it():
    def forward(layers, x):
        weight = layers["a"].weight
        assert (weight.shape, len(weight), weight.dim(), weight.dtype) == ((4, 4), 4, 2, x.dtype)
        return layers["a"](x).reshape(-1, weight.size(0))

    model, guide = pair(Using(forward, a=nn.Linear(4, 4)))
    assert outputs(ESTIMATORS["lrt"], model, guide, torch.randn(6, 4), 1).shape == (1, 6, 4)


def test_the_positions_of_a_row_are_refused_by_local_reparameterisation():
    model, guide = pair(nn.Linear(4, 3))
    applied = ESTIMATORS["lrt"].applied(model, guide)
    with applied, pytest.raises(ValueError, match=r"`net.weight` and `net.bias`.*\(6, 2, 4\).*Flipout\(\)"):
        output(model, guide, torch.randn(6, 2, 4))


def test_what_an_estimator_cannot_serve_is_refused_at_the_door():
    lrt = ESTIMATORS["lrt"]
    model, x, y = small_model(num_data=6)
    guide, other = pb.MeanFieldGuide(model), small_model(net=nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))[0]
    with pytest.raises(ValueError, match=r"`guide` must be a MeanFieldGuide.*AutoNormal"):
        lrt.applied(model, pb.auto_guide(AutoNormal, model))
    with pytest.raises(ValueError, match="`model` must be a BayesianModel"):
        lrt.applied(nn.Linear(2, 2), guide)
    with pytest.raises(ValueError, match=r"another model.*net\.1\.bias"):
        lrt.applied(other, guide)
    with pytest.raises(ValueError, match="`estimator` must be an Estimator"):
        fit(model, guide, x, y, estimator="lrt")
    with pytest.raises(ValueError, match="`estimator` must be an Estimator"):
        fit(model, guide, x, y, estimator=pb.Flipout)
    with pytest.raises(ValueError, match=r"`elbo` must be one of \[.*fit without an estimator"):
        fit(model, guide, x, y, estimator=lrt, elbo=RenyiELBO(num_particles=2))
    with (
        lrt.applied(model, guide),
        pytest.raises(ValueError, match="already applied"),
        pb.Flipout().applied(model, guide),
    ):
        pass
    fit(model, guide, x, y, estimator=lrt)  # nothing of this has left a trace


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_an_elbo_does_not_do_is_refused_in_the_context(estimator):
    model, x, y = small_model()
    guide = pb.MeanFieldGuide(model)
    with ESTIMATORS[estimator].applied(model, guide):
        with pytest.raises(ValueError, match=r"vectorise.*num_particles"):
            Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, x, y)
        with pytest.raises(ValueError, match="vectorise"):
            Predictive(model, guide=guide, num_samples=3, parallel=True)(x)
        with pytest.raises(ValueError, match=r"`net\.0\.weight` is not the last draw of the guide.*end its"):
            model(x)
        guide(x)
        with pytest.raises(ValueError, match="is not the last draw of the guide"):
            poutine.condition(model, {name: value.detach() for name, value in guide(x).items()})(x)
