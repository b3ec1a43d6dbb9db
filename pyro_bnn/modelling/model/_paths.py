"""Paths in the network of a model, and the names that they have in draws."""

import itertools
from collections.abc import Iterable

from torch import Tensor

from ._model import BayesianModel
from ._selection import SITE_PREFIX


def random_paths(model: BayesianModel) -> set[str]:
    """Names in the network of all random parameters; tied weights have several."""
    return {path for paths in model.parameter_paths.values() for path in paths}


def network_values(model: BayesianModel) -> dict[str, Tensor]:
    """Learned parameters and buffers that the network has now, ``{"net.PATH": value}``."""
    random = random_paths(model)
    tensors = {**dict(model.network.named_parameters()), **dict(model.network.named_buffers())}
    return {f"{SITE_PREFIX}.{path}": value.detach() for path, value in tensors.items() if path not in random}


def own_paths(model: BayesianModel) -> dict[str, str]:
    """Paths of the network's own parameters and buffers, by the names that they have in draws that carry them."""
    tensors = itertools.chain(model.network.named_parameters(), model.network.named_buffers())
    return {f"{SITE_PREFIX}.{path}": path for path, _ in tensors}


def carried_paths(model: BayesianModel, values: Iterable[str]) -> dict[str, str]:
    """Paths of those of a draw's values that are no latent variables, by name; an unknown name is an error."""
    others = [name for name in values if name not in model.latent_names]
    own = own_paths(model) if others else {}
    unknown = [name for name in others if name not in own]
    if unknown:
        raise ValueError(
            f"`values` has {unknown[:3]}, which are neither latent variables nor parameters or buffers of the "
            f"network; the latent variables are {list(model.latent_names)[:10]}."
        )
    return {name: own[name] for name in others}
