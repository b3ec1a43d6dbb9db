"""Markov chain Monte Carlo: any model, many chains, and a status that says whether to believe them."""

import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus
from tqdm import tqdm

from .. import _checks
from .._scope import seeded
from ..guides import Init
from ..joint import Potential, TracePotential, network_potential
from ..model import BayesianModel
from ..posterior import Posterior, Status
from ._adaptation import TARGET_ACCEPT, Adaptation
from ._diagnostics import ConvergenceWarning, diagnose
from ._hmc import HMC
from ._kernel import Draws, Kernel, ValueAndGrad
from ._nuts import NUTS
from ._posterior import ChainStatistics, MCMCPosterior

MAX_START_TRIALS = 100
NUM_PREDICTION_CHECKS = 50
"""Training inputs at which the chains' predictions are compared; heuristic."""

MAX_QUANTITIES = 400
"""ArviZ takes about a millisecond for each, and is not to take longer than the sampling; heuristic."""

Start = Init | Posterior | None


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
    r"""Draws from the exact posterior, by the No-U-Turn Sampler.

    The model is the very one used for SVI; all data are seen at once. Step size and a diagonal mass matrix are learned
    during warm-up, each chain for itself. All chains run side by side in one batch. The posterior is sampled in
    unconstrained space, where a noise scale is a logarithm, with the Jacobian.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or (much slower) any Pyro model called as ``model(x, y)``. Its
            learnable parameters, if it has any, stay as they are.
        x: All inputs, shape (N, ...).
        y: All targets, shape (N, ...).
        num_samples: Draws kept of each chain, S.
        num_warmup: Draws of each chain that only serve adaptation.
        num_chains: K; four let R-hat see what one cannot.
        max_tree_depth: At most ``2 ** max_tree_depth - 1`` leapfrog steps per draw.
        target_accept: Acceptance rate that the step size is adapted to.
        init: Where chains start: by default independent draws from the prior; or an
            :class:`~pyro_bnn.Init`, whose Gaussian they are drawn from; or another posterior, such as that of a fit.
        dtype: What to compute in. The draws are handed back in the model's own dtype. None computes in that, too.
        compile: Compile the sampler for this model with `torch.compile`, which takes some ten seconds and a C++
            compiler, and then is several times faster. The draws differ by rounding.
        progress: Show a progress bar.
        seed: Makes the run repeatable and leaves torch's generators as they were.

    Returns:
        The chains, with `status` and `statistics`. Where ArviZ is installed the status judges R-hat and effective
        sample sizes of *predictions* at some of the inputs: weights themselves are only identified up to permutations
        and signs of the hidden units.

    Raises:
        ValueError: If the data do not fit the model, the model is random for given weights (dropout), or no start
            with a finite density is found.

    Warns:
        ConvergenceWarning: If trajectories diverged, R-hat is above 1.01, or an effective sample size is low.

    References:
        Hoffman and Gelman (2014), https://arxiv.org/abs/1111.4246; Betancourt (2017),
        https://arxiv.org/abs/1701.02434.
    """
    _checks.at_least("max_tree_depth", max_tree_depth, 1)
    _check_compile(model, compile)

    def make(value_and_grad: ValueAndGrad, z: Tensor) -> Kernel:
        return NUTS(value_and_grad, z, max_tree_depth=max_tree_depth, compile=compile)

    run = _Run(num_samples, num_warmup, num_chains, target_accept, progress)
    return run(model, x, y, "NUTS", make, init, dtype, seed)


def fit_hmc(
    model: Callable[..., object],
    x: Tensor,
    y: Tensor,
    *,
    num_samples: int = 1000,
    num_warmup: int = 1000,
    num_chains: int = 4,
    max_steps: int = 64,
    target_accept: float = TARGET_ACCEPT,
    init: Start = None,
    dtype: torch.dtype | None = torch.float64,
    compile: bool = False,
    progress: bool = False,
    seed: int | None = None,
) -> MCMCPosterior:
    """Draws from the exact posterior, by Hamiltonian Monte Carlo with trajectories of random length.

    Args:
        model: As for :func:`fit_nuts`, like all arguments but one.
        x: All inputs, shape (N, ...).
        y: All targets, shape (N, ...).
        num_samples: Draws kept of each chain, S.
        num_warmup: Draws of each chain that only serve adaptation.
        num_chains: K.
        max_steps: Trajectories take 1 to `max_steps` leapfrog steps, uniformly at random.
        target_accept: Acceptance rate that the step size is adapted to.
        init: Where chains start.
        dtype: What to compute in.
        compile: Compile the potential with `torch.compile`.
        progress: Show a progress bar.
        seed: Makes the run repeatable and leaves torch's generators as they were.

    Returns:
        The chains, with `status` and `statistics`.

    Raises:
        ValueError: As :func:`fit_nuts`.

    Warns:
        ConvergenceWarning: As :func:`fit_nuts`.

    References:
        Neal (2011), https://arxiv.org/abs/1206.1901.
    """
    _checks.at_least("max_steps", max_steps, 1)
    _check_compile(model, compile)

    def make(value_and_grad: ValueAndGrad, z: Tensor) -> Kernel:
        return HMC(value_and_grad, z, max_steps=max_steps, compile=compile)

    run = _Run(num_samples, num_warmup, num_chains, target_accept, progress)
    return run(model, x, y, "HMC", make, init, dtype, seed)


def _check_compile(model: object, compile: bool) -> None:
    if compile and not isinstance(model, BayesianModel):
        raise ValueError(f"`compile=True` needs a BayesianModel, got {type(model).__name__}; use `compile=False`.")


class _Run:
    """Warm-up, sampling and judgement, whatever the kernel."""

    def __init__(
        self, num_samples: int, num_warmup: int, num_chains: int, target_accept: float, progress: bool
    ) -> None:
        self._num_samples = _checks.at_least("num_samples", num_samples, 4)  # what R-hat needs
        self._num_warmup = _checks.at_least("num_warmup", num_warmup, 0)
        self._num_chains = _checks.at_least("num_chains", num_chains, 1)
        self._target = _checks.between_zero_and_one("target_accept", target_accept)
        self._progress = progress

    def __call__(
        self,
        model: Callable[..., object],
        x: Tensor,
        y: Tensor,
        sampler: str,
        make: Callable[[ValueAndGrad, Tensor], Kernel],
        init: Start,
        dtype: torch.dtype | None,
        seed: int | None,
    ) -> MCMCPosterior:
        begin = time.perf_counter()
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"`dtype` must be torch.float64, torch.float32 or None, got {dtype}.")
        if torch.is_inference_mode_enabled():
            raise ValueError("a sampler needs gradients; leave `torch.inference_mode()` first.")
        device = model.device if isinstance(model, BayesianModel) else x.device
        with seeded(seed, device), torch.no_grad():
            potential = _potential(model, x, y, dtype)
            starts = _starts(potential, init, self._num_chains)
            kernel = make(potential.value_and_grad, starts)
            recorded = self._sample(kernel, starts)
            z = torch.stack(recorded.pop("z"), 1)
            flat = potential.constrain(z.flatten(0, 1))
        out_dtype = model.dtype if isinstance(model, BayesianModel) else z.dtype
        samples = {name: v.unflatten(0, z.shape[:2]).to(out_dtype).contiguous() for name, v in flat.items()}
        statistics = ChainStatistics(
            **{name: torch.stack(values, 1) for name, values in recorded.items()},
            step_size=kernel.step_size,
            inverse_mass=kernel.inverse_mass,
            seconds=time.perf_counter() - begin,
        )
        status = _judge(samples, statistics, model, x, sampler)
        return MCMCPosterior(samples, statistics, status, sampler=sampler)

    def _sample(self, kernel: Kernel, starts: Tensor) -> dict[str, list[Tensor]]:
        """Lists of S tensors with one row per chain, for z and every statistic."""
        names = ("z", "log_density", "energy", "accept", "diverging", "num_steps")
        chains: list[dict[str, list[Tensor]]] = [{name: [] for name in names} for _ in starts]
        adaptations = [Adaptation(self._num_warmup, self._target, kernel.find_step, start) for start in starts]
        kernel.step_size = starts.new_tensor([adaptation.step_size for adaptation in adaptations])
        counts = [0] * len(starts)
        total = self._num_warmup + self._num_samples
        with tqdm(total=total * len(starts), disable=not self._progress, unit="draw") as bar:
            for draws in kernel.draws():
                self._record(draws, kernel, chains, adaptations, counts, bar)
                if min(counts) >= total:
                    break
        rows = {name: [chain[name] for chain in chains] for name in names}
        return {name: [torch.stack(step) for step in zip(*lists, strict=True)] for name, lists in rows.items()}

    def _record(
        self,
        draws: Draws,
        kernel: Kernel,
        chains: list[dict[str, list[Tensor]]],
        adaptations: list[Adaptation],
        counts: list[int],
        bar: tqdm,
    ) -> None:
        for k in draws.finished.nonzero().flatten().tolist():
            if counts[k] < self._num_warmup:
                adaptations[k].update(counts[k], draws.z[k], float(draws.accept[k]))
                kernel.step_size[k] = adaptations[k].step_size
                kernel.inverse_mass[k] = adaptations[k].inverse_mass
            elif len(chains[k]["z"]) < self._num_samples:  # a chain that is done idles on for the others
                for name, values in chains[k].items():
                    values.append(getattr(draws, name)[k].clone())
            else:
                continue
            counts[k] += 1
            bar.update()


def _potential(model: Callable[..., object], x: Tensor, y: Tensor, dtype: torch.dtype | None) -> Potential:
    if isinstance(model, BayesianModel):
        return network_potential(model, x, y, dtype, stacklevel=4)
    return TracePotential(model, (x, y))


def _starts(potential: Potential, init: Start, num_chains: int) -> Tensor:
    """First points with a finite potential and gradient, shape (K, P)."""
    z = _propose(potential, init, num_chains)
    for _ in range(MAX_START_TRIALS):
        value, gradient = potential.value_and_grad(z)
        bad = ~(value.isfinite() & gradient.isfinite().all(-1))
        if not bool(bad.any()):
            return z
        z = torch.where(bad[:, None], _propose(potential, init, num_chains), z)
    raise ValueError(
        f"no start with a finite density was found in {MAX_START_TRIALS} trials; pass another `init`, such as "
        "NetworkInit(), or scale the inputs to unit size."
    )


def _propose(potential: Potential, init: Start, num_chains: int) -> Tensor:
    if init is None:
        return potential.from_prior(num_chains)
    if isinstance(init, Posterior):
        if init.num_stored is not None and init.num_stored < num_chains:
            raise ValueError(f"`init` holds {init.num_stored} draws, but there are {num_chains} chains to start.")
        draws = list(init.draws(num_chains))
        return potential.unconstrain({name: torch.stack([draw[name] for draw in draws]) for name in draws[0]})
    _checks.kind("init", init, Init, "an Init, a Posterior or None")
    rows = []
    for _ in range(num_chains):
        pairs = [init(site) for site in potential.sites]
        rows.append(torch.cat([(loc + softplus(rho) * torch.randn_like(loc)).reshape(-1) for loc, rho in pairs]))
    return torch.stack(rows)


def _judge(
    samples: dict[str, Tensor], statistics: ChainStatistics, model: Callable[..., object], x: Tensor, sampler: str
) -> Status:
    """What the diagnostics say, as a status and, if it is bad, as a warning."""
    num_chains, num_draws = statistics.energy.shape
    chains = f"{num_chains} chain{'s' if num_chains > 1 else ''}"
    done = f"{sampler}: {chains} of {num_draws} draws in {statistics.seconds:.0f} s"
    try:
        if isinstance(model, BayesianModel):
            rows = torch.linspace(0, len(x) - 1, min(len(x), NUM_PREDICTION_CHECKS)).long()
            inputs = x[rows.to(x.device)]
            report = diagnose(samples, statistics, model, inputs, max_quantities=MAX_QUANTITIES)
        else:
            report = diagnose(samples, statistics, None, None, max_quantities=MAX_QUANTITIES)
    except ImportError as error:
        divergences = int(statistics.diverging.sum())
        message = f"{done}, {divergences} divergences; R-hat and effective sample sizes were not computed: {error}"
        return Status(divergences == 0, message)
    what, judged = report.judged
    message = f"{done}, {report.num_divergences} divergences; {what}: {judged}."
    if not report.problems:
        return Status(True, message)
    message = " ".join([message, *(problem[0].upper() + problem[1:] for problem in report.problems)])
    warnings.warn(message, ConvergenceWarning, stacklevel=4)
    return Status(False, message)
