"""The state of the mean-field Gaussian guide during a step."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..joint import LOG_ROOT_TAU, Joint, Piece, Site
from ..scale_maps import ScaleMap
from ._flat import FlatState, Noise, RandomParameter, scratch_for
from ._masks import FlatMask
from ._parameters import ParameterVector


class MeanFieldState(FlatState):
    r"""Draws :math:`w = \mu + \sigma\epsilon`, and computes gradients in :math:`\mu` and the parameter :math:`\rho`.

    The loss is :math:`L + \lambda (\log q(w) - \log p(w))`, with L minus the log-likelihood and :math:`\lambda` the
    weight of the divergence. As a function of the parameters, :math:`\log q(w) = -\tfrac12\epsilon^2 - \log\sigma`
    plus a constant. So with :math:`g = \nabla_w (L - \lambda \log p)`

    .. math:: \nabla_\mu = g, \qquad \nabla_\sigma = g\,\epsilon - \lambda/\sigma, \qquad
              \nabla_\rho = \nabla_\sigma\, \frac{d\sigma}{d\rho}.

    Where the divergence has a closed form, :math:`g = \nabla_w L`, and :math:`\lambda` times the gradients of the
    closed form are added to :math:`\nabla_\mu, \nabla_\sigma`.

    With an estimator, the network gets :math:`\mu` and the noise instead of w, and autograd computes
    :math:`\nabla_\mu L`. If the noise is the deviation :math:`\delta = \sigma\epsilon`, then :math:`\nabla_\sigma L =
    \nabla_\delta L\,\epsilon`; if it is the variance v, then :math:`\nabla_\sigma L = 2\sigma\nabla_v L`.

    Args:
        joint: The joint density.
        loc: The locations, P numbers.
        free: The free parameters of the scales, P numbers.
        scale_map: Map from free parameters to scales.
        mask: The removed weights.
        noise: Form of the noise that an estimator asks for; None without an estimator.
        is_closed: For each site, whether its divergence is computed in closed form.
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
        self._noise_kind, self._is_closed = noise, is_closed
        self._estimated = {site.name for site in joint.sites if noise is not None and self._is_layer(site)}
        self._drawn = [site.name for site in joint.sites if self._is_drawn(site.name)]
        self._pieces = joint.pieces(lambda site: (is_closed[site.name], site.name in self._estimated))
        self._scale, self._noise = torch.empty_like(self._free), torch.zeros_like(self._free)
        self._noises = joint.layout.views(self._noise)
        self.value = torch.empty_like(self._loc) if self._drawn else self._loc
        self.value_grad = torch.zeros_like(self._loc)
        self._asked = torch.empty_like(self._free) if noise is not None else None  # deviations or variances
        # Without an estimator, the gradient in the scale is that in the weight times the noise. The noise is not needed
        # after this product, so the product is written into the memory of the noise.
        self._scale_grad = self._noise if noise is None else torch.zeros_like(self._free)
        self._scratch = scratch_for(self._pieces, self._loc)
        loc.set_gradient(self.value_grad)
        free.set_gradient(self._scale_grad)

    def _is_layer(self, site: Site) -> bool:
        return site.transform is None and site.name in self.joint.model.site_names

    def _is_drawn(self, name: str) -> bool:
        return self._noise_kind is not Noise.VARIANCE or name not in self._estimated or not self._is_closed[name]

    @property
    def gradients(self) -> list[Tensor]:
        """Gradients with respect to the locations and to the free parameters of the scales."""
        return [self.value_grad, self._scale_grad]

    @torch.no_grad()
    def update(self) -> None:
        """Compute the scales; see :meth:`FlatState.update`."""
        self._mask.require_same()
        for piece in self._pieces:
            part, size = piece.part, piece.part.stop - piece.part.start
            self._scale_map.write(self._free[part], self._scale[part], self._scratch[:, :size])
        if self._mask.is_any:
            self._mask.fill(self._loc, 0)
            self._mask.fill_scales(self._scale)

    def draw(self) -> Mapping[str, Tensor | RandomParameter]:
        """Draw values, or means and noise for an estimator; see :meth:`FlatState.draw`."""
        for name in self._drawn:
            self._noises[name].normal_()
        with torch.no_grad():
            self.value_grad.zero_()
            if self._mask.is_any:
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
            if self._mask.is_any:
                self._mask.fill(self._asked, 0)
            self._scale_grad.zero_()
        locs, asked = self.leaves(self._loc, self.value_grad), self.leaves(self._asked, self._scale_grad)
        for name in self._estimated:
            given[name] = RandomParameter.of(self._noise_kind, name, locs[name], asked[name])
        return given

    @torch.no_grad()
    def pull_back(self, weight: float) -> Tensor:
        """Compute the gradients of the formulas above, piece by piece; see :meth:`FlatState.pull_back`."""
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
            if is_estimated:  # the network's gradient in the scale is already there
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
        if self._mask.is_any:
            self._mask.fill(scale_grad, 0, part)
            self._mask.fill(loc_grad, 0, part)
        return divergence

    def _chain(self, scale_grad: Tensor, loc_grad: Tensor, scale: Tensor, noise: Tensor, is_estimated: bool) -> None:
        """Compute the gradient in the scale from that in the draw or the noise; may overwrite the noise."""
        if not is_estimated:
            torch.mul(noise, loc_grad, out=scale_grad)
        elif self._noise_kind is Noise.DEVIATION:
            scale_grad.mul_(noise)
        else:
            scale_grad.mul_(scale).mul_(2)

    def is_degenerate(self, site: str) -> bool:
        """Whether a scale of a site is not above 0."""
        return not bool((self.joint.layout.views(self._scale)[site] > 0).all())

    def release(self) -> None:
        """See :meth:`FlatState.release`."""
        del self._scratch, self._scale, self._noise, self._noises, self._asked, self._scale_grad
        self.value = self._loc
