"""The trees of the No-U-Turn Sampler: their fields, and the functions that make them grow.

`begin` starts a trajectory as a tree of one point. A subtree grows from one end of the tree: `grow` takes one leapfrog
step and adds the new point. A subtree has `ended` if it is as large as the tree, turns back or diverges. `merge` adds a
complete subtree to the tree, and `turn` starts the next subtree at a random end of the tree.

Every chain is one row of every tensor, and functions change only the rows that the mask `chains` selects.

References:
    Trees and their weights: Betancourt (2017), https://arxiv.org/abs/1701.02434, appendix A. Subtrees without
    recursion: Phan, Pradhan and Jankowiak (2019), https://arxiv.org/abs/1912.11554.
"""

import functools
import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ._kernel import DIVERGENCE, ValueAndGrad, leapfrog


class Tree(NamedTuple):
    """The trajectory so far, and its proposal, which becomes the next draw if the trajectory ends."""

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
    log_weight: Tensor  # (K,), logarithm of the sum of exp(initial energy - energy) over the points
    momentum_sum: Tensor  # (K, P), over the points
    initial_energy: Tensor  # (K,)
    size: Tensor  # (K,), number of points
    accept_sum: Tensor  # (K,), sum of min(1, exp(initial energy - energy)) over the steps
    num_steps: Tensor  # (K,), including steps of subtrees that were not added
    step: Tensor  # (K, 1), step size of the growing subtree, negative if it grows to the left
    finished: Tensor  # (K,), whether the trajectory has ended, so that the proposal is the next draw


class Subtree(NamedTuple):
    """The growing part of the trajectory, not yet in the tree. It starts without points."""

    z: Tensor  # (K, P), position of the moving end
    r: Tensor
    gradient: Tensor
    proposal: Tensor  # (K, P)
    proposal_gradient: Tensor  # (K, P)
    proposal_potential: Tensor  # (K,)
    proposal_energy: Tensor  # (K,)
    log_weight: Tensor  # (K,)
    momentum_sum: Tensor  # (K, P)
    accept_sum: Tensor  # (K,)
    leaf: Tensor  # (K,), number of points so far
    turning: Tensor  # (K,), whether a balanced subtree that ends at the last point turns back on itself
    diverging: Tensor  # (K,), whether the last point lost too much energy
    velocities: Tensor  # (K, D, P), velocity at each checkpoint
    middles: Tensor  # (K, D, P), sum of the momenta before each checkpoint and half of its own
    dots: Tensor  # (K, D), products of velocities and middles


class TreeConstants(NamedTuple):
    step_size: Tensor  # (K,)
    inverse_mass: Tensor  # (K, P)
    stores_at: Tensor  # (2^D, D) for trees of depth D + 1, from `checkpoint_tables`, like the next one
    checks_at: Tensor


def empty(z: Tensor, potential: Tensor, gradient: Tensor, num_levels: int) -> tuple[Tree, Subtree]:
    """Return trees and subtrees for chains at z, before their first trajectory. `begin` reads only the proposals."""
    count = torch.zeros_like(potential, dtype=torch.long)
    levels = z.new_zeros(len(z), num_levels, z.shape[1])
    point, proposal = (z, z, gradient), (z, gradient, potential, potential)
    yes, no, step = count == 0, count > 0, potential[:, None]
    tree = Tree(*point, *point, *proposal, potential, z, potential, count, potential, count, step, yes)
    subtree = Subtree(*(*point, *proposal, potential, z, potential, count, no, no), *(levels, levels, levels[..., 0]))
    # Each field gets its own memory, in contiguous order.
    copied = functools.partial(torch.clone, memory_format=torch.contiguous_format)
    return Tree(*map(copied, tree)), Subtree(*map(copied, subtree))


def begin(
    chains: Tensor, tree: Tree, subtree: Subtree, constants: TreeConstants, normal: Tensor
) -> tuple[Tree, Subtree]:
    """Start a trajectory at each proposal, with momenta from standard normal numbers."""
    z, gradient, potential = tree.proposal, tree.proposal_gradient, tree.proposal_potential
    r = normal * constants.inverse_mass.rsqrt()
    energy = potential + 0.5 * torch.linalg.vecdot(r, r * constants.inverse_mass)
    zero, count, no = torch.zeros_like(energy), torch.zeros_like(tree.size), torch.zeros_like(tree.finished)
    point, proposal = (z, r, gradient), (z, gradient, potential, energy)
    step = constants.step_size[:, None]  # always to the right: a momentum and its negative are equally probable
    new = Tree(*point, *point, *proposal, zero, r, energy, count + 1, zero, count, step, no)
    return _where(chains, new, tree), _where(chains, _seed(*point, subtree), subtree)


def grow(
    value_and_grad: ValueAndGrad, tree: Tree, constants: TreeConstants, old: Subtree, log_uniform: Tensor
) -> Subtree:
    """Take one leapfrog step of every chain, and add the new point to its subtree."""
    drift = tree.step * constants.inverse_mass
    z, r, gradient, potential = leapfrog(value_and_grad, old.z, old.r, old.gradient, tree.step, drift)
    velocity = r * constants.inverse_mass
    energy = torch.add(potential, torch.linalg.vecdot(r, velocity), alpha=0.5)
    gain = torch.nan_to_num(tree.initial_energy - energy, nan=-math.inf, neginf=-math.inf, posinf=math.inf)
    log_weight = torch.logaddexp(old.log_weight, gain)
    takes = log_uniform < gain - log_weight  # so each point is the proposal with probability proportional to its weight
    row = takes.unsqueeze(-1)

    middle = torch.add(old.momentum_sum, r, alpha=0.5)
    dot = torch.linalg.vecdot(middle, velocity)
    stores, checks = (table.index_select(0, old.leaf) for table in (constants.stores_at, constants.checks_at))
    before = torch.bmm(old.velocities, middle.unsqueeze(-1)).squeeze(-1) - old.dots
    after = dot.unsqueeze(-1) - torch.bmm(old.middles, velocity.unsqueeze(-1)).squeeze(-1)
    turning = ((torch.minimum(before, after) <= 0) & checks).any(-1)
    wide = stores.unsqueeze(-1)
    return Subtree(
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


def ended(tree: Tree, subtree: Subtree) -> Tensor:
    return subtree.turning | subtree.diverging | (subtree.leaf == tree.size)


def merge(
    chains: Tensor, tree: Tree, subtree: Subtree, constants: TreeConstants, max_size: int, log_uniform: Tensor
) -> Tree:
    r"""Add complete subtrees to their trees, and mark the trajectories that end.

    A subtree that turns back or diverges is not added. The subtree's proposal replaces the tree's proposal with
    probability :math:`\min(1, W_\text{subtree} / W_\text{tree})`, where W is the sum of the weights of all points. The
    trajectory ends if the subtree was not added, if the tree has reached its largest size, or if the tree turns back
    (see :class:`~pyro_bnn.NUTS`).
    """
    grown = chains & ~subtree.turning & ~subtree.diverging
    # Drawing from the union would be valid too, but favouring the subtree moves the chain further.
    accepts = grown & (log_uniform < subtree.log_weight - tree.log_weight)
    right, left = ((side & grown[:, None]) for side in (tree.step > 0, tree.step <= 0))
    row, accepts_row = grown[:, None], accepts[:, None]
    left_r, right_r = torch.where(left, subtree.r, tree.left_r), torch.where(right, subtree.r, tree.right_r)
    momentum_sum = torch.where(row, tree.momentum_sum + subtree.momentum_sum, tree.momentum_sum)
    size = torch.where(grown, tree.size + subtree.leaf, tree.size)
    between = momentum_sum - 0.5 * (left_r + right_r)
    left_turns = torch.linalg.vecdot(left_r * constants.inverse_mass, between) <= 0
    right_turns = torch.linalg.vecdot(right_r * constants.inverse_mass, between) <= 0
    return Tree(
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


def turn(
    chains: Tensor, tree: Tree, subtree: Subtree, constants: TreeConstants, log_uniform: Tensor
) -> tuple[Tree, Subtree]:
    """Start a subtree at a random end of each tree."""
    right = (log_uniform < math.log(0.5))[:, None]
    ends = ((tree.right_z, tree.left_z), (tree.right_r, tree.left_r), (tree.right_gradient, tree.left_gradient))
    z, r, gradient = (torch.where(right, *pair) for pair in ends)
    size = constants.step_size[:, None]
    step = torch.where(chains[:, None], torch.where(right, size, -size), tree.step)
    return tree._replace(step=step), _where(chains, _seed(z, r, gradient, subtree), subtree)


def _seed(z: Tensor, r: Tensor, gradient: Tensor, old: Subtree) -> Subtree:
    """Return a subtree without points, which will grow from z.

    It keeps the stored leaves of `old`, which are overwritten before they are read.
    """
    zero, count, no = torch.zeros_like(old.log_weight), torch.zeros_like(old.leaf), torch.zeros_like(old.turning)
    return Subtree(
        *(z, r, gradient, z, gradient, zero, zero, zero - math.inf, torch.zeros_like(z), zero, count, no, no),
        *(old.velocities, old.middles, old.dots),
    )


def checkpoint_tables(max_depth: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two Boolean tables of shape (leaves, levels), with a row for each leaf of a tree.

    The first table marks the level at which a leaf is stored. The second table marks the levels of the stored leaves
    with which a leaf is compared.

    When a leaf completes a balanced subtree, the check for a U-turn compares the first and the last leaf of the
    subtree. The level m of leaf n, counted from 0, is the number of ones in the binary form of n // 2. If n is even,
    leaf n is the first leaf of a balanced subtree. If n is odd, and its binary form ends in c ones, leaf n completes c
    balanced subtrees, whose first leaves are stored at the levels from m - c + 1 to m.
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


State = TypeVar("State", Tree, Subtree)


def _where(chains: Tensor, new: State, old: State) -> State:
    """Return the rows of `new` where the mask `chains` is true, and the rows of `old` elsewhere."""

    def select(a: Tensor, b: Tensor) -> Tensor:
        if a is b:
            return a
        return torch.where(chains.view(-1, *[1] * (b.dim() - 1)), a, b)

    return type(old)(*map(select, new, old))
