"""Modules in eval mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ._lock import EXCLUSIVE


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """A context in which every submodule is in eval mode; at the end each gets the mode that it had.

    Other threads that share the module wait: theirs would find it in the wrong mode, or put it back too early.
    """
    with EXCLUSIVE:
        training = [vars(submodule) for submodule in module.modules() if submodule.training]
        try:
            for attributes in training:  # an assignment to a module itself takes ten times as long
                attributes["training"] = False
            yield
        finally:
            for attributes in training:
                attributes["training"] = True
