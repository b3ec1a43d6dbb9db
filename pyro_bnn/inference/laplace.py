"""Laplace's method: a Gaussian around the mode of the posterior, with the inverse Hessian as covariance."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from .._core import checks as _checks
from .._core.checkpointing import check_fit
from .._core.copies import copied
from .._core.functional import ordinary_attention
from .._core.inputs import Inputs, Pairs, take
from .._core.progress import progress_bar
from .._core.records import check_tensors, plain, record
from .._core.scope import EXCLUSIVE, restored, seeded
from .._core.signatures import explained
from ..modelling.model import BayesianModel, require_bayesian
from .joint import Coordinates, NetworkPotential, Potential, find_sites, learnable_names, network_potential
from .last_layer import last_layer_of, plain_network
from .posterior import Destination, Draw, Posterior, Status, warn_unless_ok, with_learned

MAX_DIMENSIONS = 5000  # most elements of the latent variables; the Hessian then takes 200 MB in double precision
SMALL_GRADIENT = 1e-3  # heuristic: largest gradient at the mode, as root mean square in nats per standard deviation


@dataclass(frozen=True)
class LaplaceRecord:
    """Record of a :class:`LaplacePosterior` in a file; loading needs no data."""

    location: Tensor
    precision: Tensor
    peak: float
    is_linearised: bool
    status: Status
    seconds: float


class LaplacePosterior(Posterior):
    r"""The Gaussian :math:`N(z^*, H^{-1})` over all latent variables, in unconstrained space.

    Args:
        coordinates: The map between flat vectors and values of the latent variables.
        location: The mode z*, shape (P,).
        precision: The Hessian H of the potential at the mode, shape (P, P), positive definite.
        peak: Log joint density of data and latent variables at the mode, in nats.
        dtype: Dtype of the draws.
        is_linearised: Whether predictions linearise the network in its weights by default.
        status: Result of the search for the mode.
        seconds: Wall time of the inference.
    """

    seconds: float
    is_linearised: bool = True
    """Whether predictions linearise the network: False if all random weights are in a linear last layer."""

    def __init__(
        self,
        coordinates: Coordinates,
        location: Tensor,
        precision: Tensor,
        *,
        peak: float,
        dtype: torch.dtype,
        is_linearised: bool,
        status: Status,
        seconds: float,
    ) -> None:
        self.status, self.location, self.precision, self.peak = status, location, precision, peak
        self._coordinates, self._dtype, self.seconds, self.is_linearised = coordinates, dtype, seconds, is_linearised
        self._factor = _cholesky(precision)

    @property
    def method(self) -> str:
        return "Laplace"

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {site.name: site.start.shape for site in self._coordinates.sites}

    def draws(self, num_samples: int, *args: object) -> Iterator[Draw]:
        num_samples = _checks.at_least("num_samples", num_samples, 1)
        for _ in range(num_samples):
            noise = torch.randn_like(self.location)[:, None]
            yield self._values(self.location + torch.linalg.solve_triangular(self._factor.mT, noise, upper=True)[:, 0])

    def marginals(self) -> dict[str, tuple[Tensor, Tensor]]:
        median = self.median()
        scales = self._coordinates.layout.views(torch.cholesky_inverse(self._factor).diagonal().sqrt())
        free = [site.name for site in self._coordinates.sites if site.transform is None]
        return {name: (median[name], scales[name].to(self._dtype)) for name in free}

    def median(self) -> Draw:
        return self._values(self.location)

    @property
    def log_evidence(self) -> float:  # type: ignore[override]  # the base class has an attribute
        r"""Laplace's estimate of the log evidence, in nats.

        .. math:: \log p(y) \approx -U(z^*) + \tfrac P2 \log 2\pi - \tfrac12 \log \det H.
        """
        half_log_det = float(self._factor.diagonal().log().sum())
        return self.peak + 0.5 * len(self.location) * math.log(2 * math.pi) - half_log_det

    def to_record(self) -> dict[str, Any]:
        told = self.is_linearised, self.status, self.seconds
        return plain(LaplaceRecord(self.location, self.precision, self.peak, *told))

    @classmethod
    def from_record(cls, values: Mapping[str, Any], destination: Destination) -> LaplacePosterior:
        saved = record(LaplaceRecord, values, "posterior")
        model = destination.model_for("a posterior of Laplace's method")
        dtype = saved.location.dtype
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"`location` must be torch.float32 or torch.float64, got {dtype}.")
        coordinates = Coordinates(find_sites(copied(model).to(dtype).eval(), (), {}))
        size = coordinates.layout.num_elements
        empty = {"location": coordinates.start, "precision": coordinates.like.new_empty(size, size)}
        check_tensors("the posterior", {"location": saved.location, "precision": saved.precision}, empty)
        return cls(
            coordinates,
            saved.location.to(model.device),
            saved.precision.to(model.device),
            peak=saved.peak,
            dtype=model.dtype,
            is_linearised=saved.is_linearised,
            status=saved.status,
            seconds=saved.seconds,
        )

    def _values(self, z: Tensor) -> Draw:
        values = self._coordinates.constrain(z[None])
        return {name: value[0].to(self._dtype) for name, value in values.items()}


@explained("fit_laplace(model, (x, y))")
def fit_laplace(
    model: BayesianModel,
    data: tuple[Inputs, Tensor] | Iterable[tuple[Inputs, Tensor]],
    *,
    max_iter: int = 2000,
    dtype: torch.dtype | None = torch.float64,
    init: Posterior | None = None,
    progress: bool | None = None,
    seed: int | None = None,
) -> LaplacePosterior:
    r"""Fit a Gaussian to the posterior: find the mode, and compute the Hessian there.

    .. math:: q(z) = N(z^*, H^{-1}), \qquad H = \nabla^2 U(z^*), \qquad U(z) = -\log p(y, z).

    H is the exact Hessian, shape (P, P), in unconstrained space, where the logarithm of a noise scale replaces the
    scale. If H is not positive definite, as at a saddle or a kink of the network, negative eigenvalues of the
    likelihood's Hessian are set to 0, and the status says so.

    Args:
        model: The model; its learnable parameters do not change.
        data: A tuple (x, y) with all rows, or a loader of such pairs, which is read into memory.
        max_iter: Largest number of L-BFGS iterations.
        dtype: Dtype of the computation; with ``None``, that of the model. Draws have the dtype of the model.
        init: Posterior from which the start is drawn, such as that of a fitted :class:`~pyro_bnn.DeltaGuide`. By
            default, the search starts at the network's own weights.
        progress: Whether to show the progress, in evaluations of the potential; see :func:`~pyro_bnn.fit_svi`.
        seed: Seed of the draw from `init` and of a loader's random order.

    Returns:
        A posterior with `location` (the mode, in unconstrained space), `precision`, `log_evidence` and `status`.
        :func:`predict` linearises the network in its weights around the mode, since predictions may otherwise be much
        worse.

    Raises:
        ValueError: If the data do not match the model, if the latent variables have more than 5000 elements, or if even
            the changed Hessian is not positive definite, as can happen under a mixture prior.

    Warns:
        ConvergenceWarning: If the search stopped before the mode, or the Hessian there is not positive definite.

    References:
        MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks; Daxberger et al. (2021),
        https://arxiv.org/abs/2106.14806; Immer, Korzepa and Bauer (2021), https://arxiv.org/abs/2008.08400, for the
        linearised prediction.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net, noise = torch.nn.Linear(1, 1), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(
        ...     net, prior=pb.NormalPrior(), likelihood=noise, num_data=20
        ... )
        >>> posterior = pb.fit_laplace(model, (x, 2 * x))
        >>> posterior.median()["net.weight"].round(decimals=1)
        tensor([[2.]])
        >>> round(posterior.log_evidence)
        19
    """
    require_bayesian(model)
    max_iter = _checks.at_least("max_iter", max_iter, 1)
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"`dtype` must be torch.float64, torch.float32 or None, got {_checks.got(dtype)}.")
    check_fit(progress=progress, seed=seed)
    begin = time.perf_counter()
    if init is not None:
        _checks.kind("init", init, Posterior, "a Posterior; wrap a guide in `GuidePosterior`")
    with restored(model.device), seeded(seed, model.device):  # a loader may shuffle
        x, y = Pairs(data, model.like, model.num_data).whole()
    potential = network_potential(model, x, y, dtype)
    if potential.layout.num_elements > MAX_DIMENSIONS:
        raise ValueError(
            f"the model must have at most {MAX_DIMENSIONS} latent numbers for a full Hessian, got "
            f"{potential.layout.num_elements}; make fewer parameters random with `where`, or use a low-rank guide."
        )
    start, began = potential.start, "the network's weights"
    if init is not None:
        with EXCLUSIVE, seeded(seed, model.device):
            draw = next(init.draws(1))
        start = potential.unconstrain({name: value[None] for name, value in draw.items()})[0]
        began = "a draw from `init`"
    with progress_bar("evaluation", shown=progress) as bar:
        mode = _minimise(potential, start, max_iter, bar)
    precision, num_negative = _precision(potential, mode)
    value, gradient = potential.value_and_grad(mode[None])
    coordinates = Coordinates(potential.sites)  # without the data, which the potential contains
    status = _status(gradient, precision, num_negative, began, learnable_names(model))
    warn_unless_ok(status)
    point = {name: value[0].to(model.like) for name, value in coordinates.constrain(mode[None]).items()}
    net = plain_network(model, point, model.parameter_paths.keys())
    posterior = LaplacePosterior(
        coordinates,
        mode,
        precision,
        peak=-float(value[0]),
        dtype=model.dtype,
        is_linearised=last_layer_of(net, take(x, slice(1))) is None,
        status=status,
        seconds=time.perf_counter() - begin,
    )
    return with_learned(posterior, model)


def _minimise(potential: Potential, start: Tensor, max_iter: int, bar: tqdm) -> Tensor:
    z = start.detach().clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [z],
        max_iter=max_iter,
        max_eval=5 * max_iter,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        value, gradient = potential.value_and_grad(z[None])
        z.grad = gradient[0]
        bar.update()
        return value[0]

    optimizer.step(closure)
    return z.detach()


def _precision(potential: NetworkPotential, mode: Tensor) -> tuple[Tensor, int]:
    """Return the precision, shape (P, P), and how many eigenvalues of the Hessian are not positive."""

    def log_likelihood(z: Tensor) -> Tensor:
        return potential.log_likelihood(potential.constrain(z[None]))[0]

    def log_prior(z: Tensor) -> Tensor:
        return potential.log_prior(z[None], potential.constrain(z[None]))[0]

    try:
        with torch.enable_grad(), ordinary_attention():  # the fused one has no second derivatives
            of_likelihood, of_prior = (
                -torch.autograd.functional.hessian(density, mode) for density in (log_likelihood, log_prior)
            )
    except RuntimeError as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        raise ValueError(
            "Laplace's method needs second derivatives in all weights, but a layer of the network, such as "
            "EmbeddingBag, has none; leave its weights out of `where`, or fit a guide with `fit_svi`."
        ) from error
    hessian = of_likelihood + of_prior
    if not int(torch.linalg.cholesky_ex((hessian + hessian.mT) / 2).info):
        return hessian, 0
    values, vectors = torch.linalg.eigh((of_likelihood + of_likelihood.mT) / 2)
    num_negative = int((torch.linalg.eigvalsh((hessian + hessian.mT) / 2) <= 0).sum())
    return (vectors * values.clamp_min(0)) @ vectors.mT + of_prior, num_negative


def _cholesky(precision: Tensor) -> Tensor:
    factor, info = torch.linalg.cholesky_ex((precision + precision.mT) / 2)
    if int(info):
        raise ValueError(
            "the Hessian at the mode must be positive definite, but it is not; use a strictly log-concave prior, such "
            "as NormalPrior (not LaplacePrior or a mixture), or a variational guide."
        )
    return factor


def _status(gradient: Tensor, precision: Tensor, num_negative: int, began: str, learnable: Sequence[str]) -> Status:
    steepest = float(torch.linalg.solve_triangular(_cholesky(precision), gradient.mT, upper=False).norm())
    said, remedies = [f"Laplace approximation around the mode, searched from {began}."], []
    faults = []
    if learnable:
        said.append(f"Not inferred, at their present values: {', '.join(learnable)}.")
    if steepest > SMALL_GRADIENT * math.sqrt(len(precision)):
        place = f"at a gradient of {steepest:.2g} nats per standard deviation"
        faults.append(f"The search stopped before the mode, {place}.")
        remedies.append("Raise `max_iter`, start from a MAP fit with `init`, or use a smooth activation.")
    if num_negative:
        faults.append(
            f"The Hessian is not positive in {num_negative} of {len(precision)} directions, as at a saddle or a kink "
            "of the network; negative curvature of the likelihood was set to 0, so the evidence is not reliable."
        )
        remedies.append("Use a smooth activation, or start elsewhere with `init`.")
    return Status(not remedies, " ".join(faults + said), remedy=" ".join(remedies), verdict=" ".join(faults))
