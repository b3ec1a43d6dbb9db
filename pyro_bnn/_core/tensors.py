"""The tensors in nested values."""

from collections.abc import Iterator, Mapping

from torch import Tensor


def tensors_within(value: object) -> Iterator[Tensor]:
    """All tensors in a value, and in lists, tuples and mappings at any depth; other objects are not searched."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_within(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_within(part)
