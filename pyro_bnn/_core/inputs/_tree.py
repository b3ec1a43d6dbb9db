"""Inputs of a network: one tensor, or several in tuples, lists and dictionaries.

All tensors have the same number of rows, except those in a :class:`Shared`. Functions that transform inputs return
lists as tuples, and mappings as dictionaries.
"""

import inspect
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import checks as _checks
from ..summary import counted


class Shared:
    """An input that all rows of data share, such as the edges of a graph or the features of its nodes.

    For ``net(nodes, features, edges)``, pass ``(nodes, Shared(features), Shared(edges))``. The network then gets
    `features` and `edges` themselves. At least one input must have rows. A batch has some rows of each input with rows,
    and the whole of each shared input. If several processes share a fit, each of them has a part of the rows, and the
    whole of each shared input. Functions that do not support shared inputs raise an error. The arguments of your own
    Pyro model may be shared, too.

    A loader must put the shared inputs into each batch, as in ``((nodes, Shared(features), Shared(edges)), y)``. They
    may differ from batch to batch, as samples from a large graph do.

    Args:
        value: A tensor, array or list of any shape, or a tuple or dictionary of these.

    Raises:
        ValueError: If `value` or a part of it has another type, such as a `Shared`.

    Example:
        >>> import torch
        >>> from pyro_bnn import Shared
        >>> features, edges = torch.zeros(34, 5), torch.zeros(2, 78, dtype=torch.long)
        >>> Shared(features), Shared(edges)
        (Shared((34, 5)), Shared((2, 78)))
    """

    def __init__(self, value: Any) -> None:
        _require_shareable(value)
        self.value = value

    def __repr__(self) -> str:
        return f"Shared({shapes(self.value)})"


def _require_shareable(value: object, place: str = "") -> None:
    if isinstance(value, Tensor) or _is_array(value):
        return
    if isinstance(value, (tuple, list, Mapping)):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            if not (isinstance(value, list) and isinstance(part, numbers.Number)):
                _require_shareable(part, f"{place}[{key!r}]")
        return
    where = f", but its part `value{place}` is" if place else ", got"
    remedy = "pass `torch.tensor(...)` of it" if isinstance(value, numbers.Number) else "convert it to a tensor"
    shown = repr(value) if value is None or isinstance(value, (str, numbers.Number)) else _checks.described(value)
    got = f"{shown}; {'leave it out' if value is None else remedy}"
    raise ValueError(
        "the value of `Shared` must be a tensor, an array or a list, or a tuple or dictionary of these"
        f"{where} {'a Shared itself; wrap it once' if isinstance(value, Shared) else got}."
    )


def _is_array(x: object) -> bool:
    return callable(getattr(type(x), "__array__", None))  # as arrays and data frames have


Inputs = Tensor | Shared | Sequence["Inputs"] | Mapping[str, "Inputs"]
"""Inputs of a network: a tensor for ``net(x)``, a tuple or list for ``net(*x)``, or a dictionary for ``net(**x)``."""


def map_inputs(function: Callable[[Tensor], Tensor], x: Inputs, *, with_rows: bool = False) -> Inputs:
    """Apply a function to each tensor or, if `with_rows` is true, to each tensor that is not shared."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Shared):
        return x if with_rows else Shared(map_inputs(function, x.value))
    if isinstance(x, Mapping):
        return {key: map_inputs(function, part, with_rows=with_rows) for key, part in x.items()}
    return tuple(map_inputs(function, part, with_rows=with_rows) for part in x)


def named_leaves(name: str, x: Inputs, *, with_rows: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield names, such as ``x['mask'][1]``, and tensors. If `with_rows` is true, shared tensors are left out."""
    if isinstance(x, Tensor):
        yield name, x
    elif isinstance(x, Shared):
        if not with_rows:
            yield from named_leaves(name, x.value)
    else:
        for key, part in x.items() if isinstance(x, Mapping) else enumerate(x):
            yield from named_leaves(f"{name}[{key!r}]", part, with_rows=with_rows)


def leaves(x: Inputs) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    parts = (x.value,) if isinstance(x, Shared) else x.values() if isinstance(x, Mapping) else x
    return [leaf for part in parts for leaf in leaves(part)]  # without names, since this runs at every step


def has_shared(x: object) -> bool:
    if isinstance(x, Tensor):
        return False
    if isinstance(x, Mapping):
        return any(map(has_shared, x.values()))
    return any(map(has_shared, x)) if isinstance(x, (tuple, list)) else isinstance(x, Shared)


def unwrapped(x: Any) -> Any:
    """Replace each shared input by its value."""
    if not has_shared(x):
        return x
    if isinstance(x, Shared):
        return unwrapped(x.value)
    return {key: unwrapped(part) for key, part in x.items()} if isinstance(x, Mapping) else tuple(map(unwrapped, x))


def num_rows(x: Inputs, name: str = "x") -> int:
    """Return the number of rows, which must be the same in all tensors that are not shared."""
    if isinstance(x, Tensor) and x.shape:
        return x.shape[0]
    first: tuple[str, int] | None = None
    for leaf_name, leaf in named_leaves(name, x, with_rows=True):
        if leaf.dim() == 0:
            raise ValueError(f"`{leaf_name}` must have at least one row, got shape (); call `.reshape(1, ...)`.")
        first = first or (leaf_name, len(leaf))
        if len(leaf) != first[1]:
            raise ValueError(
                f"all inputs must have the same number of rows, got {first[1]} in `{first[0]}` and {len(leaf)} in "
                f"`{leaf_name}`; give each of them one row for each data point, or wrap an input that all rows share "
                "in `Shared(...)`. Pad sequences of different lengths by `torch.nn.utils.rnn.pad_sequence`."
            )
    if first is None:
        if has_shared(x):
            raise ValueError(
                f"`{name}` must hold at least one input with rows, got {shapes(x)}, which all rows share; add an "
                "input, such as `torch.arange(N)`, with a row for each output that the network returns."
            )
        raise ValueError(f"`{name}` must hold at least one tensor, got an empty {type(x).__name__}.")
    return first[1]


def versions(x: Inputs) -> list[int]:
    """Return how often each tensor was changed in place. In inference mode, torch does not count these changes."""
    found = [x] if isinstance(x, Tensor) else leaves(x)
    return [leaf._version for leaf in found if not leaf.is_inference()]


def take(x: Inputs, rows: slice | Tensor) -> Inputs:
    """Return some rows: views if `rows` is a slice, otherwise copies. Shared inputs stay whole."""
    if isinstance(rows, slice):
        return map_inputs(lambda leaf: leaf[rows], x, with_rows=True)
    # three times as fast as `leaf[rows]`
    return map_inputs(lambda leaf: leaf.index_select(0, rows), x, with_rows=True)


def joined(parts: Sequence[Inputs], name: str = "x") -> Inputs:
    """Join the rows of batches, whose shared inputs must be the same."""
    first, others = parts[0], parts[1:]
    pairs = [zip(named_leaves(name, first), leaves(part), strict=True) for part in others if has_shared(first)]
    of_rows = {leaf_name for leaf_name, _ in named_leaves(name, first, with_rows=True)}
    for (leaf_name, leaf), other in (pair for batch in pairs for pair in batch):
        if leaf_name not in of_rows and not torch.equal(leaf, other):
            raise ValueError(
                f"the shared input `{leaf_name}` must be the same in all batches, since all rows are used together, "
                "but it differs; fit by mini-batches (`fit_svi`) if each batch has a shared input of its own."
            )
    columns = zip(*([leaf for _, leaf in named_leaves(name, part, with_rows=True)] for part in parts), strict=True)
    return map_inputs(lambda _: torch.cat(next(columns)), first, with_rows=True)


def to_device(x: Inputs, device: torch.device | None) -> Inputs:
    """Move inputs to `device` unless it is None. The program does not wait for copies from pinned memory to a GPU."""
    if device is None:
        return x
    # A copy to the CPU must block, since its numbers could be read too early.
    return map_inputs(lambda leaf: leaf.to(device, non_blocking=device.type != "cpu"), x)


def shapes(x: Inputs) -> object:
    """Return shapes for a message."""
    if isinstance(x, Tensor):
        return tuple(x.shape)
    if isinstance(x, Shared):
        return x  # shown as its shapes
    if isinstance(x, Mapping):
        return {key: shapes(part) for key, part in x.items()}
    found = _shape_of_array(x)
    return tuple(map(shapes, x)) if found is None else found


def _shape_of_array(x: Any) -> tuple[int, ...] | None:
    """Return the shape of an array, data frame or list of numbers, or else None."""
    if _is_array(x):
        return tuple(x.shape)
    lengths, first = list[int](), x
    while isinstance(first, list) and first:
        lengths.append(len(first))
        first = first[0]
    return (*lengths,) if isinstance(first, numbers.Number) else None


class ChangedInputError(ValueError):
    """Raised if a network changed its input in place."""


def arguments_of(x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(x, Tensor):
        return (x,), {}
    found = unwrapped(x)
    return ((), dict(found)) if isinstance(found, Mapping) else (tuple(found), {})


def call(net: nn.Module, x: Inputs) -> object:
    """Call ``net(x)``, ``net(*x)`` or ``net(**x)``; return the output, or its `logits`, as with `transformers`."""
    before = versions(x)
    arguments, named = arguments_of(x)
    try:
        output = net(*arguments, **named)
    except TypeError as error:
        _require_signature(net, arguments, named, error)
        raise
    if versions(x) != before:
        raise ChangedInputError(
            "the network must leave its input `x` as it is, but it changes `x` in place (`inplace=True`, `add_`, "
            "`x[...] = ...`), so the next draw would see other data; compute the change as a new tensor."
        )
    return logits_of(output)


def logits_of(output: object) -> object:
    return output["logits"] if isinstance(output, Mapping) and "logits" in output else output


def _require_signature(net: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], error: TypeError) -> None:
    """Raise if `error` means that the network's signature does not take the arguments."""
    signature = inspect.signature(net.forward)
    try:
        signature.bind(*arguments, **named)
    except TypeError as problem:
        given = f"the inputs {list(named)}" if named else counted(len(arguments), "input")
        raise ValueError(
            f"the network {type(net).__name__} is called with {given} but has `forward{signature}`: {problem}; pass a "
            "tensor for one input, a tuple for several, and a dictionary for inputs by name."
        ) from error
