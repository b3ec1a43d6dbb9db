"""The No-U-Turn Sampler for many chains at once.

Every chain is one row. A call of `_grow` moves each chain by one leapfrog step inside its own tree, whatever the
others do: all share one evaluation of the potential, and none waits for another.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from ._compiled import compiled
from ._kernel import DIVERGENCE, Draws, Kernel, ValueAndGrad, leapfrog

RANDOM_BLOCK = 256
"""Uniform numbers are drawn for this many steps at once; heuristic."""


@dataclass(frozen=True)
class _Tree:
    """The trajectory so far; every field has one row per chain."""

    left_z: Tensor  # (K, P), like the other ends
    left_r: Tensor
    left_gradient: Tensor
    right_z: Tensor
    right_r: Tensor
    right_gradient: Tensor
    proposal: Tensor  # (K, P)
    proposal_energy: Tensor  # (K,)
    log_weight: Tensor  # (K,), log-sum of exp(initial energy - energy) over the points
    momentum_sum: Tensor  # (K, P)
    initial_energy: Tensor  # (K,)
    depth: Tensor  # (K,)
    accept_sum: Tensor  # (K,)
    num_steps: Tensor  # (K,)


@dataclass(frozen=True)
class _Subtree:
    """The half of the trajectory that is growing."""

    z: Tensor  # (K, P), the moving end
    r: Tensor
    gradient: Tensor
    proposal: Tensor  # (K, P)
    proposal_energy: Tensor  # (K,)
    log_weight: Tensor  # (K,)
    momentum_sum: Tensor  # (K, P)
    accept_sum: Tensor  # (K,)
    leaf: Tensor  # (K,), steps so far
    turning: Tensor  # (K,)
    diverging: Tensor  # (K,)
    velocities: Tensor  # (K, D, P), of the checkpoints
    middles: Tensor  # (K, D, P), sums of the momenta before a checkpoint, and half of its own
    dots: Tensor  # (K, D), velocity times middle


class NUTS(Kernel):
    r"""Multinomial NUTS with the generalised U-turn criterion, in its iterative form.

    A trajectory doubles until it, or one of the balanced subtrees that it is made of, turns back on itself: with
    velocities v at two ends and the sum of the momenta from the middle of one end to the middle of the other, until
    :math:`v \cdot \rho \le 0` at either end. A growing subtree keeps one checkpoint per level instead of a stack.

    Args:
        value_and_grad: The potential.
        z: First points, shape (K, P).
        max_tree_depth: At most ``2 ** max_tree_depth - 1`` leapfrog steps a draw.
        compile: Compile the step, and the potential within it.

    References:
        Hoffman and Gelman (2014), https://arxiv.org/abs/1111.4246; Betancourt (2017),
        https://arxiv.org/abs/1701.02434, appendix A; Phan, Pradhan and Jankowiak (2019),
        https://arxiv.org/abs/1912.11554, for the iterative form.
    """

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor, *, max_tree_depth: int, compile: bool = False) -> None:
        super().__init__(value_and_grad, z)
        self._max_depth = max_tree_depth
        self._tables = _checkpoint_tables(max_tree_depth, z.device)
        scalar, v = z.new_zeros(len(z)), torch.zeros_like(z)
        count, no = torch.zeros_like(scalar, dtype=torch.long), torch.zeros_like(scalar, dtype=torch.bool)
        levels = z.new_zeros(len(z), max(max_tree_depth - 1, 1), z.shape[1])
        self._tree = _Tree(v, v, v, v, v, v, z, scalar, scalar, v, scalar, count, scalar, count)
        self._subtree = _Subtree(v, v, v, z, scalar, scalar, v, scalar, count, no, no, levels, levels, levels[..., 0])
        self._goes_right = no
        self._grow: Callable[..., _Subtree] = functools.partial(_grow, value_and_grad)
        if compile:
            self._compile()

    def _compile(self) -> None:
        """Put compiled functions in the place of the potential and of the step."""
        tree, subtree = self._tree, self._subtree

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            grown = _grow(self.value_and_grad, _Subtree(*tensors[:-6]), *tensors[-6:])
            return tuple(getattr(grown, field.name) for field in fields(grown))

        start = [getattr(subtree, field.name) for field in fields(subtree)]
        scalar = tree.log_weight
        arguments = (tree.initial_energy, scalar[:, None] + 1, self.inverse_mass, scalar - 1, *self._tables)
        fast = compiled(step, [*start, *arguments])

        def grow(subtree: _Subtree, *arguments: Tensor) -> _Subtree:
            return _Subtree(*fast(*(getattr(subtree, field.name) for field in fields(subtree)), *arguments))

        self._grow = grow
        self.value_and_grad = compiled(self.value_and_grad, [tree.proposal])

    def draws(self) -> Iterator[Draws]:
        """Run for ever; see :meth:`Kernel.draws`."""
        everyone = torch.ones_like(self._goes_right)
        self._begin(everyone, *self.value_and_grad(self._tree.proposal))
        self._turn(everyone)
        while True:
            for log_uniform in torch.rand_like(self._tree.log_weight.expand(RANDOM_BLOCK, -1)).log():
                subtree = self._subtree = self._grow(
                    self._subtree,
                    self._tree.initial_energy,
                    self._signed_step,
                    self.inverse_mass,
                    log_uniform,
                    *self._tables,
                )
                ended = subtree.turning | subtree.diverging | (subtree.leaf == self._num_leaves)
                if bool(ended.any()):
                    finished = self._merge(ended)
                    if bool(finished.any()):
                        potential, gradient = self.value_and_grad(self._tree.proposal)
                        yield self._report(finished, potential)
                        self._begin(finished, potential, gradient)
                    self._turn(ended)

    def _begin(self, chains: Tensor, potential: Tensor, gradient: Tensor) -> None:
        """Start new trajectories of some chains at their proposals, with fresh momenta."""
        z = self._tree.proposal
        r = torch.randn_like(z) * self.inverse_mass.rsqrt()
        energy = potential + 0.5 * torch.linalg.vecdot(r, r * self.inverse_mass)
        zero, count = torch.zeros_like(energy), torch.zeros_like(self._tree.depth)
        new = _Tree(z, r, gradient, z, r, gradient, z, energy, zero, r, energy, count, zero, count)
        self._tree = _where(chains, new, self._tree)

    def _turn(self, chains: Tensor) -> None:
        """Let some chains grow a new subtree from either end, at random."""
        tree, old = self._tree, self._subtree
        goes_right = torch.rand_like(tree.log_weight) < 0.5
        ends = ((tree.right_z, tree.left_z), (tree.right_r, tree.left_r), (tree.right_gradient, tree.left_gradient))
        z, r, gradient = (torch.where(goes_right[:, None], right, left) for right, left in ends)
        zero, no = torch.zeros_like(tree.log_weight), torch.zeros_like(old.turning)
        new = _Subtree(
            *(z, r, gradient, z, zero, zero - math.inf, torch.zeros_like(z), zero, torch.zeros_like(old.leaf), no, no),
            *(old.velocities, old.middles, old.dots),
        )
        self._subtree = _where(chains, new, old)
        self._goes_right = torch.where(chains, goes_right, self._goes_right)
        self._signed_step = torch.where(self._goes_right, self.step_size, -self.step_size)[:, None]
        self._num_leaves = 2**self._tree.depth

    def _merge(self, chains: Tensor) -> Tensor:
        """Add the grown subtrees of some chains to their trees; returns which chains have finished their draw."""
        tree, subtree = self._tree, self._subtree
        grown = chains & ~subtree.turning & ~subtree.diverging
        # A subtree is favoured over the older tree, which moves the chain further than drawing from the union.
        accepts = grown & (torch.rand_like(tree.log_weight).log() < subtree.log_weight - tree.log_weight)
        right, left = (grown & self._goes_right)[:, None], (grown & ~self._goes_right)[:, None]
        row = grown[:, None]
        merged = _Tree(
            left_z=torch.where(left, subtree.z, tree.left_z),
            left_r=torch.where(left, subtree.r, tree.left_r),
            left_gradient=torch.where(left, subtree.gradient, tree.left_gradient),
            right_z=torch.where(right, subtree.z, tree.right_z),
            right_r=torch.where(right, subtree.r, tree.right_r),
            right_gradient=torch.where(right, subtree.gradient, tree.right_gradient),
            proposal=torch.where(accepts[:, None], subtree.proposal, tree.proposal),
            proposal_energy=torch.where(accepts, subtree.proposal_energy, tree.proposal_energy),
            log_weight=torch.where(grown, torch.logaddexp(tree.log_weight, subtree.log_weight), tree.log_weight),
            momentum_sum=torch.where(row, tree.momentum_sum + subtree.momentum_sum, tree.momentum_sum),
            initial_energy=tree.initial_energy,
            depth=tree.depth + grown,
            accept_sum=torch.where(chains, tree.accept_sum + subtree.accept_sum, tree.accept_sum),
            num_steps=torch.where(chains, tree.num_steps + subtree.leaf, tree.num_steps),
        )
        self._tree = merged
        between = merged.momentum_sum - 0.5 * (merged.left_r + merged.right_r)
        left_turns = torch.linalg.vecdot(merged.left_r * self.inverse_mass, between) <= 0
        right_turns = torch.linalg.vecdot(merged.right_r * self.inverse_mass, between) <= 0
        return chains & (~grown | left_turns | right_turns | (merged.depth == self._max_depth))

    def _report(self, finished: Tensor, potential: Tensor) -> Draws:
        tree = self._tree
        return Draws(
            finished=finished,
            z=tree.proposal,
            log_density=-potential,
            energy=tree.proposal_energy,
            accept=tree.accept_sum / tree.num_steps,
            diverging=self._subtree.diverging,
            num_steps=tree.num_steps,
        )


def _grow(
    value_and_grad: ValueAndGrad,
    old: _Subtree,
    initial_energy: Tensor,
    step: Tensor,
    inverse_mass: Tensor,
    log_uniform: Tensor,
    stores_at: Tensor,
    checks_at: Tensor,
) -> _Subtree:
    """One leapfrog step of every chain. Shapes are fixed and nothing depends on a value: this may be compiled."""
    z, r, gradient, potential = leapfrog(value_and_grad, old.z, old.r, old.gradient, step, step * inverse_mass)
    velocity = r * inverse_mass
    energy = torch.add(potential, torch.linalg.vecdot(r, velocity), alpha=0.5)
    gain = torch.nan_to_num(initial_energy - energy, nan=-math.inf, neginf=-math.inf, posinf=math.inf)
    log_weight = torch.logaddexp(old.log_weight, gain)
    takes = log_uniform < gain - log_weight  # each point of the subtree with probability in proportion to its weight

    middle = torch.add(old.momentum_sum, r, alpha=0.5)
    dot = torch.linalg.vecdot(middle, velocity)
    stores, checks = stores_at[old.leaf], checks_at[old.leaf]
    before = torch.matmul(old.velocities, middle.unsqueeze(-1)).squeeze(-1) - old.dots
    after = dot.unsqueeze(-1) - torch.matmul(old.middles, velocity.unsqueeze(-1)).squeeze(-1)
    turning = ((torch.minimum(before, after) <= 0) & checks).any(-1)
    wide = stores.unsqueeze(-1)
    return _Subtree(
        z=z,
        r=r,
        gradient=gradient,
        proposal=torch.where(takes.unsqueeze(-1), z, old.proposal),
        proposal_energy=torch.where(takes, energy, old.proposal_energy),
        log_weight=log_weight,
        momentum_sum=old.momentum_sum + r,
        accept_sum=old.accept_sum + gain.clamp_max(0).exp(),
        leaf=old.leaf + 1,
        turning=turning,
        diverging=gain < -DIVERGENCE,
        velocities=torch.where(wide, velocity.unsqueeze(1), old.velocities),
        middles=torch.where(wide, middle.unsqueeze(1), old.middles),
        dots=torch.where(stores, dot.unsqueeze(1), old.dots),
    )


def _checkpoint_tables(max_depth: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each leaf of a subtree, which checkpoint it is stored as, and which ones it is checked against.

    An even leaf n opens a subtree and is stored at the level given by the number of ones in n // 2. An odd leaf closes
    as many subtrees as it has trailing ones; their first leaves are the last checkpoints stored.
    """
    num_leaves, num_levels = 2 ** max(max_depth - 1, 0), max(max_depth - 1, 1)
    stores = torch.zeros(num_leaves, num_levels, dtype=torch.bool)
    checks = torch.zeros_like(stores)
    for leaf in range(num_leaves):
        level = (leaf >> 1).bit_count()
        if leaf % 2 == 0:
            stores[leaf, level] = True
        else:
            num_closed = (~leaf & (leaf + 1)).bit_length() - 1
            checks[leaf, level - num_closed + 1 : level + 1] = True
    return stores.to(device), checks.to(device)


State = TypeVar("State", _Tree, _Subtree)


def _where(chains: Tensor, new: State, old: State) -> State:
    """Some rows of one state, the others of another."""

    def select(a: Tensor, b: Tensor) -> Tensor:
        if a is b:
            return a
        return torch.where(chains.view(-1, *[1] * (b.dim() - 1)), a, b)

    return type(old)(*(select(getattr(new, f.name), getattr(old, f.name)) for f in fields(old)))
