"""The mean-field Gaussian guide."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ..._core import checks as _checks
from ..._core.reflection import elementwise, move_distribution
from ..._core.summary import counted
from ..joint import Joint, NormalDensity, Site, find_sites
from ..scale_maps import Precision, ScaleMap
from ._flat import Choice, FlatState, GaussianGuide, Noise, lent
from ._init import Init
from ._masks import FlatMask, PrunedNormal
from ._mean_field_state import MeanFieldState
from ._natural_state import NaturalState
from ._parameters import tree


class MeanFieldGuide(GaussianGuide):
    r"""One independent Gaussian per element of every latent variable.

    .. math:: q(w) = \prod_i N(w_i; \mu_i, \sigma_i^2), \qquad \sigma_i = \log(1 + e^{\rho_i}).

    Another `scale_map` gives the same family of distributions; only the steps of an optimizer differ.

    A latent variable with constrained support, such as a noise scale, is a Gaussian pushed through Pyro's bijection
    to that support. Every site is sampled from its real distribution, so `Trace_ELBO` and `TraceMeanField_ELBO` agree;
    the second uses closed-form divergences where the prior has them.

    All parameters exist from the start and are never in Pyro's global store: a state dict can be loaded at once, and
    two guides share no parameter.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or any Pyro model together with the arguments it is called with.
        *args: Example arguments for a model of another kind; they must include the targets, or the observed site
            counts as latent.
        init: First locations and scales; by default centred on the network's own weights.
        scale_map: Map from the free parameters to standard deviations; also gives the parameters their name:
            ``rho.*`` for :class:`~pyro_bnn.scale_maps.Softplus`, the default. With
            :class:`~pyro_bnn.scale_maps.Capped` no scale exceeds a cap.
        learn_locations: Whether the locations are learned; if not, they stay those of `init`, as parameters with
            ``requires_grad=False``, and only the scales are learned.
        **kwargs: Example keyword arguments.

    Raises:
        ValueError: If the model has no latent variable, a discrete one, or one inside a subsampled plate.

    Example:
        >>> import pyro, pyro.distributions as dist
        >>> def coin(flips):
        ...     p = pyro.sample("p", dist.Beta(2.0, 2.0))
        ...     with pyro.plate("data", len(flips)):
        ...         pyro.sample("obs", dist.Bernoulli(p), obs=flips)
        >>> guide = MeanFieldGuide(coin, torch.ones(3))
        >>> sorted(guide.median())
        ['p']

    References:
        Blundell et al. (2015), https://arxiv.org/abs/1505.05424; Graves (2011), Practical Variational Inference.
    """

    def __init__(
        self,
        model: Callable[..., object],
        *args: object,
        init: Init | None = None,
        scale_map: ScaleMap | None = None,
        learn_locations: bool = True,
        **kwargs: object,
    ) -> None:
        super().__init__()
        _checks.function("model", model, "a BayesianModel, or a Pyro model with its arguments")
        self._choice: Choice | None = None  # set while an estimator is applied
        self.begin(find_sites(model, args, kwargs), init, scale_map)
        self.loc.requires_grad_(_checks.flag("learn_locations", learn_locations))

    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draw every latent variable; the arguments are those of the model and are ignored.

        Returns:
            ``{site: value}``.
        """
        draws: dict[str, Tensor] = {}
        plates: dict[str, object] = {}
        for site in self.sites:
            with site.enter(plates):
                draws[site.name] = pyro.sample(site.name, self._distribution(site))
        return draws

    def draws(self, num_samples: int) -> Iterator[dict[str, Tensor]]:
        """Draws from the distribution of a call, without effect handlers and with the scales computed once."""
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        locations, scales = self.locations(), self.scales()
        for _ in range(num_samples):
            free = {}
            for name, loc in locations.items():
                noise = torch.randn(loc.shape, dtype=loc.dtype, device=loc.device)
                free[name] = torch.addcmul(loc, scales[name], noise)
            yield self.constrained(free)

    def flat(self, joint: Joint, *, noise: Noise | None, closed_form: bool) -> AbstractContextManager[FlatState]:
        is_closed = {name: closed_form and density.is_closed for name, density in joint.densities.items()}
        mask = FlatMask(joint, lambda: self.masks, is_closed)
        return lent(MeanFieldState(joint, *self.vectors(joint), self.scale_map, mask, noise, is_closed))

    def natural(
        self, joint: Joint, *, initial_hessian: float | None, adds_up: bool
    ) -> AbstractContextManager[NaturalState]:
        """Lend the parameters to steps of natural-gradient inference, which update them without an optimizer.

        Arguments are those of :class:`NaturalState`.

        Raises:
            ValueError: If the parameters of the scales are not precisions, or some are frozen.
        """
        if not isinstance(self.scale_map, Precision):
            raise ValueError(
                "natural-gradient inference updates the precisions of a guide, got a guide with the scale map "
                f"{type(self.scale_map).__name__}; make it with `scale_map=scale_maps.Precision()`."
            )
        if not all(parameter.requires_grad for parameter in self.parameters()):
            raise ValueError(
                "natural-gradient inference updates all parameters of a guide, got a guide with frozen ones; fit it by "
                "Adam with another scale map, or call `guide.requires_grad_(True)`."
            )
        is_closed = {name: isinstance(density, NormalDensity) for name, density in joint.densities.items()}
        mask = FlatMask(joint, lambda: self.masks, is_closed)
        vectors = self.vectors(joint)
        return lent(NaturalState(joint, *vectors, mask, initial_hessian=initial_hessian, adds_up=adds_up))

    @contextmanager
    def intercepted(self, choice: Choice) -> Iterator[None]:
        """A context in which each site is sampled from `choice(site, Gaussian)` instead of its Gaussian.

        Raises:
            ValueError: If such a context is open already.
        """
        if self._choice is not None:
            raise ValueError("an estimator is already applied to this guide; leave its context first.")
        self._choice = choice
        try:
            yield
        finally:
            self._choice = None

    @property
    def changes(self) -> str | None:
        return "an estimator is applied already" if self._choice is not None else super().changes

    def _distribution(self, site: Site) -> TorchDistributionMixin:
        loc, free = self.stated("loc", site.name), self.stated(self.scale_map.name, site.name)
        normal = dist.Normal(loc, self.scale_map(free), validate_args=False)
        if self._choice is not None:
            if self.masks:
                raise ValueError(
                    "weights of the guide were removed, and an estimator in a loop of your own does not work then; "
                    "train it on with `fit_svi(..., estimator=...)`, or without an estimator."
                )
            normal = self._choice(site, normal)
        elif site.name in self.masks:
            prior = move_distribution(elementwise(site.name, site.prior, site.start.shape), normal.loc)
            normal = PrunedNormal(normal, self.kept(site.name), prior)
        base = normal.to_event(site.unconstrained_event_dim)
        return base if site.transform is None else dist.TransformedDistribution(base, [site.transform])

    @property
    def masks(self) -> dict[str, Tensor]:
        """Mask of the elements that are random, boolean, for each site with removed elements."""
        keep = self._modules.get("keep")
        return {} if keep is None else dict(keep.named_buffers())

    def remarks(self) -> list[str]:
        masks = self.masks.values()
        removed = sum(mask.numel() - int(mask.sum()) for mask in masks)
        frozen = sum(p.numel() for p in self.tree("loc").parameters() if not p.requires_grad)
        remarks = [f"{removed:,} weights of {len(masks)} sites are removed"] if masks else []
        return [*remarks, f"{counted(frozen, 'location')} frozen"] if frozen else remarks

    def kept(self, site: str) -> Tensor:
        """Mask of the elements of a site that are random, boolean, of the site's shape; the others were removed.

        See :func:`pyro_bnn.pruning.prune`.
        """
        mask = self.masks.get(site)
        return torch.ones_like(self.tree("loc").get_parameter(site), dtype=torch.bool) if mask is None else mask

    @torch.no_grad()
    def keep_only(self, masks: Mapping[str, Tensor]) -> None:
        """Remove all elements outside these masks; sites without a mask keep all elements.

        Args:
            masks: Elements that stay random, boolean, ``{site: shape (*event)}``.
        """
        self._modules.pop("keep", None)
        if masks:
            self.add_module("keep", tree(masks))
        for name, mask in masks.items():
            for kind, value in (("loc", 0.0), (self.scale_map.name, self.scale_map.moderate)):
                self.tree(kind).get_parameter(name)[~mask] = value

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state as any module does; a state that does not fit leaves the guide as it was."""
        before = {name: value.clone() for name, value in self.state_dict().items()}
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError:
            super().load_state_dict(before)
            raise

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a state with its masks: for every site in the state they replace the guide's masks."""
        masks, before = {}, self.masks
        for site in (site.name for site in self.sites):
            loc, mask = self.tree("loc").get_parameter(site), state_dict.get(f"{prefix}keep.{site}")
            if mask is not None and mask.shape == loc.shape:
                masks[site] = mask.to(loc.device, torch.bool)
            elif site in before and f"{prefix}loc.{site}" not in state_dict:
                masks[site] = before[site]
        self.keep_only(masks)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def locations(self) -> dict[str, Tensor]:
        """Means of the Gaussians, in unconstrained space, ``{site: shape (*event)}``; 0 for removed weights."""
        return self._or_zero(self.values("loc"))

    def scales(self) -> dict[str, Tensor]:
        """Standard deviations of the Gaussians, in unconstrained space, ``{site: shape (*event)}``; 0 if removed."""
        return self._or_zero({n: self.scale_map(free) for n, free in self.values(self.scale_map.name).items()})

    def _or_zero(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return values | {site: torch.where(mask, values[site], 0) for site, mask in self.masks.items()}
