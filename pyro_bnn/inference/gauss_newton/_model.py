"""Checks a model for a Gauss-Newton fit, and computes the prior, the log-likelihood, and inputs of the last layer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..._core import checks as _checks
from ..._core.inputs import Inputs, Pair, Pairs, num_rows
from ..._core.reflection import unwrap
from ...modelling.model import BayesianModel, network_values
from ..guides import GuidePosterior
from ..last_layer import watched
from ..posterior import Draw, Posterior
from ._evidence import LATENT, latent_noise
from ._matrices import SERVED

MANY_ROWS = 4096  # heuristic: least rows in a batch of inputs of the last layer, as each batch updates the whole matrix


def check_model(model: BayesianModel, structure: str) -> None:
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
            f'{sorted(others)}; use a fixed prior with `prior_precision="evidence"`, or {remedy}.'
        )
    prior = latent_noise(model)
    num_scales = 1 if prior is None else prior.event_shape.numel()
    if structure == "kronecker" and num_scales > 1:
        raise ValueError(
            f"Kronecker factors need one noise scale for all outputs, got {num_scales}; use "
            'structure="diagonal", or "full" for few weights.'
        )


def gaussian_prior(model: BayesianModel, sites: Sequence[str], *, is_kronecker: bool) -> tuple[Tensor, Tensor]:
    """Return the prior means and precisions of some sites, each of shape (P,), in double precision."""
    remedy = "use NormalPrior, FanInNormalPrior, NetworkNormalPrior or PosteriorPrior, or `fit_laplace` or `fit_svi`"
    if not model.has_fixed_priors:
        raise ValueError(
            "the prior must be Gaussian and fixed, got one that depends on latent variables or learned parameters; "
            f'{remedy}. To let the data choose the precision of a fixed prior, pass `prior_precision="evidence"`.'
        )
    means, precisions = [], []
    for name in sites:
        prior, shape = unwrap(model.prior_of(name)), model.initial_value(name).shape
        if type(prior) is not dist.Normal:
            raise ValueError(f"the prior of `{name}` must be Gaussian, got {type(prior).__name__}; {remedy}.")
        scales = prior.scale.expand(shape).double().flatten()
        if is_kronecker and bool((scales != scales[0]).any()):
            raise ValueError(
                f"Kronecker factors need the same prior scale for all weights of `{name}`, got "
                f"{float(scales.min()):.4g} to {float(scales.max()):.4g}; "
                'use structure="diagonal", or a `prior_precision`.'
            )
        means.append(prior.loc.expand(shape).double().flatten())
        precisions.append(scales.square().reciprocal())
    return torch.cat(means), torch.cat(precisions)


# --- the point --------------------------------------------------------------------------------------------------------


def point_of(model: BayesianModel, init: Posterior | Mapping[str, Tensor] | None) -> Draw:
    """Return the point, a value of every latent variable: from `init` if it is given, otherwise from the network."""
    prior = latent_noise(model)
    latent = {} if prior is None else {LATENT: torch.ones(prior.event_shape).to(model.like)}  # chosen later
    if init is None:
        return {name: model.initial_value(name).detach().clone() for name in model.site_names} | latent
    if not isinstance(init, (Posterior, Mapping)):
        raise ValueError(
            "`init` must be a posterior, or values by site such as `guide.median()`, got "
            f"{_checks.described(init)}; wrap a guide in `GuidePosterior`."
        )
    if isinstance(init, GuidePosterior) and init.pruned_sites:
        raise ValueError(
            "`init` must not be pruned, since its removed weights would be random again; pass the posterior before "
            "pruning, or pass `init.median()` to treat the zeros like all other weights."
        )
    values = init.median() if isinstance(init, Posterior) else dict(init)
    own = network_values(model)
    others = [name for name in values if name in own and not torch.equal(values[name].to(own[name]), own[name])]
    if others:
        raise ValueError(
            f"`init` must have the same values of {others} as the network, got other values; write the values of "
            "`init` into the model first, or, for statistics of batch normalisation, call "
            "`refresh_batch_norm(model, values, x)`."
        )
    model.check_latents({name: value for name, value in values.items() if name not in own} | latent)
    return {name: values[name].detach().to(model.like) for name in model.site_names} | latent


def check_output(model: BayesianModel, values: Draw, x: Inputs) -> None:
    """Raise if the network's output does not have shape (N, C), or if it changes in a second call."""
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
            "the network must give the same outputs for the same weights, but it draws random numbers even in eval "
            "mode (MCDropout); leave that layer out, or fit with `fit_svi`."
        )


def expansion(
    model: BayesianModel, rows: Pairs, values: Mapping[str, Tensor], sites: Sequence[str]
) -> tuple[float, Tensor]:
    """Return the log-likelihood of all rows in nats, and its gradient with respect to the `sites`, shape (P,)."""
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


# --- the network at the point -----------------------------------------------------------------------------------------


def sites_of(net: nn.Module, model: BayesianModel) -> list[str]:
    sites = {path: site for site, paths in model.parameter_paths.items() for path in paths}
    return [sites[path] for path, parameter in net.named_parameters() if parameter.requires_grad]


def features(net: nn.Module, layer: nn.Linear, source: Iterable[Pair]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield large batches of inputs of the last layer, shape (N, D), with their targets."""
    parts: list[tuple[Tensor, Tensor]] = []
    for x, y in source:
        _, calls = watched(net, x)
        parts.append((calls[layer][0][0], y))
        if sum(len(targets) for _, targets in parts) >= MANY_ROWS:
            yield _joined(parts)
            parts = []
    if parts:
        yield _joined(parts)


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*parts, strict=True)
    return torch.cat(inputs), torch.cat(targets)
