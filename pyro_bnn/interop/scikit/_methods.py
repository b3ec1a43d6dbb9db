"""The inference methods of the estimators: functions of a `Task`, listed in `METHODS`."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from pyro.infer import Trace_ELBO
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.scope import outer_stacklevel, silent_fits
from ...auto.choosing import Deadline, Design, UnsuitableError, fit_best
from ...auto.fitting import TimeLimit, fit
from ...inference.gauss_newton import fit_gauss_newton
from ...inference.guides import DeltaGuide, MeanFieldGuide, NetworkInit
from ...inference.kl import check_weight
from ...inference.mcmc import FEWEST_DRAWS, MCLMC, Descent, MCMCPosterior, fit_mcmc, fit_nuts
from ...inference.posterior import EnsemblePosterior, Posterior
from ...inference.scale_maps import Precision
from ...inference.svi import OptimizerMaker, fit_svi, natural_gradient
from ...inference.swag import SWAG
from ...modelling.likelihoods import MixtureDensityLikelihood
from ...modelling.model import BayesianModel
from ...modelling.priors import PriorLike

INIT = NetworkInit(0.02)  # initial scales of the weights, as in `fit`; NUTS starts at weights drawn with them
NUM_CHAINS = 2  # of NUTS; the least that R-hat can compare
DRAWS = 200  # heuristic: draws of each NUTS chain, after as many warm-up draws
TREE_DEPTH = 6  # heuristic: largest depth of NUTS's trees; a tree of this depth has 63 leapfrog steps
MODE_WARMUP = 600  # heuristic: warm-up draws of an MCLMC chain that starts at a mode; a draw takes ten steps

MOST_FULL = 1000  # heuristic: most weights that get a full covariance; in larger networks only the last layer is random
LEARNING_RATE, NATURAL_RATE = 0.02, 0.1  # heuristic: of Adam, and of natural gradients as a fraction of a Newton step
HESSIAN_DECAY, CLIP = 0.99, 0.1  # heuristic: of natural gradients, for fits of thousands of steps

NEXT_PART: dict[str, Any] = {"initial_hessian": 0.03, "num_warmup": 100}
"""Natural gradients for a further part of the data. By default, the scales would start at the scales of the prior, and
the steps would be too long."""

MORE_DRAWS = "Raise `max_iter`, the number of draws of each chain and of its warm-up."
TIGHTER = " If steps still diverge, use a tighter `prior`."  # if steps diverged
PATH_RANK, PATH_RATE, PATH_EPOCHS, PATH_BATCHES, MOST_PATH_BATCH = 20, 0.003, 100, 10, 1000  # heuristic for SWAG
SEED_STEP = 1_000_003  # between members: a large prime, so that estimators with close seeds share no member


Method = Literal["auto", "svi", "natural", "nuts", "mclmc", "ensemble", "laplace", "kronecker", "swag"]
Activation = Literal["relu", "tanh", "logistic", "silu", "gelu"]


@dataclass(eq=False, repr=False)
class Settings(BaseEstimator):
    """The parameters of the estimators, the most used ones first; :class:`BNNRegressor` describes them."""

    hidden_layer_sizes: Sequence[int] | int | None = None
    _: KW_ONLY
    method: Method = "auto"
    prior: PriorLike | None = None
    activation: Callable[[], nn.Module] | Activation | None = None
    time_limit: float | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: bool | int | None = None
    calibration_fraction: float | None = None
    num_samples: int | None = None
    max_iter: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    early_stopping: bool = False
    validation_fraction: float = 0.1
    kl_weight: float = 1.0
    num_members: int = 5
    num_chains: int | None = None


def progress_of(settings: Settings) -> bool | None:
    """Return the argument `progress` of fits."""
    return None if settings.verbose is None else bool(settings.verbose)


@dataclass(frozen=True)
class Task:
    """What an inference method gets: settings, designs to compare, and data."""

    settings: Settings
    designs: Sequence[Design]  # designs to compare; the first is the default
    build: Callable[[Design, int, int], BayesianModel]  # arguments: design, seed of the initial weights, number of rows
    data: tuple[Tensor, Tensor]  # inputs, shape (N, D), and targets, joined with row weights if there are any
    validation: tuple[Tensor, Tensor] | None  # the same for early-stopping rows
    seed: int
    start: Posterior | None = None  # the posterior of the earlier parts of the data
    deadline: Deadline | None = None

    def make_model(self, seed: int) -> BayesianModel:
        """Return the model of the first design. The seed determines its initial weights."""
        return self.build(self.designs[0], seed, len(self.data[0]))


@dataclass(frozen=True)
class Fitted:
    """The result of a method; `num_iterations` counts epochs, or draws of each chain."""

    model: BayesianModel
    posterior: Posterior
    num_iterations: int


def auto(task: Task) -> Fitted:
    """Compare models on held-out rows, and run chains for the best one. If chains are impossible, fit by `svi`."""
    settings = task.settings
    candidates = {str(design): functools.partial(task.build, design, task.seed) for design in task.designs}
    try:
        best = fit_best(
            candidates,
            task.data,
            deadline=task.deadline,
            max_draws=settings.max_iter,
            progress=progress_of(settings),
            seed=task.seed,
        )
    except UnsuitableError as error:
        error.warn()
        fitted = svi(task)
        fitted.posterior.status = error.instead(fitted.posterior.status, len(task.designs))
        return fitted
    num_draws = best.posterior.num_stored // best.posterior.num_chains
    if best.posterior.status.ok is False and num_draws == settings.max_iter:
        best.posterior.status = replace(best.posterior.status, remedy=_remedy(best.posterior))
    return Fitted(best.model, best.posterior, num_draws)


def svi(task: Task) -> Fitted:
    """Fit an independent Gaussian for each weight by variational inference."""
    model = task.make_model(task.seed)
    guide = _started(task, MeanFieldGuide(model, init=INIT))
    return _fitted(task, model, guide, task.seed, kl_weight=task.settings.kl_weight)


def natural(task: Task) -> Fitted:
    """Fit an independent Gaussian for each weight by natural gradients."""
    model = task.make_model(task.seed)
    guide = _started(task, MeanFieldGuide(model, init=INIT, scale_map=Precision()))
    rate = NATURAL_RATE if task.settings.learning_rate is None else task.settings.learning_rate
    next_part = {} if task.start is None else NEXT_PART
    optimizer = natural_gradient(rate, hessian_decay=HESSIAN_DECAY, clip=CLIP, **next_part)
    return _fitted(task, model, guide, task.seed, kl_weight=task.settings.kl_weight, optimizer=optimizer)


def ensemble(task: Task) -> Fitted:
    """Fit a deep ensemble: plain networks that start at different weights."""
    members = []
    for member in range(int(task.settings.num_members)):
        seed = task.seed + SEED_STEP * member
        model = task.make_model(seed)
        members.append(_fitted(task, model, DeltaGuide(model), seed))
    most = max(member.num_iterations for member in members)
    return Fitted(members[0].model, EnsemblePosterior([member.posterior for member in members]), most)


def laplace(task: Task, structure: Literal["full", "kronecker"] = "full") -> Fitted:
    """Fit a Gaussian around the weights of a plain network, for linearised predictions."""
    model = task.make_model(task.seed)
    if isinstance(model.likelihood, MixtureDensityLikelihood):
        raise ValueError(
            f'`likelihood` must not be a mixture for method="{task.settings.method}", which does not support it; use '
            "another method."
        )
    mode = _fitted(task, model, DeltaGuide(model), task.seed)
    num_weights = sum(model.initial_value(name).numel() for name in model.site_names)
    last_layer = model.site_names[-1].rpartition(".")[0]
    posterior = fit_gauss_newton(
        model,
        task.data,
        structure=structure,
        where="**" if structure == "kronecker" or num_weights <= MOST_FULL else f"{last_layer}.*",
        prior_precision="evidence" if task.settings.prior is None else None,
        init=mode.posterior,
        progress=progress_of(task.settings),
        seed=task.seed,
    )
    return Fitted(model, posterior, mode.num_iterations)


def swag(task: Task) -> Fitted:
    """Train a plain network, and fit a Gaussian to the weights that further training visits."""
    model = task.make_model(task.seed)
    guide = DeltaGuide(model)
    found = _fitted(task, model, guide, task.seed)
    num_latent = sum(site.unconstrained_start.numel() for site in guide.sites)
    path = SWAG(guide, rank=min(PATH_RANK, num_latent) if num_latent > 1 else 0)
    with silent_fits():
        fit_svi(
            model,
            task.data,
            guide,
            optimizer=functools.partial(torch.optim.Adam, lr=PATH_RATE),
            num_epochs=PATH_EPOCHS,
            batch_size=min(math.ceil(len(task.data[0]) / PATH_BATCHES), MOST_PATH_BATCH),
            callbacks=[path],
            progress=progress_of(task.settings),
            seed=task.seed,
        )
    return Fitted(model, path.posterior(model), found.num_iterations + PATH_EPOCHS)


def nuts(task: Task) -> Fitted:
    """Draw from the posterior by chains of the No-U-Turn sampler."""
    model = task.make_model(task.seed)
    draws = _num_draws(task.settings)
    with silent_fits():  # the estimator warns according to the status, as for all methods
        posterior = fit_nuts(
            model,
            task.data,
            num_samples=draws,
            num_warmup=draws,
            num_chains=NUM_CHAINS if task.settings.num_chains is None else task.settings.num_chains,
            max_tree_depth=TREE_DEPTH,
            init=INIT,
            progress=progress_of(task.settings),
            seed=task.seed,
        )
    return Fitted(model, _explained(posterior), draws)


def mclmc(task: Task) -> Fitted:
    """Train several networks, and explore the mode of each by microcanonical Langevin dynamics."""
    model = task.make_model(task.seed)
    draws = _num_draws(task.settings)
    with silent_fits():
        posterior = fit_mcmc(
            model,
            task.data,
            sampler=MCLMC(),
            init=Descent(),
            num_samples=draws,
            num_warmup=MODE_WARMUP if task.settings.max_iter is None else draws,
            num_chains=task.settings.num_members,
            progress=progress_of(task.settings),
            seed=task.seed,
        )
    return Fitted(model, _explained(posterior), draws)


def _num_draws(settings: Settings) -> int:
    return DRAWS if settings.max_iter is None else _checks.at_least("max_iter", settings.max_iter, FEWEST_DRAWS)


def _explained(posterior: MCMCPosterior) -> MCMCPosterior:
    """If the chains failed, name the estimator's settings as the remedy, in place of arguments of `fit_mcmc`."""
    if not posterior.status:
        finding = posterior.status.message.partition(". ")[0].rstrip(".")
        posterior.status = replace(posterior.status, message=f"{finding}.", remedy=_remedy(posterior), verdict="")
    return posterior


def _remedy(posterior: MCMCPosterior) -> str:
    """Return what to try if chains failed, with the names of the estimator's settings."""
    return f"{MORE_DRAWS}{TIGHTER if posterior.statistics.num_diverging else ''}"


def _started(task: Task, guide: MeanFieldGuide) -> MeanFieldGuide:
    """If an earlier part of the data was fitted, give the guide the parameters of the earlier guide."""
    if task.start is not None:
        try:
            guide.load_state_dict(task.start.guides[0].state_dict())
        except RuntimeError:
            raise ValueError(
                f"`method` must be that of the earlier parts, got {task.settings.method!r}; call `partial_fit` on a "
                "new estimator, `sklearn.base.clone(estimator)`."
            ) from None
    return guide


def _fitted(
    task: Task,
    model: BayesianModel,
    guide: nn.Module,
    seed: int,
    *,
    kl_weight: float = 1.0,
    optimizer: OptimizerMaker | None = None,
) -> Fitted:
    settings = task.settings
    rate = LEARNING_RATE if settings.learning_rate is None else settings.learning_rate
    adam = functools.partial(torch.optim.Adam, lr=rate)
    with silent_fits():
        posterior = fit(
            model,
            task.data,
            method="svi",
            guide=guide,
            optimizer=adam if optimizer is None else optimizer,
            elbo=None if optimizer is None else Trace_ELBO(),
            callbacks=[] if task.deadline is None else [TimeLimit(task.deadline.at(1.0))],
            num_epochs=settings.max_iter,
            batch_size=settings.batch_size,
            kl_weight=kl_weight,
            validation=task.validation,
            progress=progress_of(settings),
            seed=seed,
        )
    return Fitted(model, posterior, len(posterior.history.epochs))


OPTIMISED = ("svi", "natural", "laplace", "kronecker", "swag", "ensemble")

USED_BY = {  # the methods that use each setting; others are used by all methods
    "time_limit": ("auto",),
    "batch_size": OPTIMISED,
    "learning_rate": OPTIMISED,
    "early_stopping": OPTIMISED,
    "validation_fraction": OPTIMISED,
    "kl_weight": ("svi", "natural"),
    "num_members": ("ensemble", "mclmc"),
    "num_chains": ("nuts",),
}

IF_NO_CHAINS = frozenset({"batch_size", "learning_rate", "kl_weight"})  # "auto" uses them only without chains
CHECKS: dict[str, Callable[[str, Any], object]] = {  # as far as they do not depend on the data
    "time_limit": _checks.positive,
    "max_iter": functools.partial(_checks.at_least, minimum=1),
    "batch_size": functools.partial(_checks.at_least, minimum=1),
    "learning_rate": _checks.positive,
    "early_stopping": _checks.flag,
    "validation_fraction": _checks.between_zero_and_one,
    "kl_weight": lambda _, weight: check_weight(weight),
    "num_samples": functools.partial(_checks.at_least, minimum=2),
    "num_members": functools.partial(_checks.at_least, minimum=1),
    "num_chains": functools.partial(_checks.at_least, minimum=1),
}

METHODS: dict[str, Callable[[Task], Fitted]] = {
    "auto": auto,
    "svi": svi,
    "natural": natural,
    "nuts": nuts,
    "mclmc": mclmc,
    "laplace": laplace,
    "kronecker": functools.partial(laplace, structure="kronecker"),
    "swag": swag,
    "ensemble": ensemble,
}


def check_settings(settings: Settings, method: str) -> None:
    """Raise if a setting is wrong, and warn of each changed setting that has no effect with this method."""
    for name, check in CHECKS.items():
        if getattr(settings, name) is not None or getattr(Settings, name) is not None:
            check(name, getattr(settings, name))
    for name, methods in USED_BY.items():
        if {method, settings.method}.isdisjoint(methods) and getattr(settings, name) != getattr(Settings, name):
            users = [f'"{user}"' for user in methods]
            unless = " unless chains are impossible" if method == "auto" and name in IF_NO_CHAINS else ""
            warnings.warn(
                f'`{name}` has no effect with method="{method}"{unless}; it is for the '
                f"{'method' if len(users) == 1 else 'methods'} {', '.join(users)}.",
                UserWarning,
                stacklevel=outer_stacklevel(),
            )


PARTIAL = {"auto": "svi", "svi": "svi", "natural": "natural"}  # the method of `partial_fit`, which fits Gaussians
