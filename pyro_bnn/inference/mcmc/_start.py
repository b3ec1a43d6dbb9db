"""Starts of chains at random points, or at modes of the posterior."""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..guides import Init
from ..joint import Site
from ..scale_maps import Softplus
from ._kernel import ValueAndGrad


@dataclass(frozen=True)
class FreshInit(Init):
    """Points of freshly initialised networks: Gaussian weights that keep the scale of activations across ReLU layers.

    Weights have the standard deviation sqrt(2 / number of inputs). A variable with fewer than two axes starts at 0 if
    it is unconstrained, like a bias, and at the median of its prior if it is constrained, like a noise scale.

    References:
        He et al. (2015), https://arxiv.org/abs/1502.01852, section 2.2.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> from pyro_bnn.inference.mcmc import FreshInit
        >>> posterior = pb.fit_nuts(
        ...     model, (x, 2 * x), init=FreshInit(), compile="auto", seed=0
        ... )
        >>> posterior.sample(3, seed=0)["net.weight"].shape
        torch.Size([3, 1, 1])
    """

    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        start = site.unconstrained_start
        if start.dim() < 2:
            loc = torch.zeros_like(start) if site.transform is None else start
            return loc, torch.full_like(start, -torch.inf)
        scale = start.new_tensor(math.sqrt(2 / start[0].numel()))
        return torch.zeros_like(start), Softplus().inverse(scale).expand_as(start)


@dataclass(frozen=True)
class Descent:
    """Starts at modes: Adam moves each chain from a random point to a nearby mode of the posterior density.

    Args:
        num_steps: Number of steps of Adam, each on all data. In C, all steps together take seconds; see `compile` of
            :func:`~pyro_bnn.fit_mcmc`.
        learning_rate: The initial learning rate; it falls to 0 along a cosine.
        init: Distribution of the random points; with ``None``, :class:`FreshInit`.

    References:
        Sommer et al. (2025), https://arxiv.org/abs/2502.06335, for chains that start at the members of an ensemble.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> from pyro_bnn.inference.mcmc import Descent
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> chains = {"sampler": pb.MCLMC(), "compile": "auto", "seed": 0}
        >>> posterior = pb.fit_mcmc(model, (x, 2 * x), init=Descent(200), **chains)
        >>> posterior.num_chains
        4
    """

    num_steps: int = 2000
    learning_rate: float = 0.02
    init: Init | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_steps", _checks.at_least("num_steps", self.num_steps, 1))
        _checks.positive("learning_rate", self.learning_rate)
        if self.init is not None:
            _checks.kind("init", self.init, Init, "an Init or None")

    def __call__(self, value_and_grad: ValueAndGrad, z: Tensor, *, until: float = math.inf) -> Tensor:
        """Descend from each row of z, shape (K, P), until the time `until`; return the lowest point of each descent."""
        z = z.clone()
        lowest, best = torch.full_like(z[:, 0], torch.inf), z.clone()
        adam = torch.optim.Adam([z], lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, self.num_steps)
        for _ in range(self.num_steps):
            value, z.grad = value_and_grad(z)
            is_lower = value < lowest
            lowest = torch.where(is_lower, value, lowest)
            best = torch.where(is_lower[:, None], z, best)
            if time.perf_counter() > until:
                break
            adam.step()
            schedule.step()
        return best
