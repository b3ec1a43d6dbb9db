"""Every bad call raises an error that says what was expected, what was passed, and what to do; and it changes
nothing."""

import re

import pyro
import pytest
import torch

from . import behaviours, building, fitting, looking, predicting
from .table import World

ROWS = [*building.ROWS, *fitting.ROWS, *predicting.ROWS, *looking.ROWS, *behaviours.ROWS]

RAW = re.compile(
    r"Trace Shapes|aten::|has no attribute|Could not run|not supported between|not callable|is not iterable|"
    r"unsupported operand|Expected (parameter|value argument)|invalid combination|item\(\)|size of tensor a"
)
"""Words of Python's, torch's or Pyro's own errors, which say nothing about the argument."""

EXPECTED = re.compile(
    r"must|need|expect|are chosen with|made for another|lacks|only|cannot|hides|changes|"
    r"selects no|matches none|give either|but the|but `|was moved"
)
GOT = re.compile(r"\bgot\b|\bbut\b|lacks|which|says|; |matches none")
LONGEST = 600

_world = []


@pytest.fixture(scope="module", autouse=True)
def compiler():
    """The imports of the first call of `torch.compile`, which move random states: not inside a test."""
    validates = torch.distributions.Distribution._validate_args
    torch.compile(torch.nn.Identity())
    torch.distributions.Distribution.set_default_validate_args(validates)  # that call turns it off


@pytest.fixture
def world():
    if not _world:
        _world.append(World())
    return _world[0]


def everything(world):
    """Everything that a bad call might change."""
    modules = (world.net, world.model, world.guide, world.classifier, world.class_guide, world.other_guide)
    tensors = {f"{i}.{name}": v for i, m in enumerate(modules) for name, v in m.state_dict(keep_vars=True).items()}
    tensors |= {"x": world.x, "y": world.y, "labels": world.labels}
    return {
        "values": {name: (id(value), value.detach().clone()) for name, value in tensors.items()},
        "gradients": [name for name, value in tensors.items() if value.grad is not None],
        "modes": [module.training for part in modules for module in part.modules()],
        "hooks": [len(module._forward_hooks) for part in modules for module in part.modules()],
        "random numbers": torch.get_rng_state(),
        "parameter store": sorted(pyro.get_param_store().keys()),
        "handlers": len(pyro.poutine.runtime._PYRO_STACK),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
    }


def assert_unchanged(before, after):
    for name, (identity, value) in before.pop("values").items():
        same, now = after["values"][name]
        assert identity == same, name
        assert torch.equal(value, now), name
    assert torch.equal(before.pop("random numbers"), after["random numbers"])
    assert before == {name: after[name] for name in before}


def test_names_of_rows_are_unique_and_there_are_many():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert len(names) >= 250


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_bad_input_is_answered_with_a_sentence_and_changes_nothing(row, world):
    vars(world).update(numbers=world.numbers, classes=world.classes, grid=world.grid, laplace=world.laplace)
    before = everything(world)
    with pytest.raises(row.error) as caught:  # warnings are errors in all tests
        row.call(world)
    message = str(caught.value)
    assert isinstance(caught.value, row.error)
    assert caught.value.__class__.__module__.startswith("pyro_bnn") or type(caught.value) is row.error
    assert re.search(row.sentence, message), message
    assert not RAW.search(message), message
    assert EXPECTED.search(message), message
    assert GOT.search(message), message
    assert message.endswith("."), message
    assert len(message) <= LONGEST, message
    assert_unchanged(before, everything(world))


def test_the_check_of_a_row_finds_a_call_that_changes_something(world):
    """The twin that must fail: without it the comparison before and after could be empty."""
    before, saved = everything(world), world.y.clone()
    with torch.no_grad():
        world.y.add_(1.0)
    with pytest.raises(AssertionError):
        assert_unchanged(before, everything(world))
    with torch.no_grad():
        world.y.copy_(saved)
    before = everything(world)
    torch.rand(())
    with pytest.raises(AssertionError):
        assert_unchanged(before, everything(world))


@pytest.mark.parametrize("wrap", [torch.compile, lambda net: torch.nn.Sequential(torch.compile(net[0]))])
def test_a_compiled_network_is_served_as_the_network_that_was_compiled(wrap):
    net = torch.nn.Sequential(torch.nn.Linear(4, 2))
    model = World().model_of(wrap(net))
    assert model.site_names == ("net.0.weight", "net.0.bias")
    assert torch.equal(model.initial_value("net.0.weight"), net[0].weight)
