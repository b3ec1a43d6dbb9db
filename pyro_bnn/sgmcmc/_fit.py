"""Stochastic-gradient MCMC of any model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from .. import _checks
from .._checkpointing import Checkpoint
from .._inputs import Inputs
from .._scope import Stream, silent_fits
from ..guides import DeltaGuide, Init, MeanFieldGuide, NetworkInit
from ..joint import Layout, Site, warn_of_learnable
from ..mcmc import ChainStatistics, MCMCPosterior, judge
from ..model import BayesianModel
from ..posterior import Draw, Posterior
from ..svi import Callback, Data, Execution, count_batches, fit_svi
from ._plans import ConstantSteps, StepSizes
from ._records import Record, kept_steps, memory_for
from ._samplers import ChainOptimizer, StochasticGradientSampler


def fit_sgmcmc(
    model: BayesianModel,
    data: Data,
    *,
    sampler: StochasticGradientSampler,
    num_epochs: int,
    num_samples: int,
    batch_size: int | None = None,
    num_chains: int = 1,
    steps: StepSizes | None = None,
    init: Init | Posterior | None = None,
    store: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    execution: Execution | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
) -> MCMCPosterior:
    """Draw from the posterior with gradients of minibatches: chains for networks and data that NUTS is too slow for.

    There is no accept/reject step, so the draws have an error that grows with the step size, and with the noise of the
    gradients. To see it, halve the step size: the predictions should not change.

    The chains run one after the other, which on a CPU is no slower: the gradients of four chains together, by
    `torch.func.vmap` on one thread, took 1.15 times as long as one after the other for a network 784-400-400-10 with
    batches of 128, and 1.6 times as long for LeNet-5.

    Args:
        model: The model. Its learnable parameters stay as they are: only variables with a prior are drawn.
        data: A tuple (x, y) with all rows, or a loader of such pairs with a length; see :func:`fit_svi`.
        sampler: How a point moves, with its step size: :class:`SGHMC` or :class:`SGLD`.
        num_epochs: Number of passes over the data of each chain.
        num_samples: Number of draws that each chain keeps, S, evenly spaced over the steps at which it samples. They
            take 4 S K P bytes in single precision.
        batch_size: Number of rows in each batch; None uses all rows at once.
        num_chains: Number of chains, K.
        steps: Plan of step sizes and stages; None is :class:`ConstantSteps`, whose first half is warm-up.
        init: What the starts of chains are drawn from: the Gaussians of an :class:`Init`, or a posterior. None is
            :class:`NetworkInit`, close to the network's own weights.
        store: New file for the draws, which are then mapped into memory and read when they are used. None keeps them
            in memory. The file belongs to the posterior, and must stay as long as that is used.
        callbacks: Functions that are called with the history after each epoch of a chain.
        progress: Whether to show a progress bar for each chain.
        execution: How steps are computed.
        checkpoint: File to which the state of a chain is written; see :func:`fit_svi`. With several chains, the number
            of the chain is added to its name.
        resume: Checkpoint from which the chains go on.
        seed: Seed of the chains, which makes them repeatable; None draws one.

    Returns:
        The chains, with a status that says whether their predictions agree.

    Raises:
        ValueError: If the arguments do not fit each other.
        NonFiniteError: If a loss or gradient is not finite, mostly because the step size is too large.
        FileExistsError: If `store` exists and no chain is resumed.

    Warns:
        ConvergenceWarning: If R-hat is above 1.01, or an effective sample size is low.

    References:
        Chen, Fox and Guestrin (2014), https://arxiv.org/abs/1402.4102; Zhang et al. (2020),
        https://arxiv.org/abs/1902.03932; Izmailov et al. (2021), https://arxiv.org/abs/2104.14421.

    Example:
        >>> from torch import nn
        >>> from pyro_bnn import GaussianLikelihood, NormalPrior, SGHMC
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> likelihood = GaussianLikelihood(0.1)
        >>> model = BayesianModel(nn.Linear(1, 1), prior=NormalPrior(), likelihood=likelihood, num_data=20)
        >>> sampler = SGHMC(lr=1e-3, momentum=0.5)
        >>> posterior = fit_sgmcmc(model, (x, 2 * x), sampler=sampler, num_epochs=2000, num_samples=1000, seed=1)
        >>> posterior.sample(100)["net.weight"].mean().round(decimals=1)
        tensor(2.)
    """
    _checks.kind("model", model, BayesianModel, "a BayesianModel")
    _checks.kind("sampler", sampler, StochasticGradientSampler, "a sampler, such as SGHMC(lr=1e-6)")
    steps = ConstantSteps() if steps is None else steps
    _checks.kind("steps", steps, StepSizes, "a plan of step sizes, such as CyclicalSteps()")
    for name, count in (("num_epochs", num_epochs), ("num_samples", num_samples), ("num_chains", num_chains)):
        _checks.at_least(name, count, 1)
    num_steps = num_epochs * _num_batches(model, data, batch_size, execution)
    kept = kept_steps(steps, num_steps, num_samples)
    stream = Stream(int(torch.randint(2**62, ())) if seed is None else _checks.seed(seed), model.device)
    with stream:
        points = _starts(model, init, num_chains)
        seeds = torch.randint(2**62, (num_chains,)).tolist()
    layout = Layout({site.name: site.unconstrained_start.shape for site in points[0].sites})
    file = _checked(store, resume)
    draws = memory_for((num_chains, num_samples, layout.num_elements), model.like, file)
    processes = (Execution() if execution is None else execution).processes
    make = partial(ChainOptimizer, sampler=sampler, steps=steps, num_steps=num_steps, processes=processes)
    seconds = 0.0
    written = checkpoint.path if isinstance(checkpoint, Checkpoint) else checkpoint
    first = _file_of(0, num_chains, written) if resume is None else _file_of(0, num_chains, resume)
    with _only_latent(model), _removed_on_failure(file, first):
        for chain, point in enumerate(points):
            record = Record(point, layout.views(draws[chain]), kept)
            with silent_fits():  # a chain is no fit that ends at a best point
                fitted = fit_svi(
                    model,
                    point,
                    data,
                    optimizer=partial(make, record=record.keep),
                    num_epochs=num_epochs,
                    batch_size=batch_size,
                    callbacks=[record, *callbacks],
                    progress=progress,
                    execution=execution,
                    checkpoint=_checkpoint_of(chain, num_chains, checkpoint),
                    resume=_resumed(chain, num_chains, resume),
                    seed=seeds[chain],
                )
            seconds += fitted.seconds or 0.0
    free = layout.views(draws)
    samples = {s.name: free[s.name] if s.transform is None else s.transform(free[s.name]) for s in points[0].sites}
    statistics = ChainStatistics(None, None, None, None, None, None, None, seconds=seconds)
    name, x = type(sampler).__name__, cast(Inputs, data[0]) if isinstance(data, tuple) else None
    status = judge(samples, statistics, name, model, x, stacklevel=2)
    return MCMCPosterior(samples, statistics, status, sampler=name)


def _num_batches(model: BayesianModel, data: Data, batch_size: int | None, execution: Execution | None) -> int:
    count = count_batches(data, batch_size, num_data=model.num_data, execution=execution)
    if count is None:
        raise ValueError(
            "`data` must have a length, since the step sizes are planned for the whole chain, got a "
            f"{type(data).__name__}; pass tensors, a DataLoader, or a list of batches."
        )
    return count


def _starts(model: BayesianModel, init: Init | Posterior | None, num_chains: int) -> list[DeltaGuide]:
    """A point for each chain."""
    init = NetworkInit() if init is None else init
    if isinstance(init, Posterior):
        draws = list(init.draws(num_chains))
    else:
        draws = [next(MeanFieldGuide(model, init=init).draws(1)) for _ in range(num_chains)]  # an Init may be random
    return [DeltaGuide(model, init=_Here(draw), jacobian=True) for draw in draws]


@dataclass(frozen=True)
class _Here(Init):
    """The point of a draw."""

    draw: Draw

    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        if site.name not in self.draw:
            raise ValueError(
                f"`init` must hold a value of `{site.name}`, got {list(self.draw)}; pass one of this model."
            )
        value = self.draw[site.name].detach()
        free = value if site.transform is None else site.transform.inv(value)
        return free, torch.zeros_like(free)


@contextmanager
def _only_latent(model: BayesianModel) -> Iterator[None]:
    """A context in which the model's learnable parameters stay as they are."""
    warn_of_learnable(model, stacklevel=4)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def _checked(store: str | Path | None, resume: str | Path | None) -> Path | None:
    if store is None:
        return None
    path = _checks.path("store", store)
    if path.exists() and resume is None:
        raise FileExistsError(f"`store` must be a new file, but {path} exists; choose another path or remove it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"`store` must lie in a folder that exists, got {path}; make the folder first.")
    return path


@contextmanager
def _removed_on_failure(store: Path | None, checkpoint: Path | None) -> Iterator[None]:
    """A context that removes the file of draws if it fails, unless the first chain has a checkpoint to go on from."""
    try:
        yield
    except BaseException:
        if store is not None and not (checkpoint is not None and checkpoint.exists()):
            store.unlink(missing_ok=True)
        raise


def _file_of(chain: int, num_chains: int, path: str | Path | None) -> Path | None:
    """The file of a chain; a single chain has the very file that was named."""
    path = None if path is None else Path(path)
    return path if path is None or num_chains == 1 else path.with_name(f"{path.name}.{chain}")


def _resumed(chain: int, num_chains: int, resume: str | Path | None) -> Path | None:
    """The file from which a chain goes on; None for one after the first that had not begun."""
    path = _file_of(chain, num_chains, resume)
    return None if path is not None and chain > 0 and not path.exists() else path


def _checkpoint_of(chain: int, num_chains: int, checkpoint: str | Path | Checkpoint | None) -> Checkpoint | Path | None:
    if isinstance(checkpoint, Checkpoint):
        return replace(checkpoint, path=_file_of(chain, num_chains, checkpoint.path) or checkpoint.path)
    return _file_of(chain, num_chains, checkpoint)
