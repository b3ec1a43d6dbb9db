"""The direct path: the ELBO of a mean-field guide without effect handlers, its divergence differentiated by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import kl_divergence

from .._reflection import elementwise, tensors_of
from .._scope import seeded
from ..estimators import Estimator
from ..estimators._applied import random_layers
from ..estimators._layers import RandomParameter
from ..guides import MeanFieldGuide
from ..joint import LOG_ROOT_TAU, Density, Site, density_of, find_sites
from ..model import BayesianModel
from ._batches import Batch
from ._flat import FlatGaussians, scale_of_removed
from ._obstacle import is_flat
from ._steps import Step

CHUNK = 2**20
"""Heuristic: elements worked on at once on a CPU, so that a chunk of every vector stays in the cache."""


@dataclass(frozen=True)
class _Piece:
    """Consecutive weights under one prior, few enough for the cache."""

    part: slice
    density: Density
    is_closed: bool  # the divergence is an integral; else it is read off the draw


class _NoSites(Messenger):
    """Refuses sites of the network's own, which would be left out of the ELBO."""

    def _pyro_sample(self, msg: Any) -> NoReturn:
        raise ValueError(
            f"the site `{msg['name']}` appeared within the network, but not when it was tried out before the fit. "
            "Make it appear always, or fit with `pyro.infer.SVI`."
        )


class DirectStep(Step):
    r"""A step on a :class:`BayesianModel` and a :class:`MeanFieldGuide`; see :func:`obstacle` for when.

    The loss is :math:`L + \lambda (\log q(w) - \log p(w))`, with L minus the log-likelihood, :math:`\lambda` the
    weight of the KL and :math:`w = \mu + \sigma\epsilon`. As a function of the parameters
    :math:`\log q(w) = -\tfrac12\epsilon^2 - \log\sigma` and a constant. So with
    :math:`g = \nabla_w (L - \lambda \log p)`

    .. math:: \nabla_\mu = g, \qquad \nabla_\sigma = g\,\epsilon - \lambda/\sigma, \qquad
              \nabla_\rho = \nabla_\sigma\, \frac{d\sigma}{d\rho},

    where the last factor is the logistic function of rho, or half of :math:`\sigma` if rho is a log-variance. Where the
    divergence has a closed form, :math:`g = \nabla_w L`, and :math:`\lambda` times the gradients of the closed form are
    added to :math:`\nabla_\mu, \nabla_\sigma`.

    An estimator gives the network :math:`\mu` and a spread instead of w, and :math:`\nabla_\mu L` is what autograd
    says. The spread is the deviation :math:`\delta = \sigma\epsilon`, so that :math:`\nabla_\sigma L =
    \nabla_\delta L\,\epsilon`, or the variance v, so that :math:`\nabla_\sigma L = 2\sigma\nabla_v L`.

    Latent variables that are constrained or no weights are few, and left to autograd.
    """

    def __init__(self, *args: Any, elbo: type[ELBO], num_particles: int, estimator: Estimator | None) -> None:
        super().__init__(*args)
        assert isinstance(self.model, BayesianModel)
        assert isinstance(self.guide, MeanFieldGuide)
        self._bayes, self._guide = self.model, self.guide
        self._estimator, self._num_particles = estimator, num_particles
        self._is_mean_field = elbo is TraceMeanField_ELBO
        with seeded(0, self.model.device):
            self._sites = find_sites(self.model, (), {})
            self._flat = [site for site in self._sites if is_flat(self.model, site)]
            self._densities = {site.name: density_of(site) for site in self._flat}
        self._names = {site.name for site in self._flat}
        self._priors = self._bayes.sample_statements
        self._watched = [(tensor, tensor._version) for site in self._sites for tensor in tensors_of(site.prior)]

    def _is_closed(self, name: str) -> bool:
        return self._is_mean_field and self._densities[name].is_closed

    def _is_drawn(self, name: str) -> bool:
        return self._estimator is None or self._estimator._uses_draws or not self._is_closed(name)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Within it, steps can be made: the Gaussians' parameters lie in flat vectors."""
        draws = any(map(self._is_drawn, self._names))
        self._gaussians = FlatGaussians(self._guide, self._flat, draws=draws, spreads=self._estimator is not None)
        self._pieces = list(self._cut(self._gaussians.slices()))
        self._of_removed = sum(self._divergence_of_removed(site) for site in self._flat)
        longest = max(piece.part.stop - piece.part.start for piece in self._pieces)
        self._scratch = self._gaussians.loc.new_empty(4, longest)
        try:
            yield
        finally:
            del self._scratch
            self._gaussians.close()
            del self._gaussians

    def _cut(self, slices: dict[str, slice]) -> Iterator[_Piece]:
        """Sites with the same prior are joined, and runs of them cut into chunks."""
        chunk = CHUNK if self._bayes.device.type == "cpu" else max(part.stop for part in slices.values())
        runs: list[_Piece] = []
        for name, part in slices.items():
            density, last = self._densities[name], runs[-1] if runs else None
            if last is not None and density.key is not None and density.key == last.density.key:
                runs[-1] = _Piece(slice(last.part.start, part.stop), last.density, last.is_closed)
            else:
                runs.append(_Piece(part, density, self._is_closed(name)))
        for run in runs:
            size = chunk if run.density.key is not None else run.part.stop - run.part.start
            for start in range(run.part.start, run.part.stop, size):
                yield _Piece(slice(start, min(start + size, run.part.stop)), run.density, run.is_closed)

    def _divergence_of_removed(self, site: Site) -> float:
        """What the pieces count for the weights of a site that were removed, which have no divergence."""
        if site.name not in self._guide._masked:
            return 0.0
        prior = elementwise(site.name, site.prior, site.start.shape)
        removed = ~self._guide.kept(site.name)
        zero = torch.zeros_like(site.start, dtype=torch.float64)
        scale = scale_of_removed(site).to(site.start).double() + zero
        if self._is_closed(site.name):
            terms = kl_divergence(torch.distributions.Normal(zero, scale), prior)
        else:
            terms = -scale.log() - LOG_ROOT_TAU - prior.log_prob(zero)
        return float(terms.expand(site.start.shape)[removed].double().sum())

    def _gradients(self) -> list[Tensor]:
        q = self._gaussians
        ours = {id(parameter) for parameter in q.parameters}
        others = [p.grad for p in self._parameters if p.grad is not None and id(p) not in ours]
        return [q.loc_grad, q.scale_grad, *others]

    def _backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        self._require_same_priors()
        q, share = self._gaussians, 1 / self._num_particles
        q.link()
        q.update_scale([piece.part for piece in self._pieces], self._scratch)
        terms = self._particle(batch, weight * share)
        if self._num_particles > 1:
            totals = q.loc_grad.clone(), q.scale_grad.clone()
            for _ in range(self._num_particles - 1):
                terms = terms + self._particle(batch, weight * share)
                for total, gradient in zip(totals, (q.loc_grad, q.scale_grad), strict=True):
                    total.add_(gradient)
            q.loc_grad.copy_(totals[0])
            q.scale_grad.copy_(totals[1])
        q.give_gradients()
        terms = terms * share
        return weight * terms[1] - terms[0], terms

    def _require_same_priors(self) -> None:
        priors = self._bayes.sample_statements
        is_same = len(priors) == len(self._priors) and all(a is b for a, b in zip(priors, self._priors, strict=True))
        if not is_same or any(tensor._version != version for tensor, version in self._watched):
            raise ValueError("a prior was changed during the fit; make a fit for each, one after the other.")

    def _particle(self, batch: Batch, weight: float) -> Tensor:
        """Gradients of one draw, and its log-likelihood and divergence."""
        q = self._gaussians
        q.loc_grad.zero_()
        self._others, divergence = self._draw()
        version = q.value._version
        log_likelihood = self._log_likelihood(batch)
        loss = weight * divergence - log_likelihood / self._num_particles
        if loss.requires_grad:  # else no weight is used
            loss.backward()
        if q.value._version != version:
            raise ValueError(
                "the network changes its weights in place (`max_norm`, `clamp_`), so that they are no draw from the "
                "guide any more; let it compute changed weights instead."
            )
        with torch.no_grad():
            terms = [self._differentiate(piece, weight) for piece in self._pieces]
            self._last_log_likelihood = log_likelihood.detach()
            total = divergence + sum(terms) - self._of_removed
            return torch.stack([log_likelihood.double(), total]).detach()

    def _draw(self) -> tuple[dict[str, Tensor], Tensor]:
        """Draw all variables, in the guide's order; returns those left to autograd, and their divergence."""
        q, others = self._gaussians, {}
        divergence = q.loc.new_zeros((), dtype=torch.float64)
        for site in self._sites:
            if site.name not in self._names:
                guide = self._guide._distribution(site)
                others[site.name] = guide.rsample()
                divergence = divergence + self._divergence(guide, site, others[site.name])
            elif self._is_drawn(site.name):
                q.noises[site.name].normal_()
        with torch.no_grad():
            q.remove(q.noise, 0)
            if q.value is not q.loc:
                torch.addcmul(q.loc, q.scale, q.noise, out=q.value)
            if self._estimator is not None and q.spread is not None:
                torch.mul(q.scale, q.noise if self._estimator._uses_draws else q.scale, out=q.spread)
                q.remove(q.spread, 0)
                q.scale_grad.zero_()
        return others, divergence

    def _divergence(self, guide: Any, site: Site, value: Tensor) -> Tensor:
        if self._is_mean_field:
            try:
                return kl_divergence(guide, site.prior).sum()
            except NotImplementedError:
                pass
        difference: Tensor = guide.log_prob(value) - site.prior.log_prob(value)
        return difference.sum()

    def _log_likelihood(self, batch: Batch) -> Tensor:
        q, estimator = self._gaussians, self._estimator
        if estimator is None or q.spread is None:
            with _NoSites():
                return self._bayes.log_likelihood({**q.leaves(q.value, q.loc_grad), **self._others}, *batch)
        given, spreads = q.leaves(q.loc, q.loc_grad), q.leaves(q.spread, q.scale_grad)
        random = {id(loc): RandomParameter(name, loc, spreads[name]) for name, loc in given.items()}
        with self._bayes.intercepted(lambda _, num_rows: random_layers(estimator, random, num_rows)), _NoSites():
            return self._bayes.log_likelihood({**given, **self._others}, *batch)

    def _differentiate(self, piece: _Piece, weight: float) -> Tensor:
        """Make of the gradients in what the network was given those in loc and rho; returns the divergence."""
        q, part, density = self._gaussians, piece.part, piece.density
        loc, scale, noise = (vector[part] for vector in (q.loc, q.scale, q.noise))
        loc_grad, scale_grad = q.loc_grad[part], q.scale_grad[part]
        slope, scale_slope, *scratch = self._scratch[:, : part.stop - part.start]
        if piece.is_closed:
            divergence = density.divergence(loc, scale, slope, scale_slope, scratch)
            self._chain(scale_grad, loc_grad, scale, noise)
            loc_grad.add_(slope, alpha=weight)
            scale_grad.add_(scale_slope, alpha=weight)
        else:
            log_p = density.log_prob(q.value[part], slope, scratch)
            log_scales = torch.log(scale, out=scale_slope).sum().double()
            log_q = -0.5 * torch.dot(noise, noise).double() - log_scales - len(loc) * LOG_ROOT_TAU
            divergence = log_q - log_p
            loc_grad.sub_(slope, alpha=weight)
            self._chain(scale_grad, loc_grad, scale, noise)  # from here on the noise may be gone
            if self._estimator is not None:
                scale_grad.addcmul_(slope, noise, value=-weight)
            scale_grad.sub_(torch.reciprocal(scale, out=scale_slope), alpha=weight)
        scale_grad.mul_(q.scale_slope(part, scale_slope))
        q.remove(loc_grad, 0, part)
        return divergence

    def _chain(self, scale_grad: Tensor, loc_grad: Tensor, scale: Tensor, noise: Tensor) -> None:
        """From the network's gradients to that in the scale."""
        if self._estimator is None:
            scale_grad.mul_(loc_grad)  # it holds the noise
        elif self._estimator._uses_draws:
            scale_grad.mul_(noise)
        else:
            scale_grad.mul_(scale).mul_(2)

    def _bad_site(self) -> str | None:
        q = self._gaussians
        values, scales = {**q.values, **self._others}, q.views(q.scale)
        for name, value in values.items():
            if not bool(torch.isfinite(value).all()):
                return f"`{name}` (its value)"
        for site in self._sites:
            is_degenerate = site.name in scales and not bool((scales[site.name] > 0).all())
            if is_degenerate or not bool(torch.isfinite(site.prior.log_prob(values[site.name])).all()):
                return f"`{site.name}` (its log-density)"
        return None if bool(torch.isfinite(self._last_log_likelihood)) else "`obs` (its log-density)"
