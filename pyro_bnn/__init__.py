"""Bayesian neural networks on Pyro: turn any torch module into a Pyro model, and fit and examine its posterior.

Start with the help of these names; `dir(pyro_bnn)` lists all names.

BNNRegressor, BNNClassifier: estimators for tables, as in scikit-learn.
BayesianModel, fit, predict: a torch network of your own, its posterior, and predictions.
MeanFieldGuide, fit_svi, fit_nuts: guides and chains of your choice, also with Pyro's own tools.
calibration, compare, plotting: how good the predictions are.
"""

# Names are listed in `__init__.pyi`, and imported at first use: `import pyro_bnn` alone loads neither torch nor Pyro.

import threading

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_one_at_a_time = threading.RLock()  # Pyro's imports are circular: two threads at once would see half-loaded modules


def __getattr__(name: str) -> object:
    with _one_at_a_time:
        try:
            found = _load(name)
            if isinstance(found, type):  # functions are decorated by `explained`, so that each is one object
                from ._core.signatures import explain_calls  # imported late, as this loads torch

                explain_calls(found)
            return found
        except AttributeError:
            if name in __all__:
                raise
            import difflib  # imported late: only an error needs these

            from ._core.remedies import INSTEAD_OF_NAMES

            near = [f"`{known}`" for known in _in_modules(name) or difflib.get_close_matches(name, __all__)]
            hint = f"; did you mean {' or '.join(near)}?" if near else "; `dir(pyro_bnn)` lists the names."
            hint = f"; {INSTEAD_OF_NAMES[name]}." if name in INSTEAD_OF_NAMES else hint
            raise AttributeError(f"module 'pyro_bnn' has no attribute '{name}'{hint}", name=name) from None


def _in_modules(name: str) -> list[str]:
    """Return suggestions for the unknown name `name`.

    If `name` ends in "Likelihood", the suggestion is a call that makes a likelihood with a similar name. For any other
    name, the suggestions are names in public modules that equal `name` up to case and underscores.
    """
    if name.endswith("Likelihood"):
        from .modelling.likelihoods import nearest_call  # imported late, as this loads torch

        return [call] if (call := nearest_call(name)) else []
    modules = {known: _load(known) for known in __all__ if known.islower() and not name.startswith("_")}
    names = [f"{space}.{known}" for space, module in modules.items() for known in getattr(module, "__all__", ())]
    plain = name.lower().replace("_", "")
    return [known for known in names if known.rpartition(".")[2].lower().replace("_", "") == plain]


__version__ = "0.1.0.dev0"
