"""The scale of Gaussian noise: which likelihoods let the evidence choose it, and where a fit puts it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core.inputs import Pairs
from ...modelling.likelihoods import GaussianLikelihood
from ...modelling.model import BayesianModel
from ..scale_maps import Softplus

LATENT = "likelihood.scale"
"""Site of a latent noise scale."""

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Noise:
    r"""What the targets say about K scales of Gaussian noise, each of some outputs.

    .. math:: \log p(y \mid w^*, \sigma) = -\sum_k \Big[n_k \log(\sqrt{2 \pi} \sigma_k) + \frac{r_k}{2 \sigma_k^2}\Big].

    Args:
        start: Logarithms of the scales at which a search begins, or which are given, shape (K,).
        counts: Numbers n of targets, shape (K,); None if the scales are given.
        squares: Sums r of the squared residuals at the point, shape (K,); None likewise.
        log_prior: Log-density of the log scales; None without a prior.
    """

    start: Tensor
    counts: Tensor | None = None
    squares: Tensor | None = None
    log_prior: Callable[[Tensor], Tensor] | None = None

    @property
    def is_free(self) -> bool:
        """Whether the evidence chooses the scales."""
        return self.counts is not None

    def log_density(self, log_scales: Tensor) -> Tensor:
        """Log-likelihood of the residuals, plus the log-density of the prior; 0 if the scales are given."""
        if self.counts is None or self.squares is None:
            return log_scales.new_zeros(())
        found = -(self.counts * (log_scales + HALF_LOG_TAU) + 0.5 * self.squares * (-2 * log_scales).exp()).sum()
        return found if self.log_prior is None else found + self.log_prior(log_scales)


def parameter_of(model: BayesianModel) -> nn.Parameter | None:
    """The parameter of a learned noise scale; None if it is fixed or latent, or there is none."""
    likelihood = model.likelihood
    return dict(likelihood.named_parameters()).get("rho") if type(likelihood) is GaussianLikelihood else None


def latent_noise(model: BayesianModel) -> TorchDistributionMixin | None:
    """The prior of a latent noise scale; None if it is fixed or learned, or there is none."""
    is_latent = type(model.likelihood) is GaussianLikelihood and LATENT in model.latent_names
    return model.plain_prior(LATENT, {}) if is_latent else None


def noise_of(model: BayesianModel, values: Mapping[str, Tensor], rows: Pairs) -> Noise:
    """What is known of the noise of a model; without Gaussian noise it is one given scale of 1.

    Args:
        model: The model.
        values: The point.
        rows: All rows, of which one pass is made if the scale is learned or latent.

    Raises:
        ValueError: If the residuals are all 0 and there is no prior, so that no scale has the largest evidence.
    """
    zero, likelihood = torch.zeros(1, dtype=torch.float64, device=model.device), model.likelihood
    if type(likelihood) is not GaussianLikelihood:
        return Noise(zero)
    prior = latent_noise(model)
    if prior is None and parameter_of(model) is None:
        return Noise(likelihood.noise_scale().detach().to(zero).log().view(1))
    shape = torch.Size() if prior is None else prior.event_shape
    squares, counts = zero, zero
    for x, y in rows:
        with torch.no_grad():
            output = model.output_given(values, x)
        of_rows = (likelihood.as_targets(y, output.dtype) - output).double().square()
        weights = likelihood.fit_weights(y, torch.float64)
        weights = torch.ones_like(of_rows) if weights is None else weights
        # (N, O) to (O,), or to (1,) where all outputs share a scale
        found = [(some * weights).sum(0) for some in (of_rows, torch.ones_like(of_rows))]
        found = found if shape.numel() > 1 else [some.sum().view(1) for some in found]
        squares, counts = squares + found[0], counts + found[1]
    if prior is None and not bool((squares > 0).all()):
        raise ValueError(
            "the noise scale cannot be chosen by the evidence, since the point fits all targets of an output without "
            "error; name a scale, as with GaussianLikelihood(0.1)."
        )

    def log_prior(log_scales: Tensor) -> Tensor:
        assert prior is not None
        density: Tensor = prior.log_prob(log_scales.exp().view(shape)).sum()
        return density + log_scales.sum()

    start = torch.where(squares > 0, (squares / counts).log() / 2, 0.0)
    return Noise(start, counts, squares, None if prior is None else log_prior)


@torch.no_grad()
def set_noise(model: BayesianModel, values: dict[str, Tensor], log_scales: Tensor) -> str:
    """Write chosen scales where they belong, the model's parameter or the values of its latent variables; say so."""
    scales = log_scales.exp()
    shown = ", ".join(f"{scale:.3g}" for scale in scales.tolist())
    parameter = parameter_of(model)
    if parameter is None:
        values[LATENT] = scales.view(values[LATENT].shape).to(model.like)
        return f"The noise scale is held at its most probable value by the evidence, {shown}."
    before = float(model.likelihood.noise_scale())
    parameter.copy_(Softplus().inverse(scales[0]))
    return f"The model's learned noise scale was set to the one of largest evidence, {shown} (before {before:.3g})."
