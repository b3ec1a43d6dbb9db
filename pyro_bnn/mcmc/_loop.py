"""The loop over leapfrog steps as one operation, for the compiler.

A compiled loop handles each tensor of its state by itself at every step, which takes longer than the arithmetic on
small tensors. So the fields of a subtree pass through it in a few blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._tree import Setting, Subtree, Tree, ended, grow


class _State(NamedTuple):
    """What changes from step to step; no two of its tensors share memory, which the compiler requires."""

    position: Tensor  # (), number of steps whose random numbers are used up
    vectors: Tensor  # (6, K, P)
    numbers: Tensor  # (4, K)
    leaf: Tensor  # (K,)
    marks: Tensor  # (2, K)
    checkpoints: Tensor  # (2, K, D, P)
    dots: Tensor  # (K, D)


def grow_in_graph(
    loop: Callable[..., tuple[Tensor, ...]],
    value_and_grad: Callable[..., tuple[Tensor, Tensor]],
    constants: Sequence[Tensor],
    tree: Tree,
    subtree: Subtree,
    setting: Setting,
    log_uniform: Tensor,
    position: Tensor,
) -> tuple[Subtree, Tensor]:
    """Take steps of all chains until the subtree of one has ended, or the random numbers are used up.

    Args:
        loop: The operation, of which `loop_operation` says how it is called.
        value_and_grad: The potential, a function of z and of the constants.
        constants: The constants.
        tree: The trees of all chains.
        subtree: Their growing subtrees.
        setting: Step sizes, inverse masses and tables.
        log_uniform: Logarithms of uniform numbers, shape (steps, K).
        position: Number of steps whose numbers are used up.

    Returns:
        The subtrees and the new position.
    """
    own = (tree.initial_energy, tree.step, tree.size, setting.inverse_mass, setting.stores_at, setting.checks_at)
    fixed = (*own, log_uniform, *constants)

    def opened(*tensors: Tensor) -> tuple[_State, Tree, Setting, Tensor, tuple[Tensor, ...]]:
        """The arguments of the two functions below, by name."""
        state = _State(*tensors[: len(_State._fields)])
        initial_energy, step, size, inverse_mass, stores_at, checks_at, numbers, *rest = tensors[len(state) :]
        its_tree = tree._replace(initial_energy=initial_energy, step=step, size=size)
        its_setting = Setting(setting.step_size, inverse_mass, stores_at, checks_at)
        return state, its_tree, its_setting, numbers, tuple(rest)

    def goes_on(*tensors: Tensor) -> Tensor:
        state, its_tree, _, numbers, _ = opened(*tensors)
        return (state.position < len(numbers)) & ~ended(its_tree, _unpacked(state)).any()

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        state, its_tree, its_setting, numbers, rest = opened(*tensors)
        row = numbers.index_select(0, state.position.reshape(1))[0]

        def potential(z: Tensor) -> tuple[Tensor, Tensor]:
            return value_and_grad(z, *rest)

        return tuple(_packed(grow(potential, its_tree, its_setting, _unpacked(state), row), state.position + 1))

    state = _State(*loop(goes_on, step, tuple(_packed(subtree, position.clone())), fixed))
    return _unpacked(state), state.position


def _packed(subtree: Subtree, position: Tensor) -> Any:
    s = subtree
    return _State(
        position=position,
        vectors=torch.stack([s.z, s.r, s.gradient, s.proposal, s.proposal_gradient, s.momentum_sum]),
        numbers=torch.stack([s.proposal_potential, s.proposal_energy, s.log_weight, s.accept_sum]),
        leaf=s.leaf.clone(),
        marks=torch.stack([s.turning, s.diverging]),
        checkpoints=torch.stack([s.velocities, s.middles]),
        dots=s.dots.clone(),
    )


def _unpacked(state: _State) -> Subtree:
    z, r, gradient, proposal, proposal_gradient, momentum_sum = state.vectors.unbind()
    proposal_potential, proposal_energy, log_weight, accept_sum = state.numbers.unbind()
    turning, diverging = state.marks.unbind()
    velocities, middles = state.checkpoints.unbind()
    return Subtree(
        *(z, r, gradient, proposal, proposal_gradient, proposal_potential, proposal_energy, log_weight),
        *(momentum_sum, accept_sum, state.leaf, turning, diverging, velocities, middles, state.dots),
    )
