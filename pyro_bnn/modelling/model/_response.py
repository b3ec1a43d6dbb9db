"""The response of a network to inputs: its output, and the distribution of the targets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core import functional as _functional
from ..._core.devices import reads_wait
from ..._core.inputs import Inputs, has_shared, num_rows, shapes
from ..._core.reuse import Memory
from ..likelihoods import Likelihood
from ._inputs import check_shapes

Interceptor = Callable[[Mapping[str, Tensor], int], AbstractContextManager[None]]
"""Function that returns a context for a call of the network, given weights ``{site: value}`` and a number of rows."""


class Interception:
    """Contexts in which an estimator, a memory of calls or a check of outputs acts on the calls of a network."""

    interceptor: Interceptor | None = None
    memory: Memory | None = None
    check: Callable[[Tensor], None] | None = None

    @property
    def is_active(self) -> bool:
        """Whether a context of :meth:`by` is active."""
        return self.interceptor is not None

    @contextmanager
    def by(self, interceptor: Interceptor) -> Iterator[None]:
        """A context in which every call of the network runs inside a context made by `interceptor`."""
        if self.interceptor is not None:
            raise ValueError("an estimator is already applied to this model; end its `with` block first.")
        self.interceptor = interceptor
        try:
            yield
        finally:
            self.interceptor = None

    @contextmanager
    def checking(self, check: Callable[[Tensor], None]) -> Iterator[None]:
        """A context in which `check` is called with the first output, shape ``(*draws, N, ...)``."""
        self.check = check
        try:
            yield
        finally:
            self.check = None

    @contextmanager
    def remembering(self, memory: Memory) -> Iterator[None]:
        """A context in which calls of the network use a :class:`Memory`."""
        before, self.memory = self.memory, memory
        try:
            yield
        finally:
            self.memory = before


@dataclass(frozen=True)
class Response:
    """The response of a model to inputs."""

    output: Tensor  # the network's output, shape (*draws, N, ...)
    num_lead: int  # number of draw axes
    likelihood: Likelihood

    @cached_property
    def distribution(self) -> TorchDistributionMixin:
        """Elementwise distribution of the targets, batch shape ``(*draws, N, ...)``."""
        distribution: TorchDistributionMixin = self.likelihood(self.output)
        return distribution

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the targets, ``(N, ...)``."""
        return (*self.distribution.batch_shape[self.num_lead :], *self.distribution.event_shape)

    def observed(self, x: Inputs, y: Tensor, num_data: int) -> tuple[TorchDistributionMixin, Tensor]:
        """The distribution, with the log-densities weighted as in a fit, and the converted targets, after checks."""
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
    """Run a network with given weights, and apply a likelihood to its output; random parameters are buffers."""
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
        raise ValueError(f"`net` must return one row per input, got output {_checks.shape(output)} for x {shapes(x)}.")
    check, interception.check = interception.check, None
    if check is not None:
        check(output.detach())
    noise_draws = likelihood.draw_shape()
    if len(noise_draws) > num_lead:  # the noise scale has more draw axes than the weights
        output, num_lead = output.expand(noise_draws + output.shape), len(noise_draws)
    return Response(output, num_lead, likelihood)
