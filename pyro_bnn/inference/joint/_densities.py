"""Log-densities of priors, gradients of these log-densities, and KL divergences between Gaussians and priors.

All latent variables are in one flat vector, in unconstrained space. Common densities have explicit gradients;
:class:`AnyDensity` uses autograd.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from ..._core.reflection import unvalidated, unwrap
from ..._core.scope import seeded
from ...modelling.distributions import ScaleMixtureNormal
from ...modelling.model import BayesianModel
from ._sites import Layout, Site, constrained, find_sites

LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)

LARGEST_LOG_ODDS = 80.0  # log-odds up to this limit have an exponential that does not overflow in single precision


class Density(ABC):
    """The prior density of P consecutive numbers of the flat vector."""

    is_closed = False  # whether :meth:`divergence` has a closed form

    key: tuple[object, ...] | None = None  # neighbouring densities with equal keys are evaluated together

    @abstractmethod
    def log_prob(self, value: Tensor, slope: Tensor, scratch: Sequence[Tensor]) -> Tensor:
        """Return the log-density in nats, in double precision, and write its gradient into `slope`.

        All vectors have shape (P,). `scratch` has at least two vectors, which may be overwritten.
        """

    def add_slope(self, value: Tensor, gradient: Tensor, weight: float, scratch: Sequence[Tensor]) -> Tensor:
        """Return the log-density, and add `weight` times its gradient to `gradient`. `scratch` needs three vectors."""
        slope, *rest = scratch
        log_prob = self.log_prob(value, slope, rest)
        gradient.add_(slope, alpha=weight)
        return log_prob

    def divergence(
        self, loc: Tensor, scale: Tensor, loc_slope: Tensor, scale_slope: Tensor, scratch: Sequence[Tensor]
    ) -> Tensor:
        """Return KL(N(loc, scale^2) || prior) in nats, and write its gradients into `loc_slope` and `scale_slope`.

        The arguments are as in :meth:`log_prob`.
        """
        raise NotImplementedError

    @classmethod
    def can_have(cls, *numbers: float | Tensor) -> bool:
        """Whether the formulas work for these arguments of a prior, each a number or a vector over the weights."""
        return True

    @staticmethod
    def rows(kind: type, *arguments: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function without branches (for C) from points, shape (K, P), to log-densities, shape (K,)."""
        prior = kind(*arguments, validate_args=False)
        return lambda z: prior.log_prob(z).sum(-1)


class NormalDensity(Density):
    """Independent Gaussians; mean and scale are single numbers or have shape (P,)."""

    is_closed = True

    def __init__(self, loc: float | Tensor, scale: float | Tensor) -> None:
        self.loc = loc
        self.precision = scale**-2
        self._log_scale = scale.log().sum() if isinstance(scale, Tensor) else math.log(scale)
        self._is_scalar = not isinstance(scale, Tensor)
        if self._is_scalar and not isinstance(loc, Tensor):
            self.key = (NormalDensity, loc, scale)

    def _constant(self, count: int) -> float | Tensor:
        return self._log_scale * (count if self._is_scalar else 1) + count * LOG_ROOT_TAU

    def centred(self, value: Tensor, scratch: Tensor) -> Tensor:
        """Return `value` minus the mean, in `scratch`; `value` itself if the mean is 0."""
        is_zero = not isinstance(self.loc, Tensor) and self.loc == 0
        return value if is_zero else torch.sub(value, self.loc, out=scratch)

    def log_prob(self, value: Tensor, slope: Tensor, scratch: Sequence[Tensor]) -> Tensor:
        deviation = self.centred(value, scratch[0])
        torch.mul(deviation, -self.precision, out=slope)
        return 0.5 * torch.dot(deviation, slope).double() - self._constant(len(value))

    def add_slope(self, value: Tensor, gradient: Tensor, weight: float, scratch: Sequence[Tensor]) -> Tensor:
        if isinstance(self.precision, Tensor):
            return super().add_slope(value, gradient, weight, scratch)
        deviation = self.centred(value, scratch[0])
        factor = weight * self.precision
        if abs(factor) > torch.finfo(gradient.dtype).max:
            raise ValueError(
                f"`kl_weight` {abs(weight):g} times the prior's precision {self.precision:g} is too large for "
                f"{gradient.dtype}; use a smaller weight, a wider prior, or a model in float64."
            )
        gradient.add_(deviation, alpha=-factor)
        return -0.5 * self.precision * torch.dot(deviation, deviation).double() - self._constant(len(value))

    def divergence(
        self, loc: Tensor, scale: Tensor, loc_slope: Tensor, scale_slope: Tensor, scratch: Sequence[Tensor]
    ) -> Tensor:
        r"""Return half the sum of :math:`r - 1 - \log r + (d / s)^2`, with :math:`r = (\sigma / s)^2` and d = loc - m.

        The prior is :math:`N(m, s^2)`, and the Gaussian has the mean loc and the scale :math:`\sigma`. No term is
        negative, so no digits are lost if the prior and the Gaussian are nearly equal.
        """
        deviation = self.centred(loc, scratch[0])
        torch.mul(deviation, self.precision, out=loc_slope)
        squares = torch.dot(deviation, loc_slope).double()
        torch.mul(scale, self.precision, out=scale_slope)
        ratio = torch.mul(scale, scale_slope, out=scratch[0])
        scale_slope.sub_(torch.reciprocal(scale, out=scratch[1]))
        return 0.5 * (ratio.sub_(torch.log(ratio, out=scratch[1])).sub_(1).sum().double() + squares)

    def expected_energy(self, loc: Tensor, precision: Tensor, scratch: Sequence[Tensor]) -> Tensor:
        r"""Return half the sum of :math:`P / S + P (m - m_0)^2 - \log P`, for Gaussians with means m and precisions S.

        Up to a constant, this is minus the expected log-density of the prior. The prior has the mean :math:`m_0` and
        the precision P.
        """
        variance = torch.reciprocal(precision, out=scratch[0])
        deviation = self.centred(loc, scratch[1])
        if isinstance(self.precision, Tensor):
            total = torch.dot(self.precision, variance.addcmul_(deviation, deviation))
        else:
            total = self.precision * (variance.sum() + torch.dot(deviation, deviation))
        return 0.5 * total.double() + self._log_scale * (len(loc) if self._is_scalar else 1)

    @staticmethod
    def rows(kind: type, *arguments: Tensor) -> Callable[[Tensor], Tensor]:
        loc, scale = arguments
        is_centred, root_precision = not bool(loc.any()), scale.reciprocal()
        log_constant = scale.log() + LOG_ROOT_TAU

        def log_density(z: Tensor) -> Tensor:
            scaled = (z if is_centred else z - loc) * root_precision
            return -0.5 * scaled.square().sum(-1) - log_constant.expand(z.shape[-1]).sum()

        return log_density


class ScaleMixtureDensity(Density):
    r"""The density of :class:`~pyro_bnn.distributions.ScaleMixtureNormal`, in the notation of that class.

    .. math:: \frac{d \log p}{dw} = -w \left(\sigma_a^{-2} + s(z) (\sigma_b^{-2} - \sigma_a^{-2})\right),

    where s is the logistic function.
    """

    @classmethod
    def can_have(cls, *numbers: float | Tensor) -> bool:
        """Whether all arguments are numbers, and float32 can represent the odds of the components at w = 0."""
        if any(isinstance(number, Tensor) for number in numbers):
            return False
        return abs(cls(*numbers).log_odds_at_zero) < LARGEST_LOG_ODDS  # type: ignore[arg-type]

    def __init__(self, mixing: float, scale1: float, scale2: float) -> None:
        self.key = (ScaleMixtureDensity, mixing, scale1, scale2)
        wide, narrow = max(scale1, scale2), min(scale1, scale2)
        log_wide, log_narrow = math.log(mixing), math.log1p(-mixing)
        if scale1 < scale2:
            log_wide, log_narrow = log_narrow, log_wide
        self._constant = log_wide - math.log(wide) - LOG_ROOT_TAU
        self._precision, self._excess = wide**-2, narrow**-2 - wide**-2
        self.log_odds_at_zero = log_narrow - log_wide + math.log(wide / narrow)

    def log_prob(self, value: Tensor, slope: Tensor, scratch: Sequence[Tensor]) -> Tensor:
        """Sum over elements: the wider component's log-density plus the softplus of the narrower one's log-odds."""
        square, odds = torch.square(value, out=scratch[0]), scratch[1]
        base = len(value) * self._constant - 0.5 * self._precision * square.sum().double()
        torch.mul(square, -0.5 * self._excess, out=odds).add_(self.log_odds_at_zero).exp_()
        one_plus = torch.add(odds, 1, out=scratch[0])
        narrow_probability = odds.div_(one_plus)
        torch.mul(narrow_probability, -self._excess, out=slope).sub_(self._precision).mul_(value)
        return base + one_plus.log_().sum().double()


class AnyDensity(Density):
    """Any other prior, with gradients from autograd.

    This is the density of the unconstrained value. Without `jacobian`, the Jacobian determinant of the transform is
    omitted, so that a point estimate is the mode in constrained space.
    """

    def __init__(self, site: Site, *, jacobian: bool = True) -> None:
        self._prior, self._transform, self._jacobian = unvalidated(site.prior), site.transform, jacobian
        start = site.unconstrained_start
        self._shape, self._event_dim = start.shape, site.unconstrained_event_dim
        zero = torch.zeros_like(start)
        try:
            kl_divergence(self._gaussian(zero, torch.ones_like(zero)), self._prior)
            self.is_closed = True
        except NotImplementedError:
            self.is_closed = False

    def _gaussian(self, loc: Tensor, scale: Tensor) -> Any:
        base = dist.Normal(loc.view(self._shape), scale.view(self._shape), validate_args=False)
        gaussian = base.to_event(self._event_dim)
        return gaussian if self._transform is None else dist.TransformedDistribution(gaussian, [self._transform])

    def log_prob(self, value: Tensor, slope: Tensor, scratch: Sequence[Tensor]) -> Tensor:
        with torch.enable_grad():
            leaf = value.detach().requires_grad_()
            free = leaf.view(self._shape)
            inside = free if self._transform is None else self._transform(free)
            result: Tensor = self._prior.log_prob(inside).sum()
            if self._transform is not None and self._jacobian:
                result = result + self._transform.log_abs_det_jacobian(free, inside).sum()
            (gradient,) = torch.autograd.grad(result, leaf) if result.requires_grad else (torch.zeros_like(leaf),)
        slope.copy_(gradient)
        return result.detach().double()

    def divergence(
        self, loc: Tensor, scale: Tensor, loc_slope: Tensor, scale_slope: Tensor, scratch: Sequence[Tensor]
    ) -> Tensor:
        with torch.enable_grad():
            pair = loc.detach().requires_grad_(), scale.detach().requires_grad_()
            result = kl_divergence(self._gaussian(*pair), self._prior).sum()
            for slope, gradient in zip((loc_slope, scale_slope), torch.autograd.grad(result, pair), strict=True):
                slope.copy_(gradient)
        return result.detach().double()


FORMULAS: dict[Any, type[Density]] = {dist.Normal: NormalDensity, ScaleMixtureNormal: ScaleMixtureDensity}
"""Densities with explicit gradients, by the class of the prior."""


def density_of(site: Site, *, jacobian: bool = True) -> Density:
    """Return the prior density of a site's unconstrained value; for `jacobian` see :class:`AnyDensity`."""
    base: Any = elementwise_prior(site)
    if formulas := FORMULAS.get(type(base)):
        numbers = [_number_or_flat(getattr(base, name), site) for name in type(base).arg_constraints]
        if formulas.can_have(*numbers):
            return formulas(*numbers)
    return AnyDensity(site, jacobian=jacobian)


def elementwise_prior(site: Site) -> Distribution | None:
    """Return the prior without event axes, if the site is unconstrained and its elements are independent."""
    base = unwrap(site.prior)
    return base if site.transform is None and base.event_shape == () else None


def _number_or_flat(argument: Tensor, site: Site) -> float | Tensor:
    argument = argument.detach()  # for a learned prior, only `is_closed` of the density is used
    first = argument.reshape(-1)[0]
    if bool((argument == first).all()):
        return float(first)
    return argument.expand(site.start.shape).reshape(-1)


def groups_of(
    sites: Sequence[Site], layout: Layout, children: Collection[str]
) -> Iterator[tuple[list[str], Callable[[Tensor], Tensor]]]:
    """Group sites by the class of their prior, and yield the names and a log-density function of each group.

    The function maps points, shape (K, P), to log-densities, shape (K,). A site belongs to no group if it is inside a
    plate, if it is in `children` (its prior depends on other sites), or if its prior has another class than those in
    the loop below.
    """
    fixed = [site for site in sites if site.name not in children and not site.plates]
    bases: dict[str, Any] = {site.name: elementwise_prior(site) for site in fixed}
    for kind in (dist.Normal, dist.Laplace, ScaleMixtureNormal):
        chosen = [site for site in fixed if type(bases[site.name]) is kind]
        if not chosen:
            continue
        parts = [layout.slices[site.name] for site in chosen]
        device = chosen[0].start.device
        columns = torch.cat([torch.arange(part.start, part.stop, device=device) for part in parts])
        arguments = []
        for name in kind.arg_constraints:
            joined = torch.cat([getattr(bases[s.name], name).expand(s.start.shape).flatten() for s in chosen])
            arguments.append(joined[0] if bool((joined == joined[0]).all()) else joined)  # one number for all weights
        log_density = FORMULAS.get(kind, Density).rows(kind, *arguments)
        names = [site.name for site in chosen]
        yield names, log_density if len(columns) == layout.num_elements else _of_columns(log_density, columns)


def _of_columns(log_density: Callable[[Tensor], Tensor], columns: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda z: log_density(z[:, columns])


# --- the joint density ---


CHUNK = 2**20  # heuristic: largest length of a `Piece` on a CPU, so that its numbers fit in the processor's cache


@dataclass(frozen=True)
class Piece:
    """A part of a flat vector whose numbers are evaluated together."""

    part: slice  # of the vector
    density: Density
    kind: Any  # label of the sites; see `Joint.pieces`


class Joint:
    r"""The joint density :math:`p(y \mid w)\, p(w)` of a :class:`~pyro_bnn.BayesianModel` with fixed priors.

    The latent variables are in one flat vector, in unconstrained space, in the order in which the model draws them.
    """

    def __init__(self, model: BayesianModel, *, jacobian: bool = True) -> None:
        self.model = model
        with seeded(0, model.device):
            self.sites = find_sites(model, (), {})
            self.densities = {site.name: density_of(site, jacobian=jacobian) for site in self.sites}
        self.layout = Layout({site.name: site.unconstrained_start.shape for site in self.sites})

    def pieces(self, kind: Callable[[Site], Any] = lambda site: None, *, longest: int = CHUNK) -> list[Piece]:
        """Divide the vector of weights into pieces with one prior density each.

        A piece joins neighbouring sites with equal densities and equal labels from `kind`. On a CPU, pieces longer than
        `longest` are cut.
        """
        runs: list[Piece] = []
        for site in self.sites:
            part, density, its_kind = self.layout.slices[site.name], self.densities[site.name], kind(site)
            last = runs[-1] if runs else None
            if last and density.key is not None and (density.key, its_kind) == (last.density.key, last.kind):
                runs[-1] = Piece(slice(last.part.start, part.stop), last.density, its_kind)
            elif part.stop > part.start:
                runs.append(Piece(part, density, its_kind))
        return [piece for run in runs for piece in _cut(run, self.model.device, longest)]

    def constrained(self, free: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return constrained(self.sites, free)


def _cut(run: Piece, device: torch.device, longest: int) -> Iterable[Piece]:
    """On a CPU, cut a piece to at most `longest` numbers, unless its density may have parameters for each weight."""
    size = longest if device.type == "cpu" and run.density.key is not None else run.part.stop - run.part.start
    for start in range(run.part.start, run.part.stop, size):
        yield Piece(slice(start, min(start + size, run.part.stop)), run.density, run.kind)
