"""What a Gaussian guide learned from the data, weight by weight: nothing, something, or a point."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from ...modelling.model import BayesianModel
from ..kl import divergence
from ._marginals import Marginals, weight_marginals

AT_PRIOR = 0.2
"""A weight that learned less than so many nats counts as being at the prior; heuristic. A mean that moved by 0.63
standard deviations of the prior is worth as much, or a standard deviation of 0.6 of the prior's."""

LEAST_INFORMED = 0.001
"""A layer in which no larger share of the weights than this left the prior carries no information; heuristic. One unit
that is used in a layer of fewer than a thousand units is more: all weights that enter it left the prior."""

MOST_COLLAPSED = 0.5
"""A posterior of which a larger share of the weights collapsed is a point; heuristic."""

LEAST_PER_ROW = 0.05
"""A layer that learned less than so many nats per row of data, in all its weights together, may carry no information;
heuristic. Many weights can explain the data together though each hardly moves: to explain a fraction R^2 of the
variance takes P such weights about R^2 / 2 nats per row, if rows are fewer than weights."""

SHARPEST_ROW = 0.003
"""Heuristic: no row of the data fixes a weight, by itself, more sharply than to this fraction of the prior's scale."""

NUM_OFFSETS, LARGEST_OFFSET = 1001, 8.0
"""A grid this fine over so many standard deviations integrates smooth functions to rounding."""


@dataclass(frozen=True)
class SiteDiagnosis:
    """What the weights of one site learned.

    Args:
        site: Name of the site.
        num_weights: Number of weights, without removed ones.
        kl: Divergence of the weights' marginals from their priors, summed over the site, in nats.
        share_at_prior: Fraction of the weights that are still at the prior, from 0 to 1.
        share_collapsed: Fraction of the weights whose scale collapsed, from 0 to 1.
        median_scale: Median of the standard deviations.
        median_signal_to_noise: Median of the absolute means over the standard deviations.
    """

    site: str
    num_weights: int
    kl: float
    share_at_prior: float
    share_collapsed: float
    median_scale: float
    median_signal_to_noise: float

    @property
    def kl_per_weight(self) -> float:
        """Mean divergence of a weight, in nats."""
        return self.kl / self.num_weights

    def __str__(self) -> str:
        return (
            f"{self.num_weights:11,d} {self.kl:11.5g} {self.kl_per_weight:11.4g} {self.share_at_prior:10.1%} "
            f"{self.share_collapsed:10.1%} {self.median_scale:10.3g} {self.median_signal_to_noise:10.3g}"
        )


@dataclass(frozen=True)
class Diagnosis:
    r"""What a posterior learned, site by site; :meth:`GuidePosterior.diagnose` makes it, and printing it shows a table.

    A weight is *at the prior* if the divergence of its Gaussian :math:`N(\mu, \sigma^2)` from the prior is below 0.2
    nats, as long as the prior is Gaussian too,

    .. math:: \log\frac{s}{\sigma} + \frac{\sigma^2 + (\mu - m)^2}{2 s^2} - \frac12 < 0.2.

    No Gaussian equals a prior of another kind. There :math:`N(m, s^2)` is the Gaussian around the prior's mean with the
    least divergence from the prior; a mixture can have several of them, and a weight at any is at the prior.

    A weight has *collapsed* if its draws are the same number for any practical purpose: if :math:`\sigma` is below
    :math:`0.003\, s / \sqrt N` for N rows of data, or below the resolution of the guide's numbers at :math:`\mu`. Each
    row by itself would have to fix the weight to less than 0.003 of the prior's scale to make it that narrow.

    Args:
        sites: One row per site of the network's weights. Latent variables of other kinds are left out.
        left_out: The reason for each latent variable that is left out, ``{site: reason}``.
        warnings: What is wrong with the posterior as a whole, with remedies, one sentence or more each; empty if
            nothing is. "collapsed": more than half of all weights collapsed. "prior-dominated": all layers with a
            weight matrix, or one of them, are at a prior around 0, but for at most a thousandth of their weights, and
            have learned less than 0.05 nats per row of data.
    """

    sites: tuple[SiteDiagnosis, ...]
    left_out: dict[str, str]
    warnings: tuple[str, ...]

    @property
    def num_weights(self) -> int:
        """Number of weights of all sites."""
        return sum(row.num_weights for row in self.sites)

    @property
    def kl(self) -> float:
        """Divergence of all sites together, in nats."""
        return math.fsum(row.kl for row in self.sites)

    @property
    def share_at_prior(self) -> float:
        """Fraction of all weights that are still at the prior."""
        return sum(row.share_at_prior * row.num_weights for row in self.sites) / self.num_weights

    @property
    def share_collapsed(self) -> float:
        """Fraction of all weights whose scale collapsed."""
        return sum(row.share_collapsed * row.num_weights for row in self.sites) / self.num_weights

    def __str__(self) -> str:
        width = max(len(name) for name in ["all weights", *(row.site for row in self.sites)])
        names = ("weights", "KL (nats)", "per weight", "at prior", "collapsed", "median sd", "|mean|/sd")
        sizes = (11, 11, 11, 10, 10, 10, 10)
        lines = [" ".join([" " * width, *(f"{name:>{size}}" for name, size in zip(names, sizes, strict=True))])]
        lines += [f"{row.site:{width}s} {row}" for row in self.sites]
        lines.append(
            f"{'all weights':{width}s} {self.num_weights:11,d} {self.kl:11.5g} {self.kl / self.num_weights:11.4g} "
            f"{self.share_at_prior:10.1%} {self.share_collapsed:10.1%}"
        )
        lines += [f"left out: {name} ({reason})" for name, reason in self.left_out.items()]
        return "\n".join([*lines, *(self.warnings or ("No sign of a collapsed or prior-dominated posterior.",))])


@dataclass(frozen=True)
class Counts:
    """How many weights of a site are in what state.

    Args:
        site: Name of the site.
        dim: Number of dimensions of the parameter.
        num_weights: Number of weights.
        num_at_prior: Number of weights at the prior.
        num_silent: Number of these whose prior has a mean within its own standard deviation of 0. A weight at a prior
            that was learned from other data may pass information.
        num_collapsed: Number of weights whose scale collapsed.
        learned: Divergence of all weights together from the Gaussians nearest to the prior, in nats.
    """

    site: str
    dim: int
    num_weights: int
    num_at_prior: int
    num_silent: int
    num_collapsed: int
    learned: float


def diagnosis_of(guide: object, model: BayesianModel | None, num_data: int, num_samples: int) -> Diagnosis:
    """The diagnosis of a guide; see :meth:`GuidePosterior.diagnose`.

    Args:
        guide: The guide.
        model: The model; None takes the priors that the guide met when it was built.
        num_data: Number of rows of data.
        num_samples: Number of draws per weight where a divergence has no closed form.
    """
    marginals, left_out = weight_marginals(guide, model)
    if not marginals:
        raise ValueError(f"there is no weight to diagnose: {left_out}; use `posterior.sample` instead.")
    counts = [_counts(site, num_data) for site in marginals]
    rows = tuple(_row(site, count, num_samples) for site, count in zip(marginals, counts, strict=True))
    return Diagnosis(rows, left_out, tuple(map(" ".join, _problems(counts, num_data))))


def problems_of(guide: object, model: BayesianModel) -> list[tuple[str, str]]:
    """What is wrong with a guide with Gaussian marginals, each with its remedy, in one pass over the weights."""
    marginals, _ = weight_marginals(guide, model)
    return _problems([_counts(site, model.num_data) for site in marginals], model.num_data)


def _row(site: Marginals, counts: Counts, num_samples: int) -> SiteDiagnosis:
    count = counts.num_weights
    gaussians = Normal(site.loc, site.scale, validate_args=False)
    kl = divergence(gaussians, site.prior.expand(site.loc.shape), num_samples=num_samples, seed=0)
    return SiteDiagnosis(
        site.site,
        num_weights=count,
        kl=float(kl.value.sum()),
        share_at_prior=counts.num_at_prior / count,
        share_collapsed=counts.num_collapsed / count,
        median_scale=float(site.scale.median()),
        median_signal_to_noise=float((site.loc.abs() / site.scale).median()),
    )


def _counts(site: Marginals, num_data: int) -> Counts:
    anchors = nearest_gaussians(site.prior)
    learned = torch.full_like(site.loc, math.inf)
    for centre, width in anchors:
        ratio, shift = site.scale / width, (site.loc - centre) / width
        learned = torch.minimum(learned, 0.5 * (ratio.square() + shift.square() - 1) - ratio.log())
    narrowest = torch.stack([torch.as_tensor(width).expand_as(site.scale) for _, width in anchors]).amin(0)
    least = torch.maximum(narrowest * (SHARPEST_ROW / math.sqrt(num_data)), site.resolution * site.loc.abs())
    is_near_zero = torch.stack([(centre.abs() <= width).expand(site.loc.shape) for centre, width in anchors]).all(0)
    at_prior = learned < AT_PRIOR
    return Counts(
        site.site,
        site.dim,
        len(site.loc),
        num_at_prior=int(at_prior.sum()),
        num_silent=int((at_prior & is_near_zero).sum()),
        num_collapsed=int((site.scale <= least).sum()),
        learned=float(learned.sum()),
    )


def nearest_gaussians(prior: Distribution) -> list[tuple[Tensor, Tensor]]:
    r"""Centre and scale of each Gaussian around the prior's mean that is nearest to it, among its neighbours.

    Nearest means that the divergence :math:`-\log s - E_{w \sim N(m, s^2)}[\log p(w)]` has a minimum in s there. It is
    computed on a grid of scales, a tenth apart in the logarithm: half of that is worth 0.0025 nats.

    Args:
        prior: Prior of single weights, shape (P,), or of shape () if it is not Gaussian.
    """
    if isinstance(prior, Normal):
        return [(prior.loc, prior.scale)]
    centre = prior.mean if bool(prior.mean.isfinite()) else prior.mode
    unit = prior.stddev if bool(prior.stddev.isfinite()) else torch.ones_like(centre)
    scales = unit * torch.arange(-12, 5, 0.1, dtype=centre.dtype, device=centre.device).exp()
    offsets = torch.linspace(-LARGEST_OFFSET, LARGEST_OFFSET, NUM_OFFSETS, dtype=centre.dtype, device=centre.device)
    weights = (-0.5 * offsets.square()).softmax(0)
    values = centre + scales[:, None] * offsets
    excess = -scales.log() - prior.expand(values.shape).log_prob(values) @ weights
    is_least = (excess[1:-1] < excess[:-2]) & (excess[1:-1] <= excess[2:])
    return [(centre, scale) for scale in scales[1:-1][is_least]]


def _problems(counts: list[Counts], num_data: int) -> list[tuple[str, str]]:
    """Verdicts in words, each with its remedy."""
    num_weights, num_collapsed = sum(c.num_weights for c in counts), sum(c.num_collapsed for c in counts)
    found = []
    if num_collapsed > MOST_COLLAPSED * num_weights:
        verdict = (
            f"collapsed: the standard deviations of {num_collapsed / num_weights:.1%} of the weights are practically "
            "0, so all draws are the same network."
        )
        remedy = (
            "Check that `num_data` is right and the KL weight not close to 0, start with wider scales "
            "(`NetworkInit(scale=0.01)`), fit for more epochs or at a lower learning rate, and give the inputs unit "
            "scale."
        )
        found.append((verdict, remedy))
    layers = _layers(counts)
    silent = [name for name, layer in layers.items() if _is_silent(layer, num_data)]
    if silent:
        where = "every layer" if len(silent) == len(layers) else f"the layer {_listed(silent)}"
        verdict = f"prior-dominated: the weights of {where} are still at the prior, so no information passes through."
        remedy = (
            "Lower the KL weight or let it grow (`kl.linear_warmup`), start with narrower scales "
            "(`NetworkInit(scale=0.01)`) or choose a narrower prior (`FanInNormalPrior`), and fit for more epochs; "
            "check that `num_data` is right, and that the targets depend on the inputs."
        )
        found.append((verdict, remedy))
    return found


def _layers(counts: Iterable[Counts]) -> dict[str, list[Counts]]:
    """The sites of each layer that has a matrix of weights, ``{layer: sites}``."""
    layers: dict[str, list[Counts]] = {}
    for count in counts:
        layers.setdefault(count.site.rpartition(".")[0], []).append(count)
    return {name: layer for name, layer in layers.items() if any(count.dim >= 2 for count in layer)}


def _is_silent(layer: list[Counts], num_data: int) -> bool:
    num_weights, num_silent = sum(count.num_weights for count in layer), sum(count.num_silent for count in layer)
    return (
        num_weights - num_silent <= LEAST_INFORMED * num_weights
        and sum(count.learned for count in layer) < LEAST_PER_ROW * num_data
    )


def _listed(names: list[str]) -> str:
    return " and the layer ".join(f"`{name}`" for name in names)
