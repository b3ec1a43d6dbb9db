"""Markov chain Monte Carlo on any model: where the chains start, how they run, and whether to believe them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _checks
from .._scope import seeded
from ..guides import Init
from ..joint import Potential, TracePotential, network_potential
from ..model import BayesianModel
from ..posterior import Posterior
from ._adaptation import TARGET_ACCEPT
from ._chains import run_chains
from ._judge import judge
from ._kernel import Sampler
from ._nuts import NUTS
from ._posterior import MCMCPosterior
from ._start import Start, starting_points
from ._statistics import ChainStatistics


def fit_mcmc(
    model: Callable[..., object],
    x: Tensor,
    y: Tensor,
    *,
    sampler: Sampler,
    num_samples: int = 1000,
    num_warmup: int = 1000,
    num_chains: int = 4,
    target_accept: float = TARGET_ACCEPT,
    init: Start = None,
    dtype: torch.dtype | None = torch.float64,
    compile: bool = False,
    progress: bool = False,
    seed: int | None = None,
) -> MCMCPosterior:
    r"""Draws from the exact posterior, by Markov chains.

    The model is the one that SVI uses; all data are seen at once. Chains move in unconstrained space, where a noise
    scale is a logarithm, and the density has the Jacobian. All chains run side by side in one batch. During warm-up
    each chain learns its own step size and diagonal mass matrix.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or (much slower) any Pyro model called as ``model(x, y)``. Its
            learnable parameters, if it has any, stay as they are.
        x: All inputs, shape (N, ...).
        y: All targets, shape (N, ...).
        sampler: The algorithm with its settings, :class:`~pyro_bnn.NUTS` or :class:`~pyro_bnn.HMC`.
        num_samples: Number of draws kept of each chain, S.
        num_warmup: Number of draws of each chain that only serve adaptation.
        num_chains: Number of chains, K. With several, R-hat shows whether they agree.
        target_accept: Acceptance rate that warm-up adapts the step size to; nearer to 1 the steps are smaller.
        init: What the chains' starts are drawn from: the prior (None), the Gaussians of an :class:`~pyro_bnn.Init`, or
            another posterior, such as that of a fit.
        dtype: Dtype to compute in; None computes in the model's. The draws are returned in the model's.
        compile: Compile the sampler for this model with `torch.compile`. That takes some ten seconds and a C++
            compiler; the sampler then is several times faster. The draws differ by rounding.
        progress: Show a progress bar.
        seed: Makes the run repeatable and leaves torch's generators as they were.

    Returns:
        The chains, with `status` and `statistics`. The status judges divergences and, where ArviZ is installed, R-hat
        and effective sample sizes of *predictions* at some of the inputs: weights themselves are only identified up to
        permutations and signs of the hidden units.

    Raises:
        ValueError: If the data do not fit the model, the model is random for given weights (dropout), or no start
            with a finite density is found.

    Warns:
        ConvergenceWarning: If trajectories diverged, R-hat is above 1.01, or an effective sample size is low.
    """
    _checks.kind("sampler", sampler, Sampler, "a Sampler such as NUTS()")
    run = _Run(sampler, num_samples, num_warmup, num_chains, target_accept, init, dtype, compile, progress, seed)
    return run(model, x, y)


def fit_nuts(
    model: Callable[..., object],
    x: Tensor,
    y: Tensor,
    *,
    num_samples: int = 1000,
    num_warmup: int = 1000,
    num_chains: int = 4,
    max_tree_depth: int = 10,
    target_accept: float = TARGET_ACCEPT,
    init: Start = None,
    dtype: torch.dtype | None = torch.float64,
    compile: bool = False,
    progress: bool = False,
    seed: int | None = None,
) -> MCMCPosterior:
    """Draws from the exact posterior, by the No-U-Turn Sampler: short for `fit_mcmc(..., sampler=NUTS(...))`.

    All arguments, the result and the errors are those of :func:`~pyro_bnn.fit_mcmc`, but for one argument.

    Args:
        model: The model.
        x: All inputs, shape (N, ...).
        y: All targets, shape (N, ...).
        num_samples: Number of draws kept of each chain.
        num_warmup: Number of draws of each chain that only serve adaptation.
        num_chains: Number of chains.
        max_tree_depth: Argument of :class:`~pyro_bnn.NUTS`.
        target_accept: Acceptance rate that warm-up adapts the step size to.
        init: What the chains' starts are drawn from.
        dtype: Dtype to compute in.
        compile: Compile the sampler for this model.
        progress: Show a progress bar.
        seed: Makes the run repeatable.
    """
    sampler = NUTS(max_tree_depth)
    run = _Run(sampler, num_samples, num_warmup, num_chains, target_accept, init, dtype, compile, progress, seed)
    return run(model, x, y)  # and not by `fit_mcmc`: warnings point to the caller of either


@dataclass
class _Run:
    """Arguments of :func:`fit_mcmc`."""

    sampler: Sampler
    num_samples: int
    num_warmup: int
    num_chains: int
    target_accept: float
    init: Start
    dtype: torch.dtype | None
    compile: bool
    progress: bool
    seed: int | None

    def __post_init__(self) -> None:
        self.num_samples = _checks.at_least("num_samples", self.num_samples, 4)  # what R-hat needs
        self.num_warmup = _checks.at_least("num_warmup", self.num_warmup, 0)
        self.num_chains = _checks.at_least("num_chains", self.num_chains, 1)
        self.target_accept = _checks.between_zero_and_one("target_accept", self.target_accept)
        for name in ("compile", "progress"):
            _checks.flag(name, getattr(self, name))
        if self.seed is not None:
            _checks.seed(self.seed)
        if self.init is not None and not isinstance(self.init, (Init, Posterior)):
            got = _checks.described(self.init)
            raise ValueError(f"`init` must be an Init, a Posterior or None, got {got}; wrap a guide in GuidePosterior.")
        if self.dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"`dtype` must be torch.float64, torch.float32 or None, got {self.dtype}.")

    def __call__(self, model: Callable[..., object], x: Tensor, y: Tensor) -> MCMCPosterior:
        self._check_can_run(model)
        begin = time.perf_counter()
        _checks.rows("x", x)
        _checks.rows("y", y)
        network = model if isinstance(model, BayesianModel) else None
        with seeded(self.seed, network.device if network else x.device), torch.no_grad():
            potential: Potential = (
                network_potential(network, x, y, self.dtype, stacklevel=3) if network else TracePotential(model, (x, y))
            )
            starts = starting_points(potential, self.init, self.num_chains)
            kernel = self.sampler.kernel(potential.value_and_grad, starts, compile=self.compile)
            recorded = run_chains(
                kernel,
                starts,
                num_samples=self.num_samples,
                num_warmup=self.num_warmup,
                target_accept=self.target_accept,
                progress=self.progress,
            )
            samples = _constrained(potential, recorded.pop("z"), network.dtype if network else starts.dtype)
        seconds = time.perf_counter() - begin
        statistics = ChainStatistics(
            **recorded, step_size=kernel.step_size, inverse_mass=kernel.inverse_mass, seconds=seconds
        )
        status = judge(samples, statistics, self.sampler.name, network, x if network else None, stacklevel=3)
        return MCMCPosterior(samples, statistics, status, sampler=self.sampler.name)

    def _check_can_run(self, model: object) -> None:
        _checks.function("model", model, "a BayesianModel, or a Pyro model that is called with x and y")
        if isinstance(model, type):
            raise ValueError(f"`model` must be a model, got the class {model.__name__}; make an instance.")
        if self.compile and not isinstance(model, BayesianModel):
            raise ValueError(f"`compile=True` needs a BayesianModel, got {type(model).__name__}; use `compile=False`.")
        if torch.is_inference_mode_enabled():
            raise ValueError("a sampler needs gradients; leave `torch.inference_mode()` first.")


def _constrained(potential: Potential, z: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Values of the sites, ``{site: shape (K, S, *event)}``, at points of shape (K, S, P)."""
    values = potential.constrain(z.flatten(0, 1))
    return {name: value.unflatten(0, z.shape[:2]).to(dtype).contiguous() for name, value in values.items()}
