"""Scores of methods and of pairs of methods, with their errors."""

import math
from dataclasses import dataclass

LARGEST_WRITTEN_OUT, MOST_DIGITS = 1e6, 7
"""Larger numbers, and numbers that need more digits after the point, are shown in scientific notation."""


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error.

    Args:
        value: The estimate.
        standard_error: Standard error of the value. For a pair of methods, the standard error is the Monte Carlo error
            that is due to the finite number of draws. For a single method, the value is a mean over points, and the
            standard error is right if the points are independent. If the points are a grid, the standard error only
            shows how much the score varies between points.
    """

    value: float
    standard_error: float

    def __str__(self) -> str:
        if not (math.isfinite(self.standard_error) and self.standard_error > 0):
            return f"{self.value:.3g}"
        digits = max(0, 1 - math.floor(math.log10(self.standard_error)))  # shows the error with two digits
        if max(abs(self.value), self.standard_error) >= LARGEST_WRITTEN_OUT or digits > MOST_DIGITS:
            return f"{self.value:.3g} ± {self.standard_error:.2g}"
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f}"


@dataclass(frozen=True)
class Scores:
    """Scores of one method, or its distances from a reference method, over the points of a region.

    Args:
        method: Name of the method.
        region: Name of the region.
        scores: Scores by name. For a method that predicts numbers: ``epistemic sd`` and ``total sd`` (means over
            points), and with targets also ``nll`` (mean per point, in nats), ``coverage_50`` and ``coverage_90``. For a
            method that predicts classes: ``entropy`` (in nats), and with targets also ``nll`` and ``accuracy``. For a
            pair that predicts numbers: ``rms mean difference`` (root mean square over points), ``epistemic sd ratio``
            and ``total sd ratio`` (method over reference, geometric means over points), and ``wasserstein`` (first
            Wasserstein distance between predictive distributions, in the units of y, mean over points). The ``epistemic
            sd ratio`` is 0 if the method is a point estimate, and infinite if the reference is a point estimate. Two
            sets of draws from one posterior have a positive ``wasserstein``, which shrinks with the number of draws.
            For a pair that predicts classes: ``agreement`` (fraction of points with the same most probable class),
            ``total variation`` (half the summed absolute difference of probabilities, mean over points).
        reference: Name of the method with which `method` is compared; "" for a single method.
        seconds: Wall time of the inference; None for a pair, or if the time is unknown.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> exact = pb.fit_laplace(model, (x, 2 * x))
        >>> found = pb.compare(
        ...     model, {"laplace": exact, "again": exact}, x, num_samples=100, seed=0
        ... )
        >>> found.methods[0].method, sorted(found.methods[0].scores)
        ('laplace', ['epistemic sd', 'total sd'])
    """

    method: str
    region: str
    scores: dict[str, Estimate]
    reference: str = ""
    seconds: float | None = None

    @property
    def cells(self) -> dict[str, str]:
        """The seconds, if they are known, and the scores as text, by name."""
        seconds = {} if self.seconds is None else {"seconds": f"{self.seconds:.1f}"}
        return seconds | {name: str(estimate) for name, estimate in self.scores.items()}
