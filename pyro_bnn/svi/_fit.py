"""Stochastic variational inference: any model and guide, any ELBO of Pyro's, any optimizer of torch's."""

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from tqdm import tqdm

from .. import _checks
from .._scope import is_auxiliary, own_parameters, seeded
from ..estimators import Estimator
from ..guides import GuidePosterior, MeanFieldGuide
from ..history import EpochRecord, History
from ..kl import KLWeight, check_weight, constant
from ..model import BayesianModel
from ..posterior import Status
from ._batches import Batch, Batches
from ._direct import DirectStep
from ._graph import GraphStep
from ._obstacle import obstacle
from ._steps import NonFiniteError, PyroStep, Step, contexts_of

NOTABLE_FALL = 0.05
"""Heuristic: an objective that ends lower than it began by this fraction is no Monte Carlo noise."""


def fit_svi(
    model: nn.Module,
    guide: nn.Module,
    data: Iterable[Sequence[Tensor]] | tuple[Tensor, ...],
    *,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    num_epochs: int,
    batch_size: int | None = None,
    elbo: type[ELBO] = Trace_ELBO,
    num_particles: int = 1,
    estimator: Estimator | None = None,
    kl_weight: float | KLWeight = 1.0,
    scheduler: Callable[[Optimizer], LRScheduler | ReduceLROnPlateau] | None = None,
    clip_norm: float | None = None,
    callbacks: Sequence[Callable[[History], bool | None]] = (),
    progress: bool = False,
    device: torch.device | str | None = None,
    cuda_graph: bool = False,
    seed: int | None = None,
) -> GuidePosterior:
    r"""Fit a guide, and the model's learnable parameters, by maximising the ELBO.

    .. math:: \mathrm{ELBO} = E_q[\log p(y \mid w)] - \mathrm{KL}(q(w) \,\|\, p(w)),

    in nats, for the whole data set whatever the batch. Every quantity recorded in the history is of that scale.

    For a :class:`~pyro_bnn.BayesianModel` and a :class:`~pyro_bnn.MeanFieldGuide` under `Trace_ELBO` or
    `TraceMeanField_ELBO` the ELBO and its gradients are computed directly, which gives the numbers of Pyro's own
    machinery, up to rounding, faster; everything else goes through Pyro. ``history.path`` says which it was, and why.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or any Pyro model that is a module, called as ``model(*batch)``.
        guide: Any Pyro guide that is a module and owns its parameters. It is fitted in place.
        data: A loader of (x, y) batches, or a tuple of tensors (x, y).
        optimizer: From parameters to a torch optimizer, such as ``functools.partial(torch.optim.Adam, lr=1e-3)``.
        num_epochs: Passes over the data.
        batch_size: Rows per batch when `data` is tensors; None uses all rows at once.
        elbo: Which of Pyro's ELBO estimators. `TraceMeanField_ELBO` uses closed-form divergences where they exist.
        num_particles: Weight draws per step.
        estimator: Less noisy gradients, such as ``LocalReparameterization()``; None draws each weight once per step.
        kl_weight: Weight of the KL term relative to the ELBO, see :mod:`pyro_bnn.kl`.
        scheduler: From the optimizer to a learning-rate scheduler, which is stepped once an epoch.
        clip_norm: Largest norm of the whole gradient.
        callbacks: Called with the history after each epoch; a true result ends the fit.
        progress: Show a progress bar with the ELBO and its two terms.
        device: Where to compute; model and guide are moved there and batches follow. None leaves all where it is.
        cuda_graph: Record steps on a GPU as CUDA graphs and replay them, which saves most of a small network's time.
            Python code of the network then runs in the first few steps alone. Needs an optimizer with ``fused=True``.
        seed: Makes the fit repeatable and leaves torch's generators as they were.

    Returns:
        The fitted guide as a posterior with `history` and `status`.

    Raises:
        ValueError: If the arguments make no sense together.
        NonFiniteError: If a loss or gradient is not finite; the last finite parameters stay in place.
    """
    _checks.at_least("num_epochs", num_epochs, 1)
    _checks.at_least("num_particles", num_particles, 1)
    if clip_norm is not None:
        _checks.positive("clip_norm", clip_norm)
    if not (isinstance(elbo, type) and issubclass(elbo, ELBO)) or elbo.__name__.startswith("Jit"):
        raise ValueError(
            f"`elbo` must be a class such as pyro.infer.Trace_ELBO, not an instance and not a Jit one, got {elbo!r}."
        )
    weight_at = kl_weight if callable(kl_weight) else constant(kl_weight)
    for name, module in (("model", model), ("guide", guide)):
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"`{name}` must be a module, got {type(module).__name__}: a plain function keeps its parameters in "
                "Pyro's global store; fit it with `pyro.infer.SVI`, then pass it to `predict`."
            )
    if torch.is_inference_mode_enabled():
        raise ValueError("`fit_svi` needs gradients; call it outside of `torch.inference_mode()`.")
    contexts = contexts_of(estimator, model, guide, elbo)
    device = torch.device(device) if device is not None else None
    if device is not None:
        model.to(device)
        guide.to(device)
    with ExitStack() as stack:
        stack.enter_context(seeded(seed, device or _device_of(model, guide)))
        stack.enter_context(own_parameters(model, guide))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Encountered (NaN|[+-]?inf)")  # answered by NonFiniteError
        generator = torch.Generator()
        batches = Batches(data, batch_size, device, generator)
        if batches.num_batches > 1:
            generator.manual_seed(int(torch.randint(2**62, ())) if seed is None else seed)
        _check_data(model, batches)
        first = next(iter(batches))
        parameters = _prepare_guide(model, guide, elbo, first)
        made = _make_optimizer(optimizer, parameters)
        parts = model, guide, parameters, made, clip_norm
        why_not = obstacle(model, guide, elbo, first[0])
        if why_not is not None and estimator is not None and isinstance(guide, MeanFieldGuide) and guide._masked:
            raise ValueError(
                f"an estimator serves a pruned guide on the direct path alone, which is closed because {why_not}; "
                "leave the estimator out."
            )
        step: Step | GraphStep
        if why_not is None:
            step = DirectStep(*parts, elbo=elbo, num_particles=num_particles, estimator=estimator)
        else:
            step = PyroStep(*parts, elbo=elbo(num_particles=num_particles), contexts=contexts)
        if cuda_graph:
            _check_recording(step, why_not)
            step = GraphStep(step)
        stack.enter_context(step.ready())
        schedule = scheduler(step.optimizer) if scheduler is not None else None
        path = "direct" if why_not is None else f"pyro: {why_not}"
        return _run(step, path, batches, num_epochs, weight_at, schedule, callbacks, progress)


def _run(
    step: Step | GraphStep,
    path: str,
    batches: Batches,
    num_epochs: int,
    weight_at: KLWeight,
    schedule: LRScheduler | ReduceLROnPlateau | None,
    callbacks: Sequence[Callable[[History], bool | None]],
    progress: bool,
) -> GuidePosterior:
    num_data = step.model.num_data if isinstance(step.model, BayesianModel) else None
    history = History(num_data, path)
    stopped = False
    with tqdm(range(num_epochs), disable=not progress, unit="epoch") as bar:
        for epoch in bar:
            start, sizes, weights = time.perf_counter(), [], []
            results: list[Tensor] = []
            for index, batch in enumerate(batches):
                if epoch == 0:
                    _check_first_time(step.model, batch, batches)
                weight = check_weight(weight_at(epoch, index, batches.num_batches))
                results.append(step(batch, weight, f"epoch {epoch}, batch {index}"))
                weights.append(weight)
                sizes.append(len(batch[0]))
            _record(history, results, weights, epoch)
            record = history.end_epoch(sizes, step.optimizer.param_groups[0]["lr"], time.perf_counter() - start)
            rows = sum(sizes)
            if epoch == 0 and num_data is not None and (rows > num_data or num_data - rows >= max(sizes)):
                warnings.warn(
                    f"`num_data` is {num_data} but an epoch has {rows} rows: the ELBO is that of {num_data} rows. "
                    "Set `num_data` to the size of the training set.",
                    stacklevel=3,
                )
            _show(bar, record, num_data)
            if isinstance(schedule, ReduceLROnPlateau):
                schedule.step(record.kl_weight * record.kl - record.expected_log_likelihood)
            elif schedule is not None:
                schedule.step()
            if sum(bool(callback(history)) for callback in callbacks):  # every one is called
                stopped = True
                break
    return GuidePosterior(step.guide, _status(history, num_epochs, stopped), history)


def _check_recording(step: Step, why_not: str | None) -> None:
    if why_not is not None or step.waits:
        raise ValueError(
            "`cuda_graph` needs the direct path and an optimizer with `fused=True` on a GPU, but "
            f"{why_not or 'this fit has no such optimizer there'}; leave it out."
        )


def _record(history: History, results: list[Tensor], weights: list[float], epoch: int) -> None:
    """Add an epoch's steps to the history: a GPU is waited for here, and not at each step."""
    for index, (row, weight) in enumerate(zip(torch.stack(results).tolist(), weights, strict=True)):
        expected_log_likelihood, kl, is_finite = row
        if not is_finite:
            raise NonFiniteError(
                f"the loss or its gradient is not finite at epoch {epoch}, batch {index}. The parameters are those of "
                "the last finite step. Try a lower learning rate, `clip_norm`, a smaller initial scale, or inputs of "
                "unit scale. To have the first bad site named, use an optimizer with `fused=False`, or the CPU."
            )
        history.add_step(expected_log_likelihood, kl, weight)


def _show(bar: tqdm, record: EpochRecord, num_data: int | None) -> None:
    unit = num_data or 1
    terms = {"ELBO": record.elbo, "NLL": -record.expected_log_likelihood, "KL": record.kl}
    shown = {f"{name}/N" if num_data else name: f"{value / unit:.4g}" for name, value in terms.items()}
    bar.set_postfix(shown, refresh=False)


def _status(history: History, num_epochs: int, stopped: bool) -> Status:
    first, last = history.epochs[0], history.epochs[-1]
    done = f"{'stopped by a callback' if stopped else 'completed'} after {len(history.epochs)} of {num_epochs} epochs"
    if len(history.epochs) > 1 and first.kl_weight == last.kl_weight:
        objectives = [r.expected_log_likelihood - r.kl_weight * r.kl for r in (first, last)]
        if objectives[0] - objectives[1] > NOTABLE_FALL * abs(objectives[0]):
            return Status(
                False,
                f"{done}, but the objective fell from {objectives[0]:.4g} to {objectives[1]:.4g} nats: lower the "
                "learning rate, or set `clip_norm`.",
            )
    return Status(True, f"{done}; ELBO {last.elbo:.6g} nats.")


def _make_optimizer(optimizer: Callable, parameters: list[nn.Parameter]) -> Optimizer:
    made = None if isinstance(optimizer, PyroOptim) or not callable(optimizer) else optimizer(parameters)
    if not isinstance(made, Optimizer):
        raise ValueError(
            "`optimizer` must make a torch optimizer from parameters, such as functools.partial(torch.optim.Adam, "
            f"lr=1e-3); got {type(optimizer).__name__}."
        )
    return made


def _prepare_guide(model: nn.Module, guide: nn.Module, elbo: type[ELBO], batch: Batch) -> list[nn.Parameter]:
    """All parameters to learn, after a trial run of the guide that shows what kind it is."""
    is_ready = any(True for _ in guide.parameters())  # if not, its first call makes them, with the fit's own seed
    with seeded(0 if is_ready else None, batch[0].device), torch.no_grad(), poutine.block():
        trace: Any = poutine.trace(guide).get_trace(*batch)
    latent = [node for node in trace.nodes.values() if node["type"] == "sample" and not node["is_observed"]]
    if any(node["name"] == "obs" for node in latent) and isinstance(model, BayesianModel):
        raise ValueError(
            "the guide draws the observed site `obs`: it was first called without targets. Build it with "
            "`auto_normal`, or call it once as `guide(x, y)` before anything else."
        )
    if any(is_auxiliary(node) for node in latent) and issubclass(elbo, TraceMeanField_ELBO):
        raise ValueError(
            f"{type(guide).__name__} samples auxiliary variables, for which TraceMeanField_ELBO has no closed form and "
            "loses the Jacobian of constrained sites; use `elbo=Trace_ELBO`, or MeanFieldGuide."
        )
    owned = [p for module in (guide, model) for p in module.parameters() if p.requires_grad]
    parameters = list(dict.fromkeys(owned))
    known = {id(parameter) for module in (guide, model) for parameter in module.parameters()}
    for name, node in trace.nodes.items():
        if node["type"] == "param" and id(node["value"].unconstrained()) not in known:
            raise ValueError(
                f"the guide's parameter `{name}` lives in Pyro's global store, not in the guide; declare it as a "
                "`PyroParam` or `nn.Parameter` of the module, or fit with `pyro.infer.SVI`."
            )
    if not parameters:
        raise ValueError("neither guide nor model has a parameter to learn.")
    return parameters


def _check_data(model: nn.Module, batches: Batches) -> None:
    if isinstance(model, BayesianModel) and batches.tensors is not None:
        x = batches.tensors[0]
        if len(batches.tensors) != 2:
            raise ValueError(f"`data` must be a tuple (x, y), got {len(batches.tensors)} tensors.")
        if len(x) != model.num_data:
            raise ValueError(
                f"the model's `num_data` is {model.num_data} but the data has {len(x)} rows; the KL would be weighted "
                "for the wrong size of data set."
            )
        _checks.finite("x", x)


def _check_first_time(model: nn.Module, batch: Batch, batches: Batches) -> None:
    """What is too dear for every step: NaN in the inputs, and on a GPU the values of the targets."""
    if not isinstance(model, BayesianModel):
        return
    if len(batch) != 2:
        raise ValueError(f"a batch must be a pair (x, y), got {len(batch)} parts.")
    if batches.tensors is None:
        _checks.finite("x", batch[0])
    if batch[1].is_cuda:
        model.check_targets(*batch)


def _device_of(model: nn.Module, guide: nn.Module) -> torch.device | None:
    if isinstance(model, BayesianModel):
        return model.device
    return next((parameter.device for module in (guide, model) for parameter in module.parameters()), None)
