"""Checks that autograd's gradients of a network are correct."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from ..._core import checks as _checks
from ..._core.copies import copied
from ..._core.inputs import ChangedInputError, Inputs, map_inputs, take, versions
from ..._core.scope import seeded
from ...modelling.model import BayesianModel, random_paths
from ._sites import find_sites

MAX_ROWS = 32  # heuristic: enough rows to reach most parts of a network, and few enough to be fast
MAX_WEIGHTS = 10_000_000  # heuristic: with more random weights, the double-precision copy would exceed 80 MB

CHECKPOINTED = (
    "the network must not use activation checkpointing (`torch.utils.checkpoint`), which runs layers again in the "
    "backward pass, when the drawn weights are no longer in the network; remove the checkpointing."
)
"""Message in place of torch's `CheckpointError`."""

STEPS = (1e-4, 1e-5)  # of finite differences, relative to the size of a site's weights; far above rounding errors
SUSPICIOUS = 1e-3  # sites are checked one by one only if the check of all together differs by more than this
WRONG = 0.1  # a gradient is wrong if it differs by more than this share; a hidden kink gives at most half of `SMOOTH`
SMOOTH = 0.05  # at a kink, slopes on its two sides, or for the two `STEPS`, differ by more than this share


@dataclass(frozen=True)
class _Direction:
    """A step in weight space, `moves`, and autograd's derivative of the log-likelihood along this step, `slope`."""

    moves: dict[str, Tensor]
    slope: float


class _Function:
    """The log-likelihood in float64 as a function of the weights, with fixed random numbers. It changes the model."""

    def __init__(self, model: BayesianModel, x: Inputs, y: Tensor) -> None:
        self._model, self._x, self._y = model, x, y
        self._names, self._device = model.site_names, model.device
        self._values = {site.name: site.start for site in find_sites(model, (), {})}
        weights = {f"net.{path}" for path in random_paths(model)}
        buffers = dict(model.named_buffers(remove_duplicate=False))
        self._originals = [(value, value.clone()) for name, value in buffers.items() if name not in weights]
        with seeded(0, self._device):
            for name in self._names:  # moves away from zeros and kinks, at which a network may start
                value = self._values[name]
                self._values[name] = value + 0.03 * _size_of(value) * torch.randn_like(value)
            # A backward pass that recomputes activations (checkpointing) would use the weights stored in the network
            # instead of the given ones. The stored weights are set far from these, so that the check finds this error.
            sites = [(name, model.initial_value(name)) for name in self._names]
            far = {name: value + 10 * _size_of(value) * torch.randn_like(value) for name, value in sites}
            for path, value in model.network_weights(far).items():
                model.network.get_buffer(path).copy_(value)

    def _call(self, moved: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = {name: {**self._values, **moved}[name].detach().requires_grad_() for name in self._names}
        given = {name: leaf.clone() for name, leaf in leaves.items()}  # an autograd leaf cannot be changed in place
        before = versions(self._x), versions(self._y)
        drawn = {name: value._version for name, value in given.items()}
        with torch.no_grad():
            for buffer, original in self._originals:  # restores buffers such as running statistics
                buffer.copy_(original)
        with seeded(0, self._device):
            result = self._model.log_likelihood({**self._values, **given}, self._x, self._y)
        for name, value in given.items():
            if value._version != drawn[name]:
                raise _WrongGradientError(
                    f"the network must not change its weights in place (`max_norm`, `clamp_`), since `{name}` is then "
                    "no longer the drawn value; compute new tensors instead, or leave this site out of `where`."
                )
        for name, part, earlier in (("x", self._x, before[0]), ("y", self._y, before[1])):
            if versions(part) != earlier:
                raise _WrongGradientError(
                    f"the {'network' if name == 'x' else 'likelihood'} must not change `{name}` in place "
                    "(`inplace=True`, `add_`), since the next draw would get other data; compute a new tensor instead."
                )
        return result, leaves

    def value_and_gradients(self) -> tuple[float, dict[str, Tensor]]:
        """Return the log-likelihood in nats, and autograd's gradient with respect to each site of the network."""
        result, leaves = self._call({})
        if not result.requires_grad:
            return float(result), {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        found = torch.autograd.grad(result, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return float(result.detach()), dict(zip(leaves, found, strict=True))

    def along(self, moves: Mapping[str, Tensor], step: float) -> float:
        moved = {name: self._values[name] + step * move for name, move in moves.items()}
        return float(self._call(moved)[0].detach())

    def size(self, name: str) -> float:
        return _size_of(self._values[name])


def _size_of(value: Tensor) -> float:
    """Return the root mean square of the elements, or 1 if all are 0."""
    root = float(value.square().mean().sqrt()) if value.numel() else 0.0
    return root or 1.0


def check_gradients(model: BayesianModel, x: Inputs, y: Tensor) -> None:
    r"""Raise if autograd's gradient for the random weights is wrong, or if the network changes weights or x in place.

    A network can hide part of its gradient, for example by ``detach()``; its fit would then give a wrong result and no
    error.

    The derivative along a direction d of the weights is compared with a central difference,

    .. math:: \nabla \ell \cdot d \overset?= \frac{\ell(w + h d) - \ell(w - h d)}{2 h},

    in double precision, on a copy of the model, near the sites' initial values, with the same random numbers. There are
    two such directions: one moves all weights whose gradient is exactly 0, and the other follows the signs of the
    gradient. All sites are moved together first, and one by one only if this shows a disagreement.

    A false alarm would be worse than a miss, so doubtful cases pass. Such cases are kinks, and networks that do not run
    in double precision or that give different values for the same weights and seed. Straight-through estimators also
    pass: they are constant where autograd has a slope. Networks with more than ten million random weights, and models
    to which an estimator is applied, are not checked.
    """
    num_weights = sum(model.initial_value(name).numel() for name in model.site_names)
    if model.interception.is_active or num_weights > MAX_WEIGHTS:
        return
    rows = slice(MAX_ROWS)
    x, y = map_inputs(_example, take(x, rows)), _example(_checks.rows("y", y)[rows])
    try:
        with torch.enable_grad():
            function = _Function(copied(model).double(), x, y)
            start, gradients = function.value_and_gradients()
            are_finite = all(bool(gradient.isfinite().all()) for gradient in gradients.values())
            if function.along({}, 0.0) != start or not math.isfinite(start) or not are_finite:
                return
            for directions in _directions(function, gradients):
                if _looks_wrong(function, _joined(directions), start):
                    for name, direction in directions.items():
                        _check(function, name, direction, start)
    except _WrongGradientError as error:
        raise ValueError(str(error)) from None
    except ChangedInputError:
        raise
    except CheckpointError:
        raise ValueError(CHECKPOINTED) from None
    except Exception:  # wrong data, which a call of the model reports, or a network that does not run in float64
        return


def _example(value: Tensor) -> Tensor:
    value = value.detach().clone()  # the network may change it in place
    return value.double() if value.is_floating_point() else value


class _WrongGradientError(Exception):
    """Raised for a wrong gradient. Most other exceptions end the check without a verdict."""


def _directions(function: _Function, gradients: Mapping[str, Tensor]) -> list[dict[str, _Direction]]:
    """Return two dictionaries, each with a random direction for each site.

    A direction in the first dictionary moves only the elements whose gradient is 0. A direction in the second moves the
    other elements, and its elements have the signs of the gradient.
    """
    hidden: dict[str, _Direction] = {}
    along_gradient: dict[str, _Direction] = {}
    with seeded(1, next(iter(gradients.values())).device):
        for name, gradient in gradients.items():
            noise = torch.randn_like(gradient)
            for chosen, found in (((gradient == 0) * noise, hidden), (gradient.sign() * noise.abs(), along_gradient)):
                length = float(chosen.norm())
                if length > 0:
                    move = chosen * (function.size(name) / length)
                    found[name] = _Direction({name: move}, float((gradient * move).sum()))
    return [hidden, along_gradient]


def _joined(directions: Mapping[str, _Direction]) -> _Direction:
    """Join the directions of all sites. A site with a large slope moves less, so that it does not hide other sites."""
    slopes = sorted(direction.slope for direction in directions.values())
    median = slopes[len(slopes) // 2] if slopes else 0.0
    total = 0.0
    moves: dict[str, Tensor] = {}
    for direction in directions.values():
        factor = min(1.0, median / direction.slope) if direction.slope > 0 else 1.0
        moves |= {name: factor * move for name, move in direction.moves.items()}
        total += factor * direction.slope
    return _Direction(moves, total)


def _rounding(start: float, step: float) -> float:
    """Return a bound on the rounding error of a difference quotient. The factor 1000 is a heuristic."""
    return 1e3 * torch.finfo(torch.float64).eps * max(abs(start), 1.0) / step


def _looks_wrong(function: _Function, direction: _Direction, start: float) -> bool:
    if not direction.moves:
        return False
    step = STEPS[-1]
    difference = (function.along(direction.moves, step) - function.along(direction.moves, -step)) / (2 * step)
    allowed = SUSPICIOUS * max(abs(difference), abs(direction.slope))
    return abs(difference - direction.slope) > allowed + _rounding(start, step)


def _check(function: _Function, name: str, direction: _Direction, start: float) -> None:
    """Raise if autograd's slope along a direction is wrong, unless the function is not smooth there."""
    centred, sides = [], (0.0, 0.0)
    for step in STEPS:
        ahead, behind = function.along(direction.moves, step), function.along(direction.moves, -step)
        centred.append((ahead - behind) / (2 * step))
        sides = (ahead - start) / step, (start - behind) / step
    difference = centred[-1]
    disagreement = max(abs(sides[0] - sides[1]), abs(centred[0] - centred[1]))
    if difference == 0 or disagreement > SMOOTH * abs(difference) + _rounding(start, STEPS[-1]):
        return
    error = abs(difference - direction.slope)
    if error > WRONG * max(abs(difference), abs(direction.slope)) + 10 * _rounding(start, STEPS[-1]):
        raise _WrongGradientError(
            f"the network hides or changes the gradient of its log-likelihood in `{name}`: along one direction "
            f"autograd gives {direction.slope:.4g} nats and a finite difference {difference:.4g}. Look for `detach()`, "
            "`.data`, `torch.no_grad()` or an autograd function in the layer that owns it; correct the layer, or leave "
            f"`{name}` out of `where`. Intended surrogate gradients (straight-through, gradient reversal) are not "
            "supported either, since they do not maximise the ELBO."
        )
