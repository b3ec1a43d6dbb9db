"""A context that finds the calls of layers with Gaussian parameters while a network runs."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, resolve_name

from ..._core import checks as _checks
from ..._core.reflection import tensors_within
from ..guides import RandomParameter

LINEAR = F.linear
INPUT_DIMS = {LINEAR: 2, torch.conv1d: 3, torch.conv2d: 4, torch.conv3d: 5}
"""Functions that an estimator can replace, each with the number of axes of its input. An input of `linear` may have
more axes."""

METADATA = {
    *(getattr(Tensor, n).__get__ for n in ("device", "dtype", "is_cuda", "layout", "ndim", "requires_grad", "shape")),
    Tensor.__len__,
    Tensor.dim,
    Tensor.is_floating_point,
    Tensor.numel,
    Tensor.size,
}
"""Functions that a network may call on a random parameter, since they do not use its values."""

Parameter = Tensor | RandomParameter | None


@dataclass(frozen=True)
class Layer:
    """A call of a linear or convolutional function with a random weight, a random bias or both.

    Args:
        op: `torch.nn.functional.linear`, or `torch.conv1d`, `conv2d`, `conv3d`.
        input: The input. Its shape is (N, ..., D) for a linear function, and (N, D, ...) for a convolution.
        weight: A tensor, or a :class:`~pyro_bnn.inference.guides.RandomParameter`.
        bias: A tensor, a :class:`~pyro_bnn.inference.guides.RandomParameter`, or None.
        options: Further positional arguments of the call.
        keywords: Keyword arguments of the call.
    """

    op: Callable[..., Tensor]
    input: Tensor
    weight: Parameter
    bias: Parameter
    options: tuple[object, ...]
    keywords: Mapping[str, object]

    @property
    def is_linear(self) -> bool:
        """Whether the layer is linear; false for a convolution."""
        return self.op is LINEAR

    @property
    def names(self) -> str:
        """Names of the layer's random parameters, for error messages."""
        return " and ".join(f"`{p.name}`" for p in (self.weight, self.bias) if isinstance(p, RandomParameter))

    def mean(self) -> Tensor:
        """Compute the output of the layer with all random parameters at their means."""
        weight, bias = (p.loc if isinstance(p, RandomParameter) else p for p in (self.weight, self.bias))
        return self.op(self.input, weight, bias, *self.options, **self.keywords)

    def variance(self) -> Tensor:
        r"""Compute the variance of the output, :math:`\sum_i a_i^2 \sigma_i^2`.

        Here :math:`a_i` is an input (1 for the bias), and :math:`\sigma_i^2` is the variance of its weight. The
        estimator's `noise` must be :attr:`Noise.VARIANCE`, and the parameters must be independent. If only the bias is
        random, the result may have the shape of the bias.
        """
        weight, bias = (p.variance if isinstance(p, RandomParameter) else None for p in (self.weight, self.bias))
        return self._random_part(self.input.square() if weight is not None else self.input, weight, bias)

    def deviation(self, input: Tensor) -> Tensor:
        """Compute the output for a given input, with deviations (:attr:`Noise.DEVIATION`) in place of the parameters.

        If only the bias is random, the result may have the shape of the bias.
        """
        weight, bias = (p.deviation if isinstance(p, RandomParameter) else None for p in (self.weight, self.bias))
        return self._random_part(input, weight, bias)

    def _random_part(self, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if weight is not None:
            return self.op(input, weight, bias, *self.options, **self.keywords)
        assert bias is not None
        return bias if self.is_linear else bias.reshape(-1, *[1] * (self.input.dim() - 2))

    def signs(self, like: Tensor) -> Tensor:
        """Draw a random sign for each row and channel of a tensor, in a shape that broadcasts with it."""
        shape = [1] * like.dim()
        channel = -1 if self.is_linear else 1
        shape[0], shape[channel] = like.shape[0], like.shape[channel]
        count = math.prod(shape)
        # Drawing bits of random integers is much faster than drawing one random number for each sign.
        words = torch.empty(-(-count // 64), dtype=torch.int64, device=like.device).random_(-(2**63), None)
        bits = words.view(torch.uint8).unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=like.device)
        return (bits & 1).flatten()[:count].to(like.dtype).mul_(2).sub_(1).view(shape)


class RandomLayers(TorchFunctionMode):
    """The context of :meth:`Estimator.layers`."""

    def __init__(
        self, output: Callable[[Layer], Tensor], name: str, random: Mapping[int, RandomParameter], num_rows: int
    ) -> None:
        super().__init__()
        self._output, self._name, self._random, self._num_rows = output, name, random, num_rows
        self._unused = {gaussian.name for gaussian in random.values()}

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        if kind is None and self._unused:  # a hidden use would not have its own noise for each row
            raise ValueError(
                f"{sorted(self._unused)} did not appear in the network's call: they are unused, or hidden in compiled "
                f"code, in which {self._name} has no effect; leave them out of `where`, or fit without an estimator."
            )

    def __torch_function__(
        self, func: Callable, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        used = [self._random[id(t)] for t in tensors_within((args, kwargs)) if id(t) in self._random]
        if func is F.batch_norm and inspect.signature(func).bind(*args, **kwargs).arguments.get("training"):
            raise ValueError(
                f"{self._name} draws noise for each row, so the network must not have batch normalisation in training "
                "mode, which mixes rows; use LayerNorm or GroupNorm, put the layer into eval mode, or fit without an "
                "estimator."
            )
        if not used or func in METADATA:
            return func(*args, **kwargs)
        if func not in INPUT_DIMS:
            raise ValueError(self._misuse(func, used))
        return self._output(self._layer(func, used, *args, **kwargs))

    def _layer(
        self,
        func: Callable,
        used: list[RandomParameter],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *options: object,
        **keywords: object,
    ) -> Layer:
        if id(input) in self._random:
            raise ValueError(self._misuse(func, used))
        random = self._random
        layer = Layer(func, input, random.get(id(weight), weight), random.get(id(bias), bias), options, keywords)
        for gaussian in used:
            if gaussian.name not in self._unused:
                raise ValueError(
                    f"`{gaussian.name}` is used twice in one call of the network (tied weights, recurrence), and "
                    f"{self._name} would draw independent noise for each use; leave it out of `where`, or fit without "
                    "an estimator."
                )
            self._unused.remove(gaussian.name)
        has_dims = input.dim() >= 2 if func is LINEAR else input.dim() == INPUT_DIMS[func]
        if not has_dims or len(input) != self._num_rows:
            raise ValueError(
                f"{_name(func)} with {layer.names} has an input of shape {_checks.shape(input)}, but "
                f"{self._name} needs the {self._num_rows} rows of data as the first of {INPUT_DIMS[func]} dimensions; "
                "do not merge rows with other axes, leave the layer out of `where`, or fit without an estimator."
            )
        return layer

    def _misuse(self, func: Callable, used: list[RandomParameter]) -> str:
        return (
            f"`{used[0].name}` is used in {_name(func)}, but {self._name} supports only the weights and biases of "
            "linear, conv1d, conv2d and conv3d layers; leave it out of `where`, or fit without an estimator."
        )


def _name(func: Callable) -> str:
    return str(resolve_name(func) or getattr(func, "__name__", func))
