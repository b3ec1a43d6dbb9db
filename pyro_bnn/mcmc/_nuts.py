"""The No-U-Turn Sampler for many chains at once.

All chains share one evaluation of the potential, and none waits for another: each takes its leapfrog step inside its
own tree, wherever the others are in theirs. `_tree.py` has the algorithm; here are the loop around it and the compiler.
"""

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from .._scope import seeded
from ._compiled import compiled, explained, loop_operation
from ._kernel import Compile, Draws, Kernel, Sampler, ValueAndGrad
from ._loop import grow_in_graph
from ._native import Native, native
from ._native_kernel import NativeKernel
from ._steps import Parts, one_by_one
from ._traced import traced
from ._tree import Setting, Subtree, Tree, checkpoint_tables, empty, finish, start

RANDOM_BLOCK = 256
"""Uniform numbers are drawn for this many steps at once; heuristic."""

Advance = Callable[..., tuple[Tree, Subtree, Tensor]]
"""Function that begins, grows, merges and turns trees; its arguments are those of `_advance` from `tree` on."""


@dataclass(frozen=True)
class NUTS(Sampler):
    r"""The No-U-Turn Sampler: trajectories that grow until they turn back.

    The next draw is one of the points of a trajectory, which doubles until it, or one of the balanced subtrees that it
    is made of, turns back on itself: with velocities v at the two ends and :math:`\rho` the sum of the momenta from end
    to end, the two ends counting half, until :math:`v \cdot \rho \le 0` at either end.

    Args:
        max_tree_depth: Draws take at most ``2 ** max_tree_depth - 1`` leapfrog steps.

    References:
        Hoffman and Gelman (2014), https://arxiv.org/abs/1111.4246; Betancourt (2017),
        https://arxiv.org/abs/1701.02434, appendix A, for the weights of the points and the criterion.
    """

    max_tree_depth: int = 10

    def __post_init__(self) -> None:
        _checks.at_least("max_tree_depth", self.max_tree_depth, 1)

    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: Compile = False) -> Kernel:
        """The sampler on one potential. A small network is compiled to C, with as many chains at a time as threads."""
        if compile:
            sampler = self._native(value_and_grad, z[:1], is_needed=compile is True)
            if sampler is not None:
                return NativeKernel(sampler, z, num_threads=torch.get_num_threads())
        return NUTSKernel(value_and_grad, z, max_tree_depth=self.max_tree_depth, compile=compile is True)

    def _native(self, value_and_grad: ValueAndGrad, z: Tensor, *, is_needed: bool) -> Native | None:
        """The sampler in C; None if it is not for C. A fault of the compiler is an error only where it is needed."""
        try:
            with explained():
                return native(value_and_grad, z, self.max_tree_depth)
        except RuntimeError as error:
            if is_needed:
                raise
            warnings.warn(f"the chains run uncompiled, which is slow: {error.__cause__}", stacklevel=2)
            return None


class NUTSKernel(Kernel):
    """NUTS on one potential; see :class:`NUTS`.

    Args:
        value_and_grad: The potential.
        z: First points, shape (K, P).
        max_tree_depth: Draws take at most ``2 ** max_tree_depth - 1`` leapfrog steps.
        compile: Compile what grows, merges and turns the trees, the potential included.
    """

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor, *, max_tree_depth: int, compile: bool = False) -> None:
        super().__init__(value_and_grad, z)
        self._tables = checkpoint_tables(max_tree_depth, z.device)
        self._tree, self._subtree = empty(z, *value_and_grad(z), num_levels=self._tables[0].shape[1])
        self._log_uniform = z.new_empty(0, 3, len(z))  # random numbers for the next steps
        self._position = torch.zeros_like(self._tree.size[0])  # number of steps for which they are used up
        max_size = 2**max_tree_depth
        self._advance = self._compiled(max_size) if compile else self._one_by_one(max_size)

    def _one_by_one(self, max_size: int) -> Advance:
        """The function that advances all trees with a loop in Python."""
        state = self._tree, self._subtree, self._setting
        with seeded(0, self._position.device):
            parts = one_by_one(self.value_and_grad, max_size, state, self._normal(), self._random_block()[0])
        return functools.partial(_advance, parts, lambda chains: bool(chains.any()))

    def _compiled(self, max_size: int) -> Advance:
        """The compiled function that advances all trees."""
        z = self._tree.proposal
        with explained():
            potential = traced(self.value_and_grad, [z])
        loop = loop_operation()

        def advance_flat(*tensors: Tensor) -> list[Tensor]:
            tree, subtree, setting, normal, log_uniform, position, constants = _opened(tensors)
            grow_all = functools.partial(grow_in_graph, loop, potential.graph, constants)
            parts = Parts(start, grow_all, functools.partial(finish, max_size))
            result = _advance(parts, lambda _: True, tree, subtree, setting, normal, log_uniform, position)
            return [tensor.contiguous() for tensor in (*result[0], *result[1], result[2])]  # strides of the arguments

        with seeded(0, z.device):
            numbers = self._normal(), self._random_block(), self._position
        example = [*self._tree, *self._subtree, *self._setting, *numbers, *potential.constants]
        run = compiled(advance_flat, example, loops=z.device.type == "cpu")

        def advance(tree: Tree, subtree: Subtree, setting: Setting, *numbers: Tensor) -> tuple[Tree, Subtree, Tensor]:
            result = run(*tree, *subtree, *setting, *numbers, *potential.constants)
            num_fields = len(tree)
            return Tree(*result[:num_fields]), Subtree(*result[num_fields:-1]), result[-1]

        return advance

    @property
    def _setting(self) -> Setting:
        return Setting(self.step_size.contiguous(), self.inverse_mass.contiguous(), *self._tables)

    def draw(self) -> Draws:
        """Go on until chains finish a draw; the others stay inside of their trees."""
        normal = self._normal()
        while True:
            if self._position == len(self._log_uniform):
                self._log_uniform, self._position = self._random_block(), torch.zeros_like(self._position)
            self._tree, self._subtree, self._position = self._advance(
                self._tree, self._subtree, self._setting, normal, self._log_uniform, self._position
            )
            if bool(self._tree.finished.any()):
                return self._report()

    def state(self) -> dict[str, Any]:
        """The trees, and the random numbers that are left for their next steps; see :meth:`Kernel.state`."""
        return {
            "tree": list(self._tree),
            "subtree": list(self._subtree),
            "log_uniform": self._log_uniform,
            "position": self._position,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self.require_own(state, "tree")
        to = functools.partial(torch.Tensor.to, device=self._position.device, copy=True)
        self._tree, self._subtree = Tree(*map(to, state["tree"])), Subtree(*map(to, state["subtree"]))
        self._log_uniform, self._position = to(state["log_uniform"]), to(state["position"])

    def _normal(self) -> Tensor:
        """Standard normal numbers for the next momenta, shape (K, P)."""
        return torch.randn_like(self._tree.proposal)

    def _random_block(self) -> Tensor:
        """Logarithms of uniform numbers, shape (steps, 3, K)."""
        return self._tree.log_weight.new_empty(RANDOM_BLOCK, 3, len(self._tree.log_weight)).uniform_().log()

    def _report(self) -> Draws:
        tree = self._tree
        return Draws(
            finished=tree.finished,
            z=tree.proposal,
            log_density=-tree.proposal_potential,
            energy=tree.proposal_energy,
            accept=tree.accept_sum / tree.num_steps,
            diverging=self._subtree.diverging,
            num_steps=tree.num_steps,
        )


def _advance(
    parts: Parts,
    occurs: Callable[[Tensor], bool],
    tree: Tree,
    subtree: Subtree,
    setting: Setting,
    normal: Tensor,
    log_uniform: Tensor,
    position: Tensor,
) -> tuple[Tree, Subtree, Tensor]:
    """Begin trajectories where a draw was finished, grow all subtrees until one of them ends, and merge those that did.

    Args:
        parts: What these three do.
        occurs: Whether any chain is marked; always true in a compiled function, which cannot branch on it.
        tree: The trees of all chains.
        subtree: Their growing subtrees.
        setting: Step sizes, inverse masses and tables.
        normal: Standard normal numbers for new momenta, shape (K, P).
        log_uniform: Logarithms of uniform numbers, shape (steps, 3, K): for a subtree's proposal, a merger, a side.
        position: Number of steps whose numbers are used up.
    """
    if occurs(tree.finished):
        tree, subtree = parts.start(tree, subtree, setting, normal)
    subtree, position = parts.grow(tree, subtree, setting, log_uniform[:, 0], position)
    _, for_merge, for_side = log_uniform.index_select(0, position.reshape(1) - 1)[0].unbind()
    tree, subtree = parts.finish(tree, subtree, setting, for_merge, for_side)
    return tree, subtree, position


def _opened(tensors: Sequence[Tensor]) -> tuple[Tree, Subtree, Setting, Tensor, Tensor, Tensor, Sequence[Tensor]]:
    """The arguments of `_advance` without its functions, and further tensors, from one flat sequence."""
    rest = iter(tensors)
    tree, subtree, setting = (kind(*itertools.islice(rest, len(kind._fields))) for kind in (Tree, Subtree, Setting))
    return tree, subtree, setting, next(rest), next(rest), next(rest), tuple(rest)  # type: ignore[return-value]
