"""Ways to infer, by name. A new one is a function of a task, and one line in `METHODS`."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.scope import silent_fits
from ...auto.fitting import fit
from ...inference.gauss_newton import fit_gauss_newton
from ...inference.guides import GuidePosterior, MeanFieldGuide, NetworkInit, auto_delta
from ...inference.mcmc import fit_nuts
from ...inference.posterior import EnsemblePosterior, Posterior
from ...modelling.likelihoods import MixtureDensityLikelihood
from ...modelling.model import BayesianModel

INIT = NetworkInit(0.02)
"""First scales of the weights' Gaussians, as in :func:`~pyro_bnn.fit`; NUTS starts its chains from these."""

DRAWS = 200
"""Heuristic: draws of each chain of NUTS, after as many of warm-up."""

TREE_DEPTH = 6
"""Heuristic: largest depth of NUTS's trees, 63 leapfrog steps."""

MOST_FULL = 1000
"""Heuristic: weights up to which Laplace's method takes the covariance of all of them, whose search for the largest
evidence factorises a matrix of this size some dozen times. In larger networks those of the last layer are random."""

SEED_STEP = 1_000_003
"""Distance of the seeds of an ensemble's members: a prime number, so that seeds one apart do not share a member."""


@dataclass(frozen=True)
class Task:
    """What a method is to do.

    Args:
        make_model: Function from a seed to the model, whose network has first weights of that seed.
        x: Inputs, shape (N, D).
        y: Targets, with their weights if the likelihood has row weights.
        validation: Inputs and targets of rows for early stopping, or None.
        max_iter: Limit of iterations; None is the method's own.
        batch_size: Number of rows in a batch; None is chosen.
        learning_rate: First learning rate of Adam.
        kl_weight: Weight of the KL divergence of SVI.
        chooses_prior: Whether the width of the prior may be chosen, since the user named none.
        num_members: Number of members of an ensemble.
        num_chains: Number of chains of NUTS.
        progress: Whether to show progress bars.
        seed: Seed of everything random.
    """

    make_model: Callable[[int], BayesianModel]
    x: Tensor
    y: Tensor
    validation: tuple[Tensor, Tensor] | None
    max_iter: int | None
    batch_size: int | None
    learning_rate: float
    kl_weight: float
    chooses_prior: bool
    num_members: int
    num_chains: int
    progress: bool
    seed: int

    @property
    def member_seeds(self) -> Iterator[int]:
        """A seed for each member of an ensemble."""
        return (self.seed + SEED_STEP * member for member in range(self.num_members))


@dataclass(frozen=True)
class Fitted:
    """What a method found.

    Args:
        model: The model, for predictions.
        posterior: Its posterior.
        num_iterations: Number of epochs; of draws for NUTS.
    """

    model: BayesianModel
    posterior: Posterior
    num_iterations: int


Method = Callable[[Task], Fitted]


def svi(task: Task) -> Fitted:
    """One independent Gaussian for each weight, by variational inference."""
    model = task.make_model(task.seed)
    return _fitted(task, model, MeanFieldGuide(model, init=INIT), task.seed, kl_weight=task.kl_weight)


def ensemble(task: Task) -> Fitted:
    """A mixture of point estimates from several starts: a deep ensemble."""
    members = []
    for seed in task.member_seeds:
        model = task.make_model(seed)
        members.append(_fitted(task, model, auto_delta(model), seed))
    most = max(member.num_iterations for member in members)
    return Fitted(members[0].model, EnsemblePosterior([member.posterior for member in members]), most)


def laplace(task: Task) -> Fitted:
    """A Gaussian around a point estimate, whose predictions are those of the network that is linear in its weights."""
    model = task.make_model(task.seed)
    if isinstance(model.likelihood, MixtureDensityLikelihood):
        raise ValueError(
            '`likelihood` must not be a mixture for method="laplace", which needs its curvature; use another method.'
        )
    mode = _fitted(task, model, auto_delta(model), task.seed)
    num_weights = sum(model.initial_value(name).numel() for name in model.site_names)
    last_layer = model.site_names[-1].rpartition(".")[0]
    posterior = fit_gauss_newton(
        model,
        (task.x, task.y),
        structure="full",
        where="**" if num_weights <= MOST_FULL else f"{last_layer}.*",
        prior_precision="evidence" if task.chooses_prior else None,
        init=mode.posterior,
        seed=task.seed,
    )
    return Fitted(model, posterior, mode.num_iterations)


def nuts(task: Task) -> Fitted:
    """Markov chains of exact draws, by the No-U-Turn sampler."""
    model = task.make_model(task.seed)
    draws = DRAWS if task.max_iter is None else task.max_iter
    with silent_fits():  # the estimator warns by the status, as of all methods
        posterior = fit_nuts(
            model,
            (task.x, task.y),
            num_samples=draws,
            num_warmup=draws,
            num_chains=task.num_chains,
            max_tree_depth=TREE_DEPTH,
            init=INIT,
            compile="auto",
            progress=task.progress,
            seed=task.seed,
        )
    return Fitted(model, posterior, draws)


WITHOUT_VALIDATION = frozenset({"nuts"})
"""Methods that have no use for rows that are set aside, and so get them all."""

METHODS: dict[str, Method] = {"svi": svi, "nuts": nuts, "laplace": laplace, "ensemble": ensemble}
"""Each method by the name that `method=` takes."""


def make_method(name: str) -> Method:
    """The method of a name.

    Raises:
        ValueError: If there is no such method.
    """
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(map(repr, METHODS))}, got {name!r}.")
    return METHODS[name]


def _fitted(task: Task, model: BayesianModel, guide: nn.Module, seed: int, *, kl_weight: float = 1.0) -> Fitted:
    learning_rate = _checks.positive("learning_rate", task.learning_rate)
    posterior: GuidePosterior = fit(
        model,
        (task.x, task.y),
        guide=guide,
        optimizer=functools.partial(torch.optim.Adam, lr=learning_rate),
        max_epochs=task.max_iter,
        batch_size=task.batch_size,
        kl_weight=kl_weight,
        validation=task.validation,
        progress=task.progress,
        seed=seed,
    )
    return Fitted(model, posterior, len(posterior.history.epochs))
