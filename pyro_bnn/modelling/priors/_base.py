"""The interface of priors, and the two kinds of priors: fixed and hierarchical."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks

PRIOR_PREFIX = "prior"


def scale_like(name: str, scale: float, parameter: Tensor) -> Tensor:
    """A scale as a tensor like a parameter, whose dtype must be able to represent the scale and its inverse square."""
    _checks.scale_in(name, scale, parameter.dtype)
    return parameter.new_full((), float(scale))


class WeightPrior(ABC):
    """The prior of a network's parameters, which may depend on latent variables and learnable numbers of its own.

    This is the interface that a model uses. To write a prior, subclass :class:`Prior` if the distribution is fixed, or
    :class:`HierarchicalPrior` if it depends on latent variables or on learnable numbers.

    Every method gets the site name of a parameter, such as ``net.0.weight``, the parameter with its initial value, and
    the layer (`module`) that owns it.
    """

    def parents(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, TorchDistributionMixin]:
        """The latent variables on which the prior of a parameter depends, with their own priors.

        Returns:
            ``{site name: distribution}``. Names begin with ``prior.``. Parameters with a parent of the same name share
            this parent.
        """
        return {}

    def learned(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, Tensor]:
        """The learnable numbers on which the prior of a parameter depends, with their initial values.

        Returns:
            ``{name: value}``, unconstrained. Names begin with ``prior.``. Parameters with a number of the same name
            share this number.
        """
        return {}

    @abstractmethod
    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """The prior of the whole parameter, given values of its parents and learnable numbers.

        `values` holds every learnable number, and for every parent a value of shape ``(*draws, *event)``. The
        distribution has batch shape ``draws`` and event shape `parameter.shape`.
        """


class Prior(WeightPrior):
    """Maps one parameter of a network to its prior distribution.

    A subclass implements :meth:`elementwise`. The base class expands the result of this method to the shape of the
    parameter, so that the whole parameter is one Pyro site.

    The distribution is made when the model is built, and again when the model moves to another device or dtype, so
    :meth:`elementwise` must draw nothing: for latent scales, use a :class:`HierarchicalPrior`.
    """

    @abstractmethod
    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """The prior of the elements of `parameter`, on its device and in its dtype.

        The support of this distribution is the real numbers, and its batch shape broadcasts to the parameter's shape.
        """

    def __call__(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """The prior of the whole parameter: event shape `parameter.shape`, no batch shape."""
        return self.elementwise(name, parameter, module).expand(parameter.shape).to_event(parameter.dim())

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        return self(name, parameter, module)


class HierarchicalPrior(WeightPrior):
    """A prior that depends on latent variables (its parents), on learnable numbers, or on both.

    A subclass implements :meth:`elementwise_given`, and :meth:`parents` or :meth:`learned` or both. The parents become
    sample sites of the model, drawn once per call before the weights: guides and samplers infer them with the weights.
    Learnable numbers become parameters of the model, ``model.prior_parameters``, which maximise the ELBO.
    """

    @abstractmethod
    def elementwise_given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """The prior of the elements of `parameter`, given its parents and learnable numbers.

        A value of event shape e has shape ``(*draws, 1, ..., 1, *e)``, so that it broadcasts with the parameter. The
        batch shape of the result broadcasts to ``(*draws, *parameter.shape)``.
        """

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        event_dims = self._event_dims(name, parameter, module)
        num_leads = {key: value.dim() - event_dims.get(key, value.dim()) for key, value in values.items()}
        most, leads, lined_up = max(num_leads.values(), default=0), [], {}
        for key, value in values.items():
            lead, event = value.shape[: num_leads[key]], value.shape[num_leads[key] :]
            # Vectorised draws have leading axes (S, 1) or (S,), so pad on the right.
            leads.append((*lead, *[1] * (most - len(lead))))
            lined_up[key] = value.reshape(*leads[-1], *[1] * (parameter.dim() - len(event)), *event)
        lead = torch.broadcast_shapes(*leads)
        prior = self.elementwise_given(lined_up, name, parameter, module)
        return prior.expand((*lead, *parameter.shape)).to_event(parameter.dim())

    def _event_dims(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, int]:
        """Number of event axes of each parent; cached, since making parents may wait for a GPU."""
        kept: dict[object, dict[str, int]] = vars(self).setdefault("_kept", {})  # a subclass may be a frozen dataclass
        key = name, parameter.shape
        if key not in kept:
            parents = self.parents(name, parameter, module)
            kept[key] = {parent: distribution.event_dim for parent, distribution in parents.items()}
        return kept[key]


def prior_name(name: str, per: str, quantity: str) -> str:
    """The name of a latent variable or learnable number on which the prior of the parameter `name` depends.

    With `per` "layer" all parameters of a layer share the variable, with "parameter" each parameter has its own.

    Example:
        >>> prior_name("net.0.weight", "layer", "scale"), prior_name("net.0.weight", "parameter", "scale")
        ('prior.0.scale', 'prior.0.weight.scale')
    """
    path = name.split(".")[1:]
    return ".".join([PRIOR_PREFIX, *(path[:-1] if per == "layer" else path), quantity])
