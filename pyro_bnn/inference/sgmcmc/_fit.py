"""Stochastic-gradient MCMC of a :class:`~pyro_bnn.BayesianModel`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.checkpointing import Checkpoint, check_fit, check_target, checked_callbacks, renamed
from ..._core.inputs import Inputs, is_whole
from ..._core.scope import Stream, silent_fits
from ..._core.signatures import explained
from ...modelling.model import BayesianModel, require_bayesian
from ..guides import DeltaGuide, Init, MeanFieldGuide, NetworkInit
from ..joint import Layout, Site, warn_of_learnable
from ..mcmc import ChainStatistics, MCMCPosterior, judge
from ..posterior import Draw, Posterior, with_learned
from ..svi import Callback, Data, Execution, count_batches, fit_svi
from ._samplers import ChainOptimizer, ConstantSteps, StepSizes, StochasticGradientSampler
from ._store import Record, Store, kept_steps, require_other_file


@explained("fit_sgmcmc(model, (x, y), sampler=SGHMC(lr=1e-4), num_epochs=1000, num_samples=100)")
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
    progress: bool | None = None,
    execution: Execution | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
) -> MCMCPosterior:
    """Draw from the posterior with gradients of minibatches, for networks and data that are too large for NUTS.

    There is no accept/reject step, so the draws have an error that grows with the step size and with the noise of the
    gradients. To check this error, halve the step size: if the error is small, predictions do not change.

    The chains run one after the other.

    Args:
        model: The model, whose learnable parameters do not change.
        data: A tuple (x, y) with all rows, or a loader that has a length and yields such pairs; see :func:`fit_svi`.
        sampler: The algorithm with its step size: :class:`SGHMC` or :class:`SGLD`.
        num_epochs: Number of passes of each chain over the data.
        num_samples: Number S of draws that each chain keeps, evenly spaced over the steps at which it samples. The
            draws of all K chains take 4 S K P bytes in single precision, for P latent numbers.
        batch_size: Number of rows in each batch; with ``None``, all rows are used at once.
        num_chains: Number of chains, K.
        steps: Plan of step sizes and stages, by default :class:`~pyro_bnn.inference.sgmcmc.ConstantSteps`, whose first
            half is warm-up.
        init: Distribution of the first points: the Gaussians of an :class:`Init`, or a posterior. The default is
            :class:`NetworkInit`, which starts close to the network's present weights.
        store: New safetensors file for the draws; with ``None``, they stay in memory. Keep the file, because the
            posterior reads its draws from it. A resumed run adds its draws to the file. If the call fails, it removes
            a file that it has made.
        callbacks: Functions that are called with the history after each epoch of a chain.
        progress: Whether to show the progress of each chain; see :func:`fit_svi`.
        execution: How steps are computed.
        checkpoint: File for the state of a chain; see :func:`fit_svi`. With several chains, its name ends with the
            chain's number.
        resume: Checkpoint from which the chains continue.
        seed: Seed that makes the chains repeatable; with ``None``, a seed is drawn.

    Returns:
        The chains, with a status that says whether their predictions agree.

    Raises:
        ValueError: If the arguments do not match each other, or `store` and `resume` name files of different runs.
        NonFiniteError: If a loss or gradient is not finite, mostly because the step size is too large.
        FileExistsError: If the file `store` exists and no chain is resumed, or if a checkpoint exists and is not
            resumed.

    Warns:
        ConvergenceWarning: If R-hat is above 1.01, or an effective sample size is low.

    References:
        Chen, Fox and Guestrin (2014), https://arxiv.org/abs/1402.4102; Zhang et al. (2020),
        https://arxiv.org/abs/1902.03932; Izmailov et al. (2021), https://arxiv.org/abs/2104.14421.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> sampler = pb.SGHMC(lr=1e-3, momentum=0.5)
        >>> lengths = {"num_epochs": 2000, "num_samples": 1000}
        >>> posterior = pb.fit_sgmcmc(
        ...     model, (x, 2 * x), sampler=sampler, seed=1, **lengths
        ... )
        >>> posterior.sample(100)["net.weight"].mean().round(decimals=1)
        tensor(2.)
    """
    require_bayesian(model)
    _checks.kind("sampler", sampler, StochasticGradientSampler, "a sampler, such as SGHMC(lr=1e-6)")
    steps = ConstantSteps() if steps is None else steps
    _checks.kind("steps", steps, StepSizes, "a plan of step sizes, such as CyclicalSteps()")
    num_epochs = _checks.at_least("num_epochs", num_epochs, 1)
    num_samples = _checks.at_least("num_samples", num_samples, 1)
    num_chains = _checks.at_least("num_chains", num_chains, 1)
    _checks.in_memory("num_chains", num_chains, sum(model.initial_value(name).nbytes for name in model.site_names))
    check_fit(progress=progress, checkpoint=checkpoint, resume=resume, seed=seed)
    callbacks, execution = checked_callbacks(callbacks), Execution.given(execution)
    num_batches = count_batches(data, batch_size, num_data=model.num_data, execution=execution)
    if num_batches is None:
        raise ValueError(
            "`data` must have a length, since the step sizes are planned for the whole chain, got a "
            f"{type(data).__name__}; pass tensors, a DataLoader, or a list of batches."
        )
    num_steps = num_epochs * num_batches
    kept = kept_steps(steps, num_steps, num_samples)
    stream = Stream(seed, model.device)
    with stream:
        points = _starts(model, init, num_chains)
        seeds = torch.randint(2**62, (num_chains,)).tolist()
    layout = Layout({site.name: site.unconstrained_start.shape for site in points[0].sites})
    shape = (num_chains, num_samples, layout.num_elements)
    files = [_files(chain, num_chains, checkpoint, resume) for chain in range(num_chains)]
    draws = _store(store, shape, model.like, files, execution)
    make = partial(ChainOptimizer, sampler=sampler, steps=steps, num_steps=num_steps, processes=execution.processes)
    seconds = 0.0
    with _only_latent(model), draws.removed_on_failure():
        for chain, (point, (own_checkpoint, own_resume)) in enumerate(zip(points, files, strict=True)):
            record = Record(point, draws, chain, layout, kept)
            with silent_fits():  # a chain need not converge to a point
                fitted = fit_svi(
                    model,
                    data,
                    point,
                    optimizer=partial(make, record=record.keep),
                    num_epochs=num_epochs,
                    batch_size=batch_size,
                    callbacks=[record, *callbacks],
                    progress=progress,
                    execution=execution,
                    checkpoint=own_checkpoint,
                    resume=own_resume,
                    seed=seeds[chain],
                )
            seconds += fitted.seconds or 0.0
    free = layout.views(draws.draws())
    samples = {s.name: free[s.name] if s.transform is None else s.transform(free[s.name]) for s in points[0].sites}
    statistics = ChainStatistics(seconds=seconds)
    name = type(sampler).__name__
    judged = (model, cast(Inputs, data[0])) if is_whole(data) else (None, None)
    status = judge(samples, statistics, name, *judged).status
    return with_learned(MCMCPosterior(samples, statistics, status, sampler=name), model)


def _starts(model: BayesianModel, init: Init | Posterior | None, num_chains: int) -> list[DeltaGuide]:
    init = NetworkInit() if init is None else init
    if isinstance(init, Posterior):
        draws = list(init.draws(num_chains))
    else:
        draws = [next(MeanFieldGuide(model, init=init).draws(1)) for _ in range(num_chains)]  # an Init may be random
    return [DeltaGuide(model, init=_Here(draw), jacobian=True) for draw in draws]


@dataclass(frozen=True)
class _Here(Init):
    draw: Draw

    def __call__(self, site: Site) -> tuple[Tensor, Tensor]:
        if site.name not in self.draw:
            raise ValueError(
                f"`init` must hold a value of `{site.name}`, got {list(self.draw)}; pass a posterior of this model."
            )
        value = self.draw[site.name].detach()
        free = value if site.transform is None else site.transform.inv(value)
        return free, torch.zeros_like(free)


@contextmanager
def _only_latent(model: BayesianModel) -> Iterator[None]:
    warn_of_learnable(model)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def _files(
    chain: int, num_chains: int, checkpoint: str | Path | Checkpoint | None, resume: str | Path | None
) -> tuple[Checkpoint | None, Path | None]:
    """Return the checkpoint of a chain, and the file from which the chain continues, if there is one."""

    def own(path: str | Path) -> Path:
        return Path(path) if num_chains == 1 else Path(path).with_name(f"{Path(path).name}.{chain}")

    found = None if resume is None else own(resume)
    begins_anew = found is not None and chain > 0 and not found.exists()
    return renamed(checkpoint, own), None if begins_anew else found


def _store(
    path: str | Path | None,
    shape: tuple[int, int, int],
    like: Tensor,
    files: list[tuple[Checkpoint | None, Path | None]],
    execution: Execution,
) -> Store:
    """Check all files of the run before the first file is written, and return the storage for the draws."""
    if path is not None and execution.processes.are_many:
        raise ValueError("`store` must be None with several processes; each process keeps the draws in memory.")
    for checkpoint, resume in files:
        if checkpoint is not None:
            if execution.processes.is_first:
                check_target(Path(checkpoint.path), resume, checkpoint.path)
            require_other_file(path, "checkpoint", Path(checkpoint.path))
        require_other_file(path, "resume", resume)
    return Store(path, shape, like, is_resumed=files[0][1] is not None)
