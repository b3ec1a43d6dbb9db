"""The point around which a fit expands, what it needs of the model, and the log-likelihood there."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..._core import checks as _checks
from ..._core.inputs import Inputs, Pairs, num_rows
from ...modelling.likelihoods import CategoricalLikelihood, GaussianLikelihood
from ...modelling.model import BayesianModel, network_values
from ..guides import GuidePosterior
from ..posterior import Draw, Posterior
from ._noise import LATENT, latent_noise
from ._outputs import SERVED


def check_model(model: BayesianModel, structure: str) -> None:
    """Raise if there is no Gauss-Newton matrix of this likelihood, or something else than weights is random."""
    likelihood, remedy = model.likelihood, "use `fit_laplace` for a small network, or `fit_svi`"
    if type(likelihood) not in SERVED:
        names = ", ".join(kind.__name__ for kind in SERVED)
        raise ValueError(
            f"the likelihood must be one of {names} for a Gauss-Newton matrix, got {type(likelihood).__name__}; "
            f"{remedy}."
        )
    others = {*model.latent_names} - {*model.site_names, LATENT}
    if others:
        raise ValueError(
            f"only weights and a noise scale may be random here, but the model has the latent variables "
            f"{sorted(others)}; use a fixed prior, whose precision the data choose by "
            f'`prior_precision="evidence"`, or {remedy}.'
        )
    if structure != "kronecker":
        return
    other = 'use structure="diagonal", or "full" for few weights'
    if type(likelihood) not in (CategoricalLikelihood, GaussianLikelihood):
        raise ValueError(
            "Kronecker factors are for CategoricalLikelihood or GaussianLikelihood, got "
            f"{type(likelihood).__name__}; {other}."
        )
    is_weighted = isinstance(likelihood, CategoricalLikelihood) and likelihood.class_weights is not None
    if likelihood.has_row_weights or is_weighted:
        raise ValueError(f"Kronecker factors need rows and classes without weights; leave them out, or {other}.")
    prior = latent_noise(model)
    if prior is not None and prior.event_shape.numel() > 1:
        num_scales = prior.event_shape.numel()
        raise ValueError(f"Kronecker factors need one noise scale for all outputs, got {num_scales}; {other}.")


def point_of(model: BayesianModel, init: Posterior | Mapping[str, Tensor] | None) -> Draw:
    """The point, for every latent variable, on the device of the model and in its dtype."""
    prior = latent_noise(model)
    latent = {} if prior is None else {LATENT: torch.ones(prior.event_shape).to(model.like)}  # until it is chosen
    if init is None:
        return {name: model.initial_value(name).detach().clone() for name in model.site_names} | latent
    if not isinstance(init, (Posterior, Mapping)):
        raise ValueError(
            "`init` must be a posterior, or values by site such as `guide.median()`, got "
            f"{_checks.described(init)}; wrap a guide in `GuidePosterior`."
        )
    if isinstance(init, GuidePosterior) and getattr(init.guide, "masks", None):
        raise ValueError(
            "`init` must not be pruned, since its removed weights would be random again; fit at the posterior before "
            "pruning, or pass `init.median()` if the zeros are weights like all others."
        )
    values = init.median() if isinstance(init, Posterior) else dict(init)
    own = network_values(model)
    others = [name for name in values if name in own and not torch.equal(values[name].to(own[name]), own[name])]
    if others:
        raise ValueError(
            f"`init` must be a point of this network, got one with other values of {others} than the network has; "
            "write these into the model first, as a fit in it does, or `refresh_batch_norm(model, values, x)` for "
            "statistics of batch normalisation."
        )
    model.check_latents({name: value for name, value in values.items() if name not in own} | latent)
    return {name: values[name].detach().to(model.like) for name in model.site_names} | latent


def check_output(model: BayesianModel, values: Draw, x: Inputs) -> None:
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


def expansion(
    model: BayesianModel, rows: Pairs, values: Mapping[str, Tensor], sites: Sequence[str]
) -> tuple[float, Tensor]:
    """The log-likelihood of all rows in nats, and its gradient in some sites, shape (P,), in double precision.

    Args:
        model: The model.
        rows: All rows.
        values: Values of all latent variables.
        sites: Sites of the gradient, in order.

    Raises:
        ValueError: If a row does not fit the model.
    """
    leaves = [values[site].detach().clone().requires_grad_() for site in sites]
    given = {**values, **dict(zip(sites, leaves, strict=True))}
    total = 0.0
    gradient = torch.zeros(sum(map(torch.numel, leaves)), dtype=torch.float64, device=model.device)
    for x, y in rows:
        with torch.enable_grad():
            density = model.log_likelihood(given, x, y) * (num_rows(x) / model.num_data)
            parts = torch.autograd.grad(density, leaves, materialize_grads=True)
        total += float(density.detach())
        gradient += torch.cat([part.flatten() for part in parts]).double()
    return total, gradient
