"""Laplace's method with a generalised Gauss-Newton matrix, for networks of any size."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from .. import _checks
from .._inputs import Inputs
from .._scope import eval_mode, restored
from .._summary import counted
from ..guides import GuidePosterior
from ..joint import Layout
from ..likelihoods import CategoricalLikelihood, GaussianLikelihood
from ..model import BayesianModel, Rules, network_values, sites_among
from ..posterior import Draw, Posterior, Status
from ._curvature import Curvature
from ._data import Data
from ._evidence import Expansion
from ._library import STRUCTURES, curvature_of, library
from ._network import Head, head_of, plain_network, sites_of
from ._posterior import GaussNewtonPosterior
from ._prior import Per, gaussian_prior, groups_of

Structure = Literal["full", "kronecker", "diagonal"]

MAX_FULL = 6000
"""Largest number of random weights with a full matrix, which then takes 288 MB in double precision."""

FAR = 10.0
"""Heuristic: distance from the mode, in posterior standard deviations of each weight, above which the status is bad.

Networks whose training stops early are at 1 to 10, and predict well.
"""

EVIDENCE = "evidence"

MOST_SHOWN = 4
"""Number of prior precisions that a status names."""


def fit_gauss_newton(
    model: BayesianModel,
    data: tuple[Inputs, Tensor] | Iterable[tuple[Inputs, Tensor]],
    *,
    at: Posterior | Mapping[str, Tensor] | None = None,
    structure: Structure = "kronecker",
    where: Rules = "**",
    prior_precision: float | Literal["evidence"] | None = None,
    per: Per = "layer",
    batch_size: int = 128,
) -> GaussNewtonPosterior:
    r"""Fit a Gaussian around a trained network, at the cost of a few passes over the data (Laplace's method).

    .. math:: q(w) = N\big(w^*, (G + \mathrm{diag}\,\delta)^{-1}\big), \qquad
              G = \sum_n J_n^\top \Lambda_n J_n,

    with the Jacobian J of the network's outputs at the point :math:`w^*`, the curvature :math:`\Lambda` of the negative
    log-likelihood in the outputs, and the prior precisions :math:`\delta`. The generalised Gauss-Newton matrix G is the
    Hessian without the part that comes from the network's own bending; it is never negative. For a network that is
    linear in its random weights, such as a last layer, it is the Hessian, and the result is that of
    :func:`fit_laplace` at the same point. The matrices are those of laplace-torch (extra ``laplace``).

    Args:
        model: The model, with a Gaussian prior, and classes or targets with Gaussian noise. Nothing in it changes. Its
            learnable parameters, such as a noise scale, are used as they are.
        data: A tuple (x, y) with all rows, or a loader of such pairs, which is run through several times.
        at: The point: a posterior with a median, such as that of a fitted :func:`auto_delta`, or values of all latent
            variables by site. None is the network's own weights, which then should be trained ones.
        structure: What of G is kept. "full" is all of it, for at most 6000 weights; "kronecker" one Kronecker product
            for each parameter of linear and convolutional layers; "diagonal" its diagonal.
        where: Which of the model's random weights stay random: globs or :func:`layers`, as in
            :class:`BayesianModel`. The others are held at the point; for a last layer pass its name, ``"net.fc.*"``.
        prior_precision: Precisions of the prior, one over its variance: None takes those of the model, a number is
            used for all weights, and "evidence" chooses those for which Laplace's evidence is largest. The means stay
            those of the model.
        per: Which weights share a precision that the evidence chooses: those of the "network", a "layer" or a
            "parameter". With a full matrix and several groups, each iteration of the search inverts it.
        batch_size: Number of rows in each run of the network; a loader has its own.

    Returns:
        A posterior with `mode`, `covariance`, `log_evidence` and `prior_precisions`. Its status says what was chosen,
        and whether the point is far from the mode. :func:`predict` takes the network as linear in its weights around
        the point, for which this Gaussian is meant: the network itself at drawn weights may predict much worse.

    Raises:
        ImportError: If laplace-torch is not installed.
        ValueError: If prior, likelihood, layers or data cannot be used; the message says what can.

    References:
        MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks; Ritter, Botev and Barber (2018), A
        Scalable Laplace Approximation for Neural Networks; Daxberger et al. (2021), https://arxiv.org/abs/2106.14806.

    Example:
        >>> from torch import nn
        >>> from pyro_bnn import BayesianModel, GaussianLikelihood, NormalPrior, predict
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> net = nn.Linear(1, 1)
        >>> _ = net.weight.data.fill_(2.0), net.bias.data.fill_(0.0)  # as if it were trained
        >>> likelihood = GaussianLikelihood(0.1)
        >>> model = BayesianModel(net, prior=NormalPrior(), likelihood=likelihood, num_data=50)
        >>> posterior = fit_gauss_newton(model, (x, 2 * x), structure="full")
        >>> predict(model, posterior, x, seed=0).epistemic.sqrt().mean() < 0.03
        tensor(True)
    """
    library()  # first: without it nothing can be done, and its import is no part of the time
    begin = time.perf_counter()
    _checks.kind("model", model, BayesianModel, "a BayesianModel")
    if structure not in STRUCTURES:
        raise ValueError(f"`structure` must be one of {', '.join(map(repr, STRUCTURES))}, got {structure!r}.")
    if per not in ("network", "layer", "parameter"):
        raise ValueError(f'`per` must be "network", "layer" or "parameter", got {per!r}.')
    if prior_precision is not None and prior_precision != EVIDENCE:
        if isinstance(prior_precision, str):
            raise ValueError(f'`prior_precision` must be a number, "evidence" or None, got {prior_precision!r}.')
        _checks.positive("prior_precision", prior_precision)
    noise_scale = _noise_scale(model)
    random = sites_among(model.network, model.parameter_paths, where)
    values, rows = _values(model, at), Data(model, data, batch_size)
    with restored(model.device), eval_mode(model):  # a loader may draw its order
        net = plain_network(model, values, random)
        sites = sites_of(net, model)
        layout = Layout({name: values[name].shape for name in sites})
        if structure == "full" and layout.num_elements > MAX_FULL:
            raise ValueError(
                f'structure="full" is for at most {MAX_FULL:,} random weights, got {layout.num_elements:,}; choose '
                'fewer with `where`, such as the last layer, or use structure="kronecker".'
            )
        prior = gaussian_prior(model, sites, is_kronecker=structure == "kronecker" and prior_precision is None)
        _check_output(model, values, rows.first())
        log_likelihood, gradient = rows.expansion(values, sites)
        head = head_of(net, rows.first())
        curvature = _curvature(model, net, head, rows, noise_scale, structure)
    center = layout.pack(values).double()
    parts = [layout.slices[site] for site in sites]
    expansion = Expansion(log_likelihood, (center - prior.means).square(), curvature, parts)
    groups = groups_of(sites, per)
    precisions = prior.precisions
    if prior_precision == EVIDENCE:
        precisions = expansion.best(precisions, [[sites.index(site) for site in group] for group in groups.values()])
    elif prior_precision is not None:
        precisions = torch.full_like(precisions, float(prior_precision))
    covariance = curvature.covariance(precisions)
    slope = precisions * (center - prior.means) - gradient
    distance = math.sqrt(max(float(slope @ covariance.times(slope)), 0.0) / len(slope))
    by_site = {name: _single(part) for name, part in layout.views(precisions).items()}
    chosen = {name: by_site[group[0]] for name, group in groups.items()}
    return GaussNewtonPosterior(
        {name: value.to(model.like) for name, value in values.items()},
        sites,
        covariance.to(model.like),
        prior_precisions=by_site,
        structure=structure,
        is_linearised=head is None,
        log_evidence=expansion.log_evidence(precisions),
        status=_status(structure, len(sites), prior_precision, chosen, distance),
        seconds=time.perf_counter() - begin,
    )


def _noise_scale(model: BayesianModel) -> float | None:
    """Standard deviation of the noise; None for classes.

    Raises:
        ValueError: If the likelihood is of another kind, or weights its rows.
    """
    likelihood = model.likelihood
    remedy = "use `fit_laplace` for a small network, or `fit_svi`"
    if type(likelihood) not in (CategoricalLikelihood, GaussianLikelihood):
        raise ValueError(
            "the likelihood must be CategoricalLikelihood or GaussianLikelihood for a Gauss-Newton matrix, got "
            f"{type(likelihood).__name__}; {remedy}."
        )
    others = set(model.latent_names) - set(model.site_names)
    if others:
        raise ValueError(
            f"only weights may be random here, but the model has the latent variables {sorted(others)}; fix them, as "
            f"with GaussianLikelihood(0.1), learn them, as with GaussianLikelihood(), or {remedy}."
        )
    is_weighted = isinstance(likelihood, CategoricalLikelihood) and likelihood.class_weights is not None
    if likelihood.has_row_weights or is_weighted:
        raise ValueError(f"rows and classes must have no weights in the likelihood here; leave them out, or {remedy}.")
    return float(likelihood.noise_scale().detach()) if isinstance(likelihood, GaussianLikelihood) else None


def _values(model: BayesianModel, at: Posterior | Mapping[str, Tensor] | None) -> Draw:
    """The point, for every latent variable, on the device of the model and in its dtype."""
    if at is None:
        return {name: model.initial_value(name).detach().clone() for name in model.site_names}
    if not isinstance(at, (Posterior, Mapping)):
        raise ValueError(
            "`at` must be a posterior, or values by site such as `guide.median()`, got "
            f"{_checks.described(at)}; wrap a guide in `GuidePosterior`."
        )
    if isinstance(at, GuidePosterior) and getattr(at.guide, "masks", None):
        raise ValueError(
            "`at` must not be pruned, since its removed weights would be random again; fit at the posterior before "
            "pruning, or pass `at.median()` if the zeros are weights like all others."
        )
    values = at.median() if isinstance(at, Posterior) else dict(at)
    own = network_values(model)
    others = [name for name in values if name in own and not torch.equal(values[name].to(own[name]), own[name])]
    if others:
        raise ValueError(
            f"`at` must be a point of this network, got one with other values of {others} than the network has; write "
            "these into the model first, as a fit in it does, or `refresh_batch_norm(model, values, x)` for "
            "statistics of batch normalisation."
        )
    model.check_latents({name: value for name, value in values.items() if name not in own})
    return {name: values[name].detach().to(model.like) for name in model.site_names}


def _check_output(model: BayesianModel, values: Draw, x: Inputs) -> None:
    """Raise unless the network has one row of outputs for each row, and always the same ones."""
    with torch.no_grad():
        first, second = (model.output_given(values, x) for _ in range(2))
    if first.dim() != 2:
        raise ValueError(
            f"the network's output must have shape (N, C) for a Gauss-Newton matrix, got {_checks.shape(first)}; give "
            "it one axis of outputs, as with `nn.Flatten()` or `.unsqueeze(-1)`."
        )
    model.likelihood.check_output(first)
    if not torch.equal(first, second):
        raise ValueError(
            "the network gives different outputs for the same weights, since it draws random numbers even in eval mode "
            "(MCDropout); leave that layer out, or fit with `fit_svi`."
        )


def _curvature(
    model: BayesianModel, net: nn.Module, head: Head | None, rows: Data, noise_scale: float | None, structure: Structure
) -> Curvature:
    """The Gauss-Newton matrix; of a last layer from what its body gives, which runs once in each pass."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        if head is not None:
            yield from head.batches(rows.batches())
            return
        for x, y in rows.batches():
            if not isinstance(x, Tensor):
                raise ValueError(
                    "a network with several inputs must have no random weights but those of a linear last layer here; "
                    "choose that one with `where`, or fit with `fit_svi`."
                )
            yield x, y

    plain = net if head is None else head.network
    return curvature_of(plain, batches, model.num_data, noise_scale=noise_scale, structure=structure)


def _single(values: Tensor) -> float | Tensor:
    """A number, if all values are the same."""
    first = float(values.flatten()[0])
    return first if bool((values == first).all()) else values


def _status(
    structure: str,
    num_sites: int,
    asked: float | str | None,
    precisions: Mapping[str, float | Tensor],
    distance: float,
) -> Status:
    parts = [f"Laplace approximation with the {structure} Gauss-Newton matrix of {counted(num_sites, 'site')};"]
    if asked is None:
        parts.append("the prior is the model's.")
    else:
        shown = ", ".join(f"{name} {value:.3g}" for name, value in list(precisions.items())[:MOST_SHOWN])
        rest = f" and {len(precisions) - MOST_SHOWN} more" if len(precisions) > MOST_SHOWN else ""
        how = "chosen by the evidence" if asked == EVIDENCE else "given"
        parts.append(f"the model's prior was replaced by one with precisions {how}: {shown}{rest}.")
    parts.append(f"The point lies {distance:.2g} posterior standard deviations from the mode (root mean square).")
    if not distance <= FAR:
        parts.append("So its curvature is that of another place: train longer, with this prior, and take that point.")
    return Status(distance <= FAR, " ".join(parts))
