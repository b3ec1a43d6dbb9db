"""The response of a network to inputs, and checks of the data."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core import functional as _functional
from ..._core.devices import reads_wait
from ..._core.inputs import Inputs, Shared, has_shared, leaves, named_leaves, num_rows, shapes
from ..._core.reuse import Memory
from ..._core.summary import counted
from ..likelihoods import CategoricalLikelihood, Likelihood, require_classes

Interceptor = Callable[[Mapping[str, Tensor], int], AbstractContextManager[None]]
"""Takes ``{site: value}`` and a call's number of rows; returns a context for the call."""


def check_input(x: Inputs, like: Tensor) -> None:
    """Raise unless x has rows, is on the device of the weight `like`, and has its dtype if x is floating-point."""
    _require_tensors("x", x)
    for name, leaf in [("x", x)] if isinstance(x, Tensor) else named_leaves("x", x):
        if leaf.layout != torch.strided:
            _checks.tensor(name, leaf)
        if leaf.device != like.device:
            raise ValueError(
                f"`{name}` is on {leaf.device} but the model is on {like.device}; call `{name}.to(model.device)` or "
                f"`model.to({str(leaf.device)!r})`."
            )
        if leaf.is_floating_point() and leaf.dtype != like.dtype:
            raise ValueError(
                f"`{name}` is {leaf.dtype} but the network is {like.dtype}; call `{name}.to({like.dtype})` or "
                f"`model.to({leaf.dtype})`."
            )
    if (len(x) if isinstance(x, Tensor) and x.dim() else num_rows(x)) == 0:
        raise ValueError(f"`x` must have at least one row, got shape {shapes(x)}.")


def _require_tensors(name: str, x: object) -> None:
    if isinstance(x, Tensor):
        return
    if isinstance(x, Shared):
        _require_tensors(name, x.value)
        return
    if not isinstance(x, (tuple, list, Mapping)):
        raise ValueError(f"`{name}` must be a tensor, got {type(x).__name__}; pass several in a tuple or a dictionary.")
    for key, part in x.items() if isinstance(x, Mapping) else enumerate(x):
        _require_tensors(f"{name}[{key!r}]", part)


def require_values(values: Mapping[str, Tensor], names: Iterable[str]) -> None:
    _checks.kind("values", values, Mapping, "a dict of values by site")
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"`values` must have all sites of the network, got none for {missing}; add them.")


def check_shapes(likelihood: Likelihood, observed: Sequence[int], x: Inputs, y: Tensor) -> None:
    """Raise unless y has the device of x, and a shape that suits predicted targets of shape `observed`."""
    expected = likelihood.target_shape(observed)
    device = (x if isinstance(x, Tensor) else leaves(x)[0]).device
    _checks.kind("y", y, Tensor, "a tensor")
    if y.device != device:
        raise ValueError(f"`y` is on {y.device} but `x` is on {device}; call `y.to({str(device)!r})`.")
    _checks.tensor("y", y)
    if y.dim() == 0 or len(y) != num_rows(x):
        raise ValueError(
            f"`x` and `y` must have the same number of rows, got shapes {shapes(x)} and {_checks.shape(y)}."
        )
    if tuple(y.shape) != tuple(expected):
        remedy, is_classes = _checks.reshaped(y, expected), isinstance(likelihood, CategoricalLikelihood)
        if is_classes and not likelihood.has_row_weights:
            require_classes(y)
        if not remedy and is_classes and y.dim() == len(expected) + 1:
            remedy = ", one class number a row; call `y.argmax(-1)` if the rows are one-hot"
        elif y.dim() == len(expected) == 2 and not likelihood.has_row_weights:
            outputs = counted(likelihood.num_outputs(y.shape[1]), "output")
            remedy = f"; a network for {counted(y.shape[1], 'target')} a row has {outputs}"
        if likelihood.has_row_weights and tuple(y.shape) == tuple(observed):
            remedy = ", values and weights; call `likelihood.join_weights(y, weights)`"
        raise ValueError(
            f"{type(likelihood).__name__} expects `y` of shape {tuple(expected)}, got {_checks.shape(y)}{remedy}."
        )


class Interception:
    """Changes or observes calls of a network: an estimator or a `Memory` changes them, and a check reads the output."""

    interceptor: Interceptor | None = None
    memory: Memory | None = None
    check: Callable[[Tensor], None] | None = None

    @property
    def is_active(self) -> bool:
        return self.interceptor is not None

    def by(self, interceptor: Interceptor) -> AbstractContextManager[None]:
        """Run each call of the network in a context of `interceptor`, until the `with` block ends."""
        if self.interceptor is not None:
            raise ValueError("an estimator is already applied to this model; end its `with` block first.")
        return self._having("interceptor", interceptor)

    def checking(self, check: Callable[[Tensor], None]) -> AbstractContextManager[None]:
        """At the first call in the `with` block, pass the output, shape ``(*draws, N, ...)``, to `check`."""
        return self._having("check", check)

    def remembering(self, memory: Memory) -> AbstractContextManager[None]:
        """Let calls use `memory`, until the `with` block ends."""
        return self._having("memory", memory)

    @contextmanager
    def _having(self, name: str, value: object) -> Iterator[None]:
        before = getattr(self, name)
        setattr(self, name, value)
        try:
            yield
        finally:
            setattr(self, name, before)


@dataclass(frozen=True)
class Response:
    """The network's output, and the distribution of the targets."""

    output: Tensor  # the network's output, shape (*draws, N, ...)
    num_lead: int  # number of draw axes
    likelihood: Likelihood

    @cached_property
    def distribution(self) -> TorchDistributionMixin:
        """Distribution of the targets, batch shape ``(*draws, N, ...)``."""
        return self.likelihood(self.output)

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (*self.distribution.batch_shape[self.num_lead :], *self.distribution.event_shape)

    def observed(self, x: Inputs, y: Tensor, num_data: int) -> tuple[TorchDistributionMixin, Tensor]:
        """Check the targets; return their distribution with target weights, and targets as `log_prob` takes them."""
        check_shapes(self.likelihood, self.target_shape, x, y)
        if len(y) > num_data:
            raise ValueError(
                f"`num_data` is {num_data} but the batch has {len(y)} rows; build the model with the size of the whole "
                "data set."
            )
        if not reads_wait(y.device):  # for other devices `fit_svi` checks once
            self.likelihood.check_targets(self.output, y)
        dtype = self.output.dtype
        return self.likelihood.weighted(self.distribution, y, dtype), self.likelihood.as_targets(y, dtype)


def respond(
    net: nn.Module,
    likelihood: Likelihood,
    paths: Mapping[str, Sequence[str]],
    values: Mapping[str, Tensor],
    x: Inputs,
    interception: Interception,
) -> Response:
    weights = {name: values[name] for name in paths}
    tensors = {path: weights[name] for name in paths for path in paths[name]}
    num_lead = _functional.num_lead_axes(net, tensors)
    interceptor, memory = interception.interceptor, interception.memory
    if interceptor is not None and has_shared(x):
        raise ValueError(
            "an estimator draws noise for each row, but a shared input passes the same weights on to all rows "
            f"({shapes(x)}); leave the estimator out."
        )
    remembered = nullcontext() if memory is None or num_lead else memory.during(tensors)
    with remembered, nullcontext() if interceptor is None else interceptor(weights, num_rows(x)):
        output = _functional.call_batched(net, tensors, x) if num_lead else _functional.call(net, tensors, x)
    if interceptor is not None and output.is_floating_point():  # under autocast it may have another dtype
        output = output.to(next(iter(weights.values())).dtype)
    rows = len(x) if isinstance(x, Tensor) else num_rows(x)
    if output.dim() <= num_lead or output.shape[num_lead] != rows:
        raise ValueError(
            f"`net` must return one row per input, got output {_checks.shape(output)} for x {shapes(x)}; give x an "
            "axis of rows first, as in `x[None]` for a single row."
        )
    check, interception.check = interception.check, None
    if check is not None:
        check(output.detach())
    noise_draws = likelihood.draw_shape()
    if len(noise_draws) > num_lead:  # the noise scale has more draw axes than the weights
        output, num_lead = output.expand(noise_draws + output.shape), len(noise_draws)
    return Response(output, num_lead, likelihood)
