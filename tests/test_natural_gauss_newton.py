"""Natural-gradient inference with estimates of the Gauss-Newton diagonal from simulated targets."""

import pytest
import torch
from pyro.infer import Trace_ELBO

import pyro_bnn as pb

from .cases import small_model, small_net
from .test_natural import flat, precise, unflat
from .tolerances import agrees_in_mean


def fisher_diagonal(model, guide, x):
    """The diagonal of a classifier's Gauss-Newton matrix for all data at the means, summed over all classes."""
    leaf = flat(guide.locations()).requires_grad_()
    probs = model.observation_given(unflat(leaf, guide.locations()), x).probs
    total = torch.zeros_like(leaf)
    for row in probs:
        for prob in row:
            (slope,) = torch.autograd.grad(prob.log(), leaf, retain_graph=True)
            total += prob.detach() * slope**2
    return total * model.num_data / len(x)


def gauss_newton_precisions(num_parts=1, num_draws=1, every=1, weighted=False):
    """Precisions after an estimate of the Hessian with no memory, over many repetitions, and the exact precisions."""
    model, x, y = small_model(num_data=60)
    if weighted:
        likelihood = pb.CategoricalLikelihood(class_weights=torch.full((3,), 3.0))
        model = pb.BayesianModel(small_net(), prior=pb.NormalPrior(0.7), likelihood=likelihood, num_data=60)
    guide = precise(model, 1e-6)  # draws are the means
    make = pb.optim.natural_gradient(1e-9, hessian_decay=0.0, gauss_newton_every=every)
    found = []
    with pb.svi_step(
        model, guide, make, elbo=Trace_ELBO(num_draws), execution=pb.Execution(num_parts=num_parts), kl_weight=0.5
    ) as step:
        step.prepared(x, y)
        start = guide.state_dict()
        start = {name: value.clone() for name, value in start.items()}
        torch.manual_seed(0)
        for _ in range(300):
            guide.load_state_dict(start)
            step(x, y)
            found.append(flat(guide.scales()) ** -2)
    guide.load_state_dict(start)
    return torch.stack(found), fisher_diagonal(model, guide, x) * (3 if weighted else 1) / 0.5 + 0.7**-2


@pytest.mark.daily("*weighted*")
@pytest.mark.parametrize(
    "options", [{}, {"num_parts": 2}, {"num_draws": 2}, {"num_parts": 2, "num_draws": 2}, {"weighted": True}], ids=str
)
def test_estimates_from_simulated_targets_have_the_mean_of_the_gauss_newton_diagonal(options):
    found, expected = gauss_newton_precisions(**options)
    assert agrees_in_mean(found, expected)
    assert not agrees_in_mean(found, 2 * expected)


def test_the_hessian_changes_only_in_steps_with_an_estimate():
    model, x, y = small_model(num_data=60)
    guide = precise(model)
    changes = []
    with pb.svi_step(model, guide, pb.optim.natural_gradient(0.05, gauss_newton_every=3)) as step:
        for _ in range(7):
            before = flat(guide.scales())
            step(x, y)
            changes.append(not torch.equal(before, flat(guide.scales())))
    assert changes == [True, False, False, True, False, False, True]
