"""Rules that select parameters of a network: by name, by kind of layer, by a function, or composed of these."""

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.globs import advice, matches

SITE_PREFIX = "net"

Chooser = Callable[[str, Tensor, nn.Module], bool]
"""Function from the name, the parameter and the layer that owns it to whether the parameter is selected."""


@dataclass(frozen=True)
class Owned:
    """A parameter of a network with one of its names, and the layer that owns it under that name.

    Args:
        site: Name of the parameter's site, which tied weights share.
        name: Name of the parameter, such as ``net.0.weight``.
        parameter: The parameter.
        layer: The layer that owns it; for a parametrised weight, the layer that uses it.
    """

    site: str
    name: str
    parameter: Tensor
    layer: nn.Module

    @property
    def kind(self) -> str:
        """Class of the layer and name of the parameter in it, such as ``Conv2d.weight``."""
        return f"{type(self.layer).__name__}.{self.name.rpartition('.')[2]}"


def owned(net: nn.Module, values: Iterable[tuple[str, Tensor]]) -> list[Owned]:
    """Parameters of a network, given with their paths; a repeated tensor belongs to the site of its first path."""
    sites: dict[int, str] = {}
    found = []
    for path, value in values:
        name = f"{SITE_PREFIX}.{path}"
        layer = net.get_submodule(path.rpartition(".")[0].partition("parametrizations.")[0].rstrip("."))
        found.append(Owned(sites.setdefault(id(value), name), name, value, layer))
    return found


class Selection(ABC):
    """A rule that selects parameters of a network, for ``where`` and ``exclude`` of :class:`BayesianModel`.

    :func:`layers` makes one. ``a | b`` selects what either selects, ``a & b`` what both select, and ``a - b`` what a
    selects and b does not; b may also be a glob or a function.

    Example:
        >>> from pyro_bnn import layers
        >>> layers(nn.Linear) - "net.0.*" | "**.bias"
        layers(Linear) - 'net.0.*' | '**.bias'
    """

    @abstractmethod
    def sites(self, parameters: Sequence[Owned], argument: str) -> set[str]:
        """Sites of the selected parameters.

        Args:
            parameters: All parameters of the network, under all of their names.
            argument: Name of the argument of which this rule is a part, for messages.

        Raises:
            ValueError: If a glob, or a kind of layer, selects nothing.
        """

    def __or__(self, other: "str | Selection | Chooser") -> "Selection":
        return _Composed(self, _rule(other), "|")

    def __and__(self, other: "str | Selection | Chooser") -> "Selection":
        return _Composed(self, _rule(other), "&")

    def __sub__(self, other: "str | Selection | Chooser") -> "Selection":
        return _Composed(self, _rule(other), "-")


Rules = str | Selection | Chooser | Sequence[str | Selection | Chooser]
"""A glob on names, a selection, a function, or a list of these."""


@dataclass(frozen=True)
class ByName(Selection):
    """Parameters whose name matches a glob."""

    glob: str

    def sites(self, parameters: Sequence[Owned], argument: str) -> set[str]:
        """See :meth:`Selection.sites`."""
        found = {p.site for p in parameters if matches(self.glob, p.name)}
        if not found:
            names = [p.name for p in parameters]
            raise ValueError(
                f"`{argument}` glob {self.glob!r} matches none of the network's parameters; {advice(self.glob, names)}."
            )
        return found

    def __repr__(self) -> str:
        return repr(self.glob)


@dataclass(frozen=True)
class _ByLayer(Selection):
    """Parameters that layers of some kinds own directly."""

    kinds: tuple[type[nn.Module], ...]

    def sites(self, parameters: Sequence[Owned], argument: str) -> set[str]:
        """See :meth:`Selection.sites`."""
        for kind in self.kinds:
            if not any(isinstance(p.layer, kind) for p in parameters):
                present = sorted({type(p.layer).__name__ for p in parameters})
                raise ValueError(
                    f"`{argument}` has layers of kind {kind.__name__}, but none of them owns a parameter of the "
                    f"network; leave it out, or choose among {', '.join(present)}."
                )
        return {p.site for p in parameters if isinstance(p.layer, self.kinds)}

    def __repr__(self) -> str:
        return f"layers({', '.join(kind.__name__ for kind in self.kinds)})"


@dataclass(frozen=True)
class _ByFunction(Selection):
    """Parameters for which a function says so."""

    chooser: Chooser

    def sites(self, parameters: Sequence[Owned], argument: str) -> set[str]:
        """See :meth:`Selection.sites`."""
        return {p.site for p in parameters if self._chooses(p, argument)}

    def _chooses(self, parameter: Owned, argument: str) -> bool:
        answer = self.chooser(parameter.name, parameter.parameter, parameter.layer)
        if isinstance(answer, Tensor) and answer.numel() != 1:
            raise ValueError(
                f"the function of `{argument}` must return True or False, got a tensor of shape "
                f"{_checks.shape(answer)} for `{parameter.name}`; end it with `.all()` or `.any()`."
            )
        return bool(answer)

    def __repr__(self) -> str:
        return getattr(self.chooser, "__name__", repr(self.chooser))


OPERATORS: dict[str, Callable[[set[str], set[str]], set[str]]] = {
    "|": operator.or_,
    "&": operator.and_,
    "-": operator.sub,
}


@dataclass(frozen=True)
class _Composed(Selection):
    """Two rules with an operator between them."""

    first: Selection
    second: Selection
    sign: str

    def sites(self, parameters: Sequence[Owned], argument: str) -> set[str]:
        """See :meth:`Selection.sites`."""
        return OPERATORS[self.sign](*(rule.sites(parameters, argument) for rule in (self.first, self.second)))

    def __repr__(self) -> str:
        return f"{self.first!r} {self.sign} {self.second!r}"


def layers(*kinds: type[nn.Module]) -> Selection:
    """All parameters that layers of these kinds own directly.

    Subclasses of a kind count, as `isinstance` has it. What a layer holds inside of further layers is theirs: the
    projections of `nn.MultiheadAttention` are partly its own (``in_proj_weight``), partly those of a linear layer.

    Args:
        kinds: Classes of layers, such as `nn.Linear`.

    Raises:
        ValueError: If there is no kind, or one is no class of modules.

    Example:
        >>> from pyro_bnn import BayesianModel, CategoricalLikelihood, NormalPrior
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        >>> model = BayesianModel(
        ...     net, prior=NormalPrior(), likelihood=CategoricalLikelihood(), num_data=150, where=layers(nn.Linear)
        ... )
        >>> model.site_names
        ('net.0.weight', 'net.0.bias', 'net.2.weight', 'net.2.bias')
    """
    if not kinds:
        raise ValueError("`kinds` must have at least one class of layers, got none; pass one, such as nn.Linear.")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ValueError(
                f"`kinds` must be classes of layers, such as nn.Linear, got {_checks.described(kind)}; pass "
                "globs on names to `where` itself."
            )
    return _ByLayer(kinds)


EXAMPLE = (
    'a glob on site names or a list of them, such as "**.weight", or `layers(...)`, or a function of name, parameter '
    "and layer"
)


def rules_of(argument: str, value: object) -> list[Selection]:
    """The rules of one glob, selection or function, or of a list of these.

    Raises:
        ValueError: If something else is given.
    """
    is_one = isinstance(value, str | Selection) or callable(value)
    return [_rule(item, argument) for item in ([value] if is_one else _checks.items(argument, value, EXAMPLE))]


def _rule(value: object, argument: str = "where") -> Selection:
    if isinstance(value, Selection):
        return value
    if isinstance(value, str):
        return ByName(value)
    remedy = ""
    if isinstance(value, type):
        remedy = f"; call `layers({value.__name__ if issubclass(value, nn.Module) else '...'})`"
    elif isinstance(value, nn.Module):
        remedy = "; pass its name"
    elif callable(value):
        remedy = _no_chooser(value)
        if not remedy:
            return _ByFunction(value)
    raise ValueError(f"`{argument}` must be {EXAMPLE}, got {_checks.described(value)}{remedy}.")


def _no_chooser(function: Callable[..., object]) -> str:
    """Why a function cannot be called with name, parameter and layer; empty if it can, or nothing is known."""
    try:
        inspect.signature(function).bind("name", "parameter", "layer")
    except TypeError as error:
        return f" that cannot be called with these three ({error})"
    except ValueError:  # some functions written in C do not tell
        return ""
    return ""


def globs_of(rules: Iterable[Selection]) -> Iterator[str]:
    """The globs among some rules; those inside of a composed rule are not looked at."""
    return (rule.glob for rule in rules if isinstance(rule, ByName))
