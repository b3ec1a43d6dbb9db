"""Suggestions for misspelt or unknown names."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

SIMILAR = 0.7  # heuristic: smallest ratio of `difflib` at which a name is suggested
SIMILAR_WORD = 0.85  # heuristic: the same for one word of a name, such as ``hiden`` for ``hidden_layer_sizes``
SHORTEST = 4  # heuristic: shortest name that is searched for inside longer ones, as ``epochs`` in ``num_epochs``

SYNONYMS: Mapping[str, Sequence[str]] = {
    "advi": ("svi",),
    "bbb": ("svi",),
    "burn_in": ("num_warmup",),
    "burn_in_steps": ("num_warmup",),
    "disable_progbar": ("progress",),
    "draws": ("num_samples",),
    "ece": ("expected_calibration_error",),
    "elbo": ("loss_curves",),
    "epochs": ("max_iter",),
    "gaussian": ("normal",),
    "history": ("loss_curves",),
    "hmc": ("nuts",),
    "iterations": ("max_iter", "num_epochs"),
    "learning_rate": ("optimizer",),
    "loss": ("likelihood", "elbo"),
    "lr": ("learning_rate", "optimizer"),
    "max_epochs": ("num_epochs", "max_iter"),
    "max_iter": ("num_epochs",),
    "max_time": ("time_limit",),
    "mcmc": ("nuts",),
    "n_estimators": ("num_members",),
    "network": ("net",),
    "nll": ("negative_log_likelihood",),
    "noise": ("likelihood", "scale"),
    "normal": ("gaussian",),
    "num_burnin_steps": ("num_warmup",),
    "num_draws": ("num_samples",),
    "num_epochs": ("max_iter",),
    "num_iterations": ("max_iter", "num_epochs"),
    "num_iters": ("max_iter", "num_epochs"),
    "num_results": ("num_samples",),
    "num_steps": ("num_epochs",),
    "random_state": ("seed",),
    "rmse": ("root_mean_squared_error",),
    "seed": ("random_state",),
    "sigma": ("scale",),
    "sigmoid": ("logistic",),
    "std": ("return_std", "scale"),
    "swish": ("silu",),
    "steps": ("num_epochs",),
    "timeout": ("time_limit",),
    "tune": ("num_warmup",),
    "uncertainty": ("regression_bands",),
    "units": ("hidden_layer_sizes",),
    "variational": ("svi",),
    "verbose": ("progress",),
    "warmup_steps": ("num_warmup",),
}
"""Names in other libraries, each with names to suggest. The suggestion is the first of these that exists."""


def nearest(name: str, names: Iterable[str], *, similar: float = SIMILAR) -> str:
    """Return the name that was probably meant, or an empty text."""
    names, is_long = list(names), len(name) >= SHORTEST
    found = [known for known in SYNONYMS.get(name, ()) if known in names]
    found += [known for known in names if _letters(known) == _letters(name)]
    same = [key for key in SYNONYMS if _letters(key) == _letters(name)]
    found += [known for key in same for known in SYNONYMS[key] if known in names]
    found += sorted((known for known in names if is_long and name in known), key=len)
    found += difflib.get_close_matches(name, names, 1, similar)
    parts = [known for known in names if is_long and len(known) >= SHORTEST and known in name]
    found += sorted(parts, key=len, reverse=True)
    words = {known: known.split("_") for known in names if is_long}
    found += [known for known in words if difflib.get_close_matches(name, words[known], 1, SIMILAR_WORD)]
    return [*found, ""][0]


def _letters(name: str) -> list[str]:
    """Return a name's sorted letters, without a final "s"."""
    return sorted(name.lower().replace("_", "").removesuffix("s"))


def joined(names: Iterable[str]) -> str:
    """Join names to a text such as "`a`, `b` and `c`"."""
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}" if first else last
