"""Refusal of guides that were made for another model."""

from collections.abc import Mapping

from torch import Tensor

from ..._core import checks as _checks
from ...modelling.model import BayesianModel

SITE_PREFIXES = ("net.", "prior.", "likelihood.")


def require_same_model(model: BayesianModel, values: Mapping[str, Tensor]) -> None:
    """Raise unless a guide's values have the sites of the model, and the shapes of its weights."""
    if problem := _difference(model, values):
        raise ValueError(f"the guide was made for another model: {problem}; make a guide of this model.")


def _difference(model: BayesianModel, values: Mapping[str, Tensor]) -> str:
    missing = [name for name in model.latent_names if name not in values]
    if missing:
        return f"it lacks {missing}"
    foreign = sorted(name for name in values if name.startswith(SITE_PREFIXES) and name not in model.latent_names)
    if foreign:
        return f"it also draws {foreign}"
    for name in model.site_names:
        got, expected = _checks.shape(values[name]), _checks.shape(model.initial_value(name))
        if got != expected:
            return f"its `{name}` has shape {got}, but the model's has {expected}"
    return ""
