"""The guide with one independent Gaussian per weight."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ..._core import checks as _checks
from ..._core.copies import tree
from ..._core.devices import reads_wait
from ..._core.reflection import elementwise, move_distribution
from ..._core.summary import counted
from ..joint import LOG_ROOT_TAU, Joint, NormalDensity, Piece, Site, find_sites
from ..scale_maps import Precision, ScaleMap
from ._flat import Choice, GaussianGuide
from ._init import Init
from ._masks import FlatMask, PrunedNormal, masks_of
from ._natural_state import NaturalState, diagonal_hessians
from ._state import FlatState, Noise, ParameterVector, RandomParameter, lent, scratch_for


def normal_draw(mean: Tensor, deviation: Tensor) -> Tensor:
    return torch.addcmul(mean, deviation, torch.randn(mean.shape, dtype=mean.dtype, device=mean.device))


class MeanFieldGuide(GaussianGuide):
    r"""A guide with one independent Gaussian for each element of each latent variable.

    .. math:: q(w) = \prod_i N(w_i; \mu_i, \sigma_i^2), \qquad \sigma_i = \log(1 + e^{\rho_i}).

    A latent variable with constrained support, such as a noise scale, is Gaussian in unconstrained space. The guide
    works with `Trace_ELBO` and with `TraceMeanField_ELBO`, which uses closed-form divergences where the prior has them.

    All parameters exist from the start, so a state dict can be loaded before the first call. They are not in Pyro's
    global store.

    Args:
        model: A :class:`~pyro_bnn.BayesianModel`, or any other Pyro model together with example arguments.
        *args: Example arguments of any other Pyro model, including the targets. Without targets, the observed site
            would count as a latent variable.
        init: Initial locations and scales. By default the guide is centred on the network's own weights.
        scale_map: Map from free parameters to standard deviations, by default :class:`~pyro_bnn.scale_maps.Softplus`.
            It affects the steps of an optimizer, and the parameters' names, such as ``rho.*``.
        learn_locations: Whether the locations are learned. If False, they have ``requires_grad=False`` and stay at the
            values of `init`.
        **kwargs: Example keyword arguments of any other Pyro model.

    Raises:
        ValueError: If the model has no latent variable, a discrete latent variable, or a latent variable inside a
            subsampled plate.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(0, 1, 20)[:, None]
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> prior = pb.NormalPrior(1.0)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> guide = pb.MeanFieldGuide(model)
        >>> posterior = pb.fit(model, (x, 2 * x), guide=guide, seed=0)
        >>> mean, scale = guide.locations(), guide.scales()
        >>> print(f"{mean['net.weight'].item():.1f} ± {scale['net.weight'].item():.2f}")
        2.0 ± 0.04

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
        self.make_parameters(find_sites(model, args, kwargs), init, scale_map)
        self.loc.requires_grad_(_checks.flag("learn_locations", learn_locations))

    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draw every latent variable, ``{site: value}``. The arguments are ignored."""
        draws: dict[str, Tensor] = {}
        plates: dict[str, object] = {}
        for site in self.sites:
            with site.enter(plates):
                draws[site.name] = pyro.sample(site.name, self._distribution(site))
        return draws

    def draws(self, num_samples: int) -> Iterator[dict[str, Tensor]]:
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        locations, scales = self.locations(), self.scales()
        first, are_alike = next(iter(locations.values())), len({loc.dtype for loc in locations.values()}) == 1
        if reads_wait(first.device) and are_alike:  # one kernel for all variables, since each takes long to start
            sizes = [loc.numel() for loc in locations.values()]
            mean, deviation = (torch.cat([values[n].flatten() for n in locations]) for values in (locations, scales))
            for _ in range(num_samples):
                parts = zip(locations.items(), normal_draw(mean, deviation).split(sizes), strict=True)
                yield self.constrained({name: part.view(loc.shape) for (name, loc), part in parts})
            return
        for _ in range(num_samples):
            yield self.constrained({name: normal_draw(loc, scales[name]) for name, loc in locations.items()})

    def flat(self, joint: Joint, *, noise: Noise | None, closed_form: bool) -> AbstractContextManager[FlatState]:
        is_closed = {name: closed_form and density.is_closed for name, density in joint.densities.items()}
        mask = FlatMask(joint, self, is_closed)
        return lent(MeanFieldState(joint, *self.vectors(joint), self.scale_map, mask, noise, is_closed))

    def natural(
        self, joint: Joint, *, initial_hessian: float | None, gauss_newton_every: int | None, adds_up: bool
    ) -> AbstractContextManager[NaturalState]:
        """Return a context that yields a :class:`NaturalState`."""
        if not isinstance(self.scale_map, Precision):
            raise ValueError(
                "natural-gradient inference needs a guide with precisions, got a guide with the scale map "
                f"{type(self.scale_map).__name__}; make it with `scale_map=scale_maps.Precision()`."
            )
        if not all(parameter.requires_grad for parameter in self.parameters()):
            raise ValueError(
                "natural-gradient inference updates all parameters of a guide, got a guide with frozen ones; fit it "
                "with Adam and another scale map, or call `guide.requires_grad_(True)`."
            )
        is_closed = {name: isinstance(density, NormalDensity) for name, density in joint.densities.items()}
        mask = FlatMask(joint, self, is_closed)
        vectors = self.vectors(joint)
        computed = {hessian.name for hessian in diagonal_hessians(joint)}
        others = [name for name, closed in is_closed.items() if not (closed or name in computed)]
        if others and gauss_newton_every is not None:
            raise ValueError(
                f"`gauss_newton_every` needs Gaussian priors of the weights, got another prior at `{others[0]}`; leave "
                "it out."
            )
        return lent(
            NaturalState(
                joint,
                *vectors,
                mask,
                initial_hessian=initial_hessian,
                gauss_newton_every=gauss_newton_every,
                adds_up=adds_up,
            )
        )

    @contextmanager
    def intercepted(self, choice: Choice) -> Iterator[None]:
        """Open a context in which each site is drawn from `choice(site, Gaussian)` instead of from its Gaussian."""
        if self._choice is not None:
            raise ValueError("an estimator is already applied to this guide; end its `with` block first.")
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
                    "an estimator in your own loop does not work with a guide whose weights were removed; continue "
                    "training with `fit_svi(..., estimator=...)`, or without an estimator."
                )
            normal = self._choice(site, normal)
        elif site.name in self.masks:
            prior = move_distribution(elementwise(site.name, site.prior, site.start.shape), normal.loc)
            normal = PrunedNormal(normal, self.kept(site.name), prior)
        base = normal.to_event(site.unconstrained_event_dim)
        return base if site.transform is None else dist.TransformedDistribution(base, [site.transform])

    @property
    def masks(self) -> dict[str, Tensor]:
        """For each site with removed elements, a boolean mask of the elements that are still random."""
        return masks_of(self)

    def remarks(self) -> list[str]:
        masks = self.masks.values()
        removed = sum(mask.numel() - int(mask.sum()) for mask in masks)
        frozen = sum(p.numel() for p in self.tree("loc").parameters() if not p.requires_grad)
        remarks = [f"{removed:,} weights of {len(masks)} sites are removed"] if masks else []
        return [*remarks, f"{counted(frozen, 'location')} frozen"] if frozen else remarks

    def kept(self, site: str) -> Tensor:
        """Return a mask in the shape of a site: False for elements that were removed, for example by pruning."""
        _checks.one_of("site", site, [own.name for own in self.sites])
        mask = self.masks.get(site)
        return torch.ones_like(self.tree("loc").get_parameter(site), dtype=torch.bool) if mask is None else mask

    @torch.no_grad()
    def keep_only(self, masks: Mapping[str, Tensor]) -> None:
        """Remove each element whose mask is false, given masks ``{site: shape (*event)}``.

        A site without a mask keeps all elements.

        Raises:
            ValueError: If a site does not exist, or a mask is not a boolean tensor of the site's shape.
        """
        _checks.kind("masks", masks, Mapping, "a dict of masks, each from `guide.kept(site)`")
        for name, mask in masks.items():
            shape = self.kept(name).shape
            if _checks.tensor(f"masks[{name!r}]", mask).dtype != torch.bool or mask.shape != shape:
                got = f"{mask.dtype} of shape {_checks.shape(mask)}"
                raise ValueError(f"`masks` of `{name}` must be torch.bool of shape {tuple(shape)}, got {got}.")
        self._modules.pop("keep", None)
        if masks:
            self.add_module("keep", tree(masks))
        for name, mask in masks.items():
            for kind, value in (("loc", 0.0), (self.scale_map.name, self.scale_map.moderate)):
                self.tree(kind).get_parameter(name)[~mask] = value

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state. If the state does not match the guide, raise an error and leave the guide unchanged."""
        before = {name: value.clone() for name, value in self.state_dict().items()}
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError:
            super().load_state_dict(before)
            raise

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a state, and replace the guide's masks by the masks in the state."""
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
        """Return the means in unconstrained space, ``{site: shape (*event)}``; 0 for removed weights."""
        return self._or_zero(self.values("loc"))

    def scales(self) -> dict[str, Tensor]:
        """Return the standard deviations in unconstrained space, ``{site: shape (*event)}``; 0 for removed weights."""
        return self._or_zero({n: self.scale_map(free) for n, free in self.values(self.scale_map.name).items()})

    def _or_zero(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return values | {site: torch.where(mask, values[site], 0) for site, mask in self.masks.items()}


class MeanFieldState(FlatState):
    r"""Draws :math:`w = \mu + \sigma\epsilon`, and computes the gradients with respect to :math:`\mu` and :math:`\rho`.

    The loss is :math:`L + \lambda (\log q(w) - \log p(w))`, where L is minus the log-likelihood, and :math:`\lambda`
    the weight of the divergence. With :math:`g = \nabla_w (L - \lambda \log p)` at given :math:`\epsilon`

    .. math:: \nabla_\mu = g, \qquad \nabla_\sigma = g\,\epsilon - \lambda/\sigma, \qquad
              \nabla_\rho = \nabla_\sigma\, \frac{d\sigma}{d\rho}.

    If the divergence has a closed form D, then with :math:`g = \nabla_w L`

    .. math:: \nabla_\mu = g + \lambda \frac{dD}{d\mu}, \qquad
              \nabla_\sigma = g\,\epsilon + \lambda \frac{dD}{d\sigma}.

    With an estimator, the network gets :math:`\mu` and the noise instead of w. With the deviation :math:`\delta =
    \sigma\epsilon` as noise, :math:`\nabla_\sigma L = \nabla_\delta L\,\epsilon`. With the variance v as noise,
    :math:`\nabla_\sigma L = 2\sigma\nabla_v L`.
    """

    def __init__(
        self,
        joint: Joint,
        loc: ParameterVector,
        free: ParameterVector,
        scale_map: ScaleMap,
        mask: FlatMask,
        noise: Noise | None,
        is_closed: Mapping[str, bool],
    ) -> None:
        super().__init__(joint, {"loc": loc, "free": free})
        self._loc, self._free, self._scale_map, self._mask = loc.value, free.value, scale_map, mask
        self._noise_kind = noise
        layers = {site.name for site in joint.sites if site.transform is None} & {*joint.model.site_names}
        self._estimated = set() if noise is None else layers
        undrawn = {name for name in self._estimated if noise is Noise.VARIANCE and is_closed[name]}
        self._drawn = [site.name for site in joint.sites if site.name not in undrawn]
        self._pieces = joint.pieces(lambda site: (is_closed[site.name], site.name in self._estimated))
        self._scale, self._noise = torch.empty_like(self._free), torch.zeros_like(self._free)
        self._noises = joint.layout.views(self._noise)
        self.value = torch.empty_like(self._loc) if self._drawn else self._loc
        self.value_grad = torch.zeros_like(self._loc)
        self._asked = torch.empty_like(self._free) if noise is not None else None  # deviations or variances
        # Without an estimator, the gradient in the scale is the gradient in the weight times the noise, and this
        # product can overwrite the noise.
        self._scale_grad = self._noise if noise is None else torch.zeros_like(self._free)
        self._scratch = scratch_for(self._pieces, self._loc)
        loc.set_gradient(self.value_grad)
        free.set_gradient(self._scale_grad)

    @property
    def gradients(self) -> list[Tensor]:
        return [self.value_grad, self._scale_grad]

    @torch.no_grad()
    def update(self) -> None:
        self._mask.require_same()
        for piece in self._pieces:
            part, size = piece.part, piece.part.stop - piece.part.start
            self._scale_map.write(self._free[part], self._scale[part], self._scratch[:, :size])
        self._mask.fill(self._loc, 0)
        self._mask.fill_scales(self._scale)

    def draw(self) -> Mapping[str, Tensor | RandomParameter]:
        for name in self._drawn:
            self._noises[name].normal_()
        with torch.no_grad():
            self.value_grad.zero_()
            self._mask.fill(self._noise, 0)
            if self._drawn:
                torch.addcmul(self._loc, self._scale, self._noise, out=self.value)
        given: dict[str, Tensor | RandomParameter] = {}
        given.update(self.joint.constrained(self.leaves(self.value, self.value_grad)))
        if self._noise_kind is None or self._asked is None:
            return given
        with torch.no_grad():
            is_deviation = self._noise_kind is Noise.DEVIATION
            torch.mul(self._scale, self._noise if is_deviation else self._scale, out=self._asked)
            self._mask.fill(self._asked, 0)
            self._scale_grad.zero_()
        locs, asked = self.leaves(self._loc, self.value_grad), self.leaves(self._asked, self._scale_grad)
        for name in self._estimated:
            given[name] = RandomParameter.of(self._noise_kind, name, locs[name], asked[name])
        return given

    @torch.no_grad()
    def pull_back(self, weight: float) -> Tensor:
        terms = [self._pull_back(piece, weight) for piece in self._pieces]
        return torch.stack(terms).sum() - self._mask.constant

    def _pull_back(self, piece: Piece, weight: float) -> Tensor:
        part, density = piece.part, piece.density
        loc, scale, noise = self._loc[part], self._scale[part], self._noise[part]
        loc_grad, scale_grad = self.value_grad[part], self._scale_grad[part]
        slope, scale_slope, *scratch = self._scratch[:, : part.stop - part.start]
        is_closed, is_estimated = piece.kind
        if is_closed:
            divergence = density.divergence(loc, scale, slope, scale_slope, scratch)
            self._chain(scale_grad, loc_grad, scale, noise, is_estimated)
            loc_grad.add_(slope, alpha=weight)
            scale_grad.add_(scale_slope, alpha=weight)
        else:
            log_scales = torch.log(scale, out=scale_slope).sum().double()
            log_q = -0.5 * torch.dot(noise, noise).double() - log_scales - len(loc) * LOG_ROOT_TAU
            if is_estimated:  # `scale_grad` already holds the network's gradient
                log_p = density.log_prob(self.value[part], slope, scratch)
                self._chain(scale_grad, loc_grad, scale, noise, is_estimated)
                scale_grad.addcmul_(slope, noise, value=-weight)
                loc_grad.sub_(slope, alpha=weight)
            else:
                log_p = density.add_slope(self.value[part], loc_grad, -weight, [slope, *scratch])
                self._chain(scale_grad, loc_grad, scale, noise, is_estimated)
            divergence = log_q - log_p
            scale_grad.sub_(torch.reciprocal(scale, out=scale_slope), alpha=weight)
        scale_grad.mul_(self._scale_map.slope(self._free[part], scale, scale_slope))
        self._mask.fill(scale_grad, 0, part)
        self._mask.fill(loc_grad, 0, part)
        return divergence

    def _chain(self, scale_grad: Tensor, loc_grad: Tensor, scale: Tensor, noise: Tensor, is_estimated: bool) -> None:
        """Write the gradient with respect to the scale into `scale_grad`.

        With an estimator, `scale_grad` first holds the gradient with respect to the deviation or the variance.
        """
        if not is_estimated:
            torch.mul(noise, loc_grad, out=scale_grad)
        elif self._noise_kind is Noise.DEVIATION:
            scale_grad.mul_(noise)
        else:
            scale_grad.mul_(scale).mul_(2)

    def is_degenerate(self, site: str) -> bool:
        return not bool((self.joint.layout.views(self._scale)[site] > 0).all())
