"""Bayesian neural networks on Pyro: turn any torch module into a Pyro model, and fit and examine its posterior.

The public names are listed in `__init__.pyi`. Each name is imported when it is first used, so `import pyro_bnn` alone
loads neither torch nor Pyro.
"""

import threading

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_one_at_a_time = threading.RLock()  # Pyro's imports are circular: two threads at once would see half-loaded modules


def __getattr__(name: str) -> object:
    with _one_at_a_time:
        return _load(name)


__version__ = "0.1.0"
