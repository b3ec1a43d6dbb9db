"""Stochastic weight averaging, Gaussian (SWAG): a posterior from the points that an optimizer visits."""

from typing import Any

import torch
from torch import Tensor

from .._core import checks as _checks
from ..modelling.model import BayesianModel
from .guides import DeltaGuide, GuidePosterior, LowRankGuide, MeanFieldGuide
from .history import History
from .joint import Layout
from .posterior import Status, with_learned
from .scale_maps import LogVariance

SMALLEST_VARIANCE = 1e-30  # variance of a weight that did not change during the fit


class SWAG:
    r"""A callback that records a point estimate during a fit, and fits a Gaussian to the recorded points.

    At the end of each epoch that `start` and `every` select, the callback records the point estimate z in unconstrained
    space. From K points it computes

    .. math:: \bar z = \tfrac1K \sum_k z_k, \qquad
              V = \mathrm{diag}\left(\tfrac1K \sum_k z_k^2 - \bar z^2\right), \qquad d_k = z_k - \bar z_k,

    where :math:`\bar z_k` is the mean of the first k points. For rank 0 the posterior is :math:`N(\bar z, V)`. For a
    higher rank r it is :math:`N(\bar z, \tfrac12 V + \tfrac1{2 (r - 1)} \sum d_k d_k^\top)`, where the sum is over the
    last r deviations.

    Fit with SGD at a constant, rather large learning rate, and record points after the loss has stopped falling. The
    width of the posterior grows with the learning rate. The running statistics of batch normalisation are those at the
    end of the fit. To compute them for each draw, use a :class:`~pyro_bnn.RefreshedPosterior`.

    Args:
        guide: The guide that is fitted, a :class:`DeltaGuide`.
        rank: Number r of deviations: 0 for a diagonal covariance, otherwise at least 2.
        start: Number of epochs before the first recorded point.
        every: Number of epochs from one recorded point to the next.

    References:
        Maddox et al. (2019), A Simple Baseline for Bayesian Uncertainty in Deep Learning,
        https://arxiv.org/abs/1902.02476, equations 1 to 3.

    Example:
        >>> import functools
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=64
        ... )
        >>> guide = pb.DeltaGuide(model)
        >>> swag = pb.SWAG(guide, rank=2, start=50)
        >>> sgd = functools.partial(torch.optim.SGD, lr=1e-4)
        >>> fit = {"optimizer": sgd, "num_epochs": 100, "batch_size": 16, "seed": 0}
        >>> _ = pb.fit_svi(model, (x, 2 * x), guide, callbacks=[swag], **fit)
        >>> posterior = swag.posterior(model)
        >>> print(posterior.status)
        SWAG of 50 points from epoch 51 to 100, rank 2.
        >>> pb.predict(model, posterior, x, seed=0).mean[0].round(decimals=1)
        tensor([-2.])
    """

    def __init__(self, guide: DeltaGuide, *, rank: int = 20, start: int = 0, every: int = 1) -> None:
        _checks.kind("guide", guide, DeltaGuide, "a point estimate")
        self._guide, self._rank = guide, _checks.at_least("rank", rank, 0)
        if self._rank == 1:
            raise ValueError("`rank` must be 0, for a diagonal covariance, or at least 2, got 1.")
        self._start, self._every = _checks.at_least("start", start, 0), _checks.at_least("every", every, 1)
        self._layout = Layout({site.name: site.unconstrained_start.shape for site in guide.sites})
        self._count = 0
        self._mean, self._variance = (torch.zeros_like(self._point()) for _ in range(2))
        self._deviations: list[Tensor] = []
        self._epochs: list[int] = []
        self._history: History | None = None

    def _point(self) -> Tensor:
        return self._layout.pack(self._guide.locations())

    def __call__(self, history: History) -> None:
        """Record the point estimate in the epochs that `start` and `every` select."""
        epoch = len(history.epochs)
        self._history = history
        if epoch <= self._start or (epoch - self._start - 1) % self._every:
            return
        point = self._point()
        self._count += 1
        before, self._mean = point - self._mean, self._mean + (point - self._mean) / self._count
        after = point - self._mean
        # Welford's update; with a mean of squares, rounding would hide a variance far below the squared mean
        self._variance = self._variance + (before * after - self._variance) / self._count
        if self._rank:
            self._deviations = [*self._deviations, after][-self._rank :]
        self._epochs = [*self._epochs[:1], epoch]

    def state_dict(self) -> dict[str, Any]:
        """Return the recorded statistics."""
        counts = {"count": self._count, "epochs": list(self._epochs)}
        return counts | {"mean": self._mean, "variance": self._variance, "deviations": list(self._deviations)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a result of :meth:`state_dict`."""
        self._count, self._epochs = state_dict["count"], list(state_dict["epochs"])
        self._mean, self._variance = (state_dict[name].to(self._mean) for name in ("mean", "variance"))
        self._deviations = [deviation.to(self._mean) for deviation in state_dict["deviations"]]

    @torch.no_grad()
    def posterior(self, model: BayesianModel) -> GuidePosterior:
        """Return the fitted model's posterior, with a :class:`LowRankGuide` or, for rank 0, a :class:`MeanFieldGuide`.

        Raises:
            ValueError: If the number of recorded points is below 2, or below `rank`.
        """
        needed = max(self._rank, 2)
        if self._count < needed:
            raise ValueError(
                f"SWAG needs at least {needed} points, got {self._count}; fit for more epochs, or lower `start`, "
                "`every` or `rank`."
            )
        variance = self._variance.clamp_min(SMALLEST_VARIANCE)
        guide: LowRankGuide | MeanFieldGuide
        if self._rank:
            variance = variance / 2
            factor = torch.stack(self._deviations) / (2 * (self._rank - 1)) ** 0.5 / variance.sqrt()
            guide = LowRankGuide(model, rank=self._rank, scale_map=LogVariance())
            state = {"factor": factor}
        else:
            guide, state = MeanFieldGuide(model, scale_map=LogVariance()), {}
        vectors = {"loc": self._mean, guide.scale_map.name: variance.log()}
        for name, vector in vectors.items():
            state |= {f"{name}.{site}": value for site, value in self._layout.views(vector).items()}
        guide.load_state_dict(state)
        rank = f"rank {self._rank}" if self._rank else "a diagonal covariance"
        said = f"SWAG of {self._count} points from epoch {self._epochs[0]} to {self._epochs[-1]}, {rank}."
        return with_learned(GuidePosterior(guide, Status(True, said), self._history), model)
