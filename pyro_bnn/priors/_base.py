"""What a prior is: the general interface, and its two kinds."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

PRIOR_PREFIX = "prior"


class WeightPrior(ABC):
    """The prior of a network's parameters, which may depend on latent variables and learnable numbers of its own.

    This is what a model asks of a prior. To write one, subclass :class:`Prior` if the distribution is fixed, or
    :class:`HierarchicalPrior` if it depends on something that is inferred.
    """

    def parents(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, TorchDistributionMixin]:
        """The latent variables on which the prior of a parameter depends, and what they are drawn from.

        Args:
            name: Site name of the parameter, such as ``net.0.weight``.
            parameter: The parameter with its initial value.
            module: The layer that owns it.

        Returns:
            ``{site name: distribution}``. Names begin with ``prior.``; parameters that name the same parent share it.
        """
        return {}

    def learned(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, Tensor]:
        """The learnable numbers on which the prior of a parameter depends, with their first values.

        Args:
            name: Site name of the parameter.
            parameter: The parameter with its initial value.
            module: The layer that owns it.

        Returns:
            ``{name: value}``, unconstrained. Names begin with ``prior.``; equal names are one learnable number.
        """
        return {}

    @abstractmethod
    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """The prior of the whole parameter for given values of what it depends on.

        Args:
            values: Of every parent, shape ``(*draws, *event)``, and of every learnable number.
            name: Site name of the parameter.
            parameter: The parameter with its initial value.
            module: The layer that owns it.

        Returns:
            A distribution with batch shape ``draws`` and event shape `parameter.shape`.
        """


class Prior(WeightPrior):
    """Maps one parameter of a network to its prior distribution.

    A subclass implements :meth:`elementwise`; the base class gives the result the parameter's own shape, so that the
    prior of a whole tensor is one Pyro site.

    The distribution is made once, when the model is built, and again when that moves to another device or dtype. So
    nothing may be drawn in it: a prior with latent scales is a :class:`HierarchicalPrior`.
    """

    @abstractmethod
    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """The prior of the elements of `parameter`, on its device and in its dtype.

        Args:
            name: Site name, such as ``net.0.weight``.
            parameter: The parameter with its initial value.
            module: The layer that owns it.

        Returns:
            A distribution over real numbers whose batch shape broadcasts to the parameter's shape.
        """

    def __call__(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """The prior of the whole parameter: event shape `parameter.shape`, no batch shape."""
        return self.elementwise(name, parameter, module).expand(parameter.shape).to_event(parameter.dim())

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """The fixed distribution, whatever the values."""
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
        """The prior of the elements of `parameter`, given what it depends on.

        Args:
            values: Every parent and every learnable number. A value of event shape e comes with shape
                ``(*draws, 1, ..., 1, *e)`` and so broadcasts with the parameter as e itself would.
            name: Site name of the parameter.
            parameter: The parameter with its initial value.
            module: The layer that owns it.

        Returns:
            A distribution over real numbers whose batch shape broadcasts to ``(*draws, *parameter.shape)``.
        """

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """The prior of the whole parameter: batch shape ``draws``, event shape `parameter.shape`."""
        parents = self.parents(name, parameter, module)
        event_dims = {
            key: value.dim() if key not in parents else parents[key].event_dim for key, value in values.items()
        }
        leads = {key: value.shape[: value.dim() - event_dims[key]] for key, value in values.items()}
        num_lead = max(map(len, leads.values()))
        # Particles have the leading axes (S, 1) or just (S,), with the rows first in both: pad on the right.
        leads = {key: torch.Size([*lead, *[1] * (num_lead - len(lead))]) for key, lead in leads.items()}
        lined_up = {}
        for key, value in values.items():
            event = value.shape[value.dim() - event_dims[key] :]
            lined_up[key] = value.reshape(*leads[key], *[1] * (parameter.dim() - len(event)), *event)
        lead = torch.broadcast_shapes(*leads.values())
        prior = self.elementwise_given(lined_up, name, parameter, module)
        return prior.expand((*lead, *parameter.shape)).to_event(parameter.dim())


def prior_name(name: str, per: str, quantity: str) -> str:
    """The name of something that the prior of a parameter depends on.

    Args:
        name: Site name of the parameter, such as ``net.0.weight``.
        per: Whether all parameters of a "layer" share it, or each "parameter" has its own.
        quantity: What it is.

    >>> prior_name("net.0.weight", "layer", "scale"), prior_name("net.0.weight", "parameter", "scale")
    ('prior.0.scale', 'prior.0.weight.scale')
    """
    path = name.split(".")[1:]
    return ".".join([PRIOR_PREFIX, *(path[:-1] if per == "layer" else path), quantity])
