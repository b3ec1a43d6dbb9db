"""Laplace's method for large networks, with a generalised Gauss-Newton matrix."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.checkpointing import check_fit
from ..._core.inputs import Inputs, Pair, Pairs
from ..._core.progress import progress_bar
from ..._core.scope import eval_mode, restored, seeded
from ..._core.signatures import explained
from ..._core.summary import counted, few
from ...modelling.model import BayesianModel, Rules, require_bayesian, sites_among
from ..joint import Layout
from ..last_layer import last_layer_of, plain_network
from ..posterior import Posterior, Status, with_learned
from ._evidence import LATENT, Evidence, noise_of, set_noise
from ._gaussian import Curvature, CurvatureAlongAxes, FullCurvature
from ._matrices import kronecker_curvature, summed_matrices
from ._model import check_model, check_output, expansion, features, gaussian_prior, point_of, sites_of
from ._posterior import GaussNewtonPosterior

Structure = Literal["full", "kronecker", "diagonal"]
Per = Literal["network", "layer", "parameter"]

MAX_FULL = 6000  # largest number of random weights for a full matrix, which takes 288 MB in double precision
FARTHER = "Train longer with this prior, and fit again at the new point."  # advice if the point is far from the mode
FAR = 10.0  # heuristic: the status is ok up to this distance; networks stopped early have 1 to 10, and predict well

EVIDENCE = "evidence"

MOST_SHOWN = 4  # largest number of prior precisions that a status shows


@explained("fit_gauss_newton(model, (x, y))")
def fit_gauss_newton(
    model: BayesianModel,
    data: tuple[Inputs, Tensor] | Iterable[tuple[Inputs, Tensor]],
    *,
    structure: Structure = "kronecker",
    where: Rules = "**",
    prior_precision: float | Literal["evidence"] | None = None,
    per: Per = "layer",
    batch_size: int = 128,
    init: Posterior | Mapping[str, Tensor] | None = None,
    progress: bool | None = None,
    seed: int | None = None,
) -> GaussNewtonPosterior:
    r"""Fit a Gaussian around a trained network by Laplace's method, in a few passes over the data.

    .. math:: q(w) = N\big(w^*, (G + \mathrm{diag}\,\delta)^{-1}\big), \qquad
              G = \sum_n J_n^\top \Lambda_n J_n,

    where J is the Jacobian of the network's outputs at the point :math:`w^*`, :math:`\Lambda` is the expected curvature
    of the negative log-likelihood with respect to the outputs, and :math:`\delta` are the prior precisions. The
    generalised Gauss-Newton matrix G is the Hessian without the terms that contain second derivatives of the network.
    It is always positive semi-definite. If the network is linear in its random weights, as with a random last layer, G
    equals the Hessian, except with heteroscedastic noise.

    A learned noise scale, as in ``GaussianLikelihood(None)``, is set to the scale that maximises the evidence. A latent
    noise scale is fixed at the value that maximises the product of the evidence and the scale's prior. A given noise
    scale does not change.

    Args:
        model: The model, with a Gaussian prior. The fit changes only a learned noise scale.
        data: A tuple (x, y) with all rows, or a loader of tuples (x, y). A loader is read several times.
        structure: "full" uses all of G, for at most 6000 weights. "diagonal" uses its diagonal. "kronecker"
            approximates the block of each parameter by a Kronecker product, and needs linear layers, or convolutions of
            one or two dimensions.
        where: Random weights that stay random: globs or :func:`layers`, as in :class:`BayesianModel`. All other weights
            are fixed at the point (see `init`). For the last layer, pass its name, as in ``"net.fc.*"``.
        prior_precision: Precision (inverse variance) of the prior of each weight. With ``None``, the precisions come
            from the model. "evidence" chooses the precisions that maximise Laplace's estimate of the evidence. The
            prior means always come from the model.
        per: Which weights share a precision if the evidence chooses it: all weights of the "network", of a "layer" or
            of a "parameter". With a full matrix and several precisions, each iteration of the search factorises the
            matrix.
        batch_size: Number of rows in each run of the network. A loader has its own batch size.
        init: The point: a posterior with a median, such as the posterior of a fitted :class:`DeltaGuide`, or the values
            of all latent variables by site. With ``None``, the point is the weights of the network, which must be
            trained.
        progress: Whether to show the progress, in rows of all passes; see :func:`~pyro_bnn.fit_svi`.
        seed: Seed of the random order of a loader.

    Returns:
        A posterior with `location`, `covariance`, `log_evidence` (given the noise scale) and `prior_precisions`. The
        status names the precisions and the noise scale of the fit, and says whether the point is far from the mode.
        :func:`predict` linearises the network in its weights around the point, since predictions may otherwise be much
        worse.

    Raises:
        ValueError: If the prior, the likelihood, a layer or the data cannot be used.

    References:
        MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks; Ritter, Botev and Barber (2018), A
        Scalable Laplace Approximation for Neural Networks; Daxberger et al. (2021), https://arxiv.org/abs/2106.14806.

    Example:
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=50)
        >>> mode = {"net.weight": torch.tensor([[2.0]]), "net.bias": torch.zeros(1)}
        >>> posterior = pb.fit_gauss_newton(
        ...     model, (x, 2 * x), structure="full", init=mode
        ... )
        >>> pb.predict(model, posterior, x, seed=0).epistemic.sqrt().mean() < 0.03
        tensor(True)
    """
    begin = time.perf_counter()
    require_bayesian(model)
    _checks.one_of("structure", structure, get_args(Structure))
    _checks.one_of("per", per, get_args(Per))
    check_fit(progress=progress, seed=seed)
    if isinstance(prior_precision, str) and prior_precision != EVIDENCE:
        raise ValueError(f'`prior_precision` must be a number, "evidence" or None, got {_checks.got(prior_precision)}.')
    if prior_precision is not None and not isinstance(prior_precision, str):
        _checks.positive("prior_precision", prior_precision)
    check_model(model, structure)
    random = sites_among(model.network, model.parameter_paths, where)
    values, rows = point_of(model, init), Pairs(data, model.like, model.num_data, batch_size)
    with (
        restored(model.device),  # a loader may shuffle
        seeded(seed, model.device),
        eval_mode(model),
        progress_bar("row", shown=progress) as bar,
    ):
        rows.after_batch = bar.update
        net = plain_network(model, values, random)
        sites = sites_of(net, model)
        layout = Layout({name: values[name].shape for name in sites})
        num_scales = values[LATENT].numel() if LATENT in values else 1
        most = int(MAX_FULL / math.sqrt(num_scales))  # there is one matrix for each noise scale
        if structure == "full" and layout.num_elements > most:
            raise ValueError(
                f'structure="full" is for at most {most:,} random weights, got {layout.num_elements:,}; choose fewer '
                'with `where`, such as the last layer, or use structure="kronecker".'
            )
        is_kronecker = structure == "kronecker" and prior_precision is None
        means, precisions = gaussian_prior(model, sites, is_kronecker=is_kronecker)
        check_output(model, values, rows.first())
        log_likelihood, gradient = expansion(model, rows, values, sites)  # before other passes, since it checks rows
        last_layer = last_layer_of(net, rows.first())
        curvature = _curvature(model, net, last_layer, rows, structure, num_scales)
        noise = noise_of(model, values, rows)
        center = layout.pack(values).double()
        evidence = Evidence((center - means).square(), curvature)
        if isinstance(prior_precision, (int, float)):
            precisions = torch.full_like(precisions, float(prior_precision))
        groups = {
            site: {"network": "all weights", "layer": site.rpartition(".")[0], "parameter": site}[per] for site in sites
        }
        numbers = _numbers(layout, groups).to(center.device) if prior_precision == EVIDENCE else None
        precisions, log_scales = evidence.best(precisions, numbers, noise)
        penalty = float(evidence.penalty((-2 * log_scales).exp(), precisions))
        covariance = curvature.covariance((-2 * log_scales).exp(), precisions)
        said = ""
        if noise.is_free:
            said = set_noise(model, values, log_scales)
            log_likelihood, gradient = expansion(model, rows, values, sites)
    slope = precisions * (center - means) - gradient
    distance = math.sqrt(max(float(slope @ covariance.times(slope)), 0.0) / len(slope))
    by_site = {name: _single(part) for name, part in layout.views(precisions).items()}
    posterior = GaussNewtonPosterior(
        {name: value.to(model.like) for name, value in values.items()},
        sites,
        covariance.to(model.like),
        prior_precisions=by_site,
        structure=structure,
        is_linearised=last_layer is None,
        log_evidence=log_likelihood - penalty,
        status=_status(structure, prior_precision, by_site, groups, said, distance),
        seconds=time.perf_counter() - begin,
    )
    return with_learned(posterior, model)


def _curvature(
    model: BayesianModel, net: nn.Module, last_layer: nn.Linear | None, rows: Pairs, structure: Structure, scales: int
) -> Curvature:
    """Return the Gauss-Newton matrix. If only the last layer is random, the layers before it run once per row."""
    batches: Iterable[Pair] = rows if last_layer is None else features(net, last_layer, rows)
    if structure == "kronecker":
        whole = net if last_layer is None else nn.Sequential(last_layer)
        return kronecker_curvature(whole, batches, model.likelihood)
    is_full, plain = structure == "full", net if last_layer is None else last_layer
    sums = summed_matrices(plain, batches, model.likelihood, is_full=is_full, num_scales=scales)
    return FullCurvature(sums) if is_full else CurvatureAlongAxes(sums)


def _numbers(layout: Layout, groups: Mapping[str, str]) -> Tensor:
    """Return the index of the group of each weight, shape (P,)."""
    order = list(dict.fromkeys(groups.values()))
    sizes = torch.tensor([shape.numel() for shape in layout.shapes.values()])
    return torch.tensor([order.index(groups[site]) for site in layout.shapes]).repeat_interleave(sizes)


def _single(values: Tensor) -> float | Tensor:
    first = float(values.flatten()[0])
    return first if bool((values == first).all()) else values


def _status(
    structure: str,
    asked: float | str | None,
    precisions: Mapping[str, float | Tensor],
    groups: Mapping[str, str],
    said: str,
    distance: float,
) -> Status:
    place = f"The point lies {distance:.2g} posterior standard deviations from the mode (root mean square)."
    fault = "" if distance <= FAR else "So the curvature at the point differs from that at the mode."
    parts = [place, *([fault] if fault else [])]
    parts.append(f"Laplace: {structure} Gauss-Newton matrix of {counted(len(precisions), 'site')};")
    if asked is None:
        parts.append("the prior is the model's.")
    else:
        chosen = {groups[site]: precision for site, precision in precisions.items()}
        shown = few((f"{name} {value:.3g}" for name, value in chosen.items()), MOST_SHOWN)
        how = "chosen by the evidence" if asked == EVIDENCE else "as given"
        parts.append(f"prior precisions {how}: {shown}.")
    parts += [said] if said else []
    verdict, remedy = (f"{place} {fault}", FARTHER) if fault else ("", "")
    return Status(not fault, " ".join(parts), remedy=remedy, verdict=verdict)
