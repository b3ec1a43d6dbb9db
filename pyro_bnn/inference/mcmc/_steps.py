"""The loop over leapfrog steps in Python. On a CPU, torch replays each of its parts without Python in between."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._kernel import ValueAndGrad
from ._replayed import graph_of, recorded, require_agreement, require_cpu
from ._traced import UnsupportedError
from ._tree import Setting, Subtree, Tree, ended, finish, grow, start

SHORT = 0.01
"""Size of a step that is taken to see whether a record is right."""

State = tuple[Tree, Subtree, Setting]


class Parts(NamedTuple):
    """The parts of a trajectory: functions of the trees, the subtrees, the setting, and random numbers."""

    start: Callable[..., tuple[Tree, Subtree]]
    """Starts the trajectories of chains that have finished; see :func:`start`."""
    grow: Callable[..., tuple[Subtree, int]]
    """Takes steps until the subtree of one chain has ended, or the random numbers are used up; returns their number."""
    finish: Callable[..., tuple[Tree, Subtree]]
    """Merges the subtrees that have ended, and starts the next ones; see :func:`finish`."""
    obstacle: str
    """Why steps are not replayed; empty if they are."""


class Ending(NamedTuple):
    """Whether a loop over steps is to end."""

    has_ended: Tensor  # (), whether the subtree of any chain has


def one_by_one(value_and_grad: ValueAndGrad, max_size: int, state: State, normal: Tensor, log_uniform: Tensor) -> Parts:
    """The parts for one potential, with a loop that takes one step of all chains after the other.

    Args:
        value_and_grad: The potential.
        max_size: Number of points of the largest tree.
        state: Trees, subtrees and setting, as examples.
        normal: Standard normal numbers, shape (K, P), likewise.
        log_uniform: Logarithms of uniform numbers, shape (3, K), likewise.
    """
    step: Callable[..., Any] = functools.partial(_step, value_and_grad)
    first: Callable[..., Any] = start
    last: Callable[..., Any] = functools.partial(finish, max_size)
    for_step, *for_last = (row.clone() for row in log_uniform.unbind())
    tree, *rest = state
    short = tree._replace(step=torch.full_like(tree.step, SHORT))
    obstacle = ""
    try:
        require_cpu(normal)
        first, last = _quick(first, [*state, normal]), _quick(last, [*state, *for_last])
        graph, constants = graph_of(value_and_grad, tree.proposal)
        step = _quick_step(step, graph, constants, [short, *rest, for_step])
    except UnsupportedError as error:
        obstacle = str(error)
    return Parts(first, functools.partial(_grow, step), last, obstacle)


def _grow(
    step: Callable[..., tuple[Subtree, Ending]], tree: Tree, subtree: Subtree, setting: Setting, log_uniform: Tensor
) -> tuple[Subtree, int]:
    """Take steps until the subtree of one chain has ended, or the random numbers are used up; returns their number."""
    num_steps = 0
    for numbers in log_uniform:
        (subtree, ending), num_steps = step(tree, subtree, setting, numbers), num_steps + 1
        if bool(ending.has_ended):
            break
    return subtree, num_steps


def _step(
    value_and_grad: ValueAndGrad, tree: Tree, subtree: Subtree, setting: Setting, log_uniform: Tensor
) -> tuple[Subtree, Ending]:
    """One step of all chains."""
    subtree = grow(value_and_grad, tree, setting, subtree, log_uniform)
    return subtree, Ending(ended(tree, subtree).any())


def _quick_step(
    step: Callable[..., Any], graph: ValueAndGrad, constants: Sequence[Tensor], example: Sequence[Any]
) -> Callable[..., Any]:
    """A step, replayed; its potential was recorded before, which leaves autograd out."""

    def of_graph(*arguments: Any) -> Any:
        own, rest = arguments[: len(example)], arguments[len(example) :]
        return _step(lambda z: graph(z, *rest), *own)

    return _quick(step, example, records=of_graph, constants=constants)


def _quick(
    part: Callable[..., Any],
    example: Sequence[Any],
    *,
    records: Callable[..., Any] | None = None,
    constants: Sequence[Tensor] = (),
) -> Callable[..., Any]:
    """A part, replayed.

    Args:
        part: Function of named tuples of tensors, and of tensors, that returns named tuples.
        example: Its arguments.
        records: Function of the same and of the constants, which is recorded in its place; None is the part.
        constants: The constants.

    Raises:
        UnsupportedError: If it cannot be recorded, or its record returns other numbers.
    """
    kinds: list[Any] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        results = (records or part)(*_opened(example, tensors))
        kinds[:] = map(type, results)
        return [*itertools.chain(*results)]

    run = recorded(flat, [*_flat(example), *constants])

    def quick(*arguments: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            rest = iter(run(*_flat(arguments), *constants))
        return tuple(kind(*itertools.islice(rest, len(kind._fields))) for kind in kinds)

    elsewhere = _opened(example, [t + 0.1 if t.is_floating_point() else t for t in _flat(example)])
    require_agreement(_flat(quick(*elsewhere)), _flat(part(*elsewhere)))
    return quick


def _flat(arguments: Sequence[Any]) -> list[Tensor]:
    """All tensors of named tuples and tensors."""
    return [*itertools.chain(*([a] if isinstance(a, Tensor) else a for a in arguments))]


def _opened(like: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """Tensors as the named tuples and tensors of other arguments, and further tensors."""
    rest = iter(tensors)
    own = [next(rest) if isinstance(a, Tensor) else type(a)(*itertools.islice(rest, len(a))) for a in like]
    return [*own, *rest]
