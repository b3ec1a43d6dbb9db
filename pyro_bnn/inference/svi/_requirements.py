"""Checks of the arguments of fits and steps, before anything is computed."""

import warnings
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import torch
from pyro import poutine
from pyro.infer import ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoGuide
from pyro.optim import PyroOptim
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from ..._core import checks as _checks
from ..._core.scope import is_auxiliary, seeded, short_errors
from ...modelling.model import BayesianModel, random_paths
from ..guides import FlatGuide
from ._functions import signature_of

EXAMPLE = "functools.partial(torch.optim.Adam, lr=1e-3)"


class NotCopied:
    """An object that holds memory of others, so that a copy of it could not work."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ValueError(
            f"a {type(self).__name__} must stay where it was made, since it shares the memory of a guide, got a copy "
            "or a pickle of it; save the posterior with `save_posterior`, and open a new step."
        )


def check_model(model: object, guide: object) -> None:
    """Raise if a model is given as a guide, or a guide as a model."""
    if isinstance(model, (FlatGuide, AutoGuide)):
        raise ValueError(f"`model` must be a model, got the guide {type(model).__name__}; pass the model it guides.")
    if isinstance(guide, BayesianModel):
        raise ValueError("`guide` must be a guide, got a BayesianModel; make one, such as MeanFieldGuide(model).")
    if guide is model and model is not None:
        raise ValueError(f"`guide` must be another module than `model`, got the same {type(model).__name__} twice.")


def checked_maker(optimizer: Any) -> Any:
    """The optimizer, or the function that makes it, which then also checks what it made.

    Raises:
        ValueError: If it is of another kind; in the call of the function, if it made something else.
    """
    if isinstance(optimizer, Optimizer):
        return _usable(optimizer)
    is_class = isinstance(optimizer, type) and not issubclass(optimizer, Optimizer)
    if isinstance(optimizer, PyroOptim) or not callable(optimizer) or is_class:
        _refuse(_checks.described(optimizer))

    def make(parameters: list[nn.Parameter]) -> Any:
        made = optimizer(parameters)
        first = made[0] if isinstance(made, tuple) and len(made) == 2 else made
        if not isinstance(first, Optimizer):
            _refuse(f"{_checks.described(optimizer)}, which made {_checks.described(made)}")
        _usable(first)
        check_coverage(first, parameters)
        return made

    return make


def _refuse(got: str) -> NoReturn:
    raise ValueError(f"`optimizer` must make a torch optimizer from parameters, such as {EXAMPLE}, got {got}.")


def _usable(optimizer: Optimizer) -> Optimizer:
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "`optimizer` must take single noisy gradients, got LBFGS, whose line search needs the same loss several "
            "times in a step; use Adam, or `fit_laplace` for the mode."
        )
    if isinstance(optimizer, SparseAdam):
        raise ValueError("`optimizer` must take dense gradients, got SparseAdam; use Adam, since a KL has dense ones.")
    return optimizer


def check_coverage(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Warn if an optimizer has only a part of the parameters; raise if it has others.

    Args:
        optimizer: The optimizer.
        parameters: All parameters of guide and model that can be learned.
    """
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    owned = {id(parameter) for parameter in parameters}
    foreign = len(given - owned)
    if foreign:
        raise ValueError(
            f"`optimizer` must have parameters of the guide or the model only, got {foreign} of {len(given)} others; "
            "make it from `[*guide.parameters(), *model.parameters()]`, or pass a function that makes it."
        )
    missing = [parameter for parameter in parameters if id(parameter) not in given]
    if missing:
        warnings.warn(
            f"`optimizer` must have all parameters of guide and model, got {len(given)} of {len(parameters)}: the "
            f"others ({sum(p.numel() for p in missing):,} numbers) stay as they are. If that is meant, call "
            "`requires_grad_(False)` on them.",
            stacklevel=2,
        )


def check_signature(name: str, module: nn.Module, batch: tuple[Tensor, ...]) -> None:
    """Raise unless a module can be called with a batch."""
    try:
        signature_of(module).bind(*batch)
    except TypeError as error:
        raise ValueError(
            f"`{name}` must be a Pyro {name} that is called with the {len(batch)} tensors of a batch, got "
            f"{type(module).__name__}, which cannot be: {error}. For a plain network make a BayesianModel and a guide."
        ) from None


def check_latents(model: nn.Module, guide: nn.Module, elbo: ELBO, batch: tuple[Tensor, ...]) -> None:
    """Raise unless a guide draws every latent variable of a Pyro model; a BayesianModel has checks of its own.

    Pyro would only warn, and count the variable's prior without its guide.
    """
    for name, module in (("model", model), ("guide", guide)):
        check_signature(name, module, batch)
    if isinstance(model, BayesianModel) or isinstance(elbo, TraceEnum_ELBO):
        return
    is_ready = any(True for _ in guide.parameters())  # if not, this call makes them, with the seed of the fit
    with short_errors(), seeded(0 if is_ready else None), torch.no_grad(), poutine.block():
        guide_trace: Any = prune_subsample_sites(poutine.trace(guide).get_trace(*batch))
        replayed = poutine.replay(model, trace=guide_trace)
        model_trace: Any = prune_subsample_sites(poutine.trace(replayed).get_trace(*batch))
    drawn = {name for name, _ in guide_trace.iter_stochastic_nodes()}
    needed = {name for name, node in model_trace.iter_stochastic_nodes() if not is_auxiliary(node)}
    missing = sorted(needed - drawn)
    if missing:
        raise ValueError(
            f"the guide must draw every latent variable of the model, got one that lacks {missing}; pass the targets "
            "in each batch if one of these is observed, or make a guide of this model."
        )


def check_own_statements(model: BayesianModel, drawn: Collection[str], batch: tuple[Any, ...]) -> None:
    """Raise unless a guide draws what the network or the likelihood draws by a `pyro.sample` in its forward pass.

    Args:
        model: The model, which is run once.
        drawn: What the guide draws.
        batch: The model's arguments.
    """
    random = random_paths(model)
    with short_errors(), seeded(0), torch.no_grad(), poutine.block():
        buffers = [buffer for path, buffer in model.network.named_buffers() if path not in random]
        before = [buffer.clone() for buffer in buffers]  # a run changes those of layers such as batch normalisation
        trace: Any = prune_subsample_sites(poutine.trace(model).get_trace(*batch))
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
    sites = {name for name, node in trace.iter_stochastic_nodes() if not is_auxiliary(node)}
    missing = sorted(sites - {*drawn, *model.latent_names})
    if missing:
        raise ValueError(
            f"the network draws {missing} by `pyro.sample`, which the guide does not, so no fit would learn it; make "
            "it a `PyroSample` of a `PyroModule`, which is a site of the model, or fit Pyro's `AutoNormal(model)`."
        )
