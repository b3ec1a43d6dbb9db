"""Steps with Pyro's ELBOs, for any Pyro model and guide."""

import copy
import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn
from torch.distributions import transform_to
from torch.optim import Optimizer

from ..._core import checks as _checks
from ..._core.inputs import Batch
from ..._core.scope import (
    EXCLUSIVE,
    filtered_warnings,
    is_auxiliary,
    own_parameters,
    restored,
    seeded,
    short_errors,
)
from ...modelling.model import BayesianModel
from ..estimators import Applied, Estimator
from ..guides import FlatGuide, MeanFieldGuide, require_same_model
from ._step import Execution, GradientStep, StepTerms, running_statistics

SMALLEST_KL_WEIGHT = 1e-30  # the weighted KL can be divided by this weight, which is too small to affect gradients
SMALLEST_DIVISOR = 1e-3  # heuristic: smallest KL weight by which a loss is divided, which magnifies rounding errors


class PyroFunction(nn.Module):
    """A module around a Pyro model or guide that is a function. The first call makes the parameters."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function
        self.values = nn.ParameterList()
        self._constraints: dict[str, Any] | None = None

    def forward(self, *args: object, **kwargs: object) -> object:
        if self._constraints is None:
            self._constraints = self._made(args, kwargs)
        with _OwnValues(self.value_of):
            return self.function(*args, **kwargs)

    def _made(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, Any]:
        store = pyro.get_param_store()
        with EXCLUSIVE, store.scope(state=store.get_state()), restored(None), poutine.block(), torch.no_grad():
            trace: Any = poutine.trace(self.function, param_only=True).get_trace(*args, **kwargs)
            constraints = {}
            for name, node in trace.nodes.items():
                if node["type"] == "param":
                    self.values.append(nn.Parameter(node["value"].unconstrained().detach().clone()))
                    constraints[name] = node["kwargs"].get("constraint", torch.distributions.constraints.real)
        return constraints

    def value_of(self, name: str) -> Tensor:
        """Return the value of the `pyro.param` statement `name`."""
        assert self._constraints is not None
        names = [*self._constraints]
        if name not in names:
            raise ValueError(
                f"every `pyro.param` statement must run at the first call, got a new one of `{name}`; make it "
                "independent of the batch."
            )
        parameter: Tensor = self.values[names.index(name)]
        value: Any = transform_to(self._constraints[name])(parameter)
        value.unconstrained = weakref.ref(parameter)  # Pyro's ELBOs read this attribute
        return value

    @torch.no_grad()
    def publish(self) -> None:
        """Write the parameters into Pyro's global store, where direct calls of the function find them."""
        store = pyro.get_param_store()
        with EXCLUSIVE:
            for name, constraint in (self._constraints or {}).items():
                value = self.value_of(name).detach().clone()
                store.setdefault(name, value, constraint)
                store[name] = value


class _OwnValues(Messenger):
    """Lets each `pyro.param` statement return a parameter of a :class:`PyroFunction`."""

    def __init__(self, value_of: Callable[[str], Tensor]) -> None:
        super().__init__()
        self._value_of = value_of

    def _pyro_param(self, msg: Any) -> None:
        if msg["value"] is None:
            msg["value"] = self._value_of(msg["name"])


def as_module(name: str, value: object) -> nn.Module:
    """Return a model or a guide as a module. `name` is "model" or "guide", for error messages."""
    if isinstance(value, nn.Module):
        return value
    if isinstance(value, type):
        arguments = "model" if name == "guide" else "..."
        raise ValueError(f"`{name}` must be an instance, got the class; pass `{value.__name__}({arguments})`.")
    if not callable(value):
        example = ", such as `MeanFieldGuide(model)` or `LowRankGuide(model)`" if name == "guide" else ""
        raise ValueError(
            f"`{name}` must be a module or a function, got {_checks.described(value)}; pass a Pyro {name}{example}."
        )
    return PyroFunction(value)


def check_model(model: object, guide: object) -> None:
    if isinstance(model, (FlatGuide, AutoGuide)):
        raise ValueError(f"`model` must be a model, got the guide {type(model).__name__}; pass the guide's model.")
    if isinstance(guide, BayesianModel):
        raise ValueError("`guide` must be a guide, got a BayesianModel; make one, such as MeanFieldGuide(model).")
    if guide is model and model is not None:
        raise ValueError(f"`guide` and `model` must be different modules, got the same {type(model).__name__} twice.")


def check_signature(name: str, module: nn.Module, batch: Batch) -> None:
    try:
        inspect.signature(module.function if isinstance(module, PyroFunction) else module.forward).bind(*batch)
    except TypeError as error:
        raise ValueError(
            f"`{name}` must be a Pyro {name} that takes the {len(batch)} tensors of a batch as arguments, got "
            f"{type(module).__name__}: {error}. For a plain network make a BayesianModel and a guide."
        ) from None


def traced_guide(model: nn.Module, guide: nn.Module, elbo: ELBO, batch: Batch) -> Any:
    """Trace a call of a guide. Raise if the guide lacks a latent variable of the model; Pyro would only warn."""
    check_signature("model", model, batch)
    check_signature("guide", guide, batch)
    example = next(guide.parameters(), None)  # if there are none, this call makes them, with the seed of the fit
    seed, device = (None, None) if example is None else (0, example.device)
    with short_errors(), seeded(seed, device), torch.no_grad(), poutine.block():
        trace: Any = poutine.trace(guide).get_trace(*batch)
        if isinstance(model, BayesianModel) or isinstance(elbo, TraceEnum_ELBO):
            return trace
        needed = _drawn(poutine.replay(model, trace=trace), batch)
    missing = sorted(needed - {name for name, _ in trace.iter_stochastic_nodes()})
    if missing:
        raise ValueError(
            f"the guide must draw every latent variable of the model, but it lacks {missing}; make a guide of this "
            "model, or, if one of these is observed, pass the targets in each batch."
        )
    return trace


def _drawn(model: Any, batch: Batch) -> set[str]:
    trace: Any = prune_subsample_sites(poutine.trace(model).get_trace(*batch))
    return {name for name, node in trace.iter_stochastic_nodes() if not is_auxiliary(node)}


def check_own_statements(model: BayesianModel, latent: set[str], batch: Batch) -> None:
    """Raise if a `pyro.sample` statement in network or likelihood draws a variable that the guide lacks."""
    with short_errors(), seeded(0), torch.no_grad(), poutine.block():
        buffers = running_statistics(model)
        before = [buffer.clone() for buffer in buffers]
        drawn = _drawn(model, batch)
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
    missing = sorted(drawn - {*latent, *model.latent_names})
    if missing:
        raise ValueError(
            f"the network draws {missing} by `pyro.sample`, but the guide does not, so a fit would not learn it; make "
            "it a `PyroSample` of a `PyroModule`, which becomes a site of the model, or fit Pyro's `AutoNormal(model)`."
        )


def learned_parameters(
    model: nn.Module, guide: nn.Module, elbo: ELBO, batch: Batch, trace: Any, *, is_direct: bool
) -> list[nn.Parameter]:
    """Return all parameters to learn; raise if the guide's trace does not match the model or the ELBO."""
    latent = [node for node in trace.nodes.values() if node["type"] == "sample" and not node["is_observed"]]
    if isinstance(model, BayesianModel) and any(node["name"] == "obs" for node in latent):
        raise ValueError(
            "the guide draws the observed site `obs`, because it was first called without targets; build it with "
            "`auto_guide`, or make `guide(x, y)` its first call."
        )
    if any(is_auxiliary(node) for node in latent) and isinstance(elbo, TraceMeanField_ELBO) and not is_direct:
        raise ValueError(
            f"{type(guide).__name__} samples auxiliary variables, for which TraceMeanField_ELBO has no closed form and "
            "omits the Jacobian of constrained sites; use `elbo=Trace_ELBO()`, or MeanFieldGuide."
        )
    owned = dict.fromkeys(parameter for module in (guide, model) for parameter in module.parameters())
    for name, node in trace.nodes.items():
        # Without a constraint, the value is the parameter itself. After Pyro's first call it has no `unconstrained`.
        if node["type"] == "param" and node["value"] not in owned and node["value"].unconstrained() not in owned:
            raise ValueError(
                f"the guide's parameter `{name}` must be in the guide, but is in Pyro's global store; make it a "
                "`PyroParam` or `nn.Parameter` of the module, or fit with `pyro.infer.SVI`."
            )
    if isinstance(model, BayesianModel):
        drawn = {node["name"]: node["value"] for node in latent if not is_auxiliary(node)}
        require_same_model(model, drawn)
        if not is_direct:
            check_own_statements(model, {*drawn}, batch)
    parameters = [parameter for parameter in owned if parameter.requires_grad]
    if not parameters:
        raise ValueError("guide and model have no parameter to learn; pass a guide with at least one.")
    return parameters


# --- the step ---


class PyroStep(GradientStep):
    """A step with one of Pyro's ELBOs. It ignores all options of `execution` except `distributed`."""

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        parameters: list[nn.Parameter],
        optimizer: Optimizer,
        *,
        elbo: ELBO,
        estimator: Estimator | None,
        execution: Execution,
    ) -> None:
        super().__init__(model, guide, parameters, optimizer, execution.processes)
        self._contexts = _contexts(estimator, model, guide, elbo)
        self._elbo: Any = copy.copy(elbo)
        # All ELBOs of Pyro get their traces from `_get_trace`. The two terms of the loss are computed from the traces.
        self._traces: list[tuple[Trace, Trace]] = []
        get_trace = self._elbo._get_trace

        def recorded(*args: object, **kwargs: object) -> tuple[Trace, Trace]:
            self._traces.append(get_trace(*args, **kwargs))
            return self._traces[-1]

        vars(self._elbo)["_get_trace"] = recorded

    def __call__(self, batch: Batch, kl_weight: float) -> StepTerms:
        try:
            with own_parameters(self.model, self.guide):  # in each step: another open step may use the same names
                return super().__call__(batch, kl_weight)
        finally:
            self._traces.clear()

    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        weight = max(weight, SMALLEST_KL_WEIGHT)
        scaled = nullcontext() if weight == 1.0 else _ScaleLatents(weight)
        quiet = filtered_warnings("ignore", "Encountered (NaN|[+-]?inf)")  # a NonFiniteError follows
        with short_errors(), self._contexts[weight >= SMALLEST_DIVISOR], scaled, quiet:
            loss = float(self._elbo.loss_and_grads(self.model, self.guide, *batch))
        terms = torch.stack(self._terms(loss, weight))
        return torch.full_like(terms[0], loss), terms

    def _terms(self, loss: float, weight: float) -> tuple[Tensor, Tensor]:
        pairs, num_particles = self._traces, self._elbo.num_particles
        zero = torch.zeros((), dtype=torch.float64, device=self._is_finite.device)
        log_likelihood = sum((_log_prob(model, model.observation_nodes) for model, _ in pairs), zero) / num_particles
        if isinstance(self._elbo, TraceMeanField_ELBO) and weight >= SMALLEST_DIVISOR:
            return log_likelihood, (loss + log_likelihood) / weight
        parts = (_log_prob(g, g.stochastic_nodes) - _log_prob(m, m.stochastic_nodes) for m, g in pairs)
        return log_likelihood, sum(parts, zero) / weight / num_particles

    def _bad_site(self) -> str | None:
        for model_trace, guide_trace in self._traces:
            for node in [*guide_trace.nodes.values(), *model_trace.nodes.values()]:
                if node["type"] != "sample":
                    continue
                if not bool(torch.isfinite(torch.as_tensor(node["value"])).all()):
                    return f"`{node['name']}` (its value)"
                if not bool(torch.isfinite(torch.as_tensor(node.get("log_prob_sum", 0.0)))):
                    return f"`{node['name']}` (its log-density)"
        return None


class _ScaleLatents(Messenger):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self._weight = weight

    def _pyro_sample(self, msg: dict) -> None:
        if not msg["is_observed"]:
            msg["scale"] = msg["scale"] * self._weight


def _contexts(
    estimator: Estimator | None, model: nn.Module, guide: nn.Module, elbo: ELBO
) -> Sequence[AbstractContextManager[None]]:
    """Return a context for steps with a KL weight below `SMALLEST_DIVISOR`, and one for all other steps.

    If there is an estimator, both contexts apply it. In the first context, the KL is estimated from draws, so all
    weights are drawn.
    """
    if estimator is None:
        return nullcontext(), nullcontext()
    assert isinstance(model, BayesianModel)
    assert isinstance(guide, MeanFieldGuide)
    is_mean_field = isinstance(elbo, TraceMeanField_ELBO)
    return Applied(estimator, model, guide), Applied(estimator, model, guide, closed_form=is_mean_field)


def _log_prob(trace: Trace, names: list[str]) -> Tensor | float:
    return sum(trace.nodes[name]["log_prob_sum"].detach().double() for name in names)
