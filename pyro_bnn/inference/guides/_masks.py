"""Distributions and masks for guides with removed weights."""

from collections.abc import Mapping

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor, nn
from torch.distributions import Distribution, constraints, kl_divergence, register_kl

from ..._core.reflection import elementwise
from ...modelling.distributions import Size
from ..joint import LOG_ROOT_TAU, Joint, Site


class PrunedNormal(TorchDistribution):
    """Independent Gaussians for the elements in the mask `keep`; the removed elements are exactly 0.

    The density of a removed element is the prior's density at zero, so the element adds nothing to the divergence, and
    gets no gradient. The ELBO is that of a network without the removed elements.
    """

    arg_constraints = {}  # noqa: RUF012  # torch's own convention
    support = constraints.real
    has_rsample = True

    def __init__(self, normal: Normal, keep: Tensor, prior: Distribution) -> None:
        self.normal, self.keep, self.prior = normal, keep, prior
        super().__init__(normal.batch_shape, validate_args=False)

    def expand(self, batch_shape: Size, _instance: Distribution | None = None) -> "PrunedNormal":
        return PrunedNormal(self.normal.expand(batch_shape), self.keep.expand(batch_shape), self.prior)

    @property
    def mean(self) -> Tensor:
        return self.or_zero(self.normal.mean)

    @property
    def variance(self) -> Tensor:
        return self.or_zero(self.normal.variance)

    def rsample(self, sample_shape: Size = torch.Size()) -> Tensor:  # noqa: B008
        return self.or_zero(self.normal.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        at_zero = self.prior.log_prob(torch.zeros_like(value))
        return torch.where(self.keep, self.normal.log_prob(value), at_zero)

    def or_zero(self, value: Tensor) -> Tensor:
        return torch.where(self.keep, value, torch.zeros_like(value))


@register_kl(PrunedNormal, Distribution)
def _divergence(q: PrunedNormal, p: Distribution) -> Tensor:
    return q.or_zero(kl_divergence(q.normal, p))


def masks_of(guide: nn.Module) -> dict[str, Tensor]:
    """For each site with removed elements, return a mask of the remaining elements."""
    keep = guide._modules.get("keep")
    return {} if keep is None else dict(keep.named_buffers())


class FlatMask:
    """Mask of the removed weights in the flat vectors of a step.

    A removed weight gets the location 0, the noise 0 and the scale of its prior. Its divergence is then a known, small
    constant, which is subtracted from the divergence of all weights.
    """

    def __init__(self, joint: Joint, guide: nn.Module, is_closed: Mapping[str, bool]) -> None:
        self._guide = guide
        keep = self._keep = masks_of(guide)
        self._removed: Tensor | None = None
        self.constant = 0.0
        if keep:
            layout, starts = joint.layout, {site.name: site.unconstrained_start for site in joint.sites}
            everything = {name: torch.ones_like(start, dtype=torch.bool) for name, start in starts.items()}
            scales = {name: torch.ones_like(start) for name, start in starts.items()}
            for site in joint.sites:
                if site.name in keep:
                    scales[site.name] = _scale_of_removed(site).to(site.start).expand(site.start.shape)
                    self.constant += _divergence_of_removed(site, ~keep[site.name], is_closed[site.name])
            self._removed = layout.pack({**everything, **keep}).logical_not_()
            self._scales = layout.pack(scales)

    def require_same(self) -> None:
        """Raise if weights of the guide were removed or restored after this mask was made."""
        now, before = masks_of(self._guide), self._keep
        is_same = set(now) == set(before)
        if not (is_same and all(now[name] is mask or torch.equal(now[name], mask) for name, mask in before.items())):
            raise ValueError(
                "weights of the guide were removed or restored in the context of a step; end its `with` block, and "
                "begin a new one."
            )
        self._keep = now  # equal masks in other tensors, as after loading a state

    def fill(self, vector: Tensor, value: float, part: slice = slice(None)) -> None:
        """Set the removed weights in `vector` to `value`. `part` is the range of weights that `vector` holds."""
        if self._removed is not None:
            vector.masked_fill_(self._removed[part], value)

    def fill_precisions(self, precision: Tensor) -> None:
        if self._removed is not None:
            torch.where(self._removed, self._scales**-2, precision, out=precision)

    def fill_scales(self, scale: Tensor) -> None:
        if self._removed is not None:
            torch.where(self._removed, self._scales, scale, out=scale)


def _scale_of_removed(site: Site) -> Tensor:
    """Return the prior's standard deviation where it is finite, else 1."""
    scale = elementwise(site.name, site.prior, site.start.shape).stddev
    return torch.where(scale.isfinite() & (scale > 0), scale, torch.ones_like(scale))


def _divergence_of_removed(site: Site, removed: Tensor, is_closed: bool) -> float:
    """Return what removed weights add to the divergence of a step."""
    prior = elementwise(site.name, site.prior, site.start.shape)
    zero = torch.zeros_like(site.start, dtype=torch.float64)
    scale = _scale_of_removed(site).to(site.start).double() + zero
    if is_closed:
        terms = kl_divergence(torch.distributions.Normal(zero, scale), prior)
    else:
        terms = -scale.log() - LOG_ROOT_TAU - prior.log_prob(zero)
    return float(terms.expand(site.start.shape)[removed].double().sum())
