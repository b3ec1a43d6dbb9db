"""Selection of a network's parameters by names, layers or functions."""

import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core import functional as _functional
from ..._core.globs import advice, matches
from ..._core.scope import outer_stacklevel
from ..._core.signatures import explained
from ..._core.summary import few
from ._network import rest_frozen

SITE_PREFIX = "net"

Chooser = Callable[[str, Tensor, nn.Module], bool]  # takes a parameter's name, the parameter and its layer


@dataclass(frozen=True)
class Owned:
    """A parameter under one of its names, with the layer that has it under this name."""

    site: str  # the same for all names of a tied weight
    name: str
    parameter: Tensor
    layer: nn.Module  # for a parametrised weight, the layer that uses it

    @property
    def kind(self) -> str:
        """Class of the layer and name within it, such as ``Conv2d.weight``."""
        return f"{type(self.layer).__name__}.{self.name.rpartition('.')[2]}"


def owned(net: nn.Module, values: Iterable[tuple[str, Tensor]]) -> list[Owned]:
    """Return an `Owned` for each path and parameter. The first path of a tied weight determines its site."""
    sites: dict[int, str] = {}
    found = []
    for path, value in values:
        name = f"{SITE_PREFIX}.{path}"
        layer = net.get_submodule(path.rpartition(".")[0].partition("parametrizations.")[0].rstrip("."))
        found.append(Owned(sites.setdefault(id(value), name), name, value, layer))
    return found


@dataclass(frozen=True, repr=False)
class Selection:
    """A rule that selects parameters of a network, for ``where`` and ``exclude`` of :class:`BayesianModel`.

    :func:`layers` makes a selection. ``a | b`` selects what a or b selects, ``a & b`` what both select, and ``a - b``
    what only a selects. In place of b, a glob or a function is allowed.

    Args:
        sites: Function that returns the sites of the selected parameters. It gets a list of all parameters, and the
            text ``"where"`` or ``"exclude"`` for messages. A tied weight is in the list under each of its names.
        text: The rule as text.
        glob: The glob on names, if the rule is a glob.

    Example:
        >>> from torch import nn
        >>> from pyro_bnn import layers
        >>> layers(nn.Linear) - "net.0.*" | "**.bias"
        layers(Linear) - 'net.0.*' | '**.bias'
    """

    sites: Callable[[Sequence[Owned], str], set[str]]
    text: str
    glob: str | None = None

    def __or__(self, other: "str | Selection | Chooser") -> "Selection":
        return self._with("|", operator.or_, other)

    def __and__(self, other: "str | Selection | Chooser") -> "Selection":
        return self._with("&", operator.and_, other)

    def __sub__(self, other: "str | Selection | Chooser") -> "Selection":
        return self._with("-", operator.sub, other)

    def _with(self, sign: str, join: Callable[..., set[str]], other: "str | Selection | Chooser") -> "Selection":
        second = _rule(other)
        return Selection(partial(_by_both, join, self, second), f"{self.text} {sign} {second.text}")

    def __repr__(self) -> str:
        return self.text


Rules = str | Selection | Chooser | Sequence[str | Selection | Chooser]
"""A glob on names, a selection, a function, or a list of these."""


def _by_both(
    join: Callable[..., set[str]], first: Selection, second: Selection, parameters: Sequence[Owned], argument: str
) -> set[str]:
    return join(first.sites(parameters, argument), second.sites(parameters, argument))


def _by_name(glob: str, parameters: Sequence[Owned], argument: str) -> set[str]:
    found = {p.site for p in parameters if matches(glob, p.name)}
    if not found:
        remedy = advice(glob, [p.name for p in parameters])
        raise ValueError(f"`{argument}` glob {glob!r} matches none of the network's parameters; {remedy}.")
    return found


def _by_layer(kinds: tuple[type[nn.Module], ...], parameters: Sequence[Owned], argument: str) -> set[str]:
    for kind in kinds:
        if not any(isinstance(p.layer, kind) for p in parameters):
            present = sorted({type(p.layer).__name__ for p in parameters})
            raise ValueError(
                f"`{argument}` has layers of kind {kind.__name__}, but none of them owns a parameter of the "
                f"network; leave it out, or choose among {', '.join(present)}."
            )
    return {p.site for p in parameters if isinstance(p.layer, kinds)}


def _by_function(chooser: Chooser, parameters: Sequence[Owned], argument: str) -> set[str]:
    found = set()
    for p in parameters:
        answer: object = chooser(p.name, p.parameter, p.layer)
        if isinstance(answer, Tensor) and answer.numel() != 1:
            raise ValueError(
                f"the function of `{argument}` must return True or False, got a tensor of shape "
                f"{_checks.shape(answer)} for `{p.name}`; end it with `.all()` or `.any()`."
            )
        if answer:
            found.add(p.site)
    return found


@explained("layers(torch.nn.Linear)")
def layers(*kinds: type[nn.Module]) -> Selection:
    """Select the parameters of all layers of the given classes and of their subclasses.

    Parameters of a nested layer belong to that layer alone. For example, `nn.MultiheadAttention` owns
    ``in_proj_weight``, but its inner linear layer owns the weight of the output projection.

    Args:
        kinds: Classes of layers, such as `nn.Linear`.

    Raises:
        ValueError: If `kinds` is empty, or has an item that is no subclass of `nn.Module`.

    Example:
        >>> from torch import nn
        >>> import pyro_bnn as pb
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        >>> given = {"prior": pb.NormalPrior(), "likelihood": pb.GaussianLikelihood()}
        >>> where = pb.layers(nn.Linear)
        >>> pb.BayesianModel(net, num_data=150, where=where, **given).site_names
        ('net.0.weight', 'net.0.bias', 'net.2.weight', 'net.2.bias')
    """
    if not kinds:
        raise ValueError("`kinds` must have at least one class of layers, got none; pass one, such as nn.Linear.")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ValueError(
                f"`kinds` must be classes of layers, such as nn.Linear, got {_checks.described(kind)}; to "
                "select parameters by name, pass a glob as `where`, without `layers`."
            )
    return Selection(partial(_by_layer, kinds), f"layers({', '.join(kind.__name__ for kind in kinds)})")


EXAMPLE = (
    'a glob on site names or a list of them, such as "**.weight", or `layers(...)`, or a function of name, parameter '
    "and layer"
)


def rules_of(argument: str, value: object) -> list[Selection]:
    """Return a list of selections, made from one rule or from several."""
    is_one = isinstance(value, str | Selection) or callable(value)
    return [_rule(item, argument) for item in ([value] if is_one else _checks.items(argument, value, EXAMPLE))]


def _rule(value: object, argument: str = "where") -> Selection:
    if isinstance(value, Selection):
        return value
    if isinstance(value, str):
        return Selection(partial(_by_name, value), repr(value), value)
    remedy = ""
    if isinstance(value, type):
        remedy = f"; call `layers({value.__name__ if issubclass(value, nn.Module) else '...'})`"
    elif isinstance(value, nn.Module):
        remedy = "; pass its name"
    elif callable(value):
        remedy = _no_chooser(value)
        if not remedy:
            return Selection(partial(_by_function, value), getattr(value, "__name__", repr(value)))
    raise ValueError(f"`{argument}` must be {EXAMPLE}, got {_checks.described(value)}{remedy}.")


def _no_chooser(function: Callable[..., object]) -> str:
    """Return why a function cannot take a name, a parameter and a layer, or "" if it can."""
    with suppress(ValueError):  # some functions written in C have no signature
        try:
            inspect.signature(function).bind("name", "parameter", "layer")
        except TypeError as error:
            return f" that cannot be called with these three ({error})"
    return ""


class SelectionWarning(UserWarning):
    """Warning that a glob selects only some of a network's layers of one kind.

    Example:
        >>> import warnings
        >>> import pyro_bnn as pb
        >>> given = {"prior": pb.NormalPrior(), "likelihood": pb.GaussianLikelihood()}
        >>> net, where = pb.nets.resnet20(), "net.c*.weight"
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     model = pb.BayesianModel(net, num_data=9, where=where, **given)
        >>> [warning.category.__name__ for warning in caught]
        ['SelectionWarning']
    """


def make_random(net: nn.Module, where: object, exclude: object, declared: Iterable[str]) -> dict[str, list[str]]:
    """Turn selected parameters into buffers, and return ``{site: paths}``. The sites of `declared` buffers are last."""
    parameters = owned(net, net.named_parameters(remove_duplicate=False))
    places = dict(net.named_buffers(remove_duplicate=False))
    first = {id(places[path]): index for index, path in enumerate(declared)}
    others = [(path, value) for path, value in places.items() if id(value) in first]
    fixed = owned(net, sorted(others, key=lambda pair: first[id(pair[1])]))
    chosen = _chosen(parameters, fixed, where, exclude)
    paths: dict[str, list[str]] = {}
    for parameter in (*(one for one in parameters if one.site in chosen), *fixed):
        path = parameter.name.partition(".")[2]
        paths.setdefault(parameter.site, []).append(path)
        _functional.prepare_embedding(net, path, parameter.site)
        _functional.parameter_to_buffer(net, path)
    rest_frozen(net, [path for its_paths in paths.values() for path in its_paths])
    return paths


def _chosen(parameters: list[Owned], fixed: list[Owned], where: object, exclude: object) -> set[str]:
    """Return the sites that `where` selects and `exclude` does not. The network itself declares `fixed` as random."""
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
            _warn_of_a_part(argument, glob, parameters, inside, outside)
    return chosen - excluded


def sites_among(net: nn.Module, paths: Mapping[str, Sequence[str]], where: Rules) -> tuple[str, ...]:
    """Return the random sites that the rules select. `paths` has the paths of each site."""
    sites = {path: site for site, its_paths in paths.items() for path in its_paths}
    found = owned(net, ((path, net.get_buffer(path)) for path in sites))
    parameters = [replace(one, site=site) for one, site in zip(found, sites.values(), strict=True)]
    chosen = {site for rule in rules_of("where", where) for site in rule.sites(parameters, "where")}
    if not chosen:
        raise ValueError('`where` selects none of the random parameters; the default "**" selects all.')
    return tuple(site for site in paths if site in chosen)


def _warn_of_a_part(argument: str, glob: str, parameters: Sequence[Owned], inside: set[str], outside: str) -> None:
    """Warn if a glob with a wildcard for layers, like ``net.stage1.conv*.weight``, misses some layers of a kind."""
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
            stacklevel=outer_stacklevel(),
        )
