"""The interface of priors, and the two kinds of priors: fixed and hierarchical."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks

PRIOR_PREFIX = "prior"


def scale_like(name: str, scale: float, parameter: Tensor) -> Tensor:
    """Return a scale as a tensor on a parameter's device. Raise unless its dtype can hold the scale and 1 / scale^2."""
    _checks.scale_in(name, scale, parameter.dtype)
    return parameter.new_full((), float(scale))


class WeightPrior(ABC):
    """A prior of a network's parameters. The prior may depend on latent variables and on learnable numbers.

    To write a prior, subclass :class:`Prior` if the distribution is fixed, else :class:`HierarchicalPrior`.

    Every method gets the site name of a parameter, such as ``net.0.weight``, the parameter with its initial value, and
    the layer (`module`) that owns the parameter.
    """

    def parents(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, TorchDistributionMixin]:
        """Return the latent variables on which the prior of a parameter depends, ``{site name: their own prior}``.

        Names begin with ``prior.``. If the parents of several parameters have the same name, these parameters share one
        parent.
        """
        return {}

    def learned(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, Tensor]:
        """Return the learnable numbers on which the prior of a parameter depends, ``{name: initial value}``.

        Values are unconstrained, and names begin with ``prior.``. Parameters with the same name share one number.
        """
        return {}

    @abstractmethod
    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """Return the prior of the whole parameter, with batch shape ``draws`` and event shape `parameter.shape`.

        `values` holds the values of all parents, shape ``(*draws, *event)``, and of all learnable numbers.
        """


class Prior(WeightPrior):
    """A prior that gives each parameter of a network a fixed distribution.

    A subclass implements :meth:`elementwise`, whose result is expanded to the shape of the parameter, so that the whole
    parameter is one Pyro site. A model calls `elementwise` when the model is built, and again when the model moves to
    another device or dtype. So `elementwise` must not draw random numbers. For latent scales, use a
    :class:`HierarchicalPrior`.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> import pyro.distributions as dist
        >>> class Heavy(pb.Prior):
        ...     def elementwise(self, name, parameter, module):
        ...         return dist.StudentT(3.0, parameter.new_zeros(()), 0.5)
        >>> net, likelihood = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=Heavy(), likelihood=likelihood, num_data=20
        ... )
    """

    @abstractmethod
    def elementwise(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """Return the prior of the elements of `parameter`, on its device and in its dtype.

        The support must be the real numbers, and the batch shape must broadcast to the parameter's shape.
        """

    def __call__(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """Return the prior of the whole parameter, with event shape `parameter.shape` and no batch shape."""
        return self.elementwise(name, parameter, module).expand(parameter.shape).to_event(parameter.dim())

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        return self(name, parameter, module)


class HierarchicalPrior(WeightPrior):
    """A prior that depends on latent variables (its parents), on learnable numbers, or on both.

    A subclass implements :meth:`elementwise_given`. It also implements :meth:`parents`, :meth:`learned`, or both. The
    parents become sample sites of the model. A call of the model draws the parents once, before the weights, and a fit
    infers both together. Learnable numbers become parameters of the model, ``model.prior_parameters``; a fit chooses
    the values that maximise the ELBO.
    """

    @abstractmethod
    def elementwise_given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """Return the prior of the elements of `parameter`, given its parents and learnable numbers.

        The tensors in `values` broadcast with the parameter: if a number has the event shape e, its tensor has the
        shape ``(*draws, 1, ..., 1, *e)``.

        The batch shape of the result must broadcast to ``(*draws, *parameter.shape)``.
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
        """Return the number of event axes of each parent.

        The result is cached, since :meth:`parents` may wait for a GPU.
        """
        kept: dict[object, dict[str, int]] = vars(self).setdefault("_kept", {})  # a subclass may be a frozen dataclass
        key = name, parameter.shape
        if key not in kept:
            parents = self.parents(name, parameter, module)
            kept[key] = {parent: distribution.event_dim for parent, distribution in parents.items()}
        return kept[key]


def prior_name(name: str, per: str, quantity: str) -> str:
    """Return the name of a latent variable or learnable number on which the prior of the parameter `name` depends.

    If `per` is "layer", all parameters of a layer share the variable. If `per` is "parameter", each parameter has its
    own variable.

    Example:
        >>> from pyro_bnn.modelling.priors import prior_name
        >>> prior_name("net.0.weight", "layer", "scale")
        'prior.0.scale'
        >>> prior_name("net.0.weight", "parameter", "scale")
        'prior.0.weight.scale'
    """
    path = name.split(".")[1:]
    return ".".join([PRIOR_PREFIX, *(path[:-1] if per == "layer" else path), quantity])
