"""Choice of a network's random parameters by `where` and `exclude`; warnings if globs miss similar parameters."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from ..._core import functional as _functional
from ..._core.globs import matches
from ._network import rest_frozen
from ._selection import Owned, Rules, owned, rules_of


class SelectionWarning(UserWarning):
    """A glob selects some, but not all, of a network's layers of one kind."""


def make_random(
    net: nn.Module, where: object, exclude: object, declared: Iterable[str], *, stacklevel: int
) -> dict[str, list[str]]:
    """Turn selected parameters of a network into buffers for drawn values, and put frozen parts into eval mode.

    Returns ``{site: paths}`` for the selected sites, in the order of the network. The buffers at the paths `declared`
    are always random; they come last.
    """
    parameters = owned(net, net.named_parameters(remove_duplicate=False))
    places = dict(net.named_buffers(remove_duplicate=False))
    first = {id(places[path]): index for index, path in enumerate(declared)}
    others = [(path, value) for path, value in places.items() if id(value) in first]
    fixed = owned(net, sorted(others, key=lambda pair: first[id(pair[1])]))
    chosen = _chosen(parameters, fixed, where, exclude, stacklevel + 1)
    paths: dict[str, list[str]] = {}
    for parameter in (*(one for one in parameters if one.site in chosen), *fixed):
        path = parameter.name.partition(".")[2]
        paths.setdefault(parameter.site, []).append(path)
        _functional.prepare_embedding(net, path, parameter.site)
        _functional.parameter_to_buffer(net, path)
    rest_frozen(net, [path for its_paths in paths.values() for path in its_paths])
    return paths


def _chosen(parameters: list[Owned], fixed: list[Owned], where: object, exclude: object, stacklevel: int) -> set[str]:
    """Sites that `where` selects and `exclude` does not; `exclude` must not select one of the `fixed` parameters."""
    rules, exceptions = rules_of("where", where), rules_of("exclude", exclude)
    if not parameters and not fixed:
        raise ValueError("`net` must have a parameter that can be random, got none; pass a network with weights.")
    chosen = {site for rule in rules for site in rule.sites([*parameters, *fixed], "where")}
    if not chosen and not fixed:
        problem = "selects no parameter" if rules else "is empty and selects no parameter"
        raise ValueError(f'`where` {problem}; the default "**" selects all.')
    excluded = {site for rule in exceptions for site in rule.sites([*parameters, *fixed], "exclude")}
    if refused := sorted(excluded & {one.site for one in fixed}):
        raise ValueError(
            f"`exclude` selects `{refused[0]}`, which the network itself declares as random; make it a parameter of "
            "the network in place of a `PyroSample`, or narrow `exclude`."
        )
    if not chosen - excluded and not fixed:
        raise ValueError(f"`exclude` leaves no parameter random, of the {len(chosen)} that `where` selects; narrow it.")
    for argument, given, inside, outside in (
        ("where", rules, chosen | excluded, "leaves out"),
        ("exclude", exceptions, excluded | {p.site for p in parameters} - chosen, "leaves random"),
    ):
        for glob in (rule.glob for rule in given if rule.glob is not None):
            _warn_of_a_part(argument, glob, parameters, inside, outside, stacklevel + 1)
    return chosen - excluded


def sites_among(net: nn.Module, paths: Mapping[str, Sequence[str]], where: Rules) -> tuple[str, ...]:
    """Sites of the random parameters that the rules `where` select; in `net` these parameters are buffers."""
    sites = {path: site for site, its_paths in paths.items() for path in its_paths}
    found = owned(net, ((path, net.get_buffer(path)) for path in sites))
    parameters = [replace(one, site=site) for one, site in zip(found, sites.values(), strict=True)]
    chosen = {site for rule in rules_of("where", where) for site in rule.sites(parameters, "where")}
    if not chosen:
        raise ValueError('`where` selects none of the random parameters; the default "**" selects all.')
    return tuple(site for site in paths if site in chosen)


def _warn_of_a_part(
    argument: str, glob: str, parameters: Sequence[Owned], inside: set[str], outside: str, stacklevel: int
) -> None:
    """Warn if a glob misses parameters of the same kind, in the same block, as those that it selects.

    A glob without a wildcard in the layer's name, such as ``net.fc.*`` or ``**.conv1.weight``, causes no warning. The
    part of the glob before the layer's name is the block.
    """
    *block, layer, leaf = ["", "", *glob.split(".")]  # padded for a glob with one component
    if leaf == "**" or not ("*" in layer or "?" in layer):
        return
    block = block[2:]
    depth = block.index("**") if "**" in block else len(block)  # after `**` a block may lie at any depth

    def place(parameter: Owned) -> tuple[str, str]:
        return ".".join(parameter.name.split(".")[:depth]), parameter.kind

    hits = {place(parameter) for parameter in parameters if matches(glob, parameter.name)}
    alike = {parameter.site: parameter for parameter in parameters if place(parameter) in hits}
    left = {site: parameter for site, parameter in alike.items() if site not in inside}
    if left:
        kinds = " and ".join(sorted({parameter.kind for parameter in left.values()}))
        layers = ", ".join(sorted({type(parameter.layer).__name__ for parameter in left.values()}))
        inside_block = f" in `{'.'.join(block)}`" if block else ""
        names = "the layers in the glob" if argument == "exclude" else "the layers in the glob or in `exclude`"
        warnings.warn(
            f"`{argument}` glob {glob!r} selects only a part of {kinds}{inside_block} and {outside} {few(left)}: a `*` "
            f"is one component of a name. Add them, as with layers({layers}); to select only this part, name {names}.",
            SelectionWarning,
            stacklevel=stacklevel + 1,
        )


def few(names: Iterable[str], most: int = 3) -> str:
    """The first `most` names as text, and the number of the others."""
    names = list(names)
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def parameter_tree(values: Mapping[str, Tensor]) -> nn.Module:
    """Nested modules with a parameter under each dotted name, of which the first component, ``prior``, is left out."""
    root = nn.Module()
    for name, value in values.items():
        _, *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(leaf, nn.Parameter(value.detach().clone()))
    return root
