"""The guide with a low-rank covariance."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.scope import local_param, seeded
from ..._core.signatures import explained
from ...modelling.model import BayesianModel
from ..joint import LOG_ROOT_TAU, Joint, Layout, Piece, find_sites
from ..scale_maps import ScaleMap
from ._flat import GaussianGuide
from ._init import Init, require_model
from ._state import FlatState, Noise, ParameterVector, lent, scratch_for

LATENT = "_low_rank_latent"  # name of the auxiliary site that holds all latent variables in one vector


class LowRankGuide(GaussianGuide):
    r"""A Gaussian guide whose covariance is a diagonal matrix plus a matrix of low rank.

    .. math:: q(w) = N(\mu, D (I + F^\top F) D), \qquad D = \mathrm{diag}(\sigma), \quad F \in R^{r \times P}.

    The vector w holds all P latent numbers, in unconstrained space. `TraceMeanField_ELBO` uses a closed form of the
    divergence for each prior that has one.

    The factor F starts at random numbers, because zero would be a saddle point. These numbers depend only on the shape
    of F. The initial marginal standard deviations are exactly those of `init`.

    Args:
        model: The model whose posterior the guide approximates.
        rank: Rank r of the low-rank matrix, from 1 to P.
        init: Initial locations and marginal scales. By default the guide is centred on the network's own weights.
        scale_map: Map from free parameters to the scales :math:`\sigma`.

    Raises:
        ValueError: If `rank` is not a whole number from 1 to P.

    References:
        Ong, Nott and Smith (2018), Gaussian Variational Approximation with a Factor Covariance Structure,
        https://arxiv.org/abs/1701.03208.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> guide = pb.LowRankGuide(model, rank=1)
        >>> {site: tuple(value.shape) for site, value in guide().items()}
        {'net.weight': (1, 1), 'net.bias': (1,)}
    """

    @explained("LowRankGuide(model, rank=10)")
    def __init__(
        self, model: BayesianModel, *, rank: int, init: Init | None = None, scale_map: ScaleMap | None = None
    ) -> None:
        super().__init__()
        require_model(model)
        sites = find_sites(model, (), {})
        self._layout = Layout({site.name: site.unconstrained_start.shape for site in sites})
        num_latents = self._layout.num_elements
        self.rank = checked_rank(rank, num_latents)
        with seeded(0, model.device):
            factor = torch.randn(self.rank, num_latents).to(sites[0].start) / self.rank**0.5
        self.make_parameters(sites, init, scale_map, self._layout.views(_stretch(factor)))
        self.factor = nn.Parameter(factor)

    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draw every latent variable, ``{site: value}``. The arguments are ignored."""
        loc, free = (
            self._layout.pack({site.name: self.stated(kind, site.name) for site in self.sites})
            for kind in ("loc", self.scale_map.name)
        )
        parameter, scale = self._parameters["factor"], self.scale_map(free)
        assert parameter is not None
        factor = local_param(self._pyro_get_fullname("factor"), parameter)
        gaussian = dist.LowRankMultivariateNormal(loc, (factor * scale).mT, scale.square(), validate_args=False)
        latent = pyro.sample(LATENT, gaussian, infer={"is_auxiliary": True})
        return self.sample_at(self._layout.views(latent), jacobian=True)

    def remarks(self) -> list[str]:
        return [f"correlations in {self.rank} directions"]

    def _unshared_scales(self) -> dict[str, Tensor]:
        return {name: self.scale_map(free) for name, free in self.values(self.scale_map.name).items()}

    def draws(self, num_samples: int) -> Iterator[dict[str, Tensor]]:
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        loc, scale, factor = self.locations(), self._unshared_scales(), self.factor.detach()
        for _ in range(num_samples):
            shared, noise = torch.randn_like(factor[:, 0]), torch.randn_like(factor[0])
            directions = self._layout.views(torch.addmv(noise, factor.mT, shared))
            yield self.constrained({n: torch.addcmul(loc[n], scale[n], v) for n, v in directions.items()})

    def scales(self) -> dict[str, Tensor]:
        scale, stretch = self._unshared_scales(), self._layout.views(_stretch(self.factor.detach()))
        return {name: scale[name] * stretch[name] for name in scale}

    def flat(self, joint: Joint, *, noise: Noise | None, closed_form: bool) -> AbstractContextManager[FlatState]:
        if noise is not None:
            raise ValueError(
                "`estimator` needs independent weights, but those of a LowRankGuide are correlated; leave `estimator` "
                "out, or use MeanFieldGuide."
            )
        loc, free = self.vectors(joint)
        rows = loc.value.new_empty(2 + self.rank, joint.layout.num_elements)
        factor = ParameterVector(self, ["factor"], memory=rows[2:].view(-1))
        return lent(LowRankState(joint, loc, free, factor, rows, scale_map=self.scale_map, closed_form=closed_form))


def checked_rank(rank: int, num_latents: int) -> int:
    rank = _checks.at_least("rank", rank, 1)
    if rank > num_latents:
        raise ValueError(
            f"`rank` must be at most the number of latent numbers, {num_latents}, got {rank}; for full rank use "
            "`auto_guide(AutoMultivariateNormal, model)`."
        )
    return rank


def _stretch(factor: Tensor) -> Tensor:
    """Return the ratio of marginal standard deviations to scales, shape (P,)."""
    return (1 + factor.square().sum(0)).sqrt()


class LowRankState(FlatState):
    r"""Draws :math:`w = \mu + \sigma v` with :math:`v = F^\top a + \epsilon`, and computes gradients.

    The elements of :math:`a` and :math:`\epsilon` are standard Gaussian noise. Let L be minus the log-likelihood,
    :math:`\lambda` the weight of the divergence, :math:`g = \nabla_w (L - \lambda \log p)`, :math:`C = I + F F^\top`,
    :math:`b = C^{-1} F v` and :math:`u = v - F^\top b`. By the lemmas of Woodbury and Sylvester

    .. math:: \log q(w) = -\tfrac12 (v^\top v - v^\top F^\top b) - \sum \log \sigma - \tfrac12 \log\det C
              - \tfrac P2 \log 2\pi,

    .. math:: \nabla_\mu = g, \qquad \nabla_\sigma = g v - \lambda / \sigma, \qquad
              \nabla_F = a (g \sigma)^\top + \lambda \left((b - a) u^\top - C^{-1} F\right).

    In closed form, with the marginal standard deviations :math:`m_i = \sigma_i r_i` and :math:`r_i^2 = 1 + \lVert F_i
    \rVert^2`,

    .. math:: \mathrm{KL} = \sum_i \mathrm{KL}(N(\mu_i, m_i^2) \,\|\, p_i) + \sum_i \log r_i - \tfrac12 \log\det C.

    The rows of the tensor `rows`, shape (2 + r, P), are v, the gradient with respect to v, and the r rows of F. So one
    matrix product can use all of them.
    """

    def __init__(
        self,
        joint: Joint,
        loc: ParameterVector,
        free: ParameterVector,
        factor: ParameterVector,
        rows: Tensor,
        *,
        scale_map: ScaleMap,
        closed_form: bool,
    ) -> None:
        super().__init__(joint, {"loc": loc, "free": free, "factor": factor})
        self._loc, self._free, self._scale_map, self._closed_form = loc.value, free.value, scale_map, closed_form
        self._rows, self._factor = rows, rows[2:]
        self._direction, self._slopes = rows[:2]  # v, and the gradient of network and drawn densities with respect to v
        self._pieces = joint.pieces(lambda site: closed_form and joint.densities[site.name].is_closed)
        self._scale = torch.empty_like(self._loc)
        self.value, self.value_grad = torch.empty_like(self._loc), torch.zeros_like(self._loc)
        self._scale_grad, self._factor_grad = torch.zeros_like(self._loc), torch.zeros_like(self._factor)
        # The stretch r, its factor in the gradient with respect to F, and m; only closed forms need them.
        self._stretch, self._stretch_slopes, self._marginal = self._loc.new_empty(3, len(self._loc) * closed_form)
        self._scratch = scratch_for(self._pieces, self._loc)
        self._noise = self._loc.new_empty(len(self._factor))
        for vector, gradient in zip(self.vectors.values(), self.gradients, strict=True):
            vector.set_gradient(gradient)

    @property
    def gradients(self) -> list[Tensor]:
        return [self.value_grad, self._scale_grad, self._factor_grad.view(-1)]

    @torch.no_grad()
    def update(self) -> None:
        """Compute the scales, and the inverse and the determinant of C."""
        for piece in self._pieces:
            part, size = piece.part, piece.part.stop - piece.part.start
            self._scale_map.write(self._free[part], self._scale[part], self._scratch[:, :size])
        identity = torch.eye(len(self._factor), dtype=self._factor.dtype, device=self._factor.device)
        capacitance = torch.addmm(identity, self._factor, self._factor.mT)
        root = torch.linalg.cholesky_ex(capacitance).L
        self._inverse = torch.cholesky_inverse(root)
        self._half_log_det = root.diagonal().log().double().sum()
        if self._closed_form:
            self._stretch.fill_(1)
            for row in self._factor:  # row by row: torch's norm over the first axis takes ten times as long
                self._stretch.addcmul_(row, row)
            self._stretch.sqrt_()

    def draw(self) -> Mapping[str, Tensor]:
        with torch.no_grad():
            self._noise.normal_()
            self._direction.normal_()
            torch.addmv(self._direction, self._factor.mT, self._noise, out=self._direction)
            torch.addcmul(self._loc, self._scale, self._direction, out=self.value)
            self.value_grad.zero_()
        return self.joint.constrained(self.leaves(self.value, self.value_grad))

    @torch.no_grad()
    def pull_back(self, weight: float) -> Tensor:
        divergence = torch.stack([self._add_piece(piece, weight) for piece in self._pieces]).sum() - self._half_log_det
        noise, precision = self._noise.unsqueeze(-1), -weight * self._inverse
        if self._closed_form:
            torch.mm(torch.cat([noise, precision], 1), self._rows[1:], out=self._factor_grad)
            self._factor_grad.addcmul_(self._factor, self._stretch_slopes, value=weight)
        else:
            projected = self._factor @ self._direction  # F v
            shared = self._inverse @ projected  # b
            square = torch.dot(self._direction, self._direction).double() - torch.dot(projected, shared).double()
            divergence = divergence - 0.5 * square
            self._direction.addmv_(self._factor.mT, shared, alpha=-1)  # u
            difference = weight * (shared.unsqueeze(-1) - noise)
            torch.mm(torch.cat([difference, noise, precision], 1), self._rows, out=self._factor_grad)
        return divergence

    def _add_piece(self, piece: Piece, weight: float) -> Tensor:
        """Return a piece's divergence, and compute the gradients with respect to locations, scales, v and stretch."""
        part, density, is_closed = piece.part, piece.density, piece.kind
        gradient, scale, scale_grad = self.value_grad[part], self._scale[part], self._scale_grad[part]
        slope, scale_slope, *scratch = self._scratch[:, : part.stop - part.start]
        if is_closed:
            stretch, stretch_slope = self._stretch[part], self._stretch_slopes[part]
            torch.mul(gradient, scale, out=self._slopes[part])
            torch.mul(gradient, self._direction[part], out=scale_grad)
            marginal = torch.mul(scale, stretch, out=self._marginal[part])
            divergence = density.divergence(self._loc[part], marginal, slope, scale_slope, scratch)
            gradient.add_(slope, alpha=weight)
            scale_grad.addcmul_(scale_slope, stretch, value=weight)
            torch.mul(scale_slope, marginal, out=stretch_slope).add_(1).div_(stretch).div_(stretch)
            divergence = divergence + torch.log(stretch, out=scratch[0]).sum().double()
        else:
            log_p = density.add_slope(self.value[part], gradient, -weight, [slope, *scratch])
            torch.mul(gradient, scale, out=self._slopes[part])
            torch.mul(gradient, self._direction[part], out=scale_grad)
            scale_grad.sub_(torch.reciprocal(scale, out=scale_slope), alpha=weight)
            constant = LOG_ROOT_TAU + (0.5 if self._closed_form else 0.0)  # constant of the entropy, or of log q
            divergence = -log_p - torch.log(scale, out=slope).sum().double() - len(scale) * constant
            if self._closed_form:
                self._stretch_slopes[part].zero_()
        scale_grad.mul_(self._scale_map.slope(self._free[part], scale, scale_slope))
        return divergence

    def is_degenerate(self, site: str) -> bool:
        return not bool((self.joint.layout.views(self._scale)[site] > 0).all())
