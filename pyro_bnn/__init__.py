"""Bayesian neural networks on Pyro: any torch module as a Pyro model, its posterior, and its uncertainty.

The public names are listed in `__init__.pyi`. Each is loaded when it is first used, and torch and Pyro with it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
