"""A fit with defaults that work without tuning, and a status that reports them."""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..._core import checks as _checks
from ..._core.checkpointing import Checkpoint
from ..._core.fit_arguments import checked_callbacks
from ..._core.inputs import Inputs
from ..._core.scope import seeded
from ...inference.estimators import Estimator, LocalReparameterization
from ...inference.guides import GuidePosterior, MeanFieldGuide, NetworkInit
from ...inference.kl import KLWeight
from ...inference.posterior import Status
from ...inference.svi import (
    Callback,
    Data,
    Execution,
    OptimizerMaker,
    ScheduledMaker,
    count_batches,
    fit_svi,
    require_maker,
)
from ...modelling.model import BayesianModel
from ._plateau import NEGLIGIBLE, Plateau, window_of
from ._suits import suits_local_reparameterization
from ._validation import EarlyStopping

LEARNING_RATE = 0.02
"""Adam's first learning rate; heuristic. Each step moves a weight by about this much, and weights are of order 1."""

INITIAL_SCALE = 0.02
"""First standard deviation of every weight: small beside the weights, so that the noise does not hide the signal."""

LARGEST_BATCH = 1000
"""Heuristic: more rows are split into equal batches of at most this many. Smaller batches would save no time, and add
noise."""

MOST_STEPS = 20_000
"""Heuristic: default limit of epochs. Small problems reach a plateau within a quarter of this limit."""

NUM_LOOKS = 20
"""Heuristic: number of validation checks within a window of the plateau."""

FEWEST_EPOCHS = 50
"""Heuristic: lowest value of that limit; plateaus at three learning rates take 30 epochs."""


def fit(
    model: BayesianModel,
    data: Data,
    *,
    guide: nn.Module | None = None,
    optimizer: OptimizerMaker | ScheduledMaker | None = None,
    max_epochs: int | None = None,
    batch_size: int | None = None,
    validation: tuple[Inputs, Tensor] | None = None,
    elbo: ELBO | None = None,
    estimator: Estimator | None = None,
    kl_weight: float | KLWeight = 1.0,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    execution: Execution | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
) -> GuidePosterior:
    """Fit a model to data with defaults that work without tuning; ``posterior.status`` reports them.

    It is :func:`fit_svi` with a default optimizer, guide, batch size and stopping rule. The fit ends at a plateau of
    the objective, that is, when a straight line through its last epochs (about 400 steps) rises by less than its
    standard error, or by less than 0.1 nats. At the first two plateaus the learning rate is lowered instead, to 0.3 and
    0.1 of the first one, since smaller steps get closer to the optimum. With `validation` rows the fit also ends when
    their log-density has not risen in ten checks in a row; the best posterior is kept.

    Args:
        model: The model.
        data: Rows (x, y) or a loader; see :func:`fit_svi` for this and all arguments without a default described here.
        guide: The guide, which is fitted in place; None means a :class:`MeanFieldGuide` centred on the network's own
            weights.
        optimizer: Function from parameters to a torch optimizer; None means Adam with a learning rate of 0.02. A pair
            of an optimizer and a schedule keeps its own learning rates. :func:`natural_gradient` needs a guide with
            precisions.
        max_epochs: Limit of the number of epochs; None allows about 20,000 steps, and 50 epochs at least.
        batch_size: Number of rows in each batch; None takes all rows together if there are at most 1000, and otherwise
            splits them evenly into as few batches of at most 1000 as possible. A loader has its own batch size.
        validation: A pair (x, y) of rows for early stopping, which the fit does not use otherwise.
        elbo: The bound; None means `TraceMeanField_ELBO` for this package's mean-field guide, with closed-form
            divergences where the prior has them, and `Trace_ELBO` for others.
        estimator: Gradient estimator; None means :class:`LocalReparameterization` for a mean-field guide and a sequence
            of linear layers and activations, where it makes gradients much less noisy, and otherwise no estimator.
        kl_weight: Weight of the KL term.
        callbacks: Functions of the history.
        progress: Whether to show a progress bar.
        execution: How steps are computed.
        checkpoint: File to write.
        resume: File from which the fit continues.
        seed: Seed of the fit.

    Returns:
        The fitted guide as a posterior. If the fit reached the limit of epochs first, its status is not ok and says
        what to try.

    Raises:
        ValueError: If the arguments do not fit each other.
        NonFiniteError: If a loss or gradient is not finite.

    Example:
        >>> from pyro_bnn import BayesianModel, GaussianLikelihood, NormalPrior, fit
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> y = 2 * x
        >>> likelihood = GaussianLikelihood(0.1)
        >>> model = BayesianModel(nn.Linear(1, 1), prior=NormalPrior(), likelihood=likelihood, num_data=20)
        >>> posterior = fit(model, (x, y), seed=0)
        >>> str(posterior.status)[:32]
        'converged: the ELBO rose by less'
    """
    _checks.kind("model", model, BayesianModel, "a BayesianModel, which has a network, a prior and a likelihood")
    callbacks = checked_callbacks(callbacks)
    if guide is None:
        with seeded(seed, model.device):
            guide = MeanFieldGuide(model, init=NetworkInit(INITIAL_SCALE))
    if elbo is None and isinstance(guide, MeanFieldGuide):
        elbo = TraceMeanField_ELBO()
    if estimator is None and elbo is not None and suits_local_reparameterization(model, guide, data):
        estimator = LocalReparameterization()
    size = _batch_size(model, data, batch_size)
    num_batches = count_batches(data, size, num_data=model.num_data, execution=execution) or 1
    if max_epochs is None:
        max_epochs = max(math.ceil(MOST_STEPS / num_batches), FEWEST_EPOCHS)
    _checks.at_least("max_epochs", max_epochs, 1)
    maker = functools.partial(torch.optim.Adam, lr=LEARNING_RATE) if optimizer is None else optimizer
    require_maker(maker)
    plateau = Plateau()
    made: list[str] = []
    every = max(window_of(num_batches) // NUM_LOOKS, 1)
    stopping = None if validation is None else EarlyStopping(model, guide, validation, every=every)

    def make(parameters: list[nn.Parameter]) -> Any:
        """The optimizer, with a learning rate that follows the plateau unless it has a schedule of its own."""
        result = maker(parameters)
        if isinstance(result, Optimizer):
            result = result, LambdaLR(result, lambda _: plateau.factor)
        elif isinstance(result, tuple):
            plateau.decays = (1.0,)
        if isinstance(result, tuple) and isinstance(result[0], Optimizer):  # otherwise the fit reports what is wrong
            made.append(f"{type(result[0]).__name__} lr {result[0].param_groups[0]['lr']:g}")
        return result

    fitted = fit_svi(
        model,
        guide,
        data,
        optimizer=make,
        num_epochs=max_epochs,
        batch_size=size,
        elbo=elbo,
        estimator=estimator,
        kl_weight=kl_weight,
        callbacks=[plateau, *([] if stopping is None else [stopping]), *callbacks],
        progress=progress,
        execution=execution,
        checkpoint=checkpoint,
        resume=resume,
        seed=seed,
    )
    if stopping is not None:
        stopping.restore_best()
    batches = "all rows at once" if isinstance(data, tuple) else "a loader"
    said = [f"{len(fitted.history.epochs)} epochs", batches if size is None else f"batches of {size}", *made]
    said += [] if estimator is None else [type(estimator).__name__]
    return GuidePosterior(fitted.guide, _status(fitted, ", ".join(said), plateau, stopping), fitted.history)


def _batch_size(model: BayesianModel, data: Data, batch_size: int | None) -> int | None:
    """The requested size, or one that makes few equal batches; None for all rows together or a loader."""
    if batch_size is not None or not isinstance(data, tuple) or model.num_data <= LARGEST_BATCH:
        return batch_size
    return math.ceil(model.num_data / math.ceil(model.num_data / LARGEST_BATCH))


REMEDY = "Raise `max_epochs`, or the learning rate by `optimizer` if the ELBO rises steadily."
"""Remedy for a fit without a plateau, in terms of :func:`fit`'s arguments."""


def _status(fitted: GuidePosterior, said: str, plateau: Plateau, stopping: EarlyStopping | None) -> Status:
    """The status of the fit, including the defaults in words and any problem that :func:`fit_svi` found."""
    before, num_epochs = fitted.status, len(fitted.history.epochs)
    if not before:
        return replace(before, message=f"{before.message} ({said})")
    said += before.detail
    trend = plateau.trend
    if stopping is not None and stopping.is_ended:
        return Status(
            True,
            f"stopped early: the log-density of the validation rows was best after {stopping.best_epoch} epochs, whose "
            f"posterior was kept; {said}.",
        )
    if plateau.is_converged and trend is not None:
        rise = "its noise" if trend.rise <= trend.noise else f"{NEGLIGIBLE:g} nats"
        last = f"the last {trend.num_epochs} epochs"
        return Status(True, f"converged: the ELBO rose by less than {rise} over {last}; {said}.")
    if trend is None:
        reason = f"stopped after {num_epochs} epochs, too few to see a plateau"
    elif trend.is_flat:
        reason = f"stopped after {num_epochs} epochs, before the learning rate was lowered to its last value"
    else:
        reason = (
            f"stopped after {num_epochs} epochs while the ELBO still rose: by {trend.rise:.3g} nats over "
            f"{trend.num_epochs} epochs, with a standard error of {trend.noise:.2g}"
        )
    return Status(False, f"not converged: {reason}; {said}.", remedy=REMEDY)
