"""A step for users' loops, bit for bit the step of `fit_svi`."""

import functools
import math

import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.scale_maps import LogVariance
from pyro_bnn.inference.svi import NonFiniteError

from .fits import ADAM, fit, fresh
from .tolerances import assert_identical

# name -> (guide, options of the step)
STEPS = {
    "mean-field": (pb.MeanFieldGuide, {}),
    "log-variance": (functools.partial(pb.MeanFieldGuide, scale_map=LogVariance()), {}),
    "closed-form": (pb.MeanFieldGuide, {"elbo": TraceMeanField_ELBO(num_particles=2)}),
    "local-reparameterisation": (pb.MeanFieldGuide, {"estimator": pb.LocalReparameterization()}),
    "flipout": (pb.MeanFieldGuide, {"estimator": pb.Flipout(), "elbo": TraceMeanField_ELBO()}),
    "low-rank": (functools.partial(pb.LowRankGuide, rank=2), {}),
    "point": (pb.DeltaGuide, {}),
    "batch-ensemble": (pb.BatchEnsembleGuide, {}),
    "auto-normal": (functools.partial(pb.auto_guide, AutoNormal), {}),
}


def learned(model, guide):
    return {**dict(guide.named_parameters()), **dict(model.named_parameters())}


def of_all(model, guide):
    """An optimizer that is made before the step."""
    return ADAM([*guide.parameters(), *model.parameters()])


@pytest.mark.parametrize("is_made", [False, True], ids=["maker", "optimizer"])
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_those_of_a_fit_to_the_last_bit(name, is_made, path):
    make_guide, options = STEPS[name]
    model, guide, x, y = fresh(make_guide)
    history = fit(model, guide, x, y, num_epochs=5, seed=5, **options).history
    expected = learned(model, guide)

    model, guide, x, y = fresh(make_guide)
    torch.manual_seed(5)
    with pb.svi_step(model, guide, of_all(model, guide) if is_made else ADAM, **options) as step:
        terms = [step(x, y) for _ in range(5)]
    assert [float(t.log_likelihood) for t in terms] == history.expected_log_likelihood
    assert [float(t.kl) for t in terms] == history.kl
    assert [float(t.elbo) for t in terms] == history.elbo
    assert step.path == history.path
    assert (step.path == "direct") == (path == "direct" and name != "auto-normal")
    found = learned(model, guide)
    assert list(found) == list(expected)
    assert all(torch.equal(found[parameter], expected[parameter]) for parameter in found)


def test_another_seed_is_another_fit():
    """The must-fail twin."""
    model, guide, x, y = fresh()
    expected = fit(model, guide, x, y, num_epochs=1, seed=5).history.elbo
    model, guide, x, y = fresh()
    torch.manual_seed(6)
    with pb.svi_step(model, guide, ADAM) as step:
        assert float(step(x, y).elbo) != expected[0]


def test_the_terms_are_tensors_that_add_up(path):
    model, guide, x, y = fresh()
    with pb.svi_step(model, guide, ADAM, kl_weight=0.1) as step:
        terms = step(x, y)
    assert terms.elbo == terms.log_likelihood - terms.kl  # the bound itself, whatever the weight
    assert bool(terms.is_finite)
    for term in (terms.elbo, terms.log_likelihood, terms.kl, terms.is_finite):
        assert isinstance(term, torch.Tensor)
        assert term.shape == ()


def gradients_of(*, kl_weight=None, of_all_steps=1.0):
    model, guide, x, y = fresh()
    torch.manual_seed(5)
    still = functools.partial(torch.optim.SGD, lr=0.0)
    with pb.svi_step(model, guide, still, kl_weight=of_all_steps) as step:
        step(x, y, kl_weight=kl_weight)
    return torch.cat([parameter.grad.flatten() for parameter in guide.parameters()])


def test_each_step_may_have_a_weight_of_its_own(path):
    gradients = {weight: gradients_of(kl_weight=weight) for weight in (0.0, 1.0, 3.0)}
    assert_identical(gradients[3.0] - gradients[0.0], 3 * (gradients[1.0] - gradients[0.0]))
    assert (gradients[1.0] - gradients[0.0]).abs().max() > 0.1
    assert_identical(gradients_of(of_all_steps=3.0), gradients[3.0])
    assert_identical(gradients_of(kl_weight=0.0, of_all_steps=3.0), gradients[0.0])
    model, guide, x, y = fresh()
    with pb.svi_step(model, guide, ADAM) as step, pytest.raises(ValueError, match="at least 0, got -1"):
        step(x, y, kl_weight=-1)
    with pytest.raises(ValueError, match="finite number of at least 0"), pb.svi_step(model, guide, ADAM, kl_weight=-1):
        pass


# --- optimizers -------------------------------------------------------------------------------------------------------


def test_an_optimizer_of_some_parameters_leaves_the_others(path):
    model, guide, x, y = fresh()
    before = {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}
    with (
        pb.svi_step(model, guide, ADAM(list(guide.loc.parameters()))) as step,
        pytest.warns(UserWarning, match="must have all parameters of guide and model"),
    ):
        step(x, y)
    for name, parameter in guide.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith("rho")


def test_an_optimizer_over_foreign_parameters_is_refused(path):
    model, guide, x, y = fresh()
    foreign = ADAM([*guide.parameters(), nn.Parameter(torch.zeros(2))])
    with (
        pb.svi_step(model, guide, foreign) as step,
        pytest.raises(ValueError, match=r"of the guide or the model only, got 1 of 11 foreign; make it from"),
    ):
        step(x, y)
    others = ADAM(list(pb.MeanFieldGuide(model).parameters()))
    with pb.svi_step(model, guide, others) as step, pytest.raises(ValueError, match="10 of 10 foreign"):
        step(x, y)
    with pytest.raises(ValueError, match="must make a torch optimizer"), pb.svi_step(model, guide, "adam"):
        pass


def test_the_optimizer_can_be_reached():
    model, guide, x, y = fresh()
    made = of_all(model, guide)
    with pb.svi_step(model, guide, made) as step:
        assert step.optimizer is made
    with pb.svi_step(model, guide, ADAM) as step:
        assert step.path == ""
        with pytest.raises(ValueError, match=r"made at the first batch; call the step, or `prepared`, first"):
            _ = step.optimizer
        step.prepared(x, y)
        assert step.optimizer.param_groups[0]["lr"] == 0.01
        assert step.path == "direct"


def test_a_schedule_of_ones_own_changes_the_steps():
    model, guide, x, y = fresh()
    with pb.svi_step(model, guide, of_all(model, guide)) as step:
        schedule = torch.optim.lr_scheduler.LambdaLR(step.optimizer, lambda epoch: float(epoch > 0))
        before = [parameter.detach().clone() for parameter in guide.parameters()]
        step(x, y)
        assert all(map(torch.equal, guide.parameters(), before))
        schedule.step()
        step(x, y)
        assert not any(map(torch.equal, guide.parameters(), before))


# --- memory -----------------------------------------------------------------------------------------------------------


def assert_own_memory(guide):
    parameters = list(guide.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]  # none of a step that failed
    for tensors in (parameters, gradients):
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)
        assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in tensors)


DIRECT = {name: make for name, (make, options) in STEPS.items() if not options and name != "auto-normal"}


@pytest.mark.parametrize("name", DIRECT)
def test_parameters_have_memory_of_their_own_after_the_context(name):
    model, guide, x, y = fresh(DIRECT[name])
    with pb.svi_step(model, guide, ADAM) as step:
        step(x, y)
        num_vectors = len({parameter.untyped_storage().data_ptr() for parameter in guide.parameters()})
        assert num_vectors == {"mean-field": 2, "log-variance": 2, "low-rank": 3, "point": 1, "batch-ensemble": 2}[name]
        inside = [parameter.detach().clone() for parameter in guide.parameters()]
        gradients = [parameter.grad.clone() for parameter in guide.parameters()]
    assert_own_memory(guide)
    assert all(map(torch.equal, guide.parameters(), inside))
    assert all(map(torch.equal, (parameter.grad for parameter in guide.parameters()), gradients))


@pytest.mark.parametrize("name", DIRECT)
def test_an_error_in_the_context_gives_the_parameters_back(name):
    model, guide, x, y = fresh(DIRECT[name])

    def fail(second_batch):
        with pb.svi_step(model, guide, ADAM) as step:
            step(x, y)
            step(*second_batch)

    with pytest.raises(ValueError, match="rows"):
        fail((x, y[:3]))
    assert_own_memory(guide)
    with pytest.raises(NonFiniteError):
        fail((x * math.nan, y))
    assert_own_memory(guide)
    with pb.svi_step(model, guide, ADAM) as step:  # and all can go on
        assert bool(step(x, y).is_finite)


def test_nothing_is_touched_if_no_step_is_made():
    model, guide, _, _ = fresh()
    places = [parameter.data_ptr() for parameter in guide.parameters()]
    with pb.svi_step(model, guide, ADAM):
        pass
    assert [parameter.data_ptr() for parameter in guide.parameters()] == places


# --- trouble ----------------------------------------------------------------------------------------------------------


def test_a_bad_step_is_named_by_its_number(path):
    model, guide, x, y = fresh()
    with pb.svi_step(model, guide, ADAM) as step:
        step(x, y)
        step(x, y)
        before = [parameter.detach().clone() for parameter in guide.parameters()]
        with pytest.raises(NonFiniteError, match=r"the loss is not finite at step 2; the first bad site is `obs`"):
            step(x * math.nan, y)
        assert all(map(torch.equal, guide.parameters(), before))
        assert bool(step(x, y).is_finite)  # the next one may be a good one


def test_a_step_needs_a_draw():
    model, guide, _, _ = fresh()
    with (
        pytest.raises(ValueError, match="`num_particles` must be a whole number of at least 1"),
        pb.svi_step(model, guide, ADAM, elbo=Trace_ELBO(num_particles=0)),
    ):
        pass


def test_a_step_computes_gradients_under_no_grad():
    model, guide, x, y = fresh()
    with pb.svi_step(model, guide, ADAM) as step, torch.no_grad():
        assert bool(step(x, y).is_finite)
