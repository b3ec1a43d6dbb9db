"""Bayesian neural networks on Pyro: any torch module as a Pyro model, its posterior, and its uncertainty.

The public names are listed in `__init__.pyi`. A name is imported on its first use, and `import pyro_bnn` alone loads
neither torch nor Pyro.
"""

import threading

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_one_at_a_time = threading.RLock()  # Pyro's imports are circular: two threads at once would see half-loaded modules


def __getattr__(name: str) -> object:
    with _one_at_a_time:
        return _load(name)


__version__ = "0.1.0"
