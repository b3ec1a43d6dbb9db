"""Compares each weight's Gaussian with its prior, and finds collapsed and prior-dominated posteriors."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoGuide
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

from ..._core.reflection import element_of, move_distribution, tensors_of, unwrap
from ..._core.scope import own_parameters
from ..._core.summary import Number, Shown, Summary, counted
from ...modelling.model import BayesianModel
from ..joint import find_sites
from ..kl import divergence
from ._auto import KINDS
from ._flat import FlatGuide, GaussianGuide
from ._init import require_same_model
from ._mean_field import MeanFieldGuide

ONE_SIGMA = 0.5 * (1 + math.erf(math.sqrt(0.5)))  # probability that a Gaussian lies below mean + sd
AT_PRIOR = 0.2  # heuristic: a weight is at the prior if its divergence from the prior is below this many nats
LEAST_INFORMED = 0.001  # heuristic: a layer without information has at most this share of weights that left the prior
MOST_COLLAPSED = 0.5  # heuristic: a posterior counts as collapsed if more than this share of its weights collapsed
LEAST_PER_ROW = 0.05  # heuristic: fewest nats per row in an informed layer; all weights need R^2 / 2 to explain R^2
SHARPEST_ROW = 0.003  # heuristic: a row of data reduces a weight's scale to no less than this fraction of the prior's

IF_COLLAPSED = (
    "Check that `num_data` is right and the KL weight not close to 0, start with larger scales "
    "(`NetworkInit(scale=0.01)`), fit for more epochs or with a lower learning rate, and scale the inputs to unit "
    "variance."
)
"""Advice if most weights have practically no uncertainty."""

IF_AT_PRIOR = (
    "Lower the KL weight or let it grow (`kl.linear_warmup`), start with smaller scales (`NetworkInit(scale=0.01)`) or "
    "choose a narrower prior (`FanInNormalPrior`), and fit for more epochs; check that `num_data` is right, and that "
    "the targets depend on the inputs."
)
"""Advice if a layer learned nothing."""

COLUMNS = ("weights", "KL (nats)", "per weight", "at prior", "collapsed", "median sd", "|mean|/sd")

NUM_OFFSETS, LARGEST_OFFSET = 1001, 8.0  # grid of integrals over a Gaussian: points, and standard deviations


@dataclass(frozen=True)
class SiteDiagnosis:
    """Comparison of the weights of one site with their priors.

    Args:
        site: Name of the site.
        num_weights: Number of weights that were not removed.
        kl: Sum of the divergences of the weights from their priors, in nats.
        share_at_prior: Fraction of the weights that are still at the prior.
        share_collapsed: Fraction of the weights that collapsed.
        median_scale: Median of the standard deviations.
        median_signal_to_noise: Median over the weights of the absolute mean divided by the standard deviation.
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
        """Mean divergence from the prior per weight, in nats."""
        return self.kl / self.num_weights

    def __str__(self) -> str:
        return (
            f"{self.num_weights:11,d} {self.kl:11.5g} {self.kl_per_weight:11.4g} {self.share_at_prior:10.1%} "
            f"{self.share_collapsed:10.1%} {self.median_scale:10.3g} {self.median_signal_to_noise:10.3g}"
        )


@dataclass(frozen=True, repr=False)
class Diagnosis(Shown):
    r"""Comparison of a posterior with its prior by site, from :meth:`GuidePosterior.diagnose`. It prints as a table.

    A weight is *at the prior* if the divergence of its Gaussian :math:`N(\mu, \sigma^2)` from the prior is below 0.2
    nats. For a Gaussian prior :math:`N(m, s^2)`, a weight is at the prior if

    .. math:: \log\frac{s}{\sigma} + \frac{\sigma^2 + (\mu - m)^2}{2 s^2} - \frac12 < 0.2.

    For a prior that is not Gaussian, :math:`N(m, s^2)` is the Gaussian around the prior's mean with the smallest
    divergence from the prior. For a mixture there can be several such Gaussians, one for each local minimum of the
    divergence over :math:`s`. Then a weight is at the prior if its divergence from at least one of them is below 0.2
    nats.

    A weight has *collapsed* if all its draws are practically equal. Then its :math:`\sigma` is below :math:`0.003\, s /
    \sqrt N` for N rows of data, or below the distance from :math:`\mu` to the next number in the guide's dtype. If each
    row alone would give :math:`\sigma = 0.003\, s`, the N rows together give :math:`0.003\, s / \sqrt N`.

    Args:
        sites: One :class:`SiteDiagnosis` for each site of weights that can be compared with their prior.
        left_out: Why each of the other latent variables is not compared, ``{site: reason}``.
        warnings: Problems of the whole posterior, each with a remedy. A posterior is "collapsed" if more than half of
            all weights collapsed. It is "prior-dominated" if some layer with a weight matrix has learned almost
            nothing. This means that at least 99.9 % of the layer's weights are at a prior around 0, and that the
            layer's total divergence is below 0.05 nats per row of data.
    """

    sites: tuple[SiteDiagnosis, ...]
    left_out: dict[str, str]
    warnings: tuple[str, ...]

    @property
    def num_weights(self) -> int:
        """Number of weights in all sites."""
        return sum(row.num_weights for row in self.sites)

    @property
    def kl(self) -> float:
        """Sum of the divergences of all sites, in nats."""
        return math.fsum(row.kl for row in self.sites)

    @property
    def share_at_prior(self) -> float:
        """Fraction of all weights that are still at the prior."""
        return sum(row.share_at_prior * row.num_weights for row in self.sites) / self.num_weights

    @property
    def share_collapsed(self) -> float:
        """Fraction of all weights that collapsed."""
        return sum(row.share_collapsed * row.num_weights for row in self.sites) / self.num_weights

    def _summary(self) -> Summary:
        rows = [(row.site, *map(Number, str(row).split())) for row in self.sites]
        return Summary(f"Diagnosis: {counted(self.num_weights, 'weight')}", self.warnings, rows, ("", *COLUMNS))

    def __str__(self) -> str:
        width = max(len(name) for name in ["all weights", *(row.site for row in self.sites)])
        lines = [" ".join([" " * width, *(f"{name:>{11 if i < 3 else 10}}" for i, name in enumerate(COLUMNS))])]
        lines += [f"{row.site:{width}s} {row}" for row in self.sites]
        lines.append(
            f"{'all weights':{width}s} {self.num_weights:11,d} {self.kl:11.5g} {self.kl / self.num_weights:11.4g} "
            f"{self.share_at_prior:10.1%} {self.share_collapsed:10.1%}"
        )
        lines += [f"left out: {name} ({reason})" for name, reason in self.left_out.items()]
        return "\n".join([*lines, *(self.warnings or ("No sign of a collapsed or prior-dominated posterior.",))])


# --- verdicts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Marginals:
    """Gaussian marginals of the weights of one site, in double precision."""

    site: str
    dim: int  # number of axes of the parameter
    loc: Tensor  # (P,)
    scale: Tensor  # (P,)
    prior: Distribution  # one prior for each weight, shape (P,), or one for all weights, shape ()
    resolution: float  # relative distance between neighbouring numbers in the dtype of the guide


@dataclass(frozen=True)
class Counts:
    """How many weights of a site are at the prior, silent or collapsed; see :class:`Diagnosis`.

    A weight at the prior counts as silent if the prior's mean is at most one standard deviation from 0. A prior mean
    farther from 0 carries information, for example from other data.
    """

    marginals: Marginals
    num_at_prior: int
    num_silent: int
    num_collapsed: int
    learned: float  # divergence of all weights together from the Gaussians nearest to the prior, in nats

    @property
    def num_weights(self) -> int:
        return len(self.marginals.loc)


def diagnosis_of(guide: object, model: BayesianModel | None, num_data: int, num_samples: int) -> Diagnosis:
    marginals, left_out = _weight_marginals(guide, model)
    if not marginals:
        raise ValueError(f"there is no weight to diagnose: {left_out}; use `posterior.sample` instead.")
    counts = [_counts(site, num_data) for site in marginals]
    rows = tuple(_row(count, num_samples) for count in counts)
    return Diagnosis(rows, left_out, tuple(map(" ".join, _problems(counts, num_data))))


def problems_of(guide: object, model: BayesianModel) -> list[tuple[str, str]]:
    """Return the problems of a guide, each with its remedy. A guide without Gaussian marginals is not checked."""
    if not isinstance(guide, (GaussianGuide, *KINDS)):
        return []
    marginals, _ = _weight_marginals(guide, model)
    return _problems([_counts(site, model.num_data) for site in marginals], model.num_data)


def _row(counts: Counts, num_samples: int) -> SiteDiagnosis:
    site, count = counts.marginals, counts.num_weights
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
    anchors = _nearest_gaussians(site.prior)
    learned = torch.full_like(site.loc, math.inf)
    for centre, width in anchors:
        ratio, shift = site.scale / width, (site.loc - centre) / width
        learned = torch.minimum(learned, 0.5 * (ratio.square() + shift.square() - 1) - ratio.log())
    narrowest = torch.stack([torch.as_tensor(width).expand_as(site.scale) for _, width in anchors]).amin(0)
    least = torch.maximum(narrowest * (SHARPEST_ROW / math.sqrt(num_data)), site.resolution * site.loc.abs())
    is_near_zero = torch.stack([(centre.abs() <= width).expand(site.loc.shape) for centre, width in anchors]).all(0)
    at_prior = learned < AT_PRIOR
    return Counts(
        site,
        num_at_prior=int(at_prior.sum()),
        num_silent=int((at_prior & is_near_zero).sum()),
        num_collapsed=int((site.scale <= least).sum()),
        learned=float(learned.sum()),
    )


def _nearest_gaussians(prior: Distribution) -> list[tuple[Tensor, Tensor]]:
    r"""Return each Gaussian whose divergence from the prior is a local minimum over the scale, as (centre, scale).

    The centre m is the prior's mean, or its mode if the mean is not finite. Up to a constant, the divergence is
    :math:`-\log s - E_{w \sim N(m, s^2)}[\log p(w)]`. It is computed on a grid of log scales with steps of 0.1, so the
    minima exceed the true ones by at most about 0.0025 nats.
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
    num_weights, num_collapsed = sum(c.num_weights for c in counts), sum(c.num_collapsed for c in counts)
    found = []
    if num_collapsed > MOST_COLLAPSED * num_weights:
        verdict = (
            f"collapsed: the standard deviations of {100 * num_collapsed / num_weights:.1f} % of the weights are "
            "practically 0, so all draws are nearly the same network."
        )
        found.append((verdict, IF_COLLAPSED))
    layers: dict[str, list[Counts]] = {}
    for count in counts:
        layers.setdefault(count.marginals.site.rpartition(".")[0], []).append(count)
    layers = {name: sites for name, sites in layers.items() if any(count.marginals.dim >= 2 for count in sites)}
    silent = [name for name, sites in layers.items() if _is_silent(sites, num_data)]
    if silent:
        listed = " and the layer ".join(f"`{name}`" for name in silent)
        where = "every layer" if len(silent) == len(layers) else f"the layer {listed}"
        verdict = f"prior-dominated: the weights of {where} are still at the prior, so no information passes through."
        found.append((verdict, IF_AT_PRIOR))
    return found


def _is_silent(layer: Iterable[Counts], num_data: int) -> bool:
    num_informed = sum(count.num_weights - count.num_silent for count in layer)
    return (
        num_informed <= LEAST_INFORMED * sum(count.num_weights for count in layer)
        and sum(count.learned for count in layer) < LEAST_PER_ROW * num_data
    )


# --- the Gaussian of each weight, beside its prior --------------------------------------------------------------------


@torch.no_grad()
def _weight_marginals(guide: object, model: BayesianModel | None) -> tuple[list[Marginals], dict[str, str]]:
    """Return the marginals of the weights that were not removed, and the reason for each site that is left out."""
    locations, scales = _locations_and_scales(guide)
    if model is not None:
        require_same_model(model, locations)
    priors = _priors_of_guide(guide) if model is None else _priors_of_model(guide, model)
    found, left_out = [], {}
    for name, prior in priors.items():
        if reason := _obstacle(prior, locations[name]):
            left_out[name] = reason
            continue
        loc, scale = (values[name].reshape(-1) for values in (locations, scales))
        keep = guide.kept(name).reshape(-1) if isinstance(guide, MeanFieldGuide) else slice(None)
        if len(loc[keep]):
            precise = move_distribution(unwrap(prior), loc.double())
            pair = loc[keep].double(), scale[keep].double()
            single = _single(precise, locations[name].shape, keep)
            found.append(Marginals(name, locations[name].dim(), *pair, single, torch.finfo(loc.dtype).eps))
        else:
            left_out[name] = "all of its weights were removed"
    return found, left_out


def _locations_and_scales(guide: object) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    if isinstance(guide, GaussianGuide):
        return guide.locations(), guide.scales()
    if not isinstance(guide, KINDS):
        raise ValueError(
            f"`diagnose` needs a guide with Gaussian marginals, such as MeanFieldGuide, LowRankGuide or AutoNormal, "
            f"got {type(guide).__name__}; look at draws of `posterior.sample` instead."
        )
    with own_parameters(guide):
        pairs = guide.quantiles([0.5, ONE_SIGMA])  # mean, and mean plus scale, of an unconstrained variable
    return {n: v[0] for n, v in pairs.items()}, {n: v[1] - v[0] for n, v in pairs.items()}


def _priors_of_guide(guide: object) -> dict[str, Distribution]:
    if not isinstance(guide, FlatGuide) or not all(site.is_fixed for site in guide.sites):
        raise ValueError(
            "`model` is needed for Pyro's guides, and for priors that are learned or depend on other variables; call "
            "`posterior.diagnose(model)`."
        )
    return {site.name: site.prior for site in guide.sites}


def _priors_of_model(guide: object, model: BayesianModel) -> dict[str, Distribution]:
    """Return the prior of each site, given the medians of the variables on which it depends."""
    medians: Mapping[str, Tensor] = {}
    if any(model.parents_of(name) for name in model.site_names) and isinstance(guide, (FlatGuide, AutoGuide)):
        with own_parameters(guide):
            medians = guide.median()
    own = {name: model.prior_given(name, medians) for name in model.site_names}
    return {site.name: own.get(site.name, site.prior) for site in find_sites(model, (), {})}


def _obstacle(prior: Distribution, loc: Tensor) -> str | None:
    """Return why a site's weights cannot be compared one by one with their prior; None if they can."""
    single = unwrap(prior)
    if single.event_shape or (single.batch_shape and single.batch_shape != loc.shape):
        return "its elements depend on each other under the prior"
    if single.support is not constraints.real:
        return "it is not a site of real numbers"
    if type(single) is not dist.Normal and not all(map(_is_constant, tensors_of(single))):
        return "its prior is neither Gaussian nor the same for all elements"
    return None


def _is_constant(tensor: Tensor) -> bool:
    return tensor.numel() < 2 or bool((tensor == tensor.reshape(-1)[0]).all())


def _single(prior: Distribution, shape: torch.Size, keep: Tensor | slice) -> Distribution:
    """Return the prior of the P weights in `keep`: a batch of Gaussians, or one distribution that all weights share."""
    if type(prior) is dist.Normal:
        loc, scale = (part.expand(shape).reshape(-1)[keep] for part in (prior.loc, prior.scale))
        return dist.Normal(loc, scale)
    return element_of(prior, (0,) * len(prior.batch_shape))
