"""Laplace's estimate of the evidence, and the prior precisions and noise scales that maximise it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core.inputs import Pairs
from ...modelling.likelihoods import GaussianLikelihood
from ...modelling.model import BayesianModel
from ..joint import LOG_ROOT_TAU
from ..scale_maps import Softplus
from ._gaussian import Curvature

LATENT = "likelihood.scale"  # name of the site of a latent noise scale

MAX_ITERATIONS = 200

SMALLEST, LARGEST = math.log(1e-8), math.log(1e12)  # bounds of log precisions; else the evidence may have no maximum


@dataclass(frozen=True)
class Evidence:
    r"""Laplace's estimate of the log evidence in nats, as a function of the prior precisions and the noise scales.

    .. math:: \log p(y) \approx \log p(y \mid w^*)
              - \tfrac12 \Big[\sum_i \delta_i (w^*_i - m_i)^2 + \log\det(G + \mathrm{diag}\,\delta)
              - \sum_i \log \delta_i\Big].

    `squares` are the squared distances of the weights from their prior means, shape (P,), in double precision.
    """

    squares: Tensor
    curvature: Curvature

    def penalty(self, noise: Tensor, prior: Tensor) -> Tensor:
        """Return the log-likelihood minus the log evidence; for the arguments see :meth:`FullCurvature.log_det`."""
        all_priors = prior.expand(len(self.squares))
        return 0.5 * (all_priors @ self.squares + self.curvature.log_det(noise, prior) - all_priors.log().sum())

    def best(self, prior: Tensor, groups: Tensor | None, noise: "NoiseEvidence") -> tuple[Tensor, Tensor]:
        """Return the prior precisions, shape (P,), and log noise scales, shape (K,), that maximise the log evidence.

        The search starts at `prior`. Weights with the same index in `groups`, shape (P,), share a precision. If
        `groups` is None, the prior precisions stay as they are. See MacKay (1992), Bayesian Interpolation.
        """
        sizes = torch.zeros(0).to(prior) if groups is None else groups.bincount().to(prior)
        start = torch.zeros_like(sizes)
        if groups is not None:
            start = start.index_add(0, groups, prior.log()) / sizes
        num_groups, is_free = len(sizes), noise.is_free

        def parts(point: Tensor) -> tuple[Tensor, Tensor]:
            logs = point[:num_groups].clamp(SMALLEST, LARGEST).exp()
            chosen = prior if groups is None else logs if num_groups == 1 else logs[groups]
            return chosen, point[num_groups:] if is_free else noise.start

        def loss(point: Tensor) -> Tensor:
            chosen, log_scales = parts(point)
            return self.penalty((-2 * log_scales).exp(), chosen) - noise.log_density(log_scales)

        found = _minimised(loss, torch.cat([start, noise.start] if is_free else [start]))
        chosen, log_scales = parts(found)
        return chosen.expand(len(prior)), log_scales


def _minimised(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    point = start.detach().clone().requires_grad_()
    if not len(point):
        return start
    optimizer = torch.optim.LBFGS(
        [point], max_iter=MAX_ITERATIONS, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        with torch.enable_grad():
            value = loss(point)
        (point.grad,) = torch.autograd.grad(value, point)
        return value.detach()

    optimizer.step(closure)
    return point.detach()


@dataclass(frozen=True)
class NoiseEvidence:
    r"""Log-likelihood at fixed weights, as a function of K Gaussian noise scales. K is 1 or the number of outputs.

    .. math:: \log p(y \mid w^*, \sigma) = -\sum_k \Big[n_k \log(\sqrt{2 \pi} \sigma_k) + \frac{r_k}{2 \sigma_k^2}\Big].

    `start` has the logarithms of the given scales, or of the scales at which the search starts. `counts` has the
    numbers n of targets, and `squares` has the sums r of squared residuals. Both are None if the scales are given.
    `log_prior` returns the log prior density of the log scales.
    """

    start: Tensor
    counts: Tensor | None = None
    squares: Tensor | None = None
    log_prior: Callable[[Tensor], Tensor] | None = None

    @property
    def is_free(self) -> bool:
        """Whether the evidence chooses the noise scales."""
        return self.counts is not None

    def log_density(self, log_scales: Tensor) -> Tensor:
        """Return the log-likelihood plus the log prior density of the log noise scales; 0 if the scales are given."""
        if self.counts is None or self.squares is None:
            return log_scales.new_zeros(())
        found = -(self.counts * (log_scales + LOG_ROOT_TAU) + 0.5 * self.squares * (-2 * log_scales).exp()).sum()
        return found if self.log_prior is None else found + self.log_prior(log_scales)


def learned_noise(model: BayesianModel) -> nn.Parameter | None:
    likelihood = model.likelihood
    return dict(likelihood.named_parameters()).get("rho") if type(likelihood) is GaussianLikelihood else None


def latent_noise(model: BayesianModel) -> TorchDistributionMixin | None:
    is_latent = type(model.likelihood) is GaussianLikelihood and LATENT in model.latent_names
    return model.plain_prior(LATENT, {}) if is_latent else None


def noise_of(model: BayesianModel, values: Mapping[str, Tensor], rows: Pairs) -> NoiseEvidence:
    zero, likelihood = torch.zeros(1, dtype=torch.float64, device=model.device), model.likelihood
    if type(likelihood) is not GaussianLikelihood:
        return NoiseEvidence(zero)
    prior = latent_noise(model)
    if prior is None and learned_noise(model) is None:
        return NoiseEvidence(likelihood.noise_scale().detach().to(zero).log().view(1))
    shape = torch.Size() if prior is None else prior.event_shape
    sums = zero
    for x, y in rows:
        with torch.no_grad():
            output = model.output_given(values, x)
        of_rows = (likelihood.as_targets(y, output.dtype) - output).double().square()
        weights = likelihood.fit_weights(y, torch.float64)
        weights = torch.ones_like(of_rows) if weights is None else weights.expand_as(of_rows)
        found = torch.stack([of_rows * weights, weights]).sum(1)  # shape (2, O), or (2, 1) if all outputs share a scale
        sums = sums + (found if shape.numel() > 1 else found.sum(1, keepdim=True))
    squares, counts = sums
    if prior is None and not bool((squares > 0).all()):
        raise ValueError(
            "the evidence cannot choose the noise scale, since the network fits all targets of an output without "
            "error; set a scale, as in GaussianLikelihood(0.1)."
        )

    def log_prior(log_scales: Tensor) -> Tensor:
        assert prior is not None
        density: Tensor = prior.log_prob(log_scales.exp().view(shape)).sum()
        return density + log_scales.sum()

    start = torch.where(squares > 0, (squares / counts).log() / 2, 0.0)
    return NoiseEvidence(start, counts, squares, None if prior is None else log_prior)


@torch.no_grad()
def set_noise(model: BayesianModel, values: dict[str, Tensor], log_scales: Tensor) -> str:
    """Store the chosen noise scales in the model's parameter or in `values`; return a sentence for the status."""
    scales = log_scales.exp()
    shown = ", ".join(f"{scale:.3g}" for scale in scales.tolist())
    parameter = learned_noise(model)
    if parameter is None:
        values[LATENT] = scales.view(values[LATENT].shape).to(model.like)
        return f"The noise scale is fixed at its most probable value under the evidence, {shown}."
    before = float(model.likelihood.noise_scale())
    parameter.copy_(Softplus().inverse(scales[0]))
    return f"The model's learned noise scale was set to the scale of largest evidence, {shown} (before {before:.3g})."
