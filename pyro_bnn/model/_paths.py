"""Where the random parameters of a model are."""

from ._model import BayesianModel


def random_paths(model: BayesianModel) -> set[str]:
    """Names in the network of all random parameters; tied weights have several."""
    return {path for paths in model.parameter_paths.values() for path in paths}
