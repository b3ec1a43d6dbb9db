"""The sites that rules on parameters select, among those of a guide."""

from collections.abc import Collection
from dataclasses import replace

from torch import nn

from ...inference.guides import MeanFieldGuide
from ...modelling.model import BayesianModel, Owned, Rules, owned, rules_of


def select(
    guide: MeanFieldGuide, names: Collection[str], where: Rules, exclude: Rules, model: BayesianModel | None
) -> set[str]:
    """The names of sites that `where` selects and `exclude` does not.

    Args:
        guide: The guide.
        names: Sites to choose among.
        where: Rules of which one must select a site.
        exclude: Rules of which none may select it.
        model: The guide's model, which has the layers; None is enough for globs.

    Raises:
        ValueError: If a rule matches nothing, no site is left, or a rule needs the model.
    """
    sites = _owned(guide, names, model)
    found: dict[str, set[str]] = {}
    for argument, value in (("where", where), ("exclude", exclude)):
        rules = rules_of(argument, value)
        if model is None and not all(rule.glob is not None for rule in rules):
            raise ValueError(
                f"`{argument}` must be globs, unless `model` is given, got {rules}: a guide has no layers; pass its "
                "model, `prune(..., model=model)`."
            )
        found[argument] = {site for rule in rules for site in rule.sites(sites, argument)}
    chosen = found["where"] - found["exclude"]
    if not chosen:
        raise ValueError(f"`where` and `exclude` leave none of the guide's sites, {list(names)}; widen `where`.")
    return chosen


def _owned(guide: MeanFieldGuide, names: Collection[str], model: BayesianModel | None) -> list[Owned]:
    """The sites with their layers; sites outside of the network belong to no layer."""
    paths = {} if model is None else model.parameter_paths
    if model is not None and not {site.name for site in guide.sites} >= paths.keys():
        raise ValueError("`model` must be that of the guide, got one with other sites; pass the model that was fitted.")
    locations, nothing = guide.locations(), nn.Module()
    result = []
    for name in names:
        if model is None or name not in paths:
            result.append(Owned(name, name, locations[name], nothing))
            continue
        parameters = [(path, model.network.get_buffer(path)) for path in paths[name]]
        result += [replace(item, site=name) for item in owned(model.network, parameters)]
    return result
