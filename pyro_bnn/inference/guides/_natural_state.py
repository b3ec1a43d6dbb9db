"""The state of the mean-field guide during a step of natural-gradient inference."""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from ..joint import LOG_ROOT_TAU, Joint, NormalDensity, Piece
from ._masks import FlatMask
from ._state import DrawGradients, FlatState, ParameterVector, RandomParameter, scratch_for

LONGEST = 2**16  # heuristic: elements that a thread of a CPU updates at a time, which fit in its cache
LARGE_ON_GPU = 2**22  # heuristic: least elements for which an operation on a GPU takes longer than its launch
SMALLEST_WEIGHT = 1e-12  # heuristic: precisions grow with its inverse, and must stay below float32's 3e38
SMALLEST_RISE = 1.001  # heuristic: a precision may exceed the prior's by less than this factor by rounding
MOST_NUMBERS = 16  # heuristic: most elements of a variable with second derivatives, each of which takes a backward pass


class NaturalState(FlatState):
    r"""Draws w from :math:`N(m, 1/S)`, and updates the means m and the precisions S as in :func:`natural_gradient`.

    Let L be minus the log-likelihood of the whole data set, g the gradient of L with respect to w, and
    :math:`\lambda` the weight of the divergence. For a Gaussian prior with precision P around :math:`m_0`, the optimum
    satisfies :math:`E[g] + \lambda P (m - m_0) = 0` and :math:`S = E[\nabla^2 L] / \lambda + P`. By Stein's identity
    :math:`E[\nabla^2 L] = E[g\,(w - m)]\,S`. A step multiplies S by at least 1/2, so precisions stay positive. For any
    other prior p, g is the gradient of :math:`L - \lambda \log p`, and P = 0. If :math:`\lambda` changes by a factor,
    the part of S that comes from the data is divided by this factor.

    The update of S contains the square of a noisy term, which raises S above its optimum by about
    :math:`\rho\,\mathrm{Var}(g) / (2 \lambda^2)`. For a noise scale, g varies with the draws of all weights, and this
    variance would raise S to many times its optimum. So for latent variables of the likelihood, the second derivative
    of L replaces the estimate :math:`g\,(w - m)\,S`. This derivative needs no further pass through
    the network.

    With `gauss_newton_every` k, :math:`B\,s^2 / N` replaces :math:`g\,(w - m)\,S` in every k-th step, and S stays the
    same in the other steps. Here s is the gradient of minus the log-likelihood of the whole data set, estimated from B
    rows with simulated targets.

    The method is that of Shen et al. (2024) with S = N (h + P/N), where h is the Hessian of the mean loss of N rows.
    If the Hessian of the loss of one row is given as `initial_hessian`, the first step computes S from it. `adds_up`
    says whether a step sums :math:`g\,(w - m)` over several draws or processes.

    References:
        See :func:`natural_gradient`. The factor by which a step multiplies S is from Lin et al. (2020),
        https://arxiv.org/abs/2002.10060, and the simulated targets are from Liu et al. (2024),
        https://arxiv.org/abs/2305.14342, algorithm 2.
    """

    def __init__(
        self,
        joint: Joint,
        loc: ParameterVector,
        precision: ParameterVector,
        mask: FlatMask,
        *,
        initial_hessian: float | None,
        gauss_newton_every: int | None,
        adds_up: bool,
    ) -> None:
        super().__init__(joint, {"loc": loc, "precision": precision})
        self._loc, self._precision, self._mask = loc.value, precision.value, mask
        self._initial_hessian = initial_hessian
        self.value = torch.empty_like(self._loc)
        self._gradients = DrawGradients(joint, self.value, large_on_gpu=LARGE_ON_GPU)
        self._pieces = joint.pieces(self._gradients.label, longest=LONGEST * torch.get_num_threads())
        self._scratch = scratch_for(self._pieces, self._loc)
        self._product = torch.zeros_like(self._loc) if adds_up else None  # products of gradient and deviation
        self._hessians = diagonal_hessians(joint)
        self._every = gauss_newton_every
        self._curvature = None if gauss_newton_every is None else torch.zeros_like(self._loc)
        self._leaves: Mapping[str, Tensor] = {}
        self.momentum = torch.zeros_like(self._loc)  # moving average M of the gradients, shape (P,)
        self.num_updates, self._count = 0, torch.zeros((), dtype=torch.float64, device=self._loc.device)
        """Number of updates so far. A replayed CUDA graph increases only `_count`, the copy on the device."""
        self.weight: float | None = None  # weight of the divergence in the last step
        if self._product is not None:  # stored as a gradient, so that processes average it
            precision.set_gradient(self._product)

    def continue_from(self, num_updates: int, weight: float | None) -> None:
        """Continue after `num_updates` updates, given the weight of the divergence in the last update."""
        self.num_updates, self.weight = num_updates, weight
        self._count.fill_(num_updates)

    @property
    def gradients(self) -> list[Tensor]:
        """The draw's gradient; with several draws or processes, also the product of the gradient and the deviation."""
        return [*self._gradients.tensors, *([] if self._product is None else [self._product])]

    def begin(self, weight: float) -> None:
        if weight < SMALLEST_WEIGHT:
            raise ValueError(
                f"`kl_weight` must be at least {SMALLEST_WEIGHT:g} for natural-gradient inference, got {weight:g}; use "
                "Adam for smaller weights, at which the best Gaussian is almost a point mass."
            )
        super().begin(weight)
        with torch.no_grad():
            if self.num_updates == 0 and self._initial_hessian is not None:
                self._start(self._initial_hessian * self.joint.model.num_data / weight)
            elif self.num_updates == 0:
                self._warn_of_flat_start()
            elif self.weight is not None and weight != self.weight:
                self._rescale(self.weight / weight)
            self._mask.fill_precisions(self._precision)
        self.weight = weight

    def update(self) -> None:
        self._mask.require_same()
        with torch.no_grad():
            self._mask.fill(self._loc, 0)

    def _warn_of_flat_start(self) -> None:
        is_above = torch.empty_like(self._precision, dtype=torch.bool)
        for piece in self._pieces:
            is_above[piece.part] = self._precision[piece.part] > _prior_precision(piece) * SMALLEST_RISE
        by_site = self.joint.layout.views(is_above)
        flat = [site for site, above in by_site.items() if above.numel() and not bool(above.any())]
        if flat:
            named = ", ".join(f"`{site}`" for site in flat)
            warnings.warn(
                f"the guide starts with the scales of the prior at {named}, as if the data had no curvature there: the "
                "first natural-gradient steps are too long, and may move the weights far from the prior. Pass "
                "`natural_gradient(initial_hessian=0.03, num_warmup=100)`, or start with smaller scales.",
                stacklevel=2,
            )

    def _start(self, of_data: float) -> None:
        if of_data > torch.finfo(self._precision.dtype).max:
            raise ValueError(
                f"`initial_hessian` {self._initial_hessian} gives precisions of {of_data:g}, too large for "
                f"{self._precision.dtype}; for most losses it should be below 1."
            )
        for piece in self._pieces:
            self._precision[piece.part] = of_data + _prior_precision(piece)

    def _rescale(self, ratio: float) -> None:
        """Multiply the data's part of each precision by `ratio`; keep negative parts if `ratio` is above 1."""
        for piece in self._pieces:
            precision, of_prior = self._precision[piece.part], _prior_precision(piece)
            of_data = precision - of_prior
            scaled = of_data * ratio if ratio < 1 else torch.maximum(of_data, of_data * ratio)
            precision.copy_(scaled.add_(of_prior))

    @torch.no_grad()
    def draw(self) -> Mapping[str, Tensor | RandomParameter]:
        self.value.normal_()
        for piece in self._pieces:
            part = piece.part
            value, scale = self.value[part], self._scratch[0, : part.stop - part.start]
            torch.addcmul(self._loc[part], value, torch.rsqrt(self._precision[part], out=scale), out=value)
        self._mask.fill(self.value, 0)
        return self._given()

    @torch.enable_grad()
    def _given(self) -> Mapping[str, Tensor]:
        leaves = self._gradients.leaves()
        for hessian in self._hessians:
            hessian.begin(leaves)
        if self._curvature is not None:
            self._leaves = leaves
            self._curvature.zero_()
        return self.joint.constrained(leaves)

    @property
    def simulates(self) -> bool:
        return self._every is not None and self.num_updates % self._every == 0

    def observe_simulated(self, log_likelihood: Tensor, num_rows: int, share: float) -> None:
        assert self._curvature is not None
        if not log_likelihood.requires_grad:
            return
        slopes = torch.autograd.grad(log_likelihood, [*self._leaves.values()], retain_graph=True, allow_unused=True)
        factor = share * num_rows / self.joint.model.num_data
        with torch.no_grad():
            for slope, view in zip(slopes, self.joint.layout.views(self._curvature).values(), strict=True):
                if slope is not None:
                    slope = slope.to_dense() if slope.is_sparse else slope
                    view.addcmul_(slope, slope, value=factor)

    def observe(self, loss: Tensor) -> None:
        for hessian in self._hessians:
            hessian.add(loss)

    @torch.no_grad()
    def pull_back(self, weight: float) -> Tensor:
        self._gradients.take()
        self._leaves = {}
        for hessian in self._hessians:
            part = hessian.part
            hessian.end(self._estimate(part, torch.empty_like(self.value[part])), self._precision[part])
        terms = [self._divergence(piece, weight) for piece in self._pieces]
        for piece in self._pieces:
            part = piece.part
            self._mask.fill(self._gradients.of(part), 0, part)
            if self._product is not None:
                self._multiply(part, self._product[part])
        return torch.stack(terms).sum() - self._mask.constant

    def give_gradients(self) -> None:
        super().give_gradients()
        self.vectors["loc"].give_once(self._gradients.by_site())

    def _divergence(self, piece: Piece, weight: float) -> Tensor:
        part, density = piece.part, piece.density
        count = part.stop - part.start
        loc, precision, value = self._loc[part], self._precision[part], self.value[part]
        first, second, *rest = self._scratch[:, :count]
        log_precisions = torch.log(precision, out=first).sum().double()
        if isinstance(density, NormalDensity):
            return density.expected_energy(loc, precision, [first, second]) + 0.5 * log_precisions - 0.5 * count
        squares = torch.sub(value, loc, out=first).square_().mul_(precision).sum().double()
        log_p = density.add_slope(value, self._gradients.of(part), -weight, [first, second, *rest])
        return 0.5 * (log_precisions - squares) - count * LOG_ROOT_TAU - log_p

    @torch.no_grad()
    def update_parameters(
        self, *, lr: float, momentum: float, hessian_decay: float, clip: float | None, is_bad: Tensor | None = None
    ) -> None:
        is_estimated = self._every is None or self.simulates
        assert self.weight is not None
        self.num_updates += 1
        self._count.add_(1)
        bias = 1 - momentum**self._count
        factor = 1 / (self.weight * bias)  # corrects the momentum for its start at 0
        for piece in self._pieces:
            if is_estimated:
                self._update_precision(piece, 1 - hessian_decay, is_bad)
            self._update_loc(piece, lr, momentum, factor, clip, is_bad)

    def _update_precision(self, piece: Piece, rate: float, is_bad: Tensor | None) -> None:
        part = piece.part
        assert self.weight is not None
        precision = self._precision[part]
        product, inverse, *_ = self._scratch[:, : part.stop - part.start]
        if self._product is None:
            self._multiply(part, product)
        else:
            product.copy_(self._product[part])
        factor = product.mul_(rate / self.weight).add_(1 - rate)  # 1 + rho u, with rho P / S from the next lines
        if isinstance(piece.density, NormalDensity):
            _add_scaled(factor, piece.density.precision, torch.reciprocal(precision, out=inverse), rate)
        if self._every is None or self._hessians:  # products may be negative
            factor.square_().add_(1).mul_(0.5)
        if is_bad is not None:
            factor.masked_fill_(is_bad, 1)
        precision.mul_(factor)

    def _multiply(self, part: slice, out: Tensor) -> None:
        """Write the estimated second derivatives for the weights in `part`, divided by their precisions, to `out`."""
        self._estimate(part, out)
        for hessian in self._hessians:
            hessian.add_to(out, part)

    def _estimate(self, part: slice, out: Tensor) -> Tensor:
        if self._curvature is not None:
            return torch.div(self._curvature[part], self._precision[part], out=out)
        return torch.sub(self.value[part], self._loc[part], out=out).mul_(self._gradients.of(part))

    def _update_loc(
        self, piece: Piece, lr: float, decay: float, factor: Tensor, clip: float | None, is_bad: Tensor | None
    ) -> None:
        part, density = piece.part, piece.density
        loc, momentum = self._loc[part], self.momentum[part]
        step, deviation, *_ = self._scratch[:, : part.stop - part.start]
        torch.sub(self._gradients.of(part), momentum, out=step)
        if is_bad is not None:
            step.masked_fill_(is_bad, 0)
        momentum.add_(step, alpha=1 - decay)
        torch.mul(momentum, factor, out=step)
        if isinstance(density, NormalDensity):
            _add_scaled(step, density.precision, density.centred(loc, deviation))
        step.div_(self._precision[part])
        if clip is not None:
            step.clamp_(-clip, clip)
        if is_bad is not None:
            step.masked_fill_(is_bad, 0)
        loc.sub_(step, alpha=lr)
        self._mask.fill(loc, 0, part)

    def is_degenerate(self, site: str) -> bool:
        precision = self.joint.layout.views(self._precision)[site]
        return not bool(((precision > 0) & torch.isfinite(precision)).all())

    def close(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None  # the memory of a gradient may hold products
        super().close()


def _prior_precision(piece: Piece) -> float | Tensor:
    """Return the precision of a Gaussian prior; 0 for other priors, whose density is part of the gradient."""
    return piece.density.precision if isinstance(piece.density, NormalDensity) else 0.0


def _add_scaled(target: Tensor, factor: float | Tensor, value: Tensor, weight: float = 1.0) -> None:
    if isinstance(factor, Tensor):
        target.addcmul_(value, factor, value=weight)
    else:
        target.add_(value, alpha=weight * factor)


class DiagonalHessian:
    """Second derivatives of the loss with respect to a variable outside of the network, such as the noise scale."""

    def __init__(self, name: str, part: slice) -> None:
        self.name, self.part = name, part
        self._leaf: Tensor | None = None
        self._sum = self._excess = torch.empty(0)

    def begin(self, leaves: Mapping[str, Tensor]) -> None:
        """Begin a draw, whose loss must be computed from `leaves`, the unconstrained values of all sites."""
        self._leaf = leaves[self.name]
        self._sum = torch.zeros_like(self._leaf).reshape(-1)

    def add(self, loss: Tensor) -> None:
        assert self._leaf is not None
        (slopes,) = torch.autograd.grad(loss, self._leaf, create_graph=True, allow_unused=True)
        if slopes is None or not slopes.requires_grad:
            return
        for index, slope in enumerate(slopes.reshape(-1)):
            (row,) = torch.autograd.grad(slope, self._leaf, retain_graph=True, allow_unused=True)
            if row is not None:
                self._sum[index] += row.reshape(-1)[index]

    def end(self, estimates: Tensor, precisions: Tensor) -> None:
        """End a draw. `estimates` are the draw's estimates of the second derivatives, divided by `precisions`."""
        self._leaf = None
        self._excess = self._sum / precisions - estimates

    def add_to(self, products: Tensor, part: slice) -> None:
        """Replace this variable's estimates in `products`, which belong to the weights in `part`, by exact values."""
        begin, end = max(self.part.start, part.start), min(self.part.stop, part.stop)
        if begin < end:
            own = self._excess[begin - self.part.start : end - self.part.start]
            products[begin - part.start : end - part.start].add_(own)


def diagonal_hessians(joint: Joint) -> list[DiagonalHessian]:
    of_network, shapes = {*joint.model.site_names}, joint.layout.shapes
    return [
        DiagonalHessian(name, part)
        for name, part in joint.layout.slices.items()
        if name not in of_network and shapes[name].numel() <= MOST_NUMBERS
    ]
