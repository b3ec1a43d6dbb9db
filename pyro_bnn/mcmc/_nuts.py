"""The No-U-Turn Sampler for many chains at once.

Every chain is one row. `_grow` moves each chain by one leapfrog step inside its own tree, whatever the others do: all
share one evaluation of the potential, and none waits for another. Once some chain's subtree is complete or turns, it is
added to the tree by `_merge` and the next one starts in `_turn`, or a new trajectory in `_begin`.

All of these are functions of tensors that branch on no value, so that `_advance` can be compiled as a whole.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from .._scope import seeded
from ._compiled import compiled, compiler_loop, traced
from ._kernel import DIVERGENCE, Draws, Kernel, ValueAndGrad, leapfrog

RANDOM_BLOCK = 256
"""Uniform numbers are drawn for this many steps at once; heuristic."""


class _Tree(NamedTuple):
    """The trajectory so far; every field has one row per chain."""

    left_z: Tensor  # (K, P), like the other ends
    left_r: Tensor
    left_gradient: Tensor
    right_z: Tensor
    right_r: Tensor
    right_gradient: Tensor
    proposal: Tensor  # (K, P)
    proposal_gradient: Tensor  # (K, P)
    proposal_potential: Tensor  # (K,)
    proposal_energy: Tensor  # (K,)
    log_weight: Tensor  # (K,), log-sum of exp(initial energy - energy) over the points
    momentum_sum: Tensor  # (K, P)
    initial_energy: Tensor  # (K,)
    size: Tensor  # (K,), number of points
    accept_sum: Tensor  # (K,)
    num_steps: Tensor  # (K,)
    step: Tensor  # (K, 1), of the subtree that is growing, negative to the left
    finished: Tensor  # (K,), whether the proposal is the chain's next draw


class _Subtree(NamedTuple):
    """The half of the trajectory that is growing."""

    z: Tensor  # (K, P), the moving end
    r: Tensor
    gradient: Tensor
    proposal: Tensor  # (K, P)
    proposal_gradient: Tensor  # (K, P)
    proposal_potential: Tensor  # (K,)
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


class _Setting(NamedTuple):
    """What stays as it is while a tree grows."""

    step_size: Tensor  # (K,)
    inverse_mass: Tensor  # (K, P)
    stores_at: Tensor  # (2^D, D) for trees of depth D + 1, like the next one
    checks_at: Tensor


class NUTS(Kernel):
    r"""Multinomial NUTS with the generalised U-turn criterion, in its iterative form.

    A trajectory doubles until it, or one of the balanced subtrees that it is made of, turns back on itself: with
    velocities v at two ends and the sum of the momenta from the middle of one end to the middle of the other, until
    :math:`v \cdot \rho \le 0` at either end. A growing subtree keeps one checkpoint per level instead of a stack.

    Args:
        value_and_grad: The potential.
        z: First points, shape (K, P).
        max_tree_depth: At most ``2 ** max_tree_depth - 1`` leapfrog steps a draw.
        compile: Compile everything between two ends of subtrees, the potential included.

    References:
        Hoffman and Gelman (2014), https://arxiv.org/abs/1111.4246; Betancourt (2017),
        https://arxiv.org/abs/1701.02434, appendix A; Phan, Pradhan and Jankowiak (2019),
        https://arxiv.org/abs/1912.11554, for the iterative form.
    """

    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor, *, max_tree_depth: int, compile: bool = False) -> None:
        super().__init__(value_and_grad, z)
        self._tables = _checkpoint_tables(max_tree_depth, z.device)
        self._tree, self._subtree = _empty(z, *value_and_grad(z), num_levels=self._tables[0].shape[1])
        self._advance: Callable[..., tuple[_Tree, _Subtree, Tensor]] = functools.partial(
            _advance, _grow_one_by_one, lambda chains: bool(chains.any()), value_and_grad, 2**max_tree_depth
        )
        if compile:
            graph = traced(value_and_grad, [z])
            grow_all = functools.partial(_grow_in_graph, compiler_loop())
            advance = functools.partial(_advance, grow_all, lambda _: True, graph, 2**max_tree_depth)
            with seeded(0, z.device):
                numbers = self._normal(), *self._random_block()
            self._advance = compiled(
                advance, [self._tree, self._subtree, self._setting, *numbers], loops=z.device.type == "cpu"
            )

    @property
    def _setting(self) -> _Setting:
        return _Setting(self.step_size, self.inverse_mass, *self._tables)

    def draws(self) -> Iterator[Draws]:
        """Run for ever; see :meth:`Kernel.draws`."""
        normal = self._normal()
        while True:
            log_uniform, position = self._random_block()
            while position < len(log_uniform):
                self._tree, self._subtree, position = self._advance(
                    self._tree, self._subtree, self._setting, normal, log_uniform, position
                )
                if bool(self._tree.finished.any()):
                    yield self._report()
                    normal = self._normal()

    def _normal(self) -> Tensor:
        """For the next momenta, shape (K, P)."""
        return torch.randn_like(self._tree.proposal)

    def _random_block(self) -> tuple[Tensor, Tensor]:
        """Logarithms of uniform numbers, three for each of many steps, shape (steps, 3, K), of which none was taken."""
        like = self._tree.log_weight.expand(RANDOM_BLOCK, 3, -1)
        return torch.rand_like(like).log(), torch.zeros_like(self._tree.size[0])

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


def _empty(z: Tensor, potential: Tensor, gradient: Tensor, num_levels: int) -> tuple[_Tree, _Subtree]:
    """Chains that have just finished a draw; all that counts is the proposal."""
    count = torch.zeros_like(potential, dtype=torch.long)
    levels = z.new_zeros(len(z), num_levels, z.shape[1])
    point, proposal = (z, z, gradient), (z, gradient, potential, potential)
    yes, no, step = count == 0, count > 0, potential[:, None]
    tree = _Tree(*point, *point, *proposal, potential, z, potential, count, potential, count, step, yes)
    subtree = _Subtree(*(*point, *proposal, potential, z, potential, count, no, no), *(levels, levels, levels[..., 0]))
    # Each its own tensor: the compiler would make the same ones a condition, and compile again when they differ.
    return _Tree(*(tensor.clone() for tensor in tree)), _Subtree(*(tensor.clone() for tensor in subtree))


def _advance(
    grow_all: Callable[..., tuple[_Subtree, Tensor]],
    occurs: Callable[[Tensor], bool],
    value_and_grad: ValueAndGrad,
    max_size: int,
    tree: _Tree,
    subtree: _Subtree,
    setting: _Setting,
    normal: Tensor,
    log_uniform: Tensor,
    position: Tensor,
) -> tuple[_Tree, _Subtree, Tensor]:
    """Begin trajectories where a draw was finished, grow all subtrees until some end, and merge those.

    Args:
        grow_all: A loop over steps, `_grow_one_by_one` or `_grow_in_graph`.
        occurs: Whether to compute something for chains with a mark; a compiled function must not depend on it.
        value_and_grad: The potential.
        max_size: Points of the largest tree.
        tree: Where all chains are.
        subtree: And their growing halves.
        setting: Step sizes and the like.
        normal: For new momenta, shape (K, P).
        log_uniform: Three numbers per step, shape (steps, 3, K).
        position: How many steps of those were taken.
    """
    if occurs(tree.finished):
        tree, subtree = _begin(tree.finished, tree, subtree, setting, normal)
    grow = functools.partial(_grow, value_and_grad, tree, setting)
    subtree, position = grow_all(grow, functools.partial(_ended, tree), subtree, log_uniform[:, 0], position)
    _, for_merge, for_side = log_uniform.index_select(0, position.reshape(1) - 1)[0].unbind()
    ended = _ended(tree, subtree)
    tree = _merge(ended, tree, subtree, setting, max_size, for_merge)
    tree, subtree = _turn(ended & ~tree.finished, tree, subtree, setting, for_side)
    return tree, subtree, position


def _grow_one_by_one(
    grow: Callable[[_Subtree, Tensor], _Subtree],
    ended: Callable[[_Subtree], Tensor],
    subtree: _Subtree,
    log_uniform: Tensor,
    position: Tensor,
) -> tuple[_Subtree, Tensor]:
    """Steps until a chain's subtree has ended, or the random numbers have."""
    num_steps = 0
    for numbers in log_uniform[int(position) :]:
        subtree, num_steps = grow(subtree, numbers), num_steps + 1
        if bool(ended(subtree).any()):
            break
    return subtree, position + num_steps


def _grow_in_graph(
    while_loop: Callable[..., tuple[Tensor, ...]],
    grow: Callable[[_Subtree, Tensor], _Subtree],
    ended: Callable[[_Subtree], Tensor],
    subtree: _Subtree,
    log_uniform: Tensor,
    position: Tensor,
) -> tuple[_Subtree, Tensor]:
    """The same loop, for the compiler.

    Position, momentum and gradient go as one tensor: two results in one place, as the gradient of a standard normal
    prior alone would be, crash the compiler's loop.
    """

    def goes_on(position: Tensor, ends: Tensor, *rest: Tensor) -> Tensor:
        return (position < len(log_uniform)) & ~ended(_Subtree(*ends, *rest)).any()

    def step(position: Tensor, ends: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        numbers = log_uniform.index_select(0, position.reshape(1))[0]
        grown = grow(_Subtree(*ends, *rest), numbers)
        return (position + 1, torch.stack(grown[:3]), *grown[3:])

    position, ends, *rest = while_loop(goes_on, step, (position, torch.stack(subtree[:3]), *subtree[3:]))
    return _Subtree(*ends, *rest), position


def _ended(tree: _Tree, subtree: _Subtree) -> Tensor:
    return subtree.turning | subtree.diverging | (subtree.leaf == tree.size)


def _begin(chains: Tensor, tree: _Tree, subtree: _Subtree, setting: _Setting, normal: Tensor) -> tuple[_Tree, _Subtree]:
    """Start new trajectories of some chains at their proposals, with fresh momenta."""
    z, gradient, potential = tree.proposal, tree.proposal_gradient, tree.proposal_potential
    r = normal * setting.inverse_mass.rsqrt()
    energy = potential + 0.5 * torch.linalg.vecdot(r, r * setting.inverse_mass)
    zero, count, no = torch.zeros_like(energy), torch.zeros_like(tree.size), torch.zeros_like(tree.finished)
    point, proposal = (z, r, gradient), (z, gradient, potential, energy)
    step = setting.step_size[:, None]  # to the right: the sign of the momentum is random already
    new = _Tree(*point, *point, *proposal, zero, r, energy, count + 1, zero, count, step, no)
    return _where(chains, new, tree), _where(chains, _seed(*point, subtree), subtree)


def _turn(
    chains: Tensor, tree: _Tree, subtree: _Subtree, setting: _Setting, log_uniform: Tensor
) -> tuple[_Tree, _Subtree]:
    """Let some chains grow a new subtree from either end, at random."""
    right = (log_uniform < math.log(0.5))[:, None]
    ends = ((tree.right_z, tree.left_z), (tree.right_r, tree.left_r), (tree.right_gradient, tree.left_gradient))
    z, r, gradient = (torch.where(right, *pair) for pair in ends)
    size = setting.step_size[:, None]
    step = torch.where(chains[:, None], torch.where(right, size, -size), tree.step)
    return tree._replace(step=step), _where(chains, _seed(z, r, gradient, subtree), subtree)


def _seed(z: Tensor, r: Tensor, gradient: Tensor, old: _Subtree) -> _Subtree:
    """A subtree without leaves that grows from one end; its checkpoints are written before they are read."""
    zero, count, no = torch.zeros_like(old.log_weight), torch.zeros_like(old.leaf), torch.zeros_like(old.turning)
    return _Subtree(
        *(z, r, gradient, z, gradient, zero, zero, zero - math.inf, torch.zeros_like(z), zero, count, no, no),
        *(old.velocities, old.middles, old.dots),
    )


def _merge(
    chains: Tensor, tree: _Tree, subtree: _Subtree, setting: _Setting, max_size: int, log_uniform: Tensor
) -> _Tree:
    """Add the grown subtrees of some chains to their trees; whose trajectory ends with that has finished its draw."""
    grown = chains & ~subtree.turning & ~subtree.diverging
    # A subtree is favoured over the older tree, which moves the chain further than drawing from the union.
    accepts = grown & (log_uniform < subtree.log_weight - tree.log_weight)
    right, left = ((side & grown[:, None]) for side in (tree.step > 0, tree.step <= 0))
    row, accepts_row = grown[:, None], accepts[:, None]
    left_r, right_r = torch.where(left, subtree.r, tree.left_r), torch.where(right, subtree.r, tree.right_r)
    momentum_sum = torch.where(row, tree.momentum_sum + subtree.momentum_sum, tree.momentum_sum)
    size = torch.where(grown, tree.size + subtree.leaf, tree.size)
    between = momentum_sum - 0.5 * (left_r + right_r)
    left_turns = torch.linalg.vecdot(left_r * setting.inverse_mass, between) <= 0
    right_turns = torch.linalg.vecdot(right_r * setting.inverse_mass, between) <= 0
    return _Tree(
        left_z=torch.where(left, subtree.z, tree.left_z),
        left_r=left_r,
        left_gradient=torch.where(left, subtree.gradient, tree.left_gradient),
        right_z=torch.where(right, subtree.z, tree.right_z),
        right_r=right_r,
        right_gradient=torch.where(right, subtree.gradient, tree.right_gradient),
        proposal=torch.where(accepts_row, subtree.proposal, tree.proposal),
        proposal_gradient=torch.where(accepts_row, subtree.proposal_gradient, tree.proposal_gradient),
        proposal_potential=torch.where(accepts, subtree.proposal_potential, tree.proposal_potential),
        proposal_energy=torch.where(accepts, subtree.proposal_energy, tree.proposal_energy),
        log_weight=torch.where(grown, torch.logaddexp(tree.log_weight, subtree.log_weight), tree.log_weight),
        momentum_sum=momentum_sum,
        initial_energy=tree.initial_energy,
        size=size,
        accept_sum=torch.where(chains, tree.accept_sum + subtree.accept_sum, tree.accept_sum),
        num_steps=torch.where(chains, tree.num_steps + subtree.leaf, tree.num_steps),
        step=tree.step,
        finished=chains & (~grown | left_turns | right_turns | (size == max_size)),
    )


def _grow(value_and_grad: ValueAndGrad, tree: _Tree, setting: _Setting, old: _Subtree, log_uniform: Tensor) -> _Subtree:
    """One leapfrog step of every chain."""
    drift = tree.step * setting.inverse_mass
    z, r, gradient, potential = leapfrog(value_and_grad, old.z, old.r, old.gradient, tree.step, drift)
    velocity = r * setting.inverse_mass
    energy = torch.add(potential, torch.linalg.vecdot(r, velocity), alpha=0.5)
    gain = torch.nan_to_num(tree.initial_energy - energy, nan=-math.inf, neginf=-math.inf, posinf=math.inf)
    log_weight = torch.logaddexp(old.log_weight, gain)
    takes = log_uniform < gain - log_weight  # each point of the subtree with probability in proportion to its weight
    row = takes.unsqueeze(-1)

    middle = torch.add(old.momentum_sum, r, alpha=0.5)
    dot = torch.linalg.vecdot(middle, velocity)
    stores, checks = (table.index_select(0, old.leaf) for table in (setting.stores_at, setting.checks_at))
    before = torch.bmm(old.velocities, middle.unsqueeze(-1)).squeeze(-1) - old.dots
    after = dot.unsqueeze(-1) - torch.bmm(old.middles, velocity.unsqueeze(-1)).squeeze(-1)
    turning = ((torch.minimum(before, after) <= 0) & checks).any(-1)
    wide = stores.unsqueeze(-1)
    return _Subtree(
        z=z,
        r=r,
        gradient=gradient,
        proposal=torch.where(row, z, old.proposal),
        proposal_gradient=torch.where(row, gradient, old.proposal_gradient),
        proposal_potential=torch.where(takes, potential, old.proposal_potential),
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

    return type(old)(*map(select, new, old))
