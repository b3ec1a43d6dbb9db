"""Bayesian neural networks on Pyro: turn any torch module into a Pyro model, and fit and examine its posterior.

The public names are listed in `__init__.pyi`. Each name is imported when it is first used, so `import pyro_bnn` alone
loads neither torch nor Pyro.
"""

import difflib
import threading

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_INSTEAD = {
    "BNN": "`BNNRegressor`, `BNNClassifier` and `BayesianModel` are the networks",
    "evaluate": "call `predict(model, posterior, x, y=y).score()`",
    "infer": "call `fit(model, (x, y))`",
    "load": "call `load_posterior(path, model)`",
    "mcmc": "call `fit_nuts(model, (x, y))`",
    "nuts": "call `fit_nuts(model, (x, y))`",
    "plot": "`plotting` has functions that draw",
    "sample": "call `fit_nuts(model, (x, y))`",
    "save": "call `save_posterior(posterior, path, model)`",
    "score": "call `predict(model, posterior, x, y=y).score()`",
    "train": "call `fit(model, (x, y))`",
}
"""What to use in place of names that a newcomer may try."""

_one_at_a_time = threading.RLock()  # Pyro's imports are circular: two threads at once would see half-loaded modules


def __getattr__(name: str) -> object:
    with _one_at_a_time:
        try:
            return _load(name)
        except AttributeError as error:
            near = [f"`{known}`" for known in difflib.get_close_matches(name, __all__)]
            hint = f"; did you mean {' or '.join(near)}?" if near else "; `dir(pyro_bnn)` lists the names."
            hint = f"; {_INSTEAD[name]}." if name in _INSTEAD else hint
            raise AttributeError(f"module 'pyro_bnn' has no attribute '{name}'{hint}", name=name) from error


__version__ = "0.1.0"
