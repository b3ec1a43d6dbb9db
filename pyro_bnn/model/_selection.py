"""Selection of the random parameters of a network, and nested modules from dotted names."""

from collections.abc import Mapping

from torch import Tensor, nn

from .._globs import matches

SITE_PREFIX = "net"


def select_sites(net: nn.Module, globs: list[str]) -> dict[str, list[str]]:
    """The sites that match globs, in the order of the network, with all paths of each site's parameter.

    Raises:
        ValueError: If a glob matches nothing, or `globs` is empty.
    """
    aliases: dict[int, list[str]] = {}
    for path, parameter in net.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(path)
    sites = {f"{SITE_PREFIX}.{paths[0]}": paths for paths in aliases.values()}
    chosen: set[str] = set()
    for glob in globs:
        hit = {n for n, paths in sites.items() if any(matches(glob, f"{SITE_PREFIX}.{p}") for p in paths)}
        if not hit:
            raise ValueError(f"`where` glob {glob!r} matches none of the network's parameters: {list(sites)}.")
        chosen |= hit
    if not chosen:
        raise ValueError('`where` is empty and selects no parameter; the default "**" selects all.')
    return {name: paths for name, paths in sites.items() if name in chosen}


def parameter_tree(values: Mapping[str, Tensor]) -> nn.Module:
    """Nested modules with a parameter under each dotted name."""
    root = nn.Module()
    for name, value in values.items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(leaf, nn.Parameter(value.detach().clone()))
    return root
