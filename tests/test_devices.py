"""Everything that computes does so on the device of the model, and waits for it no more often than it must.

The device is torch's `meta` with values kept beside it; see `accelerator.py`. Results are compared with those of
the same computation on the CPU. The program waits when it reads a value, or copies numbers to the device. Tests
marked `gpu` need a GPU.
"""

import functools

import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn import scale_maps

from .accelerator import DEVICE, Accelerator, WrongDeviceError
from .cases import ESTIMATORS, FIXED_PRIORS, GUIDES, HIERARCHICAL_PRIORS, LEARNED_PRIORS, LIKELIHOODS, small_model
from .fits import forbid_direct

FUSED = functools.partial(torch.optim.Adam, lr=0.01, fused=True)

NUM_STEPS = 2

CPU_ONLY_FORMULAS = {"rtol": 1e-9, "atol": 1e-12}
"""A scale has another formula on a CPU, and long vectors are cut into pieces there: the same but for rounding."""


@pytest.fixture
def device():
    with Accelerator() as accelerator:
        yield accelerator


def problem(where=DEVICE, make_guide=pb.MeanFieldGuide, **kwargs):
    """A model, its guide and data, the same on every device."""
    torch.manual_seed(0)
    model, x, y = small_model(**{"num_data": 6, **kwargs})
    model = model.to(where)
    return model, make_guide(model), x.to(where), y.to(where)


def assert_no_waits(device):
    assert not device.reads
    assert not device.transfers


# --- steps ------------------------------------------------------------------------------------------------------------


def steps(model, guide, x, y, device=None, optimizer=FUSED, **options):
    """The ELBO's terms of some steps, after a first one that prepares them."""
    torch.manual_seed(1)
    with pb.svi_step(model, guide, optimizer, **options) as step:
        step(x, y)
        if device is not None:
            device.reset()
        terms = [step(x, y) for _ in range(NUM_STEPS)]
        if device is not None:
            device.counted_steps = device.num_reads, device.num_transfers
        return step.path, torch.stack([torch.stack([t.log_likelihood, t.kl]) for t in terms])


def assert_same_as_on_the_cpu(found, expected, guide, guide_on_cpu):
    torch.testing.assert_close(found.cpu(), expected, **CPU_ONLY_FORMULAS)
    parameters = dict(guide_on_cpu.named_parameters())
    for name, parameter in guide.named_parameters():
        assert parameter.device == DEVICE
        torch.testing.assert_close(parameter.cpu(), parameters[name], **CPU_ONLY_FORMULAS)


def check_steps(elbo, estimator=None, optimizer=FUSED, num_reads=0, num_transfers=0, **kwargs):
    """Steps give the numbers of the CPU, and wait for the device at most so many times each."""
    options = {"elbo": elbo(), "estimator": estimator, "optimizer": optimizer}
    model, guide, *data = problem("cpu", **kwargs)
    path, expected = steps(model, guide, *data, **options)
    with Accelerator() as device:
        *there, x, y = problem(DEVICE, **kwargs)
        path_there, found = steps(*there, x, y, device, **options)
        assert_same_as_on_the_cpu(found, expected, there[1], guide)
    assert path == path_there
    assert (path == "direct") == (num_reads == 0)
    reads, transfers = device.counted_steps
    assert reads <= NUM_STEPS * num_reads
    assert transfers <= NUM_STEPS * num_transfers


ELBOS = [Trace_ELBO, TraceMeanField_ELBO]


@pytest.mark.daily("*-TraceMeanField_ELBO", "normal-*")
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("prior", FIXED_PRIORS)
def test_a_direct_step_with_any_fixed_prior_never_waits(prior, elbo):
    check_steps(elbo, prior=FIXED_PRIORS[prior])


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_direct_step_with_any_likelihood_never_waits(likelihood):
    check_steps(TraceMeanField_ELBO, likelihood=likelihood)


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_direct_step_with_any_estimator_never_waits(estimator, elbo):
    check_steps(elbo, ESTIMATORS[estimator], likelihood="gaussian-latent")


NATURAL = pb.optim.natural_gradient(hessian_decay=0.9, others=FUSED)


def precisions(model):
    return pb.MeanFieldGuide(model, scale_map=scale_maps.Precision())


@pytest.mark.daily("normal", "mixture")
@pytest.mark.parametrize("prior", FIXED_PRIORS)
def test_a_step_of_natural_gradient_with_any_fixed_prior_never_waits(prior):
    check_steps(Trace_ELBO, optimizer=NATURAL, make_guide=precisions, prior=FIXED_PRIORS[prior])


@pytest.mark.parametrize("likelihood", ["gaussian-learned", "gaussian-latent"])
def test_a_step_of_natural_gradient_that_learns_a_noise_scale_never_waits(likelihood):
    check_steps(Trace_ELBO, optimizer=NATURAL, make_guide=precisions, likelihood=likelihood)


OF_PYRO = {"auto-normal": 65, "auto-full-rank": 50, "auto-low-rank": 50}
"""Guides that only Pyro can fit, with the most reads of a step: Pyro reads each site's density, and checks values."""


@pytest.mark.daily("normal", "frozen", "pruned", "low-rank", "batch-ensemble", "auto-normal")
@pytest.mark.parametrize("guide", GUIDES)
def test_steps_of_any_guide_wait_only_where_pyro_does(guide):
    check_steps(Trace_ELBO, make_guide=GUIDES[guide], num_reads=OF_PYRO.get(guide, 0))


@pytest.mark.daily("hierarchical", "learned")
@pytest.mark.parametrize("prior", [*HIERARCHICAL_PRIORS, *LEARNED_PRIORS])
def test_priors_that_only_pyro_can_fit_wait_only_where_pyro_does(prior):
    """The limits are for the largest number of sites; each site costs Pyro about ten reads."""
    model = {**HIERARCHICAL_PRIORS, **LEARNED_PRIORS}[prior]
    check_steps(TraceMeanField_ELBO, prior=model, num_reads=100)


def test_a_step_through_pyro_reads_nothing_itself(device, monkeypatch):
    """Pyro reads the loss; terms, gradients and flag of the step stay on the device."""
    forbid_direct(monkeypatch)
    model, guide, x, y = problem()
    steps(model, guide, x, y, device)
    inside_pyro = device.num_reads
    with pb.svi_step(model, guide, FUSED) as step:
        step(x, y)
        device.reset()
        terms = step(x, y)
        assert terms.values.device == DEVICE
    assert device.num_reads == inside_pyro / NUM_STEPS
    assert not [place for place in device.reads if "_step.py" in place]


def test_several_draws_and_parts_of_a_batch_never_wait(device):
    model, guide, x, y = problem()
    execution = pb.Execution(num_parts=2)
    steps(model, guide, x, y, device, elbo=Trace_ELBO(num_particles=3), execution=execution)
    assert device.counted_steps == (0, 0)


def test_a_step_that_is_not_finite_changes_nothing_and_is_told_later(device):
    model, guide, x, y = problem(likelihood="gaussian-fixed")
    with pb.svi_step(model, guide, FUSED) as step:
        step(x, y)
        before = [parameter.cpu() for parameter in guide.parameters()]
        device.reset()
        terms = step(x, y * torch.inf)
        assert_no_waits(device)
        assert not terms.is_finite.item()
        assert not step(x, y).is_finite.item()
        assert all(torch.equal(parameter.cpu(), old) for parameter, old in zip(guide.parameters(), before, strict=True))


def test_without_a_fused_optimizer_a_step_reads_one_number(device):
    model, guide, x, y = problem()
    with pb.svi_step(model, guide, functools.partial(torch.optim.SGD, lr=0.01)) as step:
        step(x, y)
        device.reset()
        step(x, y)
    assert list(device.reads.values()) == [1]


# --- the same tests must fail if something is wrong -------------------------------------------------------------------


class Reading(nn.Module):
    """A layer that looks at a value."""

    def forward(self, x):
        return x if float(x.sum()) != 0.5 else -x


class Mixing(nn.Module):
    """A layer with a constant that does not move to the device."""

    def __init__(self, constant):
        super().__init__()
        self.constant = constant

    def forward(self, x):
        return x * self.constant


class Copying(nn.Module):
    """A layer that makes a constant from numbers at each call."""

    def forward(self, x):
        return x * torch.tensor([2.0] * 5, device=x.device)


def net_with(layer):
    return nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 3))


def test_must_fail_a_read_is_counted(device):
    steps(*problem(net=net_with(Reading())), device)
    assert device.counted_steps == (NUM_STEPS, 0)


def test_must_fail_a_read_of_the_loss_is_counted(device):
    model, guide, x, y = problem()
    with pb.svi_step(model, guide, FUSED) as step:
        step(x, y)
        device.reset()
        for _ in range(3):
            float(step(x, y).elbo)
    assert device.num_reads == 3


def test_must_fail_a_copy_to_the_device_is_counted(device):
    steps(*problem(net=net_with(Copying())), device)
    assert device.counted_steps == (0, NUM_STEPS)


def test_must_fail_a_tensor_on_the_cpu_is_refused(device):
    with pytest.raises(ValueError, match="shape \\(5,\\) on cpu"):
        steps(*problem(net=net_with(Mixing(torch.ones(5)))), device)


def test_a_number_on_the_cpu_is_allowed_as_in_cuda(device):
    steps(*problem(net=net_with(Mixing(torch.tensor(2.0)))), device)
    assert device.counted_steps == (0, 0)
    assert device.scalars.total() == 2 * NUM_STEPS  # forward and backward


@pytest.mark.parametrize(
    "operation",
    [
        lambda here, cpu: torch.stack([here, cpu]),
        lambda here, cpu: torch.cat([here[None], cpu[None]]),
        lambda here, cpu: cpu.add_(here),
        lambda here, cpu: torch.randn_like(here).normal_(generator=torch.Generator()),
    ],
    ids=["stack", "cat", "into the CPU", "generator"],
)
def test_must_fail_what_cuda_refuses_is_refused(device, operation):
    with pytest.raises((WrongDeviceError, RuntimeError)):
        operation(torch.ones((), device=DEVICE), torch.ones(()))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda v: v.tolist(), [1.0, 2.0, 0.0]),
        (lambda v: bool(v.any()), True),
        (lambda v: v.cpu().sum().item(), 3.0),
        (lambda v: len(v.nonzero()), 2),
        (lambda v: len(v[v > 0]), 2),
        (lambda v: torch.equal(v, v), True),
        (lambda v: v.new_zeros(1).cpu().copy_(v[:1]).item(), 1.0),
    ],
    ids=["list", "truth", "cpu", "nonzero", "mask", "equal", "copy"],
)
def test_must_fail_every_kind_of_read_is_counted_and_answered(device, operation, expected):
    values = torch.tensor([1.0, 2.0, 0.0], device=DEVICE)
    device.reset()
    assert operation(values) == expected
    assert device.num_reads >= 1


@pytest.mark.parametrize(
    "make", [lambda v: v.new_tensor([1.0]), lambda v: torch.ones(1).to(v), lambda v: v[torch.arange(2)]]
)
def test_must_fail_every_kind_of_copy_is_counted(device, make):
    values = torch.ones(3, device=DEVICE)
    assert make(values).device == DEVICE
    assert device.num_transfers == 1


def test_what_needs_no_value_is_not_counted(device):
    values = torch.ones(3, device=DEVICE)
    values[values > 0] = 2.0
    values[1:].mul_(torch.full((2,), 3.0, device=DEVICE))
    assert_no_waits(device)
    assert values.tolist() == [2.0, 6.0, 6.0]
