"""The trees of NUTS against their definitions."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyro_bnn.inference.mcmc._tree import Tree, TreeConstants, begin, checkpoint_tables, empty, ended, grow, merge, turn

from .tolerances import assert_identical

K, P, MAX_DEPTH = 200, 2, 5
TINY = 1e-9


class Points(NamedTuple):
    """A piece of a trajectory of each chain, from left to right."""

    z: Tensor  # (K, n, P)
    r: Tensor
    gradient: Tensor
    potential: Tensor  # (K, n)

    def energy(self, constants):
        return self.potential + 0.5 * (self.r.square() * constants.inverse_mass[:, None]).sum(-1)

    def log_weight(self, constants, initial_energy):
        return (initial_energy[:, None] - self.energy(constants)).logsumexp(1)

    def turns(self, constants):
        """Whether the left end turns, and whether the right one does, by the definition, both of shape (K,)."""
        rho = self.r.sum(1) - 0.5 * (self.r[:, 0] + self.r[:, -1])
        return [(self.r[:, end] * constants.inverse_mass * rho).sum(-1) <= 0 for end in (0, -1)]


def random_points(count):
    return Points(*torch.randn(3, K, count, P), torch.randn(K, count))


def random_constants():
    tables = checkpoint_tables(MAX_DEPTH, torch.device("cpu"))
    return TreeConstants(0.1 + 0.5 * torch.rand(K), 0.5 + torch.rand(K, P), *tables)


def fresh(constants):
    """A tree and a subtree whose contents do not matter."""
    return empty(torch.randn(K, P), torch.randn(K), torch.randn(K, P), constants.stores_at.shape[1])


def a_tree(points, constants, initial_energy):
    """The tree of these points, with the first one as its proposal."""
    old, _ = fresh(constants)
    side = torch.where(torch.rand(K) < 0.5, 1, -1)
    return old._replace(
        left_z=points.z[:, 0],
        left_r=points.r[:, 0],
        left_gradient=points.gradient[:, 0],
        right_z=points.z[:, -1],
        right_r=points.r[:, -1],
        right_gradient=points.gradient[:, -1],
        proposal=points.z[:, 0],
        proposal_gradient=points.gradient[:, 0],
        proposal_potential=points.potential[:, 0],
        proposal_energy=points.energy(constants)[:, 0],
        log_weight=points.log_weight(constants, initial_energy),
        momentum_sum=points.r.sum(1),
        initial_energy=initial_energy,
        size=torch.full((K,), points.z.shape[1]),
        accept_sum=torch.rand(K),
        num_steps=torch.randint(1, 9, (K,)),
        step=(side * constants.step_size)[:, None],
        finished=torch.zeros(K, dtype=torch.bool),
    )


def a_subtree(points, constants, initial_energy):
    """The subtree of points in the order in which it grew, with the second one as its proposal."""
    _, old = fresh(constants)
    return old._replace(
        z=points.z[:, -1],
        r=points.r[:, -1],
        gradient=points.gradient[:, -1],
        proposal=points.z[:, 1],
        proposal_gradient=points.gradient[:, 1],
        proposal_potential=points.potential[:, 1],
        proposal_energy=points.energy(constants)[:, 1],
        log_weight=points.log_weight(constants, initial_energy),
        momentum_sum=points.r.sum(1),
        accept_sum=torch.rand(K),
        leaf=torch.full((K,), points.z.shape[1]),
        turning=torch.zeros(K, dtype=torch.bool),
        diverging=torch.zeros(K, dtype=torch.bool),
    )


class Merger:
    """Trees of four points and subtrees of three others, with their points."""

    def __init__(self):
        self.constants, inside, self.outside = random_constants(), random_points(4), random_points(3)
        initial_energy = inside.energy(self.constants)[:, 2]
        self.tree = a_tree(inside, self.constants, initial_energy)
        self.subtree = a_subtree(self.outside, self.constants, initial_energy)
        to_the_right = self.tree.step[:, 0] > 0
        assert 0 < to_the_right.sum() < K
        self.union = Points(
            *(
                torch.where(
                    to_the_right.view(-1, *[1] * (a.dim() - 1)), torch.cat([a, b], 1), torch.cat([b.flip(1), a], 1)
                )
                for a, b in zip(inside, self.outside, strict=True)
            )
        )
        self.expected = a_tree(self.union, self.constants, initial_energy)
        self.log_odds = self.subtree.log_weight - self.tree.log_weight

    def __call__(self, *, chains=None, subtree=None, max_size=2**MAX_DEPTH, log_uniform=None):
        chains = torch.ones(K, dtype=torch.bool) if chains is None else chains
        log_uniform = torch.rand(K).log() if log_uniform is None else log_uniform
        return merge(chains, self.tree, subtree or self.subtree, self.constants, max_size, log_uniform)


def assert_same_fields(a, b, names):
    for name in names:
        assert_identical(getattr(a, name), getattr(b, name))


PROPOSAL = ("proposal", "proposal_gradient", "proposal_potential", "proposal_energy")
SUMS = ("accept_sum", "num_steps")


def test_a_merged_tree_is_that_of_all_points():
    merger = Merger()
    merged = merger()
    decided_elsewhere = {*PROPOSAL, *SUMS, "step", "finished"}
    assert_same_fields(merged, merger.expected, set(Tree._fields) - decided_elsewhere)
    assert_identical(merged.step, merger.tree.step)
    assert_identical(merged.accept_sum, merger.tree.accept_sum + merger.subtree.accept_sum)
    assert torch.equal(merged.num_steps, merger.tree.num_steps + 3)


def test_a_subtrees_proposal_is_taken_with_the_ratio_of_weights():
    merger = Merger()
    threshold = merger.log_odds.clamp_max(0)
    assert 0 < (threshold == 0).sum() < K
    taken, left = merger(log_uniform=threshold - TINY), merger(log_uniform=threshold + TINY)
    is_sure = threshold == 0  # no logarithm of a uniform number is above
    for name in PROPOSAL:
        assert_identical(getattr(taken, name), getattr(merger.subtree, name))
        assert_identical(getattr(left, name)[~is_sure], getattr(merger.tree, name)[~is_sure])


def test_a_trajectory_ends_where_either_end_turns_or_it_is_full():
    merger = Merger()
    left, right = merger.union.turns(merger.constants)
    for pattern in (left & ~right, right & ~left, left & right, ~left & ~right):
        assert pattern.any()
    assert torch.equal(merger().finished, left | right)
    assert merger(max_size=7).finished.all()


@pytest.mark.parametrize("flaw", ["turning", "diverging"])
def test_a_flawed_subtree_ends_the_trajectory_and_is_not_added(flaw):
    merger = Merger()
    flawed = torch.rand(K) < 0.5
    subtree = merger.subtree._replace(**{flaw: flawed})
    merged, whole = merger(subtree=subtree, log_uniform=torch.full((K,), -50.0)), merger()
    assert merged.finished[flawed].all()
    for name in set(Tree._fields) - {*SUMS, "finished"}:
        assert_identical(getattr(merged, name)[flawed], getattr(merger.tree, name)[flawed])
    assert_identical(merged.size[~flawed], whole.size[~flawed])
    assert_identical(merged.accept_sum, whole.accept_sum)  # its steps were taken all the same
    assert torch.equal(merged.num_steps, whole.num_steps)


def test_what_merges_begins_or_turns_leaves_the_other_chains_alone():
    merger = Merger()
    chains = torch.rand(K) < 0.5
    merged = merger(chains=chains)
    begun, seeded = begin(chains, merger.tree, merger.subtree, merger.constants, torch.randn(K, P))
    turned, turned_subtree = turn(chains, merger.tree, merger.subtree, merger.constants, torch.rand(K).log())
    for new in (merged, begun, turned):
        for name in Tree._fields:
            assert_identical(getattr(new, name)[~chains], getattr(merger.tree, name)[~chains])
    for new in (seeded, turned_subtree):
        for name in new._fields:
            assert_identical(getattr(new, name)[~chains], getattr(merger.subtree, name)[~chains])
    assert not merged.finished[~chains].any()


def test_either_end_is_chosen_with_probability_one_half():
    merger = Merger()
    uniform = torch.linspace(0, 1, K + 1)[1:] - 0.5 / K  # K numbers, one in the middle of each of K equal parts
    right = uniform < 0.5
    assert right.sum() == K // 2
    tree, subtree = turn(torch.ones(K, dtype=torch.bool), merger.tree, merger.subtree, merger.constants, uniform.log())
    assert_identical(tree.step[:, 0], torch.where(right, 1, -1) * merger.constants.step_size)
    for name in ("z", "r", "gradient"):
        ends = getattr(merger.tree, f"right_{name}"), getattr(merger.tree, f"left_{name}")
        assert_identical(getattr(subtree, name), torch.where(right[:, None], *ends))
    assert_is_seed(subtree)
    assert_same_fields(tree, merger.tree, set(Tree._fields) - {"step"})


def assert_is_seed(subtree):
    assert (subtree.log_weight == -math.inf).all()
    for name in ("momentum_sum", "accept_sum", "leaf", "turning", "diverging"):
        assert (getattr(subtree, name) == 0).all()


def test_a_trajectory_begins_at_the_proposal_with_a_momentum_of_the_right_scale():
    merger = Merger()
    old, constants, normal = merger.tree, merger.constants, torch.randn(K, P)
    tree, subtree = begin(torch.ones(K, dtype=torch.bool), old, merger.subtree, constants, normal)
    r = normal / constants.inverse_mass.sqrt()
    start = Points(old.proposal[:, None], r[:, None], old.proposal_gradient[:, None], old.proposal_potential[:, None])
    expected = a_tree(start, constants, start.energy(constants)[:, 0])
    expected = expected._replace(
        accept_sum=torch.zeros(K), num_steps=torch.zeros(K, dtype=torch.long), step=constants.step_size[:, None]
    )
    assert_same_fields(tree, expected, Tree._fields)
    assert_identical(subtree.z, old.proposal)
    assert_identical(subtree.r, r)
    assert_identical(subtree.gradient, old.proposal_gradient)
    assert_is_seed(subtree)


# ---- growing


def valley(z):
    """A potential that is neither symmetric nor separable."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        value = 0.5 * z.square().sum(-1) + 0.3 * (z[..., 0] + 0.5 * z[..., 1]).sin() + softplus(z[..., 0])
        (gradient,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), gradient


def textbook_trajectory(z, r, step, inverse_mass, count):
    """Points after 1 to `count` leapfrog steps, with the starting point before them."""
    points = [(z, r, valley(z)[1], valley(z)[0])]
    for _ in range(count):
        half = r - step * valley(z)[1] / 2
        z = z + step * inverse_mass * half
        r = half - step * valley(z)[1] / 2
        points.append((z, r, valley(z)[1], valley(z)[0]))
    return Points(*(torch.stack(part, 1) for part in zip(*points, strict=True)))


class Growth:
    """Subtrees that grow to the largest size, in both directions, compared with the textbook's trajectory."""

    def __init__(self):
        self.constants = random_constants()
        z = torch.randn(K, P)
        tree, subtree = empty(z, *valley(z), self.constants.stores_at.shape[1])
        tree, subtree = begin(tree.finished, tree, subtree, self.constants, torch.randn(K, P))
        step = torch.where(torch.rand(K, 1) < 0.5, 1, -1) * tree.step
        self.tree, self.seed = tree._replace(step=step), subtree
        count = 2 ** (MAX_DEPTH - 1)
        points = textbook_trajectory(z, subtree.r, step, self.constants.inverse_mass, count)
        self.points = Points(*(part[:, 1:] for part in points))
        self.gain = tree.initial_energy[:, None] - self.points.energy(self.constants)  # (K, n)

    def grown(self, log_uniform):
        """(number of points, subtree) after each step; `log_uniform` is a function of the index of the next point."""
        subtree = self.seed
        for index in range(self.gain.shape[1]):
            subtree = grow(valley, self.tree, self.constants, subtree, log_uniform(index))
            yield index + 1, subtree


def test_a_growing_subtree_is_the_textbooks_trajectory_with_its_sums():
    growth = Growth()
    for count, subtree in growth.grown(lambda _: torch.rand(K).log()):
        last = Points(*(part[:, count - 1] for part in growth.points))
        assert_identical(subtree.z, last.z)
        assert_identical(subtree.r, last.r)
        assert_identical(subtree.gradient, last.gradient)
        gain = growth.gain[:, :count]
        assert_identical(subtree.log_weight, gain.logsumexp(1))
        assert_identical(subtree.accept_sum, gain.exp().clamp_max(1).sum(1))
        assert_identical(subtree.momentum_sum, growth.points.r[:, :count].sum(1))
        assert (subtree.leaf == count).all()
        assert torch.equal(subtree.diverging, gain[:, -1] < -1000)


def test_a_subtree_turns_where_a_balanced_subtree_that_it_completes_does():
    growth = Growth()
    num_turns = 0
    for count, subtree in growth.grown(lambda _: torch.rand(K).log()):
        expected = torch.zeros(K, dtype=torch.bool)
        for size in (2, 4, 8, 16):
            if count % size == 0:
                piece = Points(*(part[:, count - size : count] for part in growth.points))
                expected |= torch.stack(piece.turns(growth.constants)).any(0)
        assert torch.equal(subtree.turning, expected)
        assert torch.equal(
            ended(growth.tree._replace(size=torch.full((K,), 99)), subtree), expected | subtree.diverging
        )
        num_turns += int(expected.sum())
    assert 0 < num_turns < 8 * K


def test_each_point_of_a_subtree_is_proposed_with_its_share_of_the_weight():
    growth, rows = Growth(), torch.arange(K)
    takes = torch.rand(16, K) < 0.5
    takes[0] = True  # the first point has all of the weight, and no uniform number is above 1
    chosen = torch.zeros(K, dtype=torch.long)

    def log_uniform(index):
        share = growth.gain[:, index] - growth.gain[:, : index + 1].logsumexp(1)
        return share + torch.where(takes[index], -TINY, TINY)

    for count, subtree in growth.grown(log_uniform):
        chosen = torch.where(takes[count - 1], count - 1, chosen)
        assert_identical(subtree.proposal, growth.points.z[rows, chosen])
        assert_identical(subtree.proposal_gradient, growth.points.gradient[rows, chosen])
        assert_identical(subtree.proposal_potential, growth.points.potential[rows, chosen])
        assert_identical(subtree.proposal_energy, growth.points.energy(growth.constants)[rows, chosen])


@pytest.mark.parametrize(("loss", "diverges"), [(999.0, False), (1001.0, True)])
def test_a_step_that_loses_more_than_a_thousand_nats_diverges(loss, diverges):
    growth = Growth()
    kinetic = growth.tree.initial_energy - growth.tree.proposal_potential

    def cliff(z):
        """So high that the energy is lost; the zero gradient leaves the momentum unchanged after half a step."""
        return growth.tree.initial_energy + loss - kinetic, torch.zeros_like(z)

    seed = growth.seed._replace(gradient=torch.zeros(K, P))
    subtree = grow(cliff, growth.tree, growth.constants, seed, torch.zeros(K))
    assert (subtree.diverging == diverges).all()
    assert (ended(growth.tree._replace(size=torch.full((K,), 99)), subtree) == (subtree.turning | diverges)).all()


def test_an_infinite_or_undefined_energy_is_a_divergence_of_no_weight():
    growth = Growth()
    for bad in (math.inf, math.nan):
        subtree = grow(
            lambda z, bad=bad: (torch.full((K,), bad), z), growth.tree, growth.constants, growth.seed, torch.zeros(K)
        )
        assert subtree.diverging.all()
        assert (subtree.log_weight == -math.inf).all()
        assert (subtree.accept_sum == 0).all()
        assert ended(growth.tree._replace(size=torch.full((K,), 99)), subtree).all()


def test_checkpoints_are_the_first_leaves_of_all_balanced_subtrees():
    stores, checks = checkpoint_tables(6, torch.device("cpu"))
    held = {}
    for leaf in range(32):
        expected = {leaf + 1 - 2**k for k in range(1, 6) if (leaf + 1) % 2**k == 0}  # first leaves of what closes here
        assert {held[level] for level in checks[leaf].nonzero().flatten().tolist()} == expected
        for level in stores[leaf].nonzero().flatten().tolist():
            held[level] = leaf
