"""The No-U-Turn Sampler for many chains. Each chain has its own tree, and all chains take each step together."""

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.records import check_tensor
from ._kernel import Compile, Draws, Kernel, Sampler, ValueAndGrad
from ._native import Native, NativeChain, NativeKernel, native_or_reason
from ._traced import TorchKernel
from ._tree import Subtree, Tree, TreeConstants, begin, checkpoint_tables, empty, ended, grow, merge, turn

MOST_DEPTH = 20  # largest depth of a tree, whose checks need a table with a row for each second leaf
RANDOM_BLOCK = 256  # heuristic: number of steps for which uniform numbers are drawn at once


@dataclass(frozen=True)
class NUTS(Sampler):
    r"""The No-U-Turn Sampler: trajectories that grow until they turn back.

    A trajectory doubles until it, or one of its balanced subtrees, turns back on itself. The next draw is a point of
    the trajectory. Let v be the velocity at an end of the trajectory, and :math:`\rho` the sum of the momenta along it,
    with weight 1/2 at the two ends. The trajectory turns back if :math:`v \cdot \rho \le 0` at either end.

    Args:
        max_tree_depth: A draw takes at most ``2 ** max_tree_depth - 1`` leapfrog steps. The depth is from 1 to 20.

    References:
        Hoffman and Gelman (2014), https://arxiv.org/abs/1111.4246; Betancourt (2017), https://arxiv.org/abs/1701.02434,
        appendix A, for the weights of the points and for the check whether a trajectory turns back.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_mcmc(
        ...     model, (x, 2 * x), sampler=pb.NUTS(5), compile="auto", seed=0
        ... )
        >>> posterior.sample(100, seed=0)["net.weight"].shape
        torch.Size([100, 1, 1])
    """

    max_tree_depth: int = 10

    def __post_init__(self) -> None:
        depth = _checks.at_least("max_tree_depth", self.max_tree_depth, 1)
        if depth > MOST_DEPTH:
            raise ValueError(f"`max_tree_depth` must be at most {MOST_DEPTH}, a million steps for a draw, got {depth}.")
        object.__setattr__(self, "max_tree_depth", depth)

    def kernel(self, value_and_grad: ValueAndGrad, z: Tensor, *, compile: Compile = False) -> Kernel:
        sampler, not_in_c = native_or_reason(value_and_grad, z, compile, self.max_tree_depth)
        if sampler is not None:
            return NativeNUTSKernel(sampler, z, num_threads=torch.get_num_threads())
        return NUTSKernel(value_and_grad, z, self.max_tree_depth, not_in_c=not_in_c)


class NUTSKernel(TorchKernel):
    def __init__(self, value_and_grad: ValueAndGrad, z: Tensor, max_tree_depth: int, *, not_in_c: str) -> None:
        super().__init__(value_and_grad, z, not_in_c)
        self._max_size, self._tables = 2**max_tree_depth, checkpoint_tables(max_tree_depth, z.device)
        self._tree, self._subtree = empty(z, *self.value_and_grad(z), num_levels=self._tables[0].shape[1])
        self._log_uniform = z.new_empty(0, 3, len(z))  # random numbers for the next steps
        self._position = 0  # number of steps whose numbers were used

    def draw(self) -> Draws:
        normal = torch.randn_like(self._tree.proposal)
        constants = TreeConstants(self.step_size, self.inverse_mass, *self._tables)
        self._tree, self._subtree = begin(self._tree.finished, self._tree, self._subtree, constants, normal)
        while True:
            for_step, for_merge, for_side = self._next_log_uniform()
            self._subtree = grow(self.value_and_grad, self._tree, constants, self._subtree, for_step)
            chains = ended(self._tree, self._subtree)
            if bool(chains.any()):
                self._tree = merge(chains, self._tree, self._subtree, constants, self._max_size, for_merge)
                chains &= ~self._tree.finished
                self._tree, self._subtree = turn(chains, self._tree, self._subtree, constants, for_side)
                if bool(self._tree.finished.any()):
                    return self._report()

    def state(self) -> dict[str, Any]:
        return {
            "tree": list(self._tree),
            "subtree": list(self._subtree),
            "log_uniform": self._log_uniform,
            "position": self._position,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.require_own(state, "tree")
        to = functools.partial(torch.Tensor.to, device=self.step_size.device, copy=True)
        self._tree, self._subtree = Tree(*map(to, state["tree"])), Subtree(*map(to, state["subtree"]))
        self._log_uniform, self._position = to(state["log_uniform"]), state["position"]

    def _next_log_uniform(self) -> Tensor:
        """Return the logarithms of uniform numbers for one step, shape (3, K)."""
        if self._position == len(self._log_uniform):
            self._log_uniform = self._tree.log_weight.new_empty(RANDOM_BLOCK, 3, len(self.step_size)).uniform_().log()
            self._position = 0
        self._position += 1
        return self._log_uniform[self._position - 1]

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


class _NUTSChain(NativeChain):
    """A chain whose `point` has a position, its gradient and potential, and four numbers about the last draw."""

    def __init__(self, sampler: Native, point: Tensor) -> None:
        super().__init__(sampler, point)
        self.numbers, self.position = point.new_empty(0, 3), ctypes.c_long(0)
        self._state = torch.empty(sampler.size_of_state, dtype=torch.uint8)

    def draw(self, setting: tuple[float, Tensor]) -> Tensor:
        (step_size, inverse_mass), point = setting, self.point.clone()
        normal, is_new, is_done = self.normal(len(inverse_mass)), True, False
        while not is_done:
            if self.position.value == len(self.numbers):
                uniform = point.new_empty(RANDOM_BLOCK, 3).uniform_(generator=self.generator)
                self.numbers, self.position.value = uniform.log(), 0
            is_done = self.sampler.advance(
                *(self._state.data_ptr(), is_new, point.data_ptr(), step_size, inverse_mass.data_ptr()),
                *(normal.data_ptr(), self.numbers.data_ptr(), len(self.numbers), ctypes.addressof(self.position)),
                *(self.scratch.data_ptr(), self.sampler.data),
            )
            is_new = False
        return point

    def state(self) -> dict[str, Any]:
        return {**super().state(), "numbers": self.numbers, "position": self.position.value}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        numbers, position = state["numbers"], _checks.at_least("position", state["position"], 0)
        check_tensor("`numbers` of a chain", numbers, (max(len(numbers), position), 3), self.numbers.dtype)
        self.numbers, self.position.value = numbers.clone(), position


class NativeNUTSKernel(NativeKernel):
    def __init__(self, sampler: Native, z: Tensor, *, num_threads: int = 1) -> None:
        potential, gradient = sampler.value_and_grad(z)
        points = torch.cat([z, gradient, potential[:, None], z.new_zeros(len(z), 4)], -1)
        super().__init__(sampler, z, [_NUTSChain(sampler, point) for point in points], num_threads=num_threads)

    def at(self, z: Tensor) -> "NativeNUTSKernel":
        return NativeNUTSKernel(self.sampler, z, num_threads=self.num_threads)

    def setting(self, chain: int) -> tuple[float, Tensor]:
        return float(self.step_size[chain]), self.inverse_mass[chain].clone()

    def report(self, finished: Tensor, points: Tensor) -> Draws:
        num_weights = self.inverse_mass.shape[1]
        potential, energy, accept, diverging, num_steps = points[:, 2 * num_weights :].unbind(-1)
        return Draws(finished, points[:, :num_weights], -potential, energy, accept, diverging > 0, num_steps.long())
