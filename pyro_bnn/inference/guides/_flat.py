"""Base classes of guides that can be fitted without Pyro's effect handlers."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions.transforms import IndependentTransform

from ..._core import checks as _checks
from ..._core.copies import plant
from ..._core.reflection import has_hooks, overridden_names
from ..._core.scope import AbstractPyroModule, allow_local_mode, local_param
from ..._core.summary import SITE_COLUMNS, Shown, Summary, counted, kind_of, shape_row
from ...modelling.model import BayesianModel
from ..joint import Joint, Site, constrained
from ..scale_maps import ScaleMap, Softplus
from ._init import Init, init_or_default
from ._state import FlatState, Noise, ParameterVector

Choice = Callable[[Site, dist.Normal], dist.Normal]
"""Function that gets a site and its Gaussian in the guide, and returns the distribution to draw from instead."""


class FlatGuide(Shown, PyroModule, metaclass=AbstractPyroModule):  # type: ignore[metaclass]
    """A guide whose ELBO can be differentiated without effect handlers.

    A subclass defines its distribution twice: in `forward`, as any Pyro guide does, and in :meth:`flat`, which moves
    all parameters into long vectors for fast fits. Each parameter has the name of its site.
    """

    sites: tuple[Site, ...]
    """The latent variables, in the order of the model."""

    def __init__(self) -> None:
        super().__init__()
        allow_local_mode(self)

    @abstractmethod
    def flat(self, joint: Joint, *, noise: Noise | None, closed_form: bool) -> AbstractContextManager[FlatState]:
        """Return a context that moves the parameters into vectors, and yields the state of the guide.

        Args:
            joint: The joint density of the model, over the sites of the guide.
            noise: What the network gets besides the mean of each weight, for a gradient estimator: the deviation or the
                variance. With ``None``, the network runs with drawn weights. With another value, guides without support
                for estimators raise an error.
            closed_form: Whether to use closed-form divergences where the prior has them.
        """

    @abstractmethod
    def draws(self, num_samples: int) -> Iterator[dict[str, Tensor]]:
        """Yield draws of all latent variables, ``{site: shape (*event)}``, without effect handlers."""

    @abstractmethod
    def median(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Return the median of every latent variable, ``{site: shape (*event)}``. The arguments are ignored."""

    def tree(self, kind: str) -> nn.Module:
        """Return the module with the parameters of one kind, such as "loc".

        Use this method instead of `getattr`, which may put the parameters into Pyro's global store.
        """
        found = self._modules[kind]
        assert found is not None
        return found

    def values(self, kind: str) -> dict[str, Tensor]:
        """Return each site's parameter of the given kind, such as "loc", detached and without a copy."""
        return {site.name: self.tree(kind).get_parameter(site.name).detach() for site in self.sites}

    def locations(self) -> dict[str, Tensor]:
        """Return the location of each site in unconstrained space, ``{site: shape (*event)}``, without a copy."""
        return self.values("loc")

    def stated(self, kind: str, site: str) -> Tensor:
        """Pass a site's parameter of one kind, such as "loc", to Pyro's `param` statement, and return its value."""
        return local_param(self._pyro_get_fullname(f"{kind}.{site}"), self.tree(kind).get_parameter(site))

    def constrained(self, free: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Map unconstrained values of all sites to the supports of the sites."""
        return constrained(self.sites, free)

    def sample_at(self, free: Mapping[str, Tensor], *, jacobian: bool) -> dict[str, Tensor]:
        """Make a `sample` statement for each site, given its unconstrained value.

        The statement's log-density is minus the log Jacobian of the site's transform if `jacobian` is true, else 0.
        """
        values = self.constrained(free)
        for site in self.sites:
            value, log_density = values[site.name], 0.0
            if jacobian and site.transform is not None:
                lead = value.shape[: value.dim() - site.prior.event_dim]
                log_density = -site.transform.log_abs_det_jacobian(free[site.name], value).reshape(*lead, -1).sum(-1)
            delta = dist.Delta(value, log_density=log_density, event_dim=site.prior.event_dim)
            values[site.name] = pyro.sample(site.name, delta)
        return values

    def _summary(self) -> Summary:
        parameters = list(self.parameters())
        numbers = counted(sum(site.start.numel() for site in self.sites), "number")
        learned = counted(sum(parameter.numel() for parameter in parameters), "parameter")
        title = f"{type(self).__name__} of {numbers} in {counted(len(self.sites), 'tensor')}: {learned}"
        return Summary(
            f"{title}, {kind_of(parameters[0])}",
            self.remarks(),
            [shape_row(site.name, site.start.shape) for site in self.sites],
            columns=SITE_COLUMNS,
        )

    def remarks(self) -> list[str]:
        """Return additional lines for the guide's summary."""
        return []

    def joint(self, model: BayesianModel) -> Joint:
        """Return the joint density for which :meth:`flat` computes gradients."""
        return Joint(model)

    @property
    def changes(self) -> str | None:
        """The reason why a call of the guide may differ from :meth:`flat`, such as hooks; None if they agree."""
        if has_hooks(self):
            return "the model or the guide has hooks"
        family = next(base for base in type(self).__mro__ if "flat" in vars(base))
        overridden = overridden_names(type(self), family)
        return f"{type(self).__name__} overrides {', '.join(overridden)}" if overridden else None

    def obstacle(self, joint: Joint) -> str | None:
        """Return why :meth:`flat` does not work with a joint density; None if it works."""
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
            shape = self.shape_of(name, joint)
            has_kind = (parameter.dtype, parameter.device) == (joint.model.dtype, joint.model.device)
            if shape not in (None, parameter.shape) or not has_kind:
                return "parameters of the guide differ from those of the network in shape, dtype or device"
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in named.values()):
            return "parameters of the guide have hooks"
        return None if any(p.requires_grad for p in named.values()) else "all parameters of the guide are frozen"

    def shape_of(self, parameter: str, joint: Joint) -> torch.Size | None:
        """Return the shape of a parameter's site, given the parameter's name, such as `loc.net.weight`."""
        return joint.layout.shapes.get(parameter.partition(".")[2])


class GaussianGuide(FlatGuide):
    """A flat guide with Gaussian variables in unconstrained space. A scale map computes the standard deviations."""

    scale_map: ScaleMap

    def make_parameters(
        self,
        sites: Iterable[Site],
        init: Init | None,
        scale_map: ScaleMap | None,
        stretch: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Make the parameters site by site, to save memory; the scales of `init` are divided by `stretch`."""
        init = init_or_default(init)
        self.sites = tuple(sites)
        self.scale_map = Softplus() if scale_map is None else scale_map
        _checks.kind("scale_map", self.scale_map, ScaleMap, "a ScaleMap, such as scale_maps.Softplus()")
        self.loc, free = nn.Module(), nn.Module()
        self.add_module(self.scale_map.name, free)
        for site in self.sites:
            loc, rho = init(site)
            if stretch is not None or not isinstance(self.scale_map, Softplus):
                rho = self.scale_map.start(Softplus()(rho) / (1 if stretch is None else stretch[site.name]))
            plant(self.loc, site.name, loc)
            plant(free, site.name, rho)

    def vectors(self, joint: Joint) -> tuple[ParameterVector, ParameterVector]:
        """Move the locations into one vector, and the free parameters of the scales into another."""
        kinds, names = ("loc", self.scale_map.name), joint.layout.shapes
        loc, free = (ParameterVector(self.tree(kind), names) for kind in kinds)
        return loc, free

    @abstractmethod
    def scales(self) -> dict[str, Tensor]:
        """Return the marginal standard deviations in unconstrained space, ``{site: shape (*event)}``."""

    def median(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.quantiles([0.5]).items()}

    def quantiles(self, quantiles: list[float]) -> dict[str, Tensor]:
        """Return Q marginal quantiles of every latent variable, ``{site: shape (Q, *event)}``."""
        levels = [_checks.between_zero_and_one("quantiles", q) for q in _checks.items("quantiles", quantiles, "a list")]
        locations, scales, free = self.locations(), self.scales(), {}
        for name, loc in locations.items():
            deviations = torch.special.ndtri(loc.new_tensor(levels)).reshape(-1, *[1] * loc.dim())
            free[name] = loc + scales[name] * deviations
        return self.constrained(free)


def _are_alike(first: Site, second: Site) -> bool:
    a, b = first.transform, second.transform
    while isinstance(a, IndependentTransform) and isinstance(b, IndependentTransform):
        a, b = a.base_transform, b.base_transform
    is_same = bool(a == b) or (type(a) is type(b) and not _settings(a) and not _settings(b))  # Pyro's have no `==`
    return (first.name, first.start.shape) == (second.name, second.start.shape) and is_same


def _settings(transform: object) -> list[str]:
    return [name for name in vars(transform) if not name.startswith("_")] if transform is not None else []
