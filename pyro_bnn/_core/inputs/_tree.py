"""Inputs of a network: one tensor, or several in tuples, lists and dictionaries.

All tensors have the same number of rows. Functions that return several inputs return tuples and dictionaries.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

Inputs = Tensor | Sequence["Inputs"] | Mapping[str, "Inputs"]
"""A tensor, for a network called as ``net(x)``; a tuple or list, for ``net(*x)``; a dictionary, for ``net(**x)``."""


def map_inputs(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The inputs with a function applied to each tensor."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return {key: map_inputs(function, part) for key, part in x.items()}
    return tuple(map_inputs(function, part) for part in x)


def named_leaves(name: str, x: Inputs) -> Iterator[tuple[str, Tensor]]:
    """All tensors with their names, such as ``x``, ``x[0]`` and ``x['mask'][1]``, in their order."""
    if isinstance(x, Tensor):
        yield name, x
        return
    for key, part in x.items() if isinstance(x, Mapping) else enumerate(x):
        yield from named_leaves(f"{name}[{key!r}]", part)


def leaves(x: Inputs) -> list[Tensor]:
    """All tensors, in their order."""
    return [leaf for _, leaf in named_leaves("x", x)]


def num_rows(x: Inputs, name: str = "x") -> int:
    """Number N of rows, which must be the same for all tensors."""
    if isinstance(x, Tensor) and x.shape:
        return x.shape[0]
    first: tuple[str, int] | None = None
    for leaf_name, leaf in named_leaves(name, x):
        if leaf.dim() == 0:
            raise ValueError(f"`{leaf_name}` must have at least one row, got shape (); call `.reshape(1, ...)`.")
        first = first or (leaf_name, len(leaf))
        if len(leaf) != first[1]:
            raise ValueError(
                f"all inputs must have the same number of rows, got {first[1]} in `{first[0]}` and {len(leaf)} in "
                f"`{leaf_name}`; give each of them one row for each data point."
            )
    if first is None:
        raise ValueError(f"`{name}` must hold at least one tensor, got an empty {type(x).__name__}.")
    return first[1]


def versions(x: Inputs) -> list[int]:
    """How often each tensor was changed in place; tensors of inference mode, which do not count this, are left out."""
    found = [x] if isinstance(x, Tensor) else leaves(x)
    return [leaf._version for leaf in found if not leaf.is_inference()]


def take(x: Inputs, rows: slice | Tensor) -> Inputs:
    """Some of the rows: slices give views, indices give copies."""
    if isinstance(rows, slice):
        return map_inputs(lambda leaf: leaf[rows], x)
    return map_inputs(lambda leaf: leaf.index_select(0, rows), x)  # three times as fast as `leaf[rows]`


def to_device(x: Inputs, device: torch.device | None) -> Inputs:
    """The inputs, moved to a device (None leaves them where they are); copies from pinned memory do not block."""
    return x if device is None else map_inputs(lambda leaf: _moved(leaf, device), x)


def _moved(leaf: Tensor, device: torch.device) -> Tensor:
    if leaf.device == device:
        return leaf
    # A copy to the CPU must block, since its numbers could be read too early.
    return leaf.to(device, non_blocking=device.type != "cpu")


def shapes(x: Inputs) -> object:
    """Shapes for messages: a tuple for one tensor, a tuple or dictionary of these for several."""
    if isinstance(x, Tensor):
        return tuple(x.shape)
    if isinstance(x, Mapping):
        return {key: shapes(part) for key, part in x.items()}
    return tuple(shapes(part) for part in x)


class ChangedInputError(ValueError):
    """A network changed its input in place."""


def call(net: nn.Module, x: Inputs) -> object:
    """The output of a network: ``net(x)`` of a tensor, ``net(*x)`` of several, ``net(**x)`` of a dictionary.

    If the output is a dictionary with ``logits``, as in `transformers`, only these are returned.
    """
    before = versions(x)
    arguments: tuple[Inputs, ...] = (x,) if isinstance(x, Tensor) else () if isinstance(x, Mapping) else tuple(x)
    named: dict[str, Inputs] = dict(x) if isinstance(x, Mapping) else {}
    try:
        output = net(*arguments, **named)
    except TypeError as error:
        _require_signature(net, arguments, named, error)
        raise
    if versions(x) != before:
        raise ChangedInputError(
            "the network must leave its input `x` as it is, but it changes it in place (`inplace=True`, `add_`, "
            "`x[...] = ...`), so the next draw would see other data; compute the change as a new tensor."
        )
    return logits_of(output)


def logits_of(output: object) -> object:
    """The item ``logits`` of an output that is a dictionary with this key; any other output unchanged."""
    return output["logits"] if isinstance(output, Mapping) and "logits" in output else output


def _require_signature(
    net: nn.Module, arguments: tuple[Inputs, ...], named: dict[str, Inputs], error: TypeError
) -> None:
    """Raise if the network does not take these arguments; do nothing if the error came from inside of it."""
    signature = inspect.signature(net.forward)
    try:
        signature.bind(*arguments, **named)
    except TypeError as problem:
        given = f"the inputs {list(named)}" if named else f"{len(arguments)} input(s)"
        raise ValueError(
            f"the network {type(net).__name__} is called with {given} but has `forward{signature}`: {problem}; pass a "
            "tensor for one input, a tuple for several, and a dictionary for inputs by name."
        ) from error
