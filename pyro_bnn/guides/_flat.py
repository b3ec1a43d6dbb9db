"""Guides that can be fitted without effect handlers, and what such a guide does during a step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions.transforms import IndependentTransform

from .._scope import AbstractPyroModule
from ..joint import Joint, Site
from ..model import BayesianModel
from ._parameters import ParameterVector


class Noise(Enum):
    """What an estimator wants to know of the noise of a Gaussian weight, besides its mean."""

    DEVIATION = "deviation"
    """How far the weight that was drawn is from its mean."""
    VARIANCE = "variance"
    """The variance; nothing is drawn."""


@dataclass(frozen=True)
class RandomParameter:
    """A Gaussian parameter of a layer, as an estimator sees it.

    Args:
        name: Its site.
        loc: Its mean.
        deviation: A draw minus the mean, for estimators that ask for it.
        variance: Its variance, for the others.
    """

    name: str
    loc: Tensor
    deviation: Tensor | None = None
    variance: Tensor | None = None

    @classmethod
    def of(cls, noise: Noise, name: str, loc: Tensor, value: Tensor) -> "RandomParameter":
        """With its deviation or its variance, as the noise says."""
        return cls(name, loc, **{noise.value: value})


Choice = Callable[[Site, dist.Normal], dist.Normal]
"""From a site and the guide's Gaussian to the distribution that is sampled in its place."""


class FlatGuide(PyroModule, metaclass=AbstractPyroModule):  # type: ignore[metaclass]
    """A guide whose ELBO can be differentiated without effect handlers, all parameters in long vectors.

    It is a real Pyro guide as well, by its `forward`. A subclass also says how to fit it fast: :meth:`flat` lends its
    parameters to a :class:`FlatState`. `forward` and `flat` must describe the same distribution.
    """

    sites: tuple[Site, ...]
    """The latent variables, in the order of the model."""

    @abstractmethod
    def flat(self, joint: Joint, *, noise: Noise | None, closed_form: bool) -> AbstractContextManager["FlatState"]:
        """A context in which the parameters lie in vectors, and steps can be made.

        Args:
            joint: The model's joint density over the same sites.
            noise: What the network is given for its random parameters: values, or means and what an estimator asks for.
            closed_form: Use closed-form divergences, where the prior has them.

        Raises:
            ValueError: If the family cannot serve an estimator.
        """

    @abstractmethod
    def draws(self, num_samples: int) -> Iterator[dict[str, Tensor]]:
        """Draws of every latent variable, one at a time, without effect handlers, ``{site: shape (*event)}``."""

    @abstractmethod
    def median(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Median of every latent variable, ``{site: shape (*event)}``; the arguments are not looked at."""

    def joint(self, model: BayesianModel) -> Joint:
        """The joint density that :meth:`flat` works on."""
        return Joint(model)

    @property
    def changes(self) -> str | None:
        """What makes a call of this guide more than its family's `forward`, in words; None if nothing does."""
        hooks = (self._forward_hooks, self._forward_pre_hooks, self._backward_hooks, self._backward_pre_hooks)
        if any(hooks) or "forward" in vars(self):
            return "the model or the guide has hooks"
        overridden = overridden_names(type(self), _family(type(self)))
        return f"{type(self).__name__} overrides {', '.join(overridden)}" if overridden else None

    def obstacle(self, joint: Joint) -> str | None:
        """Why :meth:`flat` cannot serve a model, in words; None if it can."""
        if len(joint.sites) != len(self.sites) or not all(map(_are_alike, joint.sites, self.sites)):
            return "model and guide have different sites"
        if any(site.plates for site in self.sites):
            return "a latent variable is inside a plate"
        if any(site.start.numel() == 0 for site in joint.sites):
            return "a parameter of the network is empty"
        named = dict(self.named_parameters(remove_duplicate=False))
        if len({id(parameter) for parameter in named.values()}) < len(named):
            return "two sites share a parameter of the guide"
        for name, parameter in named.items():
            shape = joint.layout.shapes.get(name.partition(".")[2], parameter.shape)  # of no site: any shape
            has_kind = (parameter.dtype, parameter.device) == (joint.model.dtype, joint.model.device)
            if parameter.shape != shape or not has_kind:
                return "parameters of the guide differ from those of the network in shape, dtype or device"
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in named.values()):
            return "parameters of the guide have hooks"
        return None if all(p.requires_grad for p in named.values()) else "parameters of the guide are frozen"


def _family(kind: type) -> type:
    """The class that says how to fit the guide fast."""
    return next(base for base in kind.__mro__ if "flat" in vars(base))


def overridden_names(kind: type, base: type) -> list[str]:
    """The attributes of a class that its subclass replaces."""
    subclasses = kind.__mro__[: kind.__mro__.index(base)]
    names = {name for subclass in subclasses for name in vars(subclass) if name in dir(base)} - {"_abc_impl"}
    return sorted(name for name in names if not name.startswith("__") or name == "__call__")


def _are_alike(first: Site, second: Site) -> bool:
    a, b = first.transform, second.transform
    while isinstance(a, IndependentTransform) and isinstance(b, IndependentTransform):
        a, b = a.base_transform, b.base_transform
    return (first.name, first.start.shape) == (second.name, second.start.shape) and bool(a == b)


class FlatState(ABC):
    r"""What a flat guide does in a step: draw, and pull the network's gradients back to its parameters.

    A step calls :meth:`begin`; for each draw :meth:`draw`, the network's backward pass, and :meth:`pull_back`; and
    :meth:`give_gradients` in the end.

    Args:
        joint: The model's joint density.
        vectors: The guide's parameters.
    """

    value: Tensor
    """What was drawn last, in unconstrained space, shape (P,)."""

    value_grad: Tensor
    """Where the backward pass adds the gradient of minus the log-likelihood with respect to `value`, shape (P,)."""

    def __init__(self, joint: Joint, vectors: Mapping[str, ParameterVector]) -> None:
        self.joint, self.vectors = joint, dict(vectors)

    @property
    @abstractmethod
    def gradients(self) -> list[Tensor]:
        """The gradients with respect to the parameters, as long vectors, after :meth:`pull_back`."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The guide's parameters."""
        return [parameter for vector in self.vectors.values() for parameter in vector.parameters]

    def begin(self) -> None:
        """Take over the parameters as they are now."""
        for vector in self.vectors.values():
            vector.link()
        self.update()

    @abstractmethod
    def update(self) -> None:
        """Compute what all draws of a step share, such as scales."""

    @abstractmethod
    def draw(self) -> Mapping[str, Tensor | RandomParameter]:
        """What the network is given: a value for each site, whose gradient will be added up in `value_grad`."""

    @abstractmethod
    def pull_back(self, weight: float) -> Tensor:
        """Turn the gradients in what was drawn into those in the parameters, and add those of the divergence.

        Args:
            weight: Weight of the divergence.

        Returns:
            The divergence in nats, in double precision.
        """

    def give_gradients(self) -> None:
        """Let the parameters have their gradients."""
        for vector in self.vectors.values():
            vector.give_gradients()

    def bad_site(self) -> str | None:
        """The first site, of the last draw, whose value or density is not finite, in words."""
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
        """Whether a scale of a site is 0 or no number, so that there is no density."""
        return False

    def close(self) -> None:
        """Give everything back, scratch memory first, or more would be needed here than in a step."""
        self.release()
        for vector in self.vectors.values():
            vector.copy_gradients()
        del self.value_grad
        for vector in self.vectors.values():
            vector.close()

    @abstractmethod
    def release(self) -> None:
        """Let go of all memory but that of the parameters and their gradients."""

    def leaves(self, vector: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        """Fresh leaves of autograd that lie in a vector, and whose gradients are added up in another."""
        result = {name: view.detach().requires_grad_() for name, view in self.joint.layout.views(vector).items()}
        for leaf, view in zip(result.values(), self.joint.layout.views(gradient).values(), strict=True):
            leaf.grad = view
        return result


@contextmanager
def lent(state: FlatState) -> Iterator[FlatState]:
    """A context with a state that is closed in the end."""
    try:
        yield state
    finally:
        state.close()


def scratch_for(pieces: list[Any], like: Tensor, rows: int = 4) -> Tensor:
    """Memory for the longest piece, shape (rows, longest)."""
    return like.new_empty(rows, max(piece.part.stop - piece.part.start for piece in pieces))
