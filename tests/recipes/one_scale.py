"""A mean-field Gaussian guide with a single scale for each latent variable."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from ..._core.copies import tree
from ...modelling.model import BayesianModel
from ..joint import LOG_ROOT_TAU, Joint, Piece, find_sites
from ..scale_maps import Softplus
from ._flat import FlatGuide
from ._init import Init, init_or_default, require_model
from ._state import FlatState, Noise, ParameterVector, lent, scratch_for


class OneScaleGuide(FlatGuide):
    r"""One mean per element, one standard deviation per site: :math:`w_i \sim N(\mu_i, e^{2 r_s})`, i an element of s.

    Args:
        model: The model to guide.
        init: Initial locations and scales; the scale of a site is the mean over its elements.
    """

    def __init__(self, model: BayesianModel, *, init: Init | None = None) -> None:
        super().__init__()
        require_model(model)
        init = init_or_default(init)
        self.sites = tuple(find_sites(model, (), {}))
        starts = {site.name: init(site) for site in self.sites}
        self.loc = tree({name: loc for name, (loc, _) in starts.items()})
        self.log_scale = tree({name: Softplus()(rho).mean().log() for name, (_, rho) in starts.items()})

    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draw every latent variable; the arguments are those of the model and are not looked at."""
        values = {}
        for site in self.sites:
            loc, log_scale = (self.stated(kind, site.name) for kind in ("loc", "log_scale"))
            base = dist.Normal(loc, log_scale.exp(), validate_args=False).to_event(site.unconstrained_event_dim)
            full = base if site.transform is None else dist.TransformedDistribution(base, [site.transform])
            values[site.name] = pyro.sample(site.name, full)
        return values

    @torch.no_grad()
    def draws(self, num_samples: int) -> Iterator[dict[str, Tensor]]:
        """What as many calls return, without effect handlers."""
        locations, log_scales = self.values("loc"), self.values("log_scale")
        for _ in range(num_samples):
            pairs = ((name, loc, log_scales[name]) for name, loc in locations.items())
            yield self.constrained({name: loc + r.exp() * torch.randn_like(loc) for name, loc, r in pairs})

    def median(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Median of every latent variable, ``{site: shape (*event)}``; the arguments are not looked at."""
        return self.constrained({name: loc.clone() for name, loc in self.values("loc").items()})

    def flat(self, joint: Joint, *, noise: Noise | None, closed_form: bool) -> AbstractContextManager[FlatState]:
        """Lend the parameters to a step; see :meth:`FlatGuide.flat`."""
        if noise is not None:
            raise ValueError("an estimator needs the Gaussians of a MeanFieldGuide; leave `estimator` out.")
        names = list(joint.layout.shapes)
        loc, log_scale = (ParameterVector(self.tree(kind), names) for kind in ("loc", "log_scale"))
        return lent(OneScaleState(joint, loc, log_scale, closed_form=closed_form))

    def shape_of(self, parameter: str, joint: Joint) -> torch.Size:
        """One scale for a site, one location for each of its elements."""
        return torch.Size() if parameter.startswith("log_scale.") else super().shape_of(parameter, joint)


class OneScaleState(FlatState):
    r"""Draws :math:`w = \mu + e^r \epsilon`, and the gradients in :math:`\mu` and in r, a sum over the site.

    Args:
        joint: The joint density.
        loc: The locations.
        log_scale: The logarithms of the scales, one for each site.
        closed_form: Use closed-form divergences, where the prior has them.
    """

    def __init__(self, joint: Joint, loc: ParameterVector, log_scale: ParameterVector, *, closed_form: bool) -> None:
        super().__init__(joint, {"loc": loc, "log_scale": log_scale})
        self._loc, self._log_scale = loc.value, log_scale.value
        self._pieces = joint.pieces(lambda site: closed_form and joint.densities[site.name].is_closed)
        self._scale, self._noise, self._scale_grad = (torch.zeros_like(self._loc) for _ in range(3))
        self._scratch = scratch_for(self._pieces, self._loc)
        self.value, self.value_grad = torch.empty_like(self._loc), torch.zeros_like(self._loc)
        self._log_scale_grad = torch.zeros_like(self._log_scale)
        loc.set_gradient(self.value_grad)
        log_scale.set_gradient(self._log_scale_grad)

    @property
    def gradients(self) -> list[Tensor]:
        """With respect to the locations, and to the logarithms of the scales."""
        return [self.value_grad, self._log_scale_grad]

    @torch.no_grad()
    def update(self) -> None:
        """Give every element its site's scale."""
        for scale, log_scale in zip(self.joint.layout.views(self._scale).values(), self._log_scale, strict=True):
            scale.copy_(log_scale.exp())

    def draw(self) -> Mapping[str, Tensor]:
        """Values; see :meth:`FlatState.draw`."""
        for noise in self.joint.layout.views(self._noise).values():
            noise.normal_()
        with torch.no_grad():
            self.value_grad.zero_()
            torch.addcmul(self._loc, self._scale, self._noise, out=self.value)
        return self.joint.constrained(self.leaves(self.value, self.value_grad))

    @torch.no_grad()
    def pull_back(self, weight: float) -> Tensor:
        """The chain rule through the draw, and the divergence; see :meth:`FlatState.pull_back`."""
        divergence = torch.stack([self._pull_back(piece, weight) for piece in self._pieces]).sum()
        in_log_scale = self.joint.layout.views(self._scale_grad.mul_(self._scale)).values()
        self._log_scale_grad.copy_(torch.stack([gradient.sum() for gradient in in_log_scale]))
        return divergence

    def _pull_back(self, piece: Piece, weight: float) -> Tensor:
        part, is_closed = piece.part, piece.kind
        loc, scale, noise = self._loc[part], self._scale[part], self._noise[part]
        loc_grad, scale_grad = self.value_grad[part], self._scale_grad[part]
        slope, scale_slope, *scratch = self._scratch[:, : part.stop - part.start]
        if is_closed:
            divergence = piece.density.divergence(loc, scale, slope, scale_slope, scratch)
            torch.mul(loc_grad, noise, out=scale_grad).add_(scale_slope, alpha=weight)
            loc_grad.add_(slope, alpha=weight)
            return divergence
        log_p = piece.density.log_prob(self.value[part], slope, scratch)
        loc_grad.sub_(slope, alpha=weight)
        torch.mul(loc_grad, noise, out=scale_grad).sub_(scale.reciprocal(), alpha=weight)
        log_q = -0.5 * noise.square().sum().double() - scale.log().sum().double() - len(loc) * LOG_ROOT_TAU
        return log_q - log_p

    def is_degenerate(self, site: str) -> bool:
        """Whether the scale is not above 0."""
        return not bool((self.joint.layout.views(self._scale)[site] > 0).all())
