"""Variational inference with default settings and a stopping rule."""

import copy
import functools
import itertools
import math
import time
from collections.abc import Iterator, Sequence
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
from ..._core.inputs import Inputs, as_inputs
from ..._core.summary import counted
from ...inference import svi
from ...inference.estimators import Estimator, LocalReparameterization
from ...inference.guides import GuidePosterior, MeanFieldGuide
from ...inference.history import History
from ...inference.kl import KLWeight
from ...inference.posterior import Status, warn_unless_ok, with_learned
from ...inference.scale_maps import Precision
from ...modelling.model import BayesianModel
from ...nets import Standardize
from ...results.prediction import predict
from ..choosing import UnsuitableError

LEARNING_RATE = 0.02  # heuristic: a step of Adam moves a weight by about this number, and weights are of order 1
LARGEST_BATCH = 1000  # heuristic: smaller batches would not be faster, and would add noise
MOST_STEPS, FEWEST_EPOCHS = 20_000, 50  # heuristic: by default, a fit may have so many, whichever is longer
NUM_LOOKS = 20  # heuristic: number of checks of the validation rows in each window of the plateau
TABLE = 2  # number of axes of the inputs if they are a table

REMEDY = "Raise `num_epochs`. If the ELBO rises steadily, pass an `optimizer` with a higher learning rate."
"""Advice after a fit that reached no plateau, with the argument names of :func:`fit`."""

MORE_TIME = "Allow more time (`time_limit=`)."

DECAYS = (1.0, 0.3, 0.1)  # heuristic: factors of the learning rate, to which the variance of parameters is proportional
LATE = (0.7, 0.85)  # heuristic: shares of the time of `TimeLimit` after which the learning rate is lowered
FEWEST_STEPS = 200  # heuristic: after fewer steps than this, predictions are of no use, even if the time is over
GRACE = 2.0  # heuristic: seconds that these steps may take after the time is over
WINDOW_STEPS, WINDOW_EPOCHS = 400, 10  # heuristic: fewest steps, and fewest epochs, to which a trend is fitted
NUM_ERRORS = 1.0  # heuristic: a rise of so many standard errors is noise; without a trend, 5 in 6 checks end the fit
NEGLIGIBLE = 0.1  # heuristic: if the ELBO rises by fewer nats over a window, it counts as flat
NUM_SAMPLES = 10  # heuristic: draws in a check of validation rows, for all checks from the same random numbers
SEED = 0  # seed of the draws of the weights in checks of the validation rows
NUM_CHECKS = 10  # heuristic: checks in a row without a new best value that end the fit, as in scikit-learn


# --- rules that end a fit ---


def is_flat(trend: svi.Trend) -> bool:
    """Return whether the objective rose by no more than its noise, or by a negligible amount."""
    return trend.rise <= max(NUM_ERRORS * trend.noise, NEGLIGIBLE)


class Plateau:
    """Ends a fit at the last plateau of its objective. Earlier plateaus lower the learning rate by `factor`."""

    def __init__(self) -> None:
        self.decays: tuple[float, ...] = DECAYS
        self.trend: svi.Trend | None = None
        self.is_converged = False
        self._stage, self._begin = 0, 0

    @property
    def factor(self) -> float:
        return self.decays[self._stage]

    def __call__(self, history: History) -> bool:
        num_epochs = len(history.epochs) - self._begin
        window = window_of(len(history.elbo) / len(history.epochs))
        if num_epochs < window or (num_epochs - window) % max(window // 4, 1):
            return False
        records = history.epochs[-window:]
        self.trend = svi.trend_of([record.expected_log_likelihood - record.kl_weight * record.kl for record in records])
        if not is_flat(self.trend) or any(record.kl_weight != records[-1].kl_weight for record in records):
            return False
        if self._stage + 1 < len(self.decays):
            self._stage, self._begin = self._stage + 1, len(history.epochs)
            return False
        self.is_converged = True
        return True

    def state_dict(self) -> dict[str, Any]:
        trend = None if self.trend is None else [self.trend.num_values, self.trend.rise, self.trend.noise]
        return {"stage": self._stage, "begin": self._begin, "converged": self.is_converged, "trend": trend}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._stage, self._begin = state_dict["stage"], state_dict["begin"]
        self.is_converged, trend = state_dict["converged"], state_dict["trend"]
        self.trend = None if trend is None else svi.Trend(*trend)


def window_of(num_batches: float) -> int:
    """Return the number of epochs to which a trend is fitted, given the number of batches per epoch."""
    return max(WINDOW_EPOCHS, math.ceil(WINDOW_STEPS / num_batches))


class TimeLimit(svi.EpochEnd):
    """Ends a fit at the time `end`, or up to `GRACE` seconds later to complete `FEWEST_STEPS` steps."""

    def __init__(self, end: float) -> None:
        self._begin, self._end = time.perf_counter(), end
        self.is_over = False

    @property
    def factor(self) -> float:
        """The largest fraction of the initial learning rate that is allowed at this time."""
        share = (time.perf_counter() - self._begin) / max(self._end - self._begin, 1e-9)
        return DECAYS[sum(share > late for late in LATE)]

    def ends_epoch(self, num_steps: int) -> bool:
        late = time.perf_counter() - self._end
        most = max(self._begin - self._end, 0.0) + GRACE
        return late >= 0 and (num_steps >= FEWEST_STEPS or late >= most)

    def __call__(self, history: History) -> bool:
        self.is_over = self.ends_epoch(len(history.elbo))
        return self.is_over


class EarlyStopping:
    """Ends a fit when the mean log-density of validation rows, in nats, no longer improves."""

    def __init__(
        self, model: BayesianModel, guide: nn.Module, validation: tuple[Inputs, Tensor], *, every: int
    ) -> None:
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            raise ValueError(f"`validation` must be a pair (x, y), got {_checks.described(validation)}.")
        self._model, self._guide, (self._x, self._y) = model, guide, validation
        self.every = every
        self.log_densities: list[float] = []
        self._best: dict[str, dict[str, Tensor]] = {}

    @property
    def best_epoch(self) -> int:
        """Number of epochs before the check with the best log-density; 0 if there was no check."""
        return self.every * (self._best_look + 1)

    @property
    def _best_look(self) -> int:
        return max(range(len(self.log_densities)), key=self.log_densities.__getitem__, default=-1)

    @property
    def is_ended(self) -> bool:
        return len(self.log_densities) - 1 - self._best_look >= NUM_CHECKS

    def __call__(self, history: History) -> bool:
        if len(history.epochs) % self.every:
            return False
        posterior = GuidePosterior(self._guide)
        prediction = predict(self._model, posterior, self._x, y=self._y, num_samples=NUM_SAMPLES, seed=SEED)
        assert prediction.log_density is not None
        value = float(prediction.log_density.double().mean())
        self.log_densities.append(value if math.isfinite(value) else -math.inf)
        if self._best_look == len(self.log_densities) - 1:
            self._best = copy.deepcopy({"model": self._model.state_dict(), "guide": self._guide.state_dict()})
        return self.is_ended

    def restore_best(self) -> None:
        if self._best:
            self._model.load_state_dict(self._best["model"])
            self._guide.load_state_dict(self._best["guide"])

    def state_dict(self) -> dict[str, Any]:
        return {"log_densities": list(self.log_densities), "best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.log_densities, self._best = list(state_dict["log_densities"]), state_dict["best"]


# --- the fit ---


def fit_variational(
    model: BayesianModel,
    data: svi.Data,
    *,
    guide: nn.Module | None = None,
    optimizer: svi.OptimizerMaker | svi.ScheduledMaker | None = None,
    num_epochs: int | None = None,
    batch_size: int | None = None,
    validation: tuple[Inputs, Tensor] | None = None,
    elbo: ELBO | None = None,
    estimator: Estimator | None = None,
    kl_weight: float | KLWeight = 1.0,
    callbacks: Sequence[svi.Callback] = (),
    progress: bool | None = None,
    execution: svi.Execution | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
    unsuitable: UnsuitableError | None = None,
) -> GuidePosterior:
    """Fit a guide; see :func:`~pyro_bnn.fit`. `unsuitable` says why chains were impossible."""
    if guide is None:
        guide = svi.default_guide(model, seed)
    if elbo is None and isinstance(guide, MeanFieldGuide):
        elbo = TraceMeanField_ELBO()
    if estimator is None and elbo is not None and _suits_local_reparameterization(model, guide, data):
        estimator = LocalReparameterization()
    if batch_size is None and isinstance(data, tuple) and model.num_data > LARGEST_BATCH:
        batch_size = math.ceil(model.num_data / math.ceil(model.num_data / LARGEST_BATCH))
    num_batches = svi.count_batches(data, batch_size, num_data=model.num_data, execution=execution) or 1
    if num_epochs is None:
        num_epochs = max(math.ceil(MOST_STEPS / num_batches), FEWEST_EPOCHS)
    _checks.at_least("num_epochs", num_epochs, 1)
    if execution is None and all(isinstance(callback, TimeLimit) for callback in callbacks):
        execution = svi.Execution(cuda_graph=None)  # a replay would not see what other callbacks change
    is_fused = model.device.type == "cuda"  # so that no step waits for the GPU
    maker = functools.partial(torch.optim.Adam, lr=LEARNING_RATE, fused=is_fused) if optimizer is None else optimizer
    svi.require_maker(maker)
    plateau = Plateau()
    limit = next((callback for callback in callbacks if isinstance(callback, TimeLimit)), None)
    made: list[str] = []
    every = max(window_of(num_batches) // NUM_LOOKS, 1)
    stopping = None if validation is None else EarlyStopping(model, guide, validation, every=every)

    def make(parameters: list[nn.Parameter]) -> Any:
        """Make the optimizer. If the user gave no schedule, plateaus lower the learning rate."""
        result = maker(parameters)
        if isinstance(result, Optimizer):
            result = result, LambdaLR(result, lambda _: min(plateau.factor, 1.0 if limit is None else limit.factor))
        elif isinstance(result, tuple):
            plateau.decays = (1.0,)
        if isinstance(result, tuple) and isinstance(result[0], Optimizer):  # `fit_svi` refuses anything else
            made.append(f"{type(result[0]).__name__} lr {result[0].param_groups[0]['lr']:g}")
        return result

    fitted = svi.fit_svi(
        model,
        data,
        guide,
        optimizer=make,
        num_epochs=num_epochs,
        batch_size=batch_size,
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
    settings = [batches if batch_size is None else f"batches of {batch_size}", *made]
    settings += [] if estimator is None else [type(estimator).__name__]
    status = _status(fitted, ", ".join(settings), plateau, stopping, limit)
    status = status if unsuitable is None else unsuitable.instead(status)
    if fitted.status.remedy in ("", svi.FEW, svi.LONGER, svi.LOWER):  # `fit_svi` has warned of other problems
        warn_unless_ok(status)
    return with_learned(GuidePosterior(fitted.guide, status, fitted.history), model)


def _suits_local_reparameterization(model: BayesianModel, guide: nn.Module, data: svi.Data) -> bool:
    """Return whether all weights are in linear layers of a plain sequence, and each layer runs once per row."""
    if not isinstance(guide, MeanFieldGuide) or isinstance(guide.scale_map, Precision):
        return False  # precisions are for natural gradients, which need draws of the weights
    layers = list(_layers(model.network))
    # Modules that only normalise inputs do not count, and weights may have become buffers.
    with_tensors = [layer for layer in layers if not isinstance(layer, Standardize) and layer.state_dict()]
    are_linear = all(isinstance(layer, nn.Linear) for layer in with_tensors)
    if any(isinstance(layer, nn.Unflatten) for layer in layers) or not are_linear:
        return False
    before = itertools.takewhile(lambda layer: not isinstance(layer, nn.Linear), layers)
    return any(type(layer) is nn.Flatten for layer in before) or _is_table(model, data)


def _layers(network: nn.Module) -> Iterator[nn.Module]:
    if type(network) is nn.Sequential:
        for layer in network:
            yield from _layers(layer)
    else:
        yield network


def _is_table(model: BayesianModel, data: Any) -> bool:
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    x = as_inputs("x", data[0], model.like)
    return isinstance(x, Tensor) and x.dim() == TABLE


def _status(
    fitted: GuidePosterior, settings: str, plateau: Plateau, stopping: EarlyStopping | None, limit: TimeLimit | None
) -> Status:
    before, num_epochs = fitted.status, len(fitted.history.epochs)
    said = f"{num_epochs} epochs, {settings}"
    if before.ok is False and before.remedy != svi.LONGER:
        ended = {"on a plateau": plateau.is_converged, "early": stopping is not None and stopping.is_ended}
        reason = next((reason for reason, is_so in ended.items() if is_so), "by a callback")
        return replace(before, message=f"{before.message.replace('by a callback', reason)} ({said})")
    settings, said = settings + before.detail, said + before.detail
    trend = plateau.trend
    if stopping is not None and stopping.is_ended:
        best = f"was best after {stopping.best_epoch} epochs, whose posterior was kept"
        return Status(True, f"stopped early: the log-density of the validation rows {best}; {said}.")
    if plateau.is_converged and trend is not None:
        rise = "it fluctuates" if trend.rise <= trend.noise else f"{NEGLIGIBLE:g} nats"
        last = f"the last {trend.num_values} epochs"
        return Status(True, f"converged: the ELBO rose by less than {rise} over {last}; {said}.")
    if limit is not None and limit.is_over:
        message = f"not converged: cut short by the time limit, after {counted(num_epochs, 'epoch')}; {settings}."
        return Status(False, message, remedy=MORE_TIME)
    if trend is None:
        reason = f"stopped after {num_epochs} epochs, too few to see a plateau"
    elif is_flat(trend):
        reason = f"stopped after {num_epochs} epochs, before the learning rate was lowered to its last value"
    else:
        reason = (
            f"stopped after {num_epochs} epochs while the ELBO still rose: by {trend.rise:.3g} nats over "
            f"{trend.num_values} epochs, with a standard error of {trend.noise:.2g}"
        )
    return Status(False, f"not converged: {reason}; {settings}.", remedy=REMEDY)
