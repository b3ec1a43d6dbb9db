"""Snapshots of modules, and of the random generators of Python and NumPy, to find later changes.

The snapshot of a module has a reference to each attribute. Tensors are not copied: the snapshot stores their version
counters, which show later changes.
"""

import operator
import random
import sys
from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor, nn

TABLES = ("_parameters", "_buffers", "_modules")


class State:
    """A snapshot of some modules. New values of the tensors in `changing` do not count as a change."""

    def __init__(self, modules: Iterable[nn.Module], changing: Collection[Tensor] = ()) -> None:
        modules = list(dict.fromkeys(modules))
        self._dicts: list[dict[str, Any]] = [
            table for module in modules for table in (vars(module), *(vars(module)[name] for name in TABLES))
        ]
        self._values = [[*table.values()] for table in self._dicts]
        self._contents = [[_content(value) for value in values] for values in self._values]
        tensors = (t for module in modules for table in TABLES[:2] for t in vars(module)[table].values())
        ignored = {id(tensor) for tensor in changing}
        held = [t for t in tensors if isinstance(t, Tensor) and id(t) not in ignored]
        self._tensors = [(t, t._version) for t in held if not t.is_inference()]

    def is_same(self, *, deep: bool) -> bool:
        """Return whether the modules are unchanged since the snapshot.

        If `deep`, also compare the items of lists and dictionaries.
        """
        if not self.has_same_tensors():
            return False
        for table, values, contents in zip(self._dicts, self._values, self._contents, strict=True):
            now = [*table.values()]
            if len(now) != len(values):
                return False
            if (deep or not all(map(operator.is_, now, values))) and not all(map(_is_like, now, values, contents)):
                return False
        return True

    def has_same_tensors(self) -> bool:
        """Return whether the tensors are unchanged since the snapshot. This is faster than :meth:`is_same`."""
        return all(tensor._version == version for tensor, version in self._tensors)


def generators_of_others() -> tuple[object, ...]:
    """Return the states of the random generators of Python and NumPy, from which a network may draw.

    NumPy is left out if no module has imported it.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return (random.getstate(),)
    name, keys, *rest = numpy.random.get_state()
    return random.getstate(), name, keys.tobytes(), *rest


def _content(value: Any) -> list[Any] | None:
    """Return the items of a container, or the state of a random generator. Return None for any other value.

    For a method of a random generator, return the state of the generator.
    """
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set)):
        return [*value]
    owner = getattr(value, "__self__", value) if callable(value) else value
    if isinstance(owner, random.Random):
        return [repr(owner.getstate())]
    if type(owner).__module__.startswith("numpy.random"):
        bits = getattr(owner, "bit_generator", owner)
        return [repr(owner.get_state() if hasattr(owner, "get_state") else getattr(bits, "state", None))]
    return None


def _is_like(now: Any, before: Any, content: list[Any] | None) -> bool:
    if content is None:
        return now is before
    found = _content(now) if type(now) is type(before) else None
    return found is not None and len(found) == len(content) and all(map(_is_equal, found, content))


def _is_equal(first: Any, second: Any) -> bool:
    return first is second or (type(first) is type(second) and isinstance(first, (str, int)) and first == second)
