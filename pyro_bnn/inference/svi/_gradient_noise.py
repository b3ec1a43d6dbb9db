"""Measure how noisy the gradients of a fit are."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import ELBO
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.copies import copied
from ..._core.scope import seeded
from ..._core.signatures import explained
from ..._core.summary import Shown, Summary, counted
from ...modelling.model import BayesianModel
from ..estimators import Estimator
from ..guides import GuidePosterior
from ._svi_step import svi_step

COLUMNS = ("gradient of (nats)", "numbers", "signal", "noise", "ratio")


@dataclass(frozen=True)
class ParameterNoise:
    """Signal and noise of the gradient of one parameter, over many draws of the weights.

    Args:
        name: Name of the parameter in the guide or the model, such as ``loc.net.0.weight``.
        num_numbers: Number P of elements of the parameter.
        signal: Norm of the mean gradient, corrected for Monte Carlo error; 0 if this error exceeds the norm.
        noise: Standard deviation of a single step's gradient: the root of the summed variances of its elements.
    """

    name: str
    num_numbers: int
    signal: float
    noise: float

    @property
    def signal_to_noise(self) -> float:
        """Signal divided by noise; infinite or NaN if the noise is 0."""
        if self.noise == 0:
            return float("inf") if self.signal > 0 else float("nan")
        return self.signal / self.noise


@dataclass(frozen=True, repr=False)
class GradientNoise(Shown):
    """Result of :func:`gradient_noise`, which prints as a table.

    Args:
        parameters: Signal and noise of each learned parameter.
        num_samples: Number of gradients, one for each draw of the weights.
    """

    parameters: tuple[ParameterNoise, ...]
    num_samples: int

    def _summary(self) -> Summary:
        rows = [(row.name, row.num_numbers, row.signal, row.noise, row.signal_to_noise) for row in self.parameters]
        return Summary(f"GradientNoise: {counted(self.num_samples, 'gradient')}", (), rows, COLUMNS)

    def __str__(self) -> str:
        width = max(18, *(len(row.name) for row in self.parameters))
        lines = [f"{COLUMNS[0]:{width}s} {' '.join(f'{name:>11s}' for name in COLUMNS[1:4])} {COLUMNS[4]:>10s}"]
        for row in self.parameters:
            numbers = f"{row.num_numbers:11,d} {row.signal:11.4g} {row.noise:11.4g} {row.signal_to_noise:10.3g}"
            lines.append(f"{row.name:{width}s} {numbers}")
        return "\n".join(lines)


@explained("gradient_noise(model, guide, x, y)")
def gradient_noise(
    model: BayesianModel,
    guide: nn.Module | GuidePosterior,
    x: Tensor,
    y: Tensor,
    *,
    num_samples: int = 100,
    elbo: ELBO | None = None,
    estimator: Estimator | None = None,
    kl_weight: float = 1.0,
    seed: int | None = None,
) -> GradientNoise:
    r"""Measure signal and noise of each parameter's gradient over draws of the weights, at fixed parameters.

    .. math:: \text{noise}^2 = \sum_i \mathrm{Var}(g_i), \qquad
              \text{signal}^2 = \max\Big(0, \sum_i \bar g_i^2 - \tfrac1S \text{noise}^2\Big),

    where g is the gradient of the loss :math:`\lambda \mathrm{KL} - E_q[\log p(y \mid w)]` for the whole data set,
    estimated from the batch (x, y). The signal is 0 at a minimum of the loss. If the signal is far below the noise,
    the optimizer mostly follows noise; then use a smaller learning rate, more particles, or a gradient estimator. The
    noise from the choice of batches is not included.

    The gradients are computed as in :func:`svi_step`, on copies of model and guide; the originals do not change.

    Args:
        model: The model.
        guide: Its guide, or the posterior from a fit.
        x: Inputs, shape (B, ...).
        y: Targets, shape (B, ...).
        num_samples: Number S of gradients, at least 2.
        elbo: The bound; see :func:`svi_step`.
        estimator: Gradient estimator; see :func:`svi_step`.
        kl_weight: Weight of the KL term.
        seed: Seed of the draws; with ``None``, torch's generators are used.

    Raises:
        ValueError: If the arguments do not match each other.
        NonFiniteError: If a loss or gradient is not finite.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x, net = torch.linspace(-1, 1, 50)[:, None], torch.nn.Linear(1, 1)
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=50)
        >>> guide, lrt = pb.MeanFieldGuide(model), pb.LocalReparameterization()
        >>> plain = pb.gradient_noise(model, guide, x, 2 * x)
        >>> [one.name for one in plain.parameters]
        ['loc.net.weight', 'loc.net.bias', 'rho.net.weight', 'rho.net.bias']
        >>> better = pb.gradient_noise(model, guide, x, 2 * x, estimator=lrt)
        >>> plain.parameters[0].noise > better.parameters[0].noise
        True
    """
    num_samples = _checks.at_least("num_samples", num_samples, 2)
    _checks.kind("model", model, nn.Module, "the model of the guide")
    x, y = _checks.rows("x", x), _checks.rows("y", y)
    found = guide.guide if isinstance(guide, GuidePosterior) else guide
    _checks.kind("guide", found, nn.Module, "a guide that is a module, or the posterior from a fit of one")
    assert isinstance(found, nn.Module)
    pair: Any = copied(nn.ModuleList([model, found]))  # copied together, since a guide may hold its model
    model, own = pair
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    means: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}  # sums of squared deviations from the running mean, as in Welford (1962)
    with seeded(seed, x.device), svi_step(model, own, frozen, elbo=elbo, estimator=estimator) as step:
        for count in range(1, num_samples + 1):
            step(x, y, kl_weight=kl_weight)
            for name, parameter in [*own.named_parameters(), *model.named_parameters()]:
                if parameter.grad is not None:
                    mean = means.setdefault(name, torch.zeros_like(parameter.grad, dtype=torch.float64))
                    deviation = parameter.grad - mean
                    mean += deviation / count
                    squares[name] = squares.get(name, 0.0) + (deviation * (parameter.grad - mean)).sum()
    rows = []
    for name, mean in means.items():
        variance = max(0.0, float(squares[name]) / (num_samples - 1))
        signal = max(0.0, float(mean.square().sum()) - variance / num_samples) ** 0.5
        rows.append(ParameterNoise(name, mean.numel(), signal, variance**0.5))
    return GradientNoise(tuple(rows), num_samples)
