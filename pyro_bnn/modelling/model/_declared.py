"""The weights that a network of Pyro modules declares as random by `PyroSample`."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.infer.autoguide.initialization import InitMessenger, init_to_median
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..._core.functional import swapped
from ..._core.reflection import move_distribution
from ..._core.scope import leave_pyro, own_parameters, restored, short_errors
from ..priors import WeightPrior
from ._selection import SITE_PREFIX

Statement = TorchDistributionMixin | Callable[[Any], Any]


@dataclass(frozen=True)
class DeclaredPrior(WeightPrior):
    statement: Statement
    sites: Mapping[str, str] = field(default_factory=dict)  # sites that the statement reads -> path in the module
    is_learned: bool = False  # whether the statement reads a learnable parameter

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        if isinstance(self.statement, TorchDistributionMixin):
            return _whole(self.statement, parameter)
        given = {path: values[site] for site, path in self.sites.items()}
        num_axes = {path: module.get_buffer(path).dim() for path in given}
        leads = {path: value.shape[: value.dim() - num_axes[path]] for path, value in given.items()}
        lead = torch.broadcast_shapes(*leads.values())
        if not lead:
            return self._evaluated(given, parameter, module)
        shapes = {path: (*lead, *value.shape[len(leads[path]) :]) for path, value in given.items()}
        flat = {path: value.expand(shapes[path]).flatten(0, len(lead) - 1) for path, value in given.items()}
        rows = ({path: value[row] for path, value in flat.items()} for row in range(lead.numel()))
        return _Stacked([self._evaluated(row, parameter, module) for row in rows], lead)

    def _evaluated(self, given: Mapping[str, Tensor], parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        statement: Any = self.statement
        with swapped(module, given), pyro.validation_enabled(not given):  # a sampler may reach impossible values
            return _whole(statement(module), parameter)


class _Stacked(TorchDistribution):
    """A batch of distributions: one for each draw of the variables on which they depend."""

    arg_constraints = {}  # noqa: RUF012  # torch's own convention

    def __init__(self, rows: list[TorchDistributionMixin], lead: torch.Size) -> None:
        self._rows, self.has_rsample = rows, all(row.has_rsample for row in rows)
        super().__init__(lead, rows[0].event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self._rows[0].support

    def expand(self, batch_shape: Any, _instance: Any = None) -> "_Stacked":
        index = torch.arange(len(self._rows)).view(self.batch_shape).expand(batch_shape)
        return _Stacked([self._rows[row] for row in index.flatten().tolist()], index.shape)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        return self._drawn([row.rsample(sample_shape) for row in self._rows], len(sample_shape))

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        with torch.no_grad():
            return self._drawn([row.sample(sample_shape) for row in self._rows], len(sample_shape))

    def _drawn(self, values: list[Tensor], axis: int) -> Tensor:
        return torch.stack(values, axis).unflatten(axis, self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        num_event, lead = len(self.event_shape), self.batch_shape
        outer = value.shape[: max(value.dim() - num_event - len(lead), 0)]
        value = value.expand(*outer, *lead, *self.event_shape).flatten(len(outer), len(outer) + len(lead) - 1)
        found = [row.log_prob(part) for row, part in zip(self._rows, value.unbind(len(outer)), strict=True)]
        return torch.stack(found, -1).unflatten(-1, lead)


def _whole(prior: Any, parameter: Tensor) -> TorchDistributionMixin:
    """Move a prior to the parameter's device and dtype, and turn its batch axes into event axes."""
    moved: Any = move_distribution(prior, parameter)
    return moved.to_event(len(moved.batch_shape))


def take_declared(net: nn.Module) -> dict[str, Statement]:
    """Replace every `PyroSample` by a buffer with the median of prior draws; return ``{path: declaration}``.

    Each declaration depends only on those before it. A `PyroSample` that computes a tensor from other tensors is not
    replaced.
    """
    modules = [(path, module) for path, module in net.named_modules() if isinstance(module, PyroModule)]
    for path, module in modules:
        _require_attributes(path, module)
    found = _traced(net, modules) if any(module._pyro_samples for _, module in modules) else {}
    leave_pyro(net)
    tensors = itertools.chain(net.parameters(), net.buffers())
    like = next((t[..., :0] if t.dim() else t for t in tensors if t.is_floating_point()), None)
    statements: dict[str, Statement] = {}
    for path, value in found.items():
        owner, _, name = path.rpartition(".")
        declaring: Any = net.get_submodule(owner)
        statements[path] = declaring._pyro_samples.pop(name)
        like = value if like is None else like
        declaring.register_buffer(name, value.to(like))
    return statements


def _require_attributes(path: str, module: PyroModule) -> None:
    for name in dir(type(module)):
        kind = next((vars(base)[name] for base in type(module).__mro__ if name in vars(base)), None)
        if isinstance(kind, (PyroSample, PyroParam)):
            site = ".".join(filter(None, (SITE_PREFIX, path, name)))
            raise ValueError(
                f"`{site}` is declared by a decorator in the class {type(module).__name__}, where no drawn value can "
                f"replace it; set it in `__init__`, as `self.{name} = {type(kind).__name__}(...)`."
            )


def _traced(net: nn.Module, modules: list[tuple[str, PyroModule]]) -> dict[str, Tensor]:
    """Return ``{path: initial value}``, in the order in which Pyro would draw."""
    context = PyroModule()._pyro_context
    for path, module in modules:
        vars(module).update(_pyro_name=path, _pyro_context=context)
    declared = {".".join(filter(None, (path, name))) for path, module in modules for name in module._pyro_samples}

    def run() -> None:
        for path, module in modules:
            for name in list(module._pyro_samples):
                try:
                    getattr(module, name)
                except Exception as error:
                    site = ".".join(filter(None, (SITE_PREFIX, path, name)))
                    raise ValueError(
                        f"the prior of `{site}` cannot be made ({type(error).__name__}: {error}); let its function use "
                        "attributes that exist before it runs: numbers, parameters, and other `PyroSample`s."
                    ) from error

    with own_parameters(net), restored(None), torch.no_grad(), poutine.block(), context, short_errors():
        trace: Any = poutine.trace(InitMessenger(init_to_median)(run)).get_trace()
    values = {}
    for name, node in trace.nodes.items():
        if node["type"] != "sample" or (node["infer"] or {}).get("_deterministic"):
            continue
        if name not in declared:
            raise ValueError(
                f"the prior of a `PyroSample` of the network draws `{name}` by `pyro.sample`; make it a `PyroSample`, "
                "too, and read it as an attribute."
            )
        values[name] = node["value"]
    return values


def declared_priors(
    net: nn.Module, statements: Mapping[str, Statement], paths: Mapping[str, list[str]]
) -> dict[str, DeclaredPrior]:
    """Return ``{site: prior}``. Random parameters must be buffers."""
    sites = {path: site for site, its_paths in paths.items() for path in its_paths}
    return {sites[path]: _declared_prior(net, path, statement, sites) for path, statement in statements.items()}


def _declared_prior(net: nn.Module, path: str, statement: Statement, sites: Mapping[str, str]) -> DeclaredPrior:
    if isinstance(statement, TorchDistributionMixin):
        return DeclaredPrior(statement)
    owner = path.rpartition(".")[0]
    module = net.get_submodule(owner)
    with torch.no_grad(), _Used() as used:
        statement(module)
    is_learned = any(value.requires_grad and id(value) in used.ids for value in module.parameters())
    inside = {name: ".".join(filter(None, (owner, name))) for name, v in module.named_buffers() if id(v) in used.ids}
    return DeclaredPrior(statement, {sites[w]: name for name, w in sorted(inside.items()) if w in sites}, is_learned)


class _Used(TorchFunctionMode):
    """Collects the `id` of each tensor that is passed to a torch function."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument in (*args, *(kwargs or {}).values()):
            self.ids.update(map(id, argument if isinstance(argument, (list, tuple)) else [argument]))
        return func(*args, **(kwargs or {}))
