"""Put modules into eval mode temporarily."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ._lock import EXCLUSIVE


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """A context in which every submodule is in eval mode; afterwards each has its former mode.

    Other threads that share the module wait: otherwise they would run it in the wrong mode or restore it too early.
    """
    with EXCLUSIVE:
        training = [vars(submodule) for submodule in module.modules() if submodule.training]
        try:
            for attributes in training:  # a plain assignment to a module's attribute takes ten times as long
                attributes["training"] = False
            yield
        finally:
            for attributes in training:
                attributes["training"] = True
