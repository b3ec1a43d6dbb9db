"""The interface of priors: fixed and hierarchical ones."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core import checks as _checks

PRIOR_PREFIX = "prior"


def scale_like(name: str, scale: float, parameter: Tensor) -> Tensor:
    """Return a scale on a parameter's device. The dtype must be able to represent the scale and 1 / scale^2."""
    _checks.scale_in(name, scale, parameter.dtype)
    return parameter.new_full((), float(scale))


class WeightPrior(ABC):
    """A prior of a network's parameters, which may depend on latent variables and learnable numbers.

    Subclass :class:`Prior` if the distribution is fixed, else :class:`HierarchicalPrior`.

    Every method gets the name of a parameter's site, such as ``net.0.weight``, the parameter with its initial value,
    and the layer of the parameter (`module`).
    """

    def parents(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, TorchDistributionMixin]:
        """Return the latent variables on which the prior of a parameter depends, ``{site name: their own prior}``.

        Names begin with ``prior.``. Parameters that give the same name share the variable.
        """
        return {}

    def learned(self, name: str, parameter: Tensor, module: nn.Module) -> Mapping[str, Tensor]:
        """Return the learnable numbers on which the prior of a parameter depends, ``{name: initial value}``.

        They are unconstrained. Names begin with ``prior.``. Parameters that give the same name share the number.
        """
        return {}

    @abstractmethod
    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """Return the prior of a parameter, with batch shape ``draws`` and event shape `parameter.shape`.

        `values` holds all parents, shape ``(*draws, *event)``, and all learnable numbers.
        """


class Prior(WeightPrior):
    """A prior that gives each parameter a fixed distribution.

    A subclass implements :meth:`elementwise`, whose result is expanded to the parameter's shape. A model calls
    `elementwise` when it is built or moved to another device or dtype, so the method must not draw random numbers. For
    latent scales, use a :class:`HierarchicalPrior`.

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

        The support of this prior must be the real numbers, and its batch shape must broadcast to the parameter's shape.
        """

    def __call__(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistributionMixin:
        """Return the prior of a parameter, with event shape `parameter.shape` and no batch shape."""
        return self.elementwise(name, parameter, module).expand(parameter.shape).to_event(parameter.dim())

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        return self(name, parameter, module)


class HierarchicalPrior(WeightPrior):
    """A prior that depends on latent variables (its parents), on learnable numbers, or on both.

    A subclass implements :meth:`elementwise_given`, and at least one of :meth:`parents` and :meth:`learned`. The
    parents become sample sites, drawn once per call before the weights and inferred with them. Learnable numbers become
    parameters in ``model.prior_parameters``, and a variational fit learns them by maximising the ELBO.
    """

    @abstractmethod
    def elementwise_given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        """Return the prior of the elements of `parameter`, given its parents and learnable numbers.

        In `values`, a value with the event shape e has the shape ``(*draws, 1, ..., 1, *e)``, which broadcasts with the
        parameter. The batch shape of the result must broadcast to ``(*draws, *parameter.shape)``.
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
        """Return the number of event axes of each parent, cached because :meth:`parents` may wait for a GPU."""
        kept: dict[object, dict[str, int]] = vars(self).setdefault("_kept", {})  # a subclass may be a frozen dataclass
        key = name, parameter.shape
        if key not in kept:
            parents = self.parents(name, parameter, module)
            kept[key] = {parent: distribution.event_dim for parent, distribution in parents.items()}
        return kept[key]


def prior_name(name: str, per: str, quantity: str) -> str:
    """Return the name of a variable on which the prior of the parameter `name` depends.

    If `per` is "layer", all parameters of a layer share the variable; if it is "parameter", each has its own.

    Example:
        >>> from pyro_bnn.modelling.priors import prior_name
        >>> prior_name("net.0.weight", "layer", "scale")
        'prior.0.scale'
        >>> prior_name("net.0.weight", "parameter", "scale")
        'prior.0.weight.scale'
    """
    path = name.split(".")[1:]
    return ".".join([PRIOR_PREFIX, *(path[:-1] if per == "layer" else path), quantity])
