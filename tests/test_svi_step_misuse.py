"""Steps that are used side by side, too late, or in a place where their numbers would be wrong."""

import functools

import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.utils.checkpoint import checkpoint

import pyro_bnn as pb
from pyro_bnn.inference.joint import check_gradients
from pyro_bnn.modelling.priors import HierarchicalPrior

from .fits import ADAM, fit, fresh, whole
from .tolerances import assert_identical


def states(guides):
    return [{name: p.detach().clone() for name, p in guide.named_parameters()} for guide in guides]


def run(steps, x, y):
    """Three steps of each; the data of each differ."""
    for k in range(3):
        for index, step in steps:
            torch.manual_seed(10 * index + k)
            step(x, y + index)


@pytest.mark.parametrize("make_guide", [pb.MeanFieldGuide, functools.partial(pb.auto_guide, AutoNormal)])
def test_two_steps_side_by_side_are_those_of_one_after_the_other(make_guide):
    results = []
    for is_nested in (False, True):
        pairs = [fresh(make_guide) for _ in range(2)]
        (m0, g0, x, y), (m1, g1, _, _) = pairs
        if is_nested:
            with pb.svi_step(m0, g0, ADAM) as first, pb.svi_step(m1, g1, ADAM) as second:
                run([(0, first), (1, second)], x, y)
        else:
            for index, (model, guide, _, _) in enumerate(pairs):
                with pb.svi_step(model, guide, ADAM) as step:
                    run([(index, step)], x, y)
        results.append(states([g0, g1]))
    for alone, nested in zip(*results, strict=True):
        assert alone.keys() == nested.keys()
        for name, value in alone.items():
            assert_identical(nested[name], value)


@pytest.mark.parametrize("make_guide", [pb.MeanFieldGuide, functools.partial(pb.auto_guide, AutoNormal)])
def test_the_parameter_store_is_the_callers_between_steps_and_afterwards(make_guide):
    pairs = [fresh(make_guide) for _ in range(2)]
    (m0, g0, x, y), (m1, g1, _, _) = pairs
    pyro.param("rho.net.0.weight", torch.ones(2))
    with pb.svi_step(m0, g0, ADAM) as first:
        with pb.svi_step(m1, g1, ADAM) as second:
            second(x, y)
            first(x, y)
        pyro.param("mine", torch.ones(1))
    assert set(pyro.get_param_store().keys()) == {"rho.net.0.weight", "mine"}
    pyro.clear_param_store()


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_step_after_its_context_is_refused(is_begun, path):
    model, guide, x, y = fresh()
    with pb.svi_step(model, guide, ADAM) as step:
        if is_begun:
            step(x, y)
    with pytest.raises(ValueError, match=r"this step is closed; use `with pb\.svi_step"):
        step(x, y)


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_step_in_inference_mode_is_refused(is_begun, path):
    model, guide, x, y = fresh()
    message = r"needs gradients; call it outside of `torch\.inference_mode\(\)`"
    with pb.svi_step(model, guide, ADAM) as step:
        if is_begun:
            step(x, y)
        with torch.inference_mode(), pytest.raises(ValueError, match=message):
            step(x, y)


@pytest.mark.parametrize("is_begun", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x,), "must be a pair.* got one tensor, without targets"),
        (lambda x, y: (), "must be a pair"),
        (lambda x, y: (x, y, y), "must be a pair"),
        (lambda x, y: (x, None), "`y` must be a tensor, an array, .*, got NoneType"),
        (lambda x, y: ("text", y), "`x` must be a tensor, an array, .*, got str"),
    ],
)
def test_a_batch_without_targets_is_no_batch(change, message, is_begun, path):
    model, guide, x, y = fresh()
    with pb.svi_step(model, guide, ADAM) as step:
        if is_begun:
            step(x, y)
        with pytest.raises(ValueError, match=message):
            step(*change(x, y))
        assert step((x, y)).num_rows == len(x)  # one pair, as from a loader


def test_weights_removed_in_the_context_of_a_step_are_refused_and_masks_loaded_again_are_not():
    model, guide, x, y = fresh()
    masks = {name: torch.ones_like(value, dtype=torch.bool) for name, value in guide.locations().items()}
    masks = {name: mask for name, mask in masks.items() if name in model.site_names}
    guide.keep_only(masks)
    with pb.svi_step(model, guide, ADAM) as step:
        step(x, y)
        guide.load_state_dict(guide.state_dict())
        step(x, y)
        guide.keep_only({name: torch.zeros_like(mask) for name, mask in masks.items()})
        with pytest.raises(ValueError, match="weights of the guide were removed"):
            step(x, y)


def test_a_guide_moved_to_another_dtype_in_the_context_of_a_step_is_refused():
    model, guide, x, y = fresh()
    with pb.svi_step(model, guide, ADAM) as step:
        step(x, y)
        guide.to(torch.float32 if model.dtype == torch.float64 else torch.float64)
        with pytest.raises(ValueError, match="parameters of the guide were moved from"):
            step(x, y)


def test_a_rank_may_be_a_whole_number_of_any_kind():
    assert pb.LowRankGuide(fresh()[0], rank=2.0).factor.shape[0] == 2


class FixedAfterAll(HierarchicalPrior):
    def elementwise_given(self, values, name, parameter, module):
        return pb.NormalPrior(2.0).elementwise(name, parameter, module)


def test_a_hierarchical_prior_that_depends_on_nothing_is_a_fixed_one():
    options = {"likelihood": pb.GaussianLikelihood(0.5), "num_data": 3}
    model, fixed = (
        pb.BayesianModel(nn.Linear(2, 1), prior=p, **options) for p in (FixedAfterAll(), pb.NormalPrior(2.0))
    )
    value = torch.ones(1, 2).to(model.dtype)
    assert_identical(model.prior_of("net.weight").log_prob(value), fixed.prior_of("net.weight").log_prob(value))


class Checkpointed(nn.Module):
    """Its backward pass runs the first layer again, after the drawn weights were removed from the network."""

    def __init__(self, is_checkpointed):
        super().__init__()
        self.first, self.last, self.is_checkpointed = nn.Linear(3, 8), nn.Linear(8, 1), is_checkpointed

    def forward(self, x):
        def hidden(x):
            return torch.tanh(self.first(x))

        return self.last(checkpoint(hidden, x, use_reentrant=False) if self.is_checkpointed else hidden(x))


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_activations_recomputed_from_other_weights_are_found(is_checkpointed):
    found = 0
    for seed in range(10):
        torch.manual_seed(seed)
        net, x, y = Checkpointed(is_checkpointed), torch.randn(20, 3), torch.randn(20, 1)
        options = {"prior": pb.NormalPrior(), "likelihood": pb.GaussianLikelihood(0.5), "num_data": 20}
        model = pb.BayesianModel(net, where=["net.first.bias", "net.last.weight"], **options)
        try:
            check_gradients(model, x, y)
        except ValueError:
            found += 1
    assert found >= 7 if is_checkpointed else found == 0


def test_a_point_is_no_guide_for_a_prior_that_is_learned():
    """The scale would shrink with the weights, and the objective grow without bound."""
    model, _, _ = whole(prior=pb.LearnedNormalPrior())
    with pytest.raises(ValueError, match="a guide that is a point does not work with a learned prior"):
        pb.DeltaGuide(model)


@pytest.mark.parametrize("make", [pb.MeanFieldGuide, functools.partial(pb.auto_guide, AutoNormal)])
def test_a_guide_of_a_model_with_other_latent_variables_is_refused(make):
    """Pyro would only warn, and count the scale's prior without its guide."""
    plain, x, y = whole()
    hierarchical, _, _ = whole(prior=pb.HierarchicalNormalPrior())
    with pytest.raises(ValueError, match=r"made for another model: it lacks \['prior"):
        fit(hierarchical, make(plain), x, y)
    with pytest.raises(ValueError, match=r"made for another model: it also draws \['prior"):
        fit(plain, make(hierarchical), x, y)


def test_a_step_shows_what_it_fits_and_a_wrong_call_shows_a_right_one():
    model, guide, x, y = fresh()
    with pytest.raises(TypeError, match=r"got 4; pass the others by name. Example: with svi_step\(model, guide"):
        pb.svi_step(model, guide, (x, y), ADAM)
    with pb.svi_step(model, guide, ADAM) as step:
        assert repr(step) == "SVIStep(BayesianModel, MeanFieldGuide, before its first batch)"
        step(x, y)
        assert repr(step) == "SVIStep(BayesianModel, MeanFieldGuide, direct)"
    assert repr(step) == "SVIStep(BayesianModel, MeanFieldGuide, closed)"


def test_a_step_outside_of_a_with_statement_is_refused():
    model, guide, x, y = fresh()
    step = pb.svi_step(model, guide, ADAM)
    assert repr(step) == "SVIStep(BayesianModel, MeanFieldGuide, to be opened by `with`)"
    with pytest.raises(ValueError, match=r"this step is not open; use `with pb.svi_step\(.*\) as step:`"):
        step(x, y)
    with step as opened:
        opened(x, y)
    with pytest.raises(ValueError, match="this step was opened before; use `with"), step:
        pass


def test_a_wrong_argument_of_a_step_is_refused_before_with():
    model, guide, _, _ = fresh()
    with pytest.raises(ValueError, match="`optimizer` must make a torch optimizer"):
        pb.svi_step(model, guide, "adam")
