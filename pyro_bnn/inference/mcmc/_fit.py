"""Markov chain Monte Carlo for any model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..._core import checks as _checks
from ..._core.checkpointing import Checkpoint, check_fit, keeping, renamed
from ..._core.inputs import Inputs, as_inputs, as_targets, unwrapped
from ..._core.processes import Processes
from ..._core.scope import EXCLUSIVE, Stream
from ..._core.signatures import explained
from ...modelling.model import BayesianModel
from ..guides import Init
from ..joint import Potential, TracePotential, network_potential
from ..posterior import EnsemblePosterior, Posterior, with_learned
from ._adaptation import TARGET_ACCEPT
from ._convergence import FEWEST_DRAWS
from ._diagnostics import judge
from ._kernel import ChainStatistics, Compile, Sampler
from ._nuts import NUTS
from ._posterior import MCMCPosterior
from ._run import KIND, Run, RunPlan, settings_of
from ._start import Descent, FreshInit

T = TypeVar("T")

Start = Init | Posterior | Descent | Literal["prior"]

MAX_TRIALS = 100  # heuristic: number of attempts to draw first points with finite densities


@explained("fit_mcmc(model, (x, y), sampler=NUTS())")
def fit_mcmc(
    model: Callable[..., object],
    data: tuple[Any, ...],
    *,
    sampler: Sampler,
    num_samples: int = 1000,
    num_warmup: int = 1000,
    num_chains: int = 4,
    init: Start = "prior",
    target_accept: float = TARGET_ACCEPT,
    dtype: torch.dtype | None = torch.float64,
    compile: Compile = "auto",
    progress: bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
) -> MCMCPosterior:
    """Draw from the posterior by Markov chain Monte Carlo.

    Every step uses all data. All chains run at the same time, in unconstrained space, where the logarithm of a noise
    scale replaces the scale. During warm-up, each chain learns its own step size and, except for MCLMC, a diagonal mass
    matrix.

    If `torch.distributed` is initialised, each process draws some of the chains, and returns all chains. Each process
    writes its own checkpoint, with its rank in the file's name. Every process must call this function with the same
    arguments and with all rows of the data. The draws depend on the seed and on the number of processes.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or (much slower) any Pyro model. Learnable parameters do not change.
        data: The pair (x, y) with all rows. x is a tensor, an array, a list of numbers or a data frame, shape (N, ...),
            or a tuple or dictionary of several inputs. For any other Pyro model, `data` is the tuple of the arguments
            of ``model(*data)``.
        sampler: The algorithm with its settings: :class:`~pyro_bnn.NUTS`, :class:`~pyro_bnn.HMC` or
            :class:`~pyro_bnn.MCLMC`. :class:`~pyro_bnn.MCLMC` is for chains that each explore one mode.
        num_samples: Number S of draws that are kept from each chain.
        num_warmup: Number of warm-up draws of each chain, which are not kept.
        num_chains: Number K of chains. R-hat shows whether several chains agree.
        init: Distribution of the first points: the prior (``"prior"``), the Gaussians of an
            :class:`~pyro_bnn.inference.guides.Init`, or another posterior. An :class:`~pyro_bnn.EnsemblePosterior`
            starts each chain at one of its members; a :class:`~pyro_bnn.inference.mcmc.Descent` first trains one
            network per chain. With an ensemble or a descent, each chain explores its own mode, so the status judges
            each chain by itself.
        target_accept: Acceptance rate at which warm-up aims when it adapts the step size. A higher rate means smaller
            steps.
        dtype: Dtype of the computation; with ``None``, that of the model. Draws have the model's dtype. In C, float32
            takes half to two thirds of the time of float64.
        compile: Whether to draw in C, which is several times as fast as torch, and possible for a small network on a
            CPU. With HMC, only the gradients are computed in C. If C is not possible, ``"auto"`` draws in torch, and
            ``compile=True`` raises an error. Compiling takes about a second in each process. As many chains run at a
            time as torch has threads, but the number of threads does not change the draws. NUTS and MCLMC use different
            random numbers in C and in torch, so with ``"auto"`` the draws depend on the machine.
        progress: Whether to show the progress; see :func:`~pyro_bnn.fit_svi`.
        checkpoint: File for the state of the run, written at the beginning, every ten minutes (or as a
            :class:`Checkpoint` says) and at the end. SIGINT and SIGTERM then save the run after the current draw and
            end it.
        resume: Checkpoint of a run with the same arguments, from which this run continues. A resumed run gives bit for
            bit the draws of an uninterrupted run. A finished run can be resumed with a larger `num_samples`; the
            additional draws differ from the draws of a single longer run.
        seed: Seed that makes the run repeatable; with ``None``, a seed is drawn from torch's generator.

    Returns:
        The chains, with `status`, `statistics` and `path`. The status judges divergences and, if ArviZ is installed,
        R-hat and effective sample sizes of predictions at up to 50 inputs. It does not judge weights, which differ if
        hidden units are permuted or change their signs.

    Raises:
        ValueError: If the data do not match the model, if the model is random even for fixed weights (dropout), if no
            starting point with a finite density is found, if ``compile=True`` is impossible, or if `resume` is damaged
            or from another run.
        OSError: If the file `checkpoint` cannot be written, if it exists and `resume` does not name it, or if the file
            `resume` does not exist.
        Interrupted: If a signal has ended the run after its state was written.

    Warns:
        ConvergenceWarning: If the diagnostics find a problem, such as an R-hat above 1.01.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net = torch.nn.Linear(1, 1)
        >>> prior = pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_mcmc(
        ...     model, (x, 2 * x), sampler=pb.HMC(8), num_warmup=100, seed=0
        ... )
        >>> posterior.chains["net.weight"].mean().round(decimals=1)
        tensor(2.)
    """
    _check_arguments(model, sampler, init, dtype, compile)
    check_fit(progress=progress, checkpoint=checkpoint, resume=resume, seed=seed)
    network = model if isinstance(model, BayesianModel) else None
    processes, num_chains = ChainProcesses.present(), _checks.at_least("num_chains", num_chains, 1)
    own_chains = processes.share(num_chains)
    plan = RunPlan(
        sampler=sampler,
        num_chains=len(own_chains),
        num_warmup=_checks.at_least("num_warmup", num_warmup, 0),
        num_samples=_checks.at_least("num_samples", num_samples, FEWEST_DRAWS),
        target_accept=_checks.between_zero_and_one("target_accept", target_accept),
        compile=compile,
    )
    x: Inputs | None = None
    if network is None:
        data = _arguments(data)
        device = next((part.device for part in data if isinstance(part, Tensor)), None)
    else:
        data, device = pair_of(data, network), network.device
        x = data[0]
    first_seed = processes.of_first(lambda: int(torch.randint(2**62, ())) if seed is None else seed)
    stream = Stream(processes.seed(first_seed), device)
    with torch.no_grad():
        with stream:
            potential: Potential = (
                TracePotential(model, data) if network is None else network_potential(network, data[0], data[1], dtype)
            )
        num_numbers = sum(site.start.numel() for site in potential.sites)
        _checks.in_memory(
            "num_samples", plan.num_samples, plan.num_chains * num_numbers * potential.like.element_size()
        )
        settings = settings_of(plan, potential, data, num_chains=num_chains, seed=None if seed is None else int(seed))
        processes.require_same_arguments(settings)
        run = Run(plan, potential, stream, settings)
        file = None if resume is None else processes.file(resume)
        name = checkpoint.path if isinstance(checkpoint, Checkpoint) else checkpoint
        with keeping(renamed(checkpoint, processes.file), KIND, file, name=name) as keeper:
            if file is not None:
                run.resume(file)
            else:
                with stream:
                    starts = starting_points(potential, init, num_chains, own_chains)
                run.start(starts, init if isinstance(init, Descent) else None)
            run.finish(keeper, progress=progress)
        recorded, seconds = _together(processes, run.recorded(), run.seconds)
        samples = constrained(potential, recorded.pop("z"), network.dtype if network else potential.like.dtype)
    statistics = ChainStatistics(**recorded, seconds=seconds)
    with EXCLUSIVE:  # all threads share Pyro's handlers, under which the network runs
        at_modes = isinstance(init, EnsemblePosterior | Descent) and num_chains > 1
        status, modes = processes.of_first(
            lambda: judge(samples, statistics, sampler.name, network, x, at_modes=at_modes)
        )
    return with_learned(
        MCMCPosterior(samples, statistics, status, sampler=sampler.name, path=run.path, modes=modes), model
    )


@explained("fit_nuts(model, (x, y))")
def fit_nuts(
    model: Callable[..., object],
    data: tuple[Any, ...],
    *,
    max_tree_depth: int = 10,
    num_samples: int = 1000,
    num_warmup: int = 1000,
    num_chains: int = 4,
    init: Start = "prior",
    target_accept: float = TARGET_ACCEPT,
    dtype: torch.dtype | None = torch.float64,
    compile: Compile = "auto",
    progress: bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
) -> MCMCPosterior:
    """Draw from the posterior by the No-U-Turn Sampler.

    Short for ``fit_mcmc(..., sampler=NUTS(max_tree_depth))``; see :func:`~pyro_bnn.fit_mcmc` for the result, the errors
    and details.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or (much slower) any Pyro model.
        data: The pair (x, y) with all rows; for any other Pyro model, the tuple of its arguments.
        max_tree_depth: A draw takes at most ``2 ** max_tree_depth - 1`` leapfrog steps; see :class:`~pyro_bnn.NUTS`.
        num_samples: Number S of draws that are kept from each chain.
        num_warmup: Number of warm-up draws of each chain, which are not kept.
        num_chains: Number K of chains. R-hat shows whether several chains agree.
        init: Distribution of the first points: ``"prior"``, an ``Init``, another posterior, or a ``Descent``.
        target_accept: Acceptance rate at which warm-up aims when it adapts the step size. A higher rate means smaller
            steps.
        dtype: Dtype of the computation; with ``None``, the dtype of the model.
        compile: Whether to draw in C, which is several times as fast as torch. ``"auto"`` does so where possible.
        progress: Whether to show the progress; see :func:`~pyro_bnn.fit_svi`.
        checkpoint: File for the state of the run, from which it can be resumed.
        resume: Checkpoint of a run with the same arguments, from which to continue.
        seed: Seed that makes the run repeatable; with ``None``, a seed is drawn from torch's generator.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net = torch.nn.Linear(1, 1)
        >>> prior = pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_nuts(model, (x, 2 * x), seed=0)
        >>> posterior.chains["net.weight"].mean().round(decimals=1)
        tensor(2.)
    """
    return fit_mcmc(
        model,
        data,
        sampler=NUTS(max_tree_depth),
        num_samples=num_samples,
        num_warmup=num_warmup,
        num_chains=num_chains,
        init=init,
        target_accept=target_accept,
        dtype=dtype,
        compile=compile,
        progress=progress,
        checkpoint=checkpoint,
        resume=resume,
        seed=seed,
    )


def _check_arguments(model: object, sampler: object, init: object, dtype: object, compile: object) -> None:
    _checks.kind("sampler", sampler, Sampler, "a Sampler such as NUTS()")
    if not isinstance(compile, bool) and compile != "auto":
        raise ValueError(f'`compile` must be True, False or "auto", got {_checks.got(compile)}.')
    if not isinstance(init, Init | Posterior | Descent | str) or (isinstance(init, str) and init != "prior"):
        got = _checks.described(init)
        raise ValueError(
            '`init` must be "prior", an Init, a Posterior, or a Descent of `pyro_bnn.inference.mcmc`, got '
            f"{got}; wrap a guide in GuidePosterior."
        )
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"`dtype` must be torch.float64, torch.float32 or None, got {_checks.got(dtype)}.")
    _checks.function("model", model, "a BayesianModel, or a Pyro model that is called as model(*data)")
    if isinstance(model, type):
        raise ValueError(f"`model` must be a model, got the class {model.__name__}; make an instance.")
    if torch.is_inference_mode_enabled():
        raise ValueError("a sampler needs gradients; leave `torch.inference_mode()` first.")


def pair_of(data: object, model: BayesianModel) -> tuple[Inputs, Tensor]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        got = f"{len(data)} parts" if isinstance(data, tuple | list) else _checks.described(data)
        raise ValueError(
            f"`data` must be a pair (x, y) with all rows, got {got}; pass several inputs as ((x_1, x_2), y), and join "
            "the batches of a loader: every step uses all rows."
        )
    return as_inputs("x", data[0], model.like), as_targets("y", data[1], model.like)


def _arguments(data: object) -> tuple[Any, ...]:
    if not isinstance(data, tuple | list):
        raise ValueError(
            f"`data` must be the tuple of the model's arguments, such as (x, y), got {_checks.described(data)}; pass "
            "(x,) for a single argument."
        )
    return tuple(map(unwrapped, data))


def constrained(potential: Potential, z: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the sites' values, ``{site: shape (K, S, *event)}``, from unconstrained z, shape (K, S, P)."""
    values = potential.constrain(z.flatten(0, 1))
    return {name: value.unflatten(0, z.shape[:2]).to(dtype).contiguous() for name, value in values.items()}


@dataclass(frozen=True)
class ChainProcesses(Processes):
    def share(self, num_chains: int) -> range:
        """Return the indices of the chains that this process draws."""
        if num_chains < self.count:
            raise ValueError(
                f"`num_chains` must be at least the number of processes, {self.count}, got {num_chains}; ask for more "
                "chains or start fewer processes."
            )
        each, rest = divmod(num_chains, self.count)
        begin = self.rank * each + min(self.rank, rest)
        return range(begin, begin + each + (self.rank < rest))

    def file(self, path: str | Path) -> Path:
        return Path(path) if self.count == 1 else Path(f"{path}.{self.rank}-of-{self.count}")

    def require_same_arguments(self, values: Mapping[str, Any]) -> None:
        for other in self.gathered(dict(values)):
            for name, value in values.items():
                if other[name] != value:
                    raise ValueError(
                        f"`{name}` must be the same in all processes: each process draws some of the chains, and every "
                        "chain uses all data. Pass the same arguments everywhere."
                    )

    def of_first(self, make: Callable[[], T]) -> T:
        """Call a function in the first process only, and return its result in all processes."""
        value: T = self.from_first(make() if self.is_first else None)
        return value


def _together(
    processes: ChainProcesses, recorded: dict[str, Tensor], seconds: float
) -> tuple[dict[str, Tensor], float]:
    if processes.count == 1:
        return recorded, seconds
    device = recorded["z"].device
    parts = processes.gathered({name: value.cpu() for name, value in recorded.items()})
    joined = {name: torch.cat([part[name] for part in parts]).to(device) for name in recorded}
    return joined, max(processes.gathered(seconds))


def starting_points(potential: Potential, init: Start, num_chains: int, own: range | None = None) -> Tensor:
    """Draw first positions, shape (K, P), of all chains or of those in `own`.

    Draw again in chains where the potential or its gradient is not finite.
    """
    own = range(num_chains) if own is None else own
    z = _draw(potential, init, num_chains, own)
    for _ in range(MAX_TRIALS):
        value, gradient = potential.value_and_grad(z)
        bad = ~(value.isfinite() & gradient.isfinite().all(-1))
        if not bool(bad.any()):
            return z
        z = torch.where(bad[:, None], _draw(potential, init, num_chains, own), z)
    raise ValueError(
        f"no start with a finite density was found in {MAX_TRIALS} trials; pass another `init`, such as NetworkInit(), "
        "or scale the inputs to unit size."
    )


def _draw(potential: Potential, init: Start, num_chains: int, own: range) -> Tensor:
    if init == "prior":
        return potential.from_prior(len(own))
    if isinstance(init, Posterior):
        if init.num_stored is not None and init.num_stored < num_chains:
            raise ValueError(f"`init` holds {init.num_stored} draws, but there are {num_chains} chains to start.")
        draws = list(islice(init.draws(num_chains), own.start, own.stop))
        return potential.unconstrain({name: torch.stack([draw[name] for draw in draws]) for name in draws[0]})
    if isinstance(init, Descent):
        init = init.init or FreshInit()
    rows = []
    for _ in own:  # an Init may itself be random
        pairs = [init(site) for site in potential.sites]
        rows.append(torch.cat([(loc + softplus(rho) * torch.randn_like(loc)).reshape(-1) for loc, rho in pairs]))
    return torch.stack(rows)
