"""Replaces operations in a recorded density by simpler operations that can be written in C."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

aten = torch.ops.aten


def _placed(x: Tensor, axis: int, size: int, begin: int, step: int = 1) -> Tensor:
    """Insert zeros along an axis of x until its length is `size`; slice i moves to `begin + i * step`."""
    shape = [*x.shape[:axis], size, *x.shape[axis + 1 :]]
    end = begin + step * (x.shape[axis] - 1) + 1
    placed: Tensor = aten.slice_backward(x, shape, axis, begin, end, step)
    return placed


def _padded(x: Tensor, padding: Sequence[int]) -> Tensor:
    for axis, size in enumerate(padding, 2):
        if size:
            x = _placed(x, axis, x.shape[axis] + 2 * size, size)
    return x


def _cropped(x: Tensor, begin: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Tensor:
    for axis, (first, size, step) in enumerate(zip(begin, sizes, steps, strict=True), 2):
        if (first, size, step) != (0, x.shape[axis], 1):
            x = aten.slice(x, axis, first, first + step * (size - 1) + 1, step)
    return x


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, parts)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Replace a convolution by convolutions without padding, bias and groups."""
    if transposed or (groups == 1 and bias is None and not any(padding)):
        return NotImplemented
    options = stride, [0] * len(padding), dilation, False, output_padding, 1
    pairs = zip(_padded(x, padding).chunk(groups, 1), weight.chunk(groups), strict=True)
    parts = [aten.convolution(own, own_weight, None, *options) for own, own_weight in pairs]
    result = parts[0] if groups == 1 else torch.cat(parts, 1)
    return result if bias is None else result + bias.view(1, -1, *[1] * len(padding))


def convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of :math:`y = x * w` by convolutions.

    The gradient of w is the convolution of x with the gradient of y, with stride and dilation exchanged. For the
    gradient of x, zeros are inserted between the elements of the gradient of y, which is then convolved with the
    reversed weights.
    """
    if transposed:
        return NotImplemented
    if groups != 1:
        options: Any = bias_sizes, stride, padding, dilation, transposed, output_padding, 1, output_mask
        each = zip(gradient.chunk(groups, 1), x.chunk(groups, 1), weight.chunk(groups), strict=True)
        parts: Any = zip(*(convolution_backward(*own, *options) for own in each), strict=True)
        inputs, weights, biases = (None if own[0] is None else own for own in parts)
        return inputs and torch.cat(inputs, 1), weights and torch.cat(weights), biases and torch.cat(biases)
    none = [0] * len(padding)
    own = own_x = own_weight = None
    if output_mask[0]:
        spread, sizes = gradient, weight.shape[2:]
        for axis, (step, gap, kernel, size) in enumerate(zip(stride, dilation, sizes, x.shape[2:], strict=True), 2):
            around = gap * (kernel - 1)
            length = size + 2 * padding[axis - 2] + around
            spread = _placed(spread, axis, length, around, step)
        reversed_weight = aten.flip(weight, [*range(2, weight.dim())]).transpose(0, 1)
        own_x = aten.convolution(spread, reversed_weight, None, [1] * len(none), none, dilation, False, none, 1)
        own_x = _cropped(own_x, padding, x.shape[2:], [1] * len(none))
    if output_mask[1]:
        left, right = _padded(x, padding).transpose(0, 1), gradient.transpose(0, 1)
        own_weight = aten.convolution(left, right, None, dilation, none, stride, False, none, 1)
        own_weight = _cropped(own_weight, none, weight.shape[2:], [1] * len(none)).transpose(0, 1)
    if output_mask[2]:
        own = gradient.sum([0, *range(2, gradient.dim())])
    return own_x, own_weight, own


def _is_pooled_simply(
    x: Tensor,
    padding: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> bool:
    """Whether :class:`_Windows` can pool x: x has four axes, all windows are whole, and averages include all places."""
    return x.dim() == 4 and not ceil_mode and divisor is None and (count_include_pad or not any(padding))


class _Windows:
    """The windows of a pooling. Iteration gives each position in a window, as a tuple of indices."""

    def __init__(self, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> None:
        whole = ([*sizes] * (x.dim() - 2 if len(sizes) == 1 else 1) for sizes in (kernel, stride or kernel, padding))
        self.kernel, self.stride, self.padding = whole
        self.sizes = [n + 2 * p for n, p in zip(x.shape[2:], self.padding, strict=True)]
        self.shape = [(n - k) // s + 1 for n, k, s in zip(self.sizes, self.kernel, self.stride, strict=True)]
        self.x = x

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*map(range, self.kernel))

    def of(self, padded: Tensor, place: Sequence[int]) -> Tensor:
        """Return the element at `place` in each window, shape (N, C, *windows)."""
        return _cropped(padded, place, self.shape, self.stride)

    def back(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the gradient with respect to x, given the gradients for the elements at each place in the windows."""
        return _cropped(_sum(map(self._spread, self, parts)), self.padding, self.x.shape[2:], [1] * len(self.shape))

    def _spread(self, place: Sequence[int], part: Tensor) -> Tensor:
        """Return zeros in the shape of the padded x, with the elements of `part` at one place of each window."""
        for axis, (size, first, step) in enumerate(zip(self.sizes, place, self.stride, strict=True), 2):
            part = _placed(part, axis, size, first, step)
        return part

    def largest(self) -> tuple[Tensor, Tensor]:
        padded = _padded(self.x, self.padding)
        if any(self.padding):
            outside = _padded(torch.ones_like(self.x), self.padding) == 0
            padded = torch.where(outside, -math.inf, padded)
        best, *others = (self.of(padded, place) for place in self)
        winner = torch.zeros_like(best)
        for number, part in enumerate(others, 1):
            is_larger = part > best
            best, winner = torch.where(is_larger, part, best), torch.where(is_larger, float(number), winner)
        return best, winner


def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window and its position in the window; torch returns the position in x."""
    if not _is_pooled_simply(x, padding, ceil_mode) or set(dilation) != {1}:
        return NotImplemented
    return _Windows(x, kernel, stride, padding).largest()


def max_pool_backward(gradient: Tensor, x: Tensor, kernel: Sequence[int], *options: Any) -> Tensor:
    stride, padding, dilation, ceil_mode, winner = options
    if not _is_pooled_simply(x, padding, ceil_mode) or set(dilation) != {1}:
        return NotImplemented
    windows = _Windows(x, kernel, stride, padding)
    return windows.back([torch.where(winner == number, gradient, 0.0) for number, _ in enumerate(windows)])


def avg_pool(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), *options: Any
) -> Tensor:
    if not _is_pooled_simply(x, padding, *options):
        return NotImplemented
    windows = _Windows(x, kernel, stride, padding)
    padded = _padded(x, windows.padding)
    return _sum(windows.of(padded, place) for place in windows) / math.prod(windows.kernel)


def avg_pool_backward(
    gradient: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], *options: Any
) -> Tensor:
    if not _is_pooled_simply(x, padding, *options):
        return NotImplemented
    windows = _Windows(x, kernel, stride, padding)
    return windows.back([gradient / math.prod(windows.kernel)] * math.prod(windows.kernel))


def mean(x: Tensor, axes: Sequence[int] | None = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    axes = [*axes] if axes else [*range(x.dim())]
    return x.sum(axes, keepdim) / math.prod(x.shape[axis] for axis in axes)


def _standardised(x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return x standardised over some axes, its mean, and the inverse of its standard deviation."""
    center = mean(x, axes, True)
    distance = x - center
    inverse = (mean(distance * distance, axes, True) + eps).rsqrt()
    return distance * inverse, center, inverse


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int]) -> Tensor:
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    result, center, inverse = _standardised(x, [*range(x.dim() - len(shape), x.dim())], eps)
    return _scaled(result, weight, bias, shape), center, inverse


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    num_rows: int,
    num_channels: int,
    size: int,
    num_groups: int,
    eps: float,
) -> tuple[Tensor, ...]:
    grouped = x.view(num_rows, num_groups, num_channels // num_groups * size)
    result, center, inverse = _standardised(grouped, [2], eps)
    shape = [1, num_channels, *[1] * (x.dim() - 2)]
    return _scaled(result.view(x.shape), weight, bias, shape), center[:, :, 0], inverse[:, :, 0]


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    center: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    if training or center is None or variance is None:
        return NotImplemented
    shape = [1, -1, *[1] * (x.dim() - 2)]
    result = (x - center.view(shape)) * (variance + eps).rsqrt().view(shape)
    return _scaled(result, weight, bias, shape), x.new_zeros(0), x.new_zeros(0)


def softmax(x: Tensor, axis: int, *_: Any, **__: Any) -> Tensor:
    return x.log_softmax(axis).exp()


def safe_softmax(x: Tensor, axis: int, *_: Any, **__: Any) -> Tensor:
    """Return the softmax, with zeros where all elements along the axis are minus infinity."""
    number = torch.where(x > -math.inf, torch.ones_like(x), torch.zeros_like(x)).sum(axis, True)
    finite = torch.where(number > 0, x, torch.zeros_like(x))
    return torch.where(number > 0, finite.log_softmax(axis).exp(), torch.zeros_like(x))


def softmax_backward(gradient: Tensor, output: Tensor, axis: int, _: Any) -> Tensor:
    return output * (gradient - (gradient * output).sum(axis, True))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices.default: max_pool,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.avg_pool2d.default: avg_pool,
    aten.avg_pool2d_backward.default: avg_pool_backward,
    aten.mean.default: mean,
    aten.mean.dim: mean,
    aten.native_layer_norm.default: layer_norm,
    aten.native_group_norm.default: group_norm,
    aten.native_batch_norm.default: batch_norm,
    aten._softmax.default: softmax,
    **({aten._safe_softmax.default: safe_softmax} if hasattr(aten, "_safe_softmax") else {}),  # not in torch 2.4
    aten._softmax_backward_data.default: softmax_backward,
    **get_decompositions(
        [aten.native_layer_norm_backward, aten.native_group_norm_backward, aten.native_batch_norm_backward]
    ),
}
