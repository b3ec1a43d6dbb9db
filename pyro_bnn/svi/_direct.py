"""The direct path: the ELBO of a mean-field guide without effect handlers, its divergence differentiated by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torch.nn.functional import softplus

from .._scope import eval_mode, seeded
from ..estimators import Estimator
from ..estimators._applied import random_layers
from ..estimators._layers import RandomParameter
from ..guides import MeanFieldGuide, Site
from ..guides._sites import find_sites
from ..model import BayesianModel
from ._batches import Batch
from ._densities import LOG_ROOT_TAU, Density, density_of
from ._flat import CHUNK, Layout, flattened, leaves
from ._steps import Step


def obstacle(model: nn.Module, guide: nn.Module, elbo: type[ELBO], x: Tensor) -> str | None:
    """Why the direct path is closed; None where it gives what Pyro's own would."""
    if type(model) is not BayesianModel:
        return f"the model is of type {type(model).__name__}"
    if type(guide) is not MeanFieldGuide:
        return f"the guide is of type {type(guide).__name__}"
    if elbo not in (Trace_ELBO, TraceMeanField_ELBO):
        return f"the bound is {elbo.__name__}"
    if _PYRO_STACK:
        return "effect handlers are active"
    if _is_hooked(model) or _is_hooked(guide):
        return "the model or the guide has hooks"
    if model._around_network is not None or guide._choose is not None:
        return "an estimator is applied already"
    try:
        with seeded(0, model.device), torch.no_grad(), poutine.block(), eval_mode(model):
            trace: Any = poutine.trace(model.observation).get_trace(x[:1])
    except ValueError as error:
        return f"the model cannot be run ({error})"
    if {*trace.stochastic_nodes} != {*model.latent_names} or trace.observation_nodes:
        return "the network or the likelihood has sites of its own"
    sites = find_sites(model, (), {})
    if [(site.name, site.start.shape) for site in sites] != [(s.name, s.start.shape) for s in guide._sites]:
        return "model and guide have different sites"
    if any(site.plates for site in sites) or not model._has_fixed_priors():
        return "a prior depends on other variables"
    return None if any(_is_flat(site) for site in sites) else "no latent variable is real"


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _is_flat(site: Site) -> bool:
    return site.transform is None


@dataclass(frozen=True)
class _Piece:
    """Consecutive weights under one prior, few enough for the cache."""

    part: slice
    density: Density
    is_closed: bool  # the divergence is an integral; else it is read off the draw


class DirectStep(Step):
    r"""A step on a :class:`BayesianModel` and a :class:`MeanFieldGuide`; see :func:`obstacle` for when.

    With :math:`w = \mu + \sigma\epsilon`, g the gradient of the loss in w, and :math:`\log q(w)` seen as a function
    of the parameters, :math:`-\tfrac12\epsilon^2 - \log\sigma` and a constant,

    .. math:: \nabla_\mu = g, \qquad \nabla_\sigma = g\,\epsilon - \lambda/\sigma, \qquad
              \nabla_\rho = \nabla_\sigma\, s(\rho),

    where :math:`\lambda` is the weight of the KL and s the logistic function. Latent variables of constrained support
    are few, and left to autograd.
    """

    def __init__(self, *args: Any, elbo: type[ELBO], num_particles: int, estimator: Estimator | None) -> None:
        super().__init__(*args)
        assert isinstance(self.model, BayesianModel)
        assert isinstance(self.guide, MeanFieldGuide)
        self._bayes, self._gaussians = self.model, self.guide
        self._estimator, self._num_particles = estimator, num_particles
        self._is_mean_field = elbo is TraceMeanField_ELBO
        with seeded(0, self.model.device):
            self._sites = find_sites(self.model, (), {})
            flat = [site for site in self._sites if _is_flat(site)]
            self._densities = {site.name: density_of(site) for site in flat}
        self._layout = Layout(tuple(s.name for s in flat), tuple(s.start.shape for s in flat))
        self._pieces = list(self._cut(flat))

    def _is_closed(self, name: str) -> bool:
        return self._is_mean_field and self._densities[name].has_expectation

    def _is_drawn(self, name: str) -> bool:
        return self._estimator is None or self._estimator._uses_draws or not self._is_closed(name)

    def _cut(self, sites: list[Site]) -> Iterator[_Piece]:
        """Runs of sites with the same prior, in chunks."""
        runs: list[_Piece] = []
        for name, part in self._layout.slices().items():
            density, last = self._densities[name], runs[-1] if runs else None
            if last is not None and density.key is not None and density.key == last.density.key:
                runs[-1] = _Piece(slice(last.part.start, part.stop), last.density, last.is_closed)
            else:
                runs.append(_Piece(part, density, self._is_closed(name)))
        chunk = CHUNK if self._bayes.device.type == "cpu" else max(sum(self._layout.sizes), 1)
        for run in runs:
            size = chunk if run.density.key is not None else run.part.stop - run.part.start
            for start in range(run.part.start, run.part.stop, size):
                yield _Piece(slice(start, min(start + size, run.part.stop)), run.density, run.is_closed)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Within it, steps can be made: the Gaussians' parameters lie in flat vectors."""
        self._locs, self._rhos = (
            [self._gaussians._modules[kind].get_parameter(name) for name in self._layout.names]  # type: ignore[union-attr]
            for kind in ("loc", "rho")
        )
        with flattened(self._locs) as self._loc, flattened(self._rhos) as self._rho:
            self._allocate()
            try:
                yield
            finally:
                self._free()

    def _allocate(self) -> None:
        views = self._layout.views
        self._scale, self._noise = torch.empty_like(self._rho), torch.zeros_like(self._rho)
        self._loc_grad = torch.zeros_like(self._loc)
        self._value = torch.empty_like(self._loc) if any(map(self._is_drawn, self._layout.names)) else self._loc
        drawn = self._value if self._estimator is None else self._loc
        self._given = leaves(views(drawn), views(self._loc_grad))
        if self._estimator is None:
            self._scale_grad = self._noise  # it ends as the gradient, when it has served as noise
        else:
            self._spread, self._scale_grad = torch.empty_like(self._rho), torch.zeros_like(self._rho)
            self._spreads = leaves(views(self._spread), views(self._scale_grad))
        longest = max(piece.part.stop - piece.part.start for piece in self._pieces)
        self._scratch = [self._loc.new_empty(longest) for _ in range(4)]
        self._noises, self._values = views(self._noise), views(self._value)
        self._totals = [torch.zeros_like(g) for g in (self._loc_grad, self._scale_grad)] * (self._num_particles > 1)

    def _free(self) -> None:
        """Before the parameters get memory of their own again, which would need more at a time than a step does."""
        for name in ("_scale", "_value", "_spread", "_given", "_spreads", "_scratch", "_values", "_totals"):
            vars(self).pop(name, None)
        for parameter in (*self._locs, *self._rhos):
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()
        del self._noise, self._noises, self._loc_grad, self._scale_grad, self._loc, self._rho

    def _gradients(self) -> list[Tensor]:
        ours = {id(parameter) for parameter in (*self._locs, *self._rhos)}
        others = [p.grad for p in self._parameters if p.grad is not None and id(p) not in ours]
        return [self._loc_grad, self._scale_grad, *others]

    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            for piece in self._pieces:
                softplus(self._rho[piece.part], out=self._scale[piece.part])  # type: ignore[call-arg]
        share = 1 / self._num_particles
        terms = self._particle(batch, weight * share)
        if self._num_particles > 1:
            terms = self._other_particles(terms, batch, weight * share)
        for parameters, gradient in ((self._locs, self._loc_grad), (self._rhos, self._scale_grad)):
            for parameter, view in zip(parameters, self._layout.views(gradient).values(), strict=True):
                parameter.grad = view if parameter.requires_grad else None
        terms = terms * share
        return weight * terms[1] - terms[0], terms

    def _other_particles(self, terms: Tensor, batch: Batch, weight: float) -> Tensor:
        gradients = self._loc_grad, self._scale_grad
        for total, gradient in zip(self._totals, gradients, strict=True):
            total.copy_(gradient)
        for _ in range(self._num_particles - 1):
            terms = terms + self._particle(batch, weight)
            for total, gradient in zip(self._totals, gradients, strict=True):
                total.add_(gradient)
        for total, gradient in zip(self._totals, gradients, strict=True):
            gradient.copy_(total)
        return terms

    def _particle(self, batch: Batch, weight: float) -> Tensor:
        """Gradients of one draw, and its log-likelihood and divergence."""
        self._loc_grad.zero_()
        others, divergence = self._draw()
        log_likelihood = self._log_likelihood({**self._given, **others}, batch)
        loss = weight * divergence - log_likelihood / self._num_particles
        loss.backward()
        with torch.no_grad():
            terms = [self._differentiate(piece, weight) for piece in self._pieces]
            return torch.stack([log_likelihood.double(), divergence + sum(terms)]).detach()

    def _log_likelihood(self, values: dict[str, Tensor], batch: Batch) -> Tensor:
        if self._estimator is None:
            return self._bayes._log_likelihood(values, *batch)
        estimator = self._estimator
        pairs = zip(self._given.items(), self._spreads.values(), strict=True)
        random = {id(loc): RandomParameter(name, loc, spread) for (name, loc), spread in pairs}
        self._bayes._around_network = lambda _, num_rows: random_layers(estimator, random, num_rows)
        try:
            return self._bayes._log_likelihood(values, *batch)
        finally:
            self._bayes._around_network = None

    def _draw(self) -> tuple[dict[str, Tensor], Tensor]:
        """Draw all variables, in the guide's order; returns the constrained ones and their divergence."""
        others: dict[str, Tensor] = {}
        divergence = self._loc.new_zeros((), dtype=torch.float64)
        for site in self._sites:
            if not _is_flat(site):
                guide = self._gaussians._distribution(site)
                others[site.name] = guide.rsample()
                divergence = divergence + self._divergence(guide, site, others[site.name])
            elif self._is_drawn(site.name):
                self._noises[site.name].normal_()
        with torch.no_grad():
            if self._value is not self._loc:
                torch.addcmul(self._loc, self._scale, self._noise, out=self._value)
            if self._estimator is not None:
                self._scale_grad.zero_()
                torch.mul(self._scale, self._noise if self._estimator._uses_draws else self._scale, out=self._spread)
        return others, divergence

    def _divergence(self, guide: Any, site: Site, value: Tensor) -> Tensor:
        if self._is_mean_field:
            try:
                return kl_divergence(guide, site.prior).sum()
            except NotImplementedError:
                pass
        difference: Tensor = guide.log_prob(value) - site.prior.log_prob(value)
        return difference.sum()

    def _cut_scratch(self, part: slice) -> list[Tensor]:
        return [buffer[: part.stop - part.start] for buffer in self._scratch]

    def _differentiate(self, piece: _Piece, weight: float) -> Tensor:
        """Make of the gradients in what the network was given those in loc and rho; returns the divergence."""
        part, density = piece.part, piece.density
        loc, rho, scale, noise = (v[part] for v in (self._loc, self._rho, self._scale, self._noise))
        loc_grad, scale_grad = self._loc_grad[part], self._scale_grad[part]
        slope, scale_slope, *scratch = self._cut_scratch(part)
        if piece.is_closed:
            self._chain(scale_grad, loc_grad, scale, noise)
            expected = density.expectation(loc, scale, slope, scale_slope, scratch)
            loc_grad.sub_(slope, alpha=weight)
            scale_grad.sub_(scale_slope, alpha=weight)
            squares: Tensor | int = len(loc)
        else:
            expected = density.log_prob(self._value[part], slope, scratch)
            squares = torch.dot(noise, noise)
            loc_grad.sub_(slope, alpha=weight)
            self._chain(scale_grad, loc_grad, scale, noise)
            if self._estimator is not None:
                scale_grad.addcmul_(slope, noise, value=-weight)
        scale_grad.sub_(torch.reciprocal(scale, out=slope), alpha=weight)
        scale_grad.mul_(torch.sigmoid(rho, out=slope))
        entropy = torch.log(scale, out=slope).sum() + 0.5 * squares + len(loc) * LOG_ROOT_TAU
        return -(entropy + expected).double()

    def _chain(self, scale_grad: Tensor, loc_grad: Tensor, scale: Tensor, noise: Tensor) -> None:
        """From the network's gradients to that in the scale, which for plain draws takes the place of the noise."""
        if self._estimator is None:
            scale_grad.mul_(loc_grad)
        elif self._estimator._uses_draws:
            scale_grad.mul_(noise)  # the spread is scale times noise
        else:
            scale_grad.mul_(scale).mul_(2)  # the spread is the square of the scale

    def _bad_site(self) -> str | None:
        values = self._values
        for name, value in values.items():
            if not bool(torch.isfinite(value).all()):
                return f"`{name}` (its value)"
        for site in self._sites:
            if site.name in values and not bool(torch.isfinite(site.prior.log_prob(values[site.name]))):
                return f"`{site.name}` (its log-density)"
        return "`obs` (its log-density)"
