"""The state of a flat guide during a step: gradients, draws, and parameters in long vectors."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..joint import Joint, Layout, Piece, Site

LARGE = 2**16  # heuristic: on a CPU, sites with at least this many elements have their own gradient tensors


class ParameterVector:
    """Stores the parameters of nested modules in one vector; :meth:`close` gives each parameter its own memory again.

    With one vector, a step avoids many memory allocations, which on a CPU often take longer than the arithmetic.
    """

    def __init__(self, tree: nn.Module, names: Iterable[str], memory: Tensor | None = None) -> None:
        places = [name.rpartition(".") for name in names]
        self._owners = [(tree.get_submodule(path), leaf) for path, _, leaf in places]
        self._formats = [torch.empty_like(parameter, device="meta") for parameter in self.parameters]
        self._layout = Layout({str(index): parameter.shape for index, parameter in enumerate(self.parameters)})
        self.value = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters], out=memory)
        self._views = list(self._layout.views(self.value).values())
        self._gradients: list[Tensor] = []
        self.link()

    @property
    def parameters(self) -> list[nn.Parameter]:
        found = (owner._parameters[leaf] for owner, leaf in self._owners)  # `get_parameter` takes ten times as long
        return [parameter for parameter in found if parameter is not None]

    @torch.no_grad()
    def link(self) -> None:
        """Make every parameter a view of the vector, with the parameter's present value."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                if (parameter.dtype, parameter.device) != (view.dtype, view.device):
                    raise ValueError(
                        f"parameters of the guide were moved from {view.dtype} on {view.device} to {parameter.dtype} "
                        f"on {parameter.device} in the context of a step; end its `with` block, and begin a new one."
                    )
                view.copy_(parameter)
                parameter.data = view

    def set_gradient(self, gradient: Tensor) -> None:
        """Set the vector, shape (P,), that holds the gradients of all parameters."""
        self._gradients = list(self._layout.views(gradient).values())

    def give_gradients(self) -> None:
        """Set the `grad` of each parameter to its part of the vector from :meth:`set_gradient`."""
        if self._gradients:
            self.give_once(self._gradients)

    def give_once(self, gradients: Iterable[Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.requires_grad else None

    def copy_gradients(self) -> None:
        self._gradients = []
        for parameter in self.parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()

    def close(self) -> None:
        """Give each parameter its own memory again."""
        for parameter, view, example in zip(self.parameters, self._views, self._formats, strict=True):
            if parameter.data_ptr() == view.data_ptr():
                parameter.data = torch.empty_like(example, device=view.device).copy_(view)
        self._views, self.value = [], self.value.new_empty(0)  # frees the memory before the next vector is closed


class DrawGradients:
    """Gradients of the negative log-likelihood with respect to a draw.

    The backward pass makes a new gradient tensor for each large site. Small sites share a vector, to which the backward
    pass adds their gradients. This takes more memory and time than new tensors, but a single operation can then update
    all small sites. On a GPU each operation costs time, so only sites with at least `large_on_gpu` elements are large
    there. If `large_on_gpu` is None, all sites on a GPU are small.
    """

    def __init__(self, joint: Joint, draw: Tensor, *, large_on_gpu: int | None) -> None:
        self._layout, shapes = joint.layout, joint.layout.shapes
        self._draws = joint.layout.views(draw)
        large = LARGE if draw.device.type == "cpu" else large_on_gpu
        self._large = {name for name, shape in shapes.items() if large is not None and shape.numel() >= large}
        small = Layout({name: shape for name, shape in shapes.items() if name not in self._large})
        self._joined = draw.new_zeros(small.num_elements)
        self._views = small.views(self._joined) if small.shapes else {}
        self._runs: list[tuple[int, str | None, int]] = []  # start in `draw`, site if large, start in the tensor
        for name, part in joint.layout.slices.items():
            if name in self._large:
                self._runs.append((part.start, name, 0))
            elif not self._runs or self._runs[-1][1] is not None:
                self._runs.append((part.start, None, small.slices[name].start))
        self._begins = [begin for begin, _, _ in self._runs]
        self._leaves: dict[str, Tensor] = {}
        self._own: dict[str, Tensor] = {}

    def label(self, site: Site) -> str | None:
        """Label a site for :meth:`Joint.pieces`. All small sites share one label and one gradient tensor."""
        return site.name if site.name in self._large else None

    def leaves(self) -> dict[str, Tensor]:
        """Return views of the draw as new autograd leaves, whose gradients start at zero."""
        self._own.clear()
        self._joined.zero_()
        self._leaves = {name: view.detach().requires_grad_() for name, view in self._draws.items()}
        for name, view in self._views.items():
            self._leaves[name].grad = view
        return dict(self._leaves)

    def take(self) -> None:
        """After the backward pass, collect the gradients of the tensors that :meth:`leaves` returned last."""
        for name, leaf in self._leaves.items():
            if name in self._large:
                gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                self._own[name] = (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)
        self._leaves = {}

    @property
    def tensors(self) -> list[Tensor]:
        """All gradients, in as few vectors as possible. Call :meth:`take` first."""
        return [*self._own.values(), *([self._joined] if len(self._joined) else [])]

    def by_site(self) -> Iterator[Tensor]:
        """Yield the gradient of each site, without a copy. Call :meth:`take` first."""
        for name, shape in self._layout.shapes.items():
            yield self._own[name].view(shape) if name in self._large else self._views[name]

    def of(self, part: slice) -> Tensor:
        """Return the gradients with respect to a contiguous part of the draw. Call :meth:`take` first."""
        begin, name, offset = self._runs[bisect_right(self._begins, part.start) - 1]
        tensor = self._joined if name is None else self._own[name]
        return tensor[part.start - begin + offset : part.stop - begin + offset]


class Noise(Enum):
    """The quantity that an estimator gets for each Gaussian parameter, besides the mean."""

    DEVIATION = "deviation"
    """A draw of the weight minus its mean."""
    VARIANCE = "variance"
    """The variance of the weight; the weight itself is not drawn."""


@dataclass(frozen=True)
class RandomParameter:
    """A Gaussian parameter of a layer, as an estimator gets it.

    Args:
        name: Site name of the parameter.
        loc: Mean. All tensors have the shape of the parameter.
        deviation: A draw minus the mean; None for estimators that use the variance.
        variance: Variance; None for estimators that use the deviation.
    """

    name: str
    loc: Tensor
    deviation: Tensor | None = None
    variance: Tensor | None = None

    @classmethod
    def of(cls, noise: Noise, name: str, loc: Tensor, value: Tensor) -> "RandomParameter":
        """Make a parameter. `noise` says whether `value` is the deviation or the variance."""
        return cls(name, loc, **{noise.value: value})


class FlatState(ABC):
    """Draws values for a step, and turns the network's gradients into gradients of the guide's parameters.

    A step first calls :meth:`begin`. For each draw, it calls :meth:`draw`, runs the network, calls :meth:`observe`,
    runs the backward pass, and calls :meth:`pull_back`. At the end, it calls :meth:`give_gradients`.
    """

    value: Tensor
    """The last draw, in unconstrained space, shape (P,)."""

    def __init__(self, joint: Joint, vectors: Mapping[str, ParameterVector]) -> None:
        self.joint, self.vectors = joint, dict(vectors)
        self._views: dict[int, tuple[Tensor, list[Tensor]]] = {}

    @property
    @abstractmethod
    def gradients(self) -> list[Tensor]:
        """The gradients with respect to the parameters, as vectors. Call :meth:`pull_back` first."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The guide's parameters."""
        return [parameter for vector in self.vectors.values() for parameter in vector.parameters]

    def begin(self, weight: float) -> None:
        """Start a step, given the weight of the divergence."""
        for vector in self.vectors.values():
            vector.link()
        self.update()

    def update(self) -> None:  # noqa: B027 (states of points do not need it)
        """Compute what all draws of a step need, such as scales."""

    @abstractmethod
    def draw(self) -> Mapping[str, Tensor | RandomParameter]:
        """Draw a value of each site. The gradients of the values start at zero."""

    def observe(self, loss: Tensor) -> None:  # noqa: B027 (most states do not need it)
        """Receive the negative log-likelihood of a batch, or of a part of it, before the backward pass."""

    @property
    def simulates(self) -> bool:
        """Whether this step needs targets that are simulated from the model."""
        return False

    def observe_simulated(self, log_likelihood: Tensor, num_rows: int, share: float) -> None:  # noqa: B027
        """If :attr:`simulates` is true, receive the log-likelihood of targets that are simulated for `num_rows` rows.

        `share` is the weight of this log-likelihood in the sum over all draws and parts of the batch.
        """

    @abstractmethod
    def pull_back(self, weight: float) -> Tensor:
        """Compute the gradients of the loss plus `weight` times the divergence; return the divergence in nats."""

    def give_gradients(self) -> None:
        """Set each parameter's `grad`."""
        for vector in self.vectors.values():
            vector.give_gradients()

    def bad_site(self) -> str | None:
        """Describe the first site whose value or log-density in the last draw is not finite."""
        free = self.joint.layout.views(self.value)
        values = self.joint.constrained(free)
        for site in self.joint.sites:
            if not bool(torch.isfinite(values[site.name]).all()):
                return f"`{site.name}` (its value)"
        for site in self.joint.sites:
            is_finite = torch.isfinite(site.prior.log_prob(values[site.name])).all()
            if self.is_degenerate(site.name) or not bool(is_finite):
                return f"`{site.name}` (its log-density)"
        return None

    def is_degenerate(self, site: str) -> bool:
        """Whether a site has no density because one of its scales is not positive."""
        return False

    def close(self) -> None:
        """Free the other memory of this state, then give each parameter of the guide its own memory again."""
        vectors = self.vectors.values()
        vars(self).clear()
        for vector in vectors:
            vector.copy_gradients()
        for vector in vectors:
            vector.close()

    def leaves(self, vector: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        """Return views of `vector` as autograd leaves, which add their gradients to `gradient`.

        Every call should pass the same two tensors, since their views are kept.
        """
        leaves = {}
        for name, view, its_gradient in zip(
            self.joint.layout.shapes, self._views_of(vector), self._views_of(gradient), strict=True
        ):
            leaves[name] = view.detach().requires_grad_()
            leaves[name].grad = its_gradient
        return leaves

    def _views_of(self, vector: Tensor) -> list[Tensor]:
        if id(vector) not in self._views:
            self._views[id(vector)] = vector, list(self.joint.layout.views(vector).values())
        return self._views[id(vector)][1]


State = TypeVar("State", bound=FlatState)


@contextmanager
def lent(state: State) -> Iterator[State]:
    try:
        yield state
    finally:
        state.close()


def scratch_for(pieces: list[Piece], like: Tensor, rows: int = 4) -> Tensor:
    """Return scratch memory, shape (rows, length of the longest piece)."""
    return like.new_empty(rows, max(piece.part.stop - piece.part.start for piece in pieces))


class PriorOfPoint:
    """Minus the log prior at a point; :meth:`pull_back` adds `weight` times its gradient to `gradients`."""

    def __init__(self, joint: Joint, gradients: DrawGradients, value: Tensor) -> None:
        self._gradients = gradients
        pieces = joint.pieces(gradients.label)
        self.scratch = scratch_for(pieces, value, rows=3)
        """Memory that other code may overwrite between two calls of :meth:`pull_back`."""
        self._pieces = [(p, value[p.part], list(self.scratch[:, : p.part.stop - p.part.start])) for p in pieces]

    def pull_back(self, weight: float) -> Tensor:
        terms = [
            piece.density.add_slope(value, self._gradients.of(piece.part), -weight, scratch)
            for piece, value, scratch in self._pieces
        ]
        return -torch.stack(terms).sum()
