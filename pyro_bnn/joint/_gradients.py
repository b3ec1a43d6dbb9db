"""Whether autograd tells the truth about a network: a fit with a wrong gradient goes wrong without a word."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
from pyro import poutine
from torch import Tensor

from .._scope import own_parameters, seeded
from ..model import BayesianModel
from ._sites import find_sites

MAX_ROWS = 32
"""Heuristic: enough for most paths through a network, few enough to cost no more than a few steps of a fit."""

MAX_WEIGHTS = 10_000_000
"""Heuristic: larger networks are not checked, whose copy in double precision would take more than 80 MB."""

STEPS = (1e-4, 1e-5)
"""Lengths of a step, relative to the size of a site's weights; rounding in double precision is far below."""

SUSPICIOUS = 1e-3
"""Relative disagreement of all sites together at which each is looked at."""

WRONG = 0.1
"""Relative disagreement that is an error. A kink that passes as smooth explains at most half of `SMOOTH`."""

SMOOTH = 0.05
"""Relative disagreement of two steps, or of the two sides of the shorter, above which a function has a kink there."""


@dataclass(frozen=True)
class _Direction:
    """A way to move the weights of some sites: where it goes per unit, and what autograd says of it."""

    moves: dict[str, Tensor]
    slope: float


class _Function:
    """The log-likelihood of a few rows as a function of the weights, the same at every call: in double precision.

    Args:
        model: A copy, which is changed.
        x: Inputs.
        y: Targets.
    """

    def __init__(self, model: BayesianModel, x: Tensor, y: Tensor) -> None:
        self._model, self._x, self._y = model, x, y
        self._values = {site.name: site.start for site in find_sites(model, (), {})}
        weights = {f"net.{path}" for paths in model.parameter_paths.values() for path in paths}
        buffers = dict(model.named_buffers(remove_duplicate=False))
        self._originals = [(value, value.clone()) for name, value in buffers.items() if name not in weights]
        with seeded(0, model.device):
            for name in model.site_names:  # away from where a network may start: at zeros, and on kinks
                value = self._values[name]
                self._values[name] = value + 0.03 * size_of(value) * torch.randn_like(value)

    def _call(self, moved: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = {name: {**self._values, **moved}[name].detach().requires_grad_() for name in self._model.site_names}
        given = {name: leaf.clone() for name, leaf in leaves.items()}  # a leaf could not be changed in place
        versions = {name: value._version for name, value in given.items()}
        with torch.no_grad():
            for buffer, original in self._originals:  # such as running statistics
                buffer.copy_(original)
        with seeded(0, self._model.device), poutine.block():
            result = self._model.log_likelihood({**self._values, **given}, self._x, self._y)
        for name, value in given.items():
            if value._version != versions[name]:
                _refuse_change(name)
        return result, leaves

    def value(self, moved: Mapping[str, Tensor]) -> float:
        """The log-likelihood with some sites moved, in nats."""
        return float(self._call(moved)[0].detach())

    def gradients(self) -> dict[str, Tensor]:
        """Autograd's gradient in each site of the network."""
        result, leaves = self._call({})
        if not result.requires_grad:
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        found = torch.autograd.grad(result, list(leaves.values()), allow_unused=True)
        pairs = zip(leaves.items(), found, strict=True)
        return {name: torch.zeros_like(leaf) if gradient is None else gradient for (name, leaf), gradient in pairs}

    def along(self, direction: _Direction, step: float) -> float:
        """The log-likelihood a step along a direction."""
        return self.value({name: self._values[name] + step * move for name, move in direction.moves.items()})

    def size(self, name: str) -> float:
        """Typical size of a site's weights."""
        return size_of(self._values[name])


def size_of(value: Tensor) -> float:
    """Root mean square of the elements, or 1 if all are 0."""
    root = float(value.square().mean().sqrt()) if value.numel() else 0.0
    return root or 1.0


def check_gradients(model: BayesianModel, x: Tensor, y: Tensor) -> None:
    r"""Raise if the gradient of the log-likelihood in the random weights is not what autograd says.

    A network can hide part of it: with ``detach()``, with an `autograd.Function` of its own, or in a layer that gives
    another gradient than its own. Every fit with it would go wrong without a word.

    The derivative along a direction d of the weights is compared with a central difference,

    .. math:: \nabla \ell \cdot d \overset?= \frac{\ell(w + h d) - \ell(w - h d)}{2 h},

    in double precision, on a copy of the model, with the same random numbers for every evaluation, at a point near the
    sites' starts. Two directions are tried for each site: through all weights in which autograd's gradient is exactly
    0, where what is hidden shows, and along the gradient's signs. First all sites are moved at once; only if that looks
    wrong, each by itself.

    A false alarm would be worse than a miss. So the differences of two steps, and of both sides of one, must agree with
    each other, which they do not on a kink; a network that does not run in double precision, or gives different values
    for the same weights and seed, or is flat where autograd sees a slope (a straight-through estimator), is let pass.
    So is one of more than ten million random weights, or one with an estimator applied.

    Args:
        model: The model, which stays as it is; it is checked in the mode in which it is, train or eval.
        x: Inputs, shape (N, ...), of which the first 32 rows are used.
        y: Targets, shape (N, ...).

    Raises:
        ValueError: If the two disagree, or if the network changes its weights in place; with the site's name.
    """
    if model.is_intercepted or sum(model.initial_value(name).numel() for name in model.site_names) > MAX_WEIGHTS:
        return
    x, y = (part[:MAX_ROWS].detach() for part in (x, y))
    x, y = (part.double() if part.is_floating_point() else part for part in (x, y))
    try:
        with own_parameters(model), torch.enable_grad():
            function = _Function(copy.deepcopy(model).double(), x, y)
            start, gradients = function.value({}), function.gradients()
            if function.value({}) != start or not math.isfinite(start) or not _are_finite(gradients):
                return
            for directions in _directions(function, gradients):
                if _looks_wrong(function, _joined(directions), start):
                    for name, direction in directions.items():
                        _check(function, name, direction, start)
    except _WrongGradientError as error:
        raise ValueError(str(error)) from None
    except Exception:  # what is wrong with the data, the model's own call will say; and not all networks run in double
        return


class _WrongGradientError(Exception):
    """What is to be said of a wrong gradient."""


def _refuse_change(name: str) -> NoReturn:
    raise _WrongGradientError(
        f"the network changes its weights in place (`max_norm`, `clamp_`): `{name}` is no draw of the model any more; "
        "let it compute changed weights instead, or leave it out of `where`."
    )


def _are_finite(gradients: Mapping[str, Tensor]) -> bool:
    return all(bool(gradient.isfinite().all()) for gradient in gradients.values())


def _directions(function: _Function, gradients: Mapping[str, Tensor]) -> list[dict[str, _Direction]]:
    """For each site a direction through the weights without a gradient, and one along its signs; random lengths."""
    hidden: dict[str, _Direction] = {}
    open_: dict[str, _Direction] = {}
    with seeded(1, next(iter(gradients.values())).device):
        for name, gradient in gradients.items():
            noise = torch.randn_like(gradient)
            for chosen, found in (
                ((gradient == 0) * noise, hidden),
                (gradient.sign() * noise.abs(), open_),
            ):
                length = float(chosen.norm())
                if length > 0:
                    move = chosen * (function.size(name) / length)
                    found[name] = _Direction({name: move}, float((gradient * move).sum()))
    return [hidden, open_]


def _joined(directions: Mapping[str, _Direction]) -> _Direction:
    """All sites at once, those of large slopes less far, so that one of middle slope still shows."""
    slopes = sorted(direction.slope for direction in directions.values())
    middle = slopes[len(slopes) // 2] if slopes else 0.0
    total = 0.0
    moves: dict[str, Tensor] = {}
    for direction in directions.values():
        share = min(1.0, middle / direction.slope) if direction.slope > 0 else 1.0
        moves |= {name: share * move for name, move in direction.moves.items()}
        total += share * direction.slope
    return _Direction(moves, total)


def _rounding(start: float, step: float) -> float:
    """What rounding of sums may add to a difference; a thousand roundings is a heuristic."""
    return 1e3 * torch.finfo(torch.float64).eps * max(abs(start), 1.0) / step


def _looks_wrong(function: _Function, direction: _Direction, start: float) -> bool:
    if not direction.moves:
        return False
    step = STEPS[-1]
    difference = (function.along(direction, step) - function.along(direction, -step)) / (2 * step)
    allowed = SUSPICIOUS * max(abs(difference), abs(direction.slope))
    return abs(difference - direction.slope) > allowed + _rounding(start, step)


def _check(function: _Function, name: str, direction: _Direction, start: float) -> None:
    """Raise if the function is smooth along a direction, and its slope there another than autograd's."""
    centred, sides = [], (0.0, 0.0)
    for step in STEPS:
        ahead, behind = function.along(direction, step), function.along(direction, -step)
        centred.append((ahead - behind) / (2 * step))
        sides = (ahead - start) / step, (start - behind) / step
    difference = centred[-1]
    spread = max(abs(sides[0] - sides[1]), abs(centred[0] - centred[1]))
    if difference == 0 or spread > SMOOTH * abs(difference) + _rounding(start, STEPS[-1]):
        return
    error = abs(difference - direction.slope)
    if error > WRONG * max(abs(difference), abs(direction.slope)) + 10 * _rounding(start, STEPS[-1]):
        raise _WrongGradientError(
            f"the network hides or changes the gradient of its log-likelihood in `{name}`: along one direction "
            f"autograd says {direction.slope:.4g} nats and a finite difference {difference:.4g}. Look for `detach()`, "
            "`.data`, `torch.no_grad()` or an autograd function in the layer that owns it; mend the layer, or leave "
            f"`{name}` out of `where`."
        )
