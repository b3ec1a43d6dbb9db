"""The default number of draws for predictions, and checks of learned parameters."""

import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import Tensor, nn

from ..._core.scope import outer_stacklevel
from ...modelling.model import SITE_PREFIX, BayesianModel, random_paths
from ...nets import MCDropout
from ._ensemble import EnsemblePosterior
from ._posterior import Posterior

P = TypeVar("P", bound=Posterior)

NUM_DRAWS = 100  # heuristic: the standard error of the mean is 10 % of the standard deviation
TOLERANCE = 0.01  # heuristic: a smaller relative change of a learned parameter is rounding, as in a move to bfloat16
SMALLEST = 0.1  # heuristic: least size of a parameter for the relative change


def num_members(model: Any, posterior: Posterior) -> int | None:
    """Return the number of points if the posterior consists of points, and the model has no MC dropout; else None."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return None if any(isinstance(module, MCDropout) for module in modules) else posterior.num_points


def default_num_draws(
    model: Any, posterior: Posterior, *, usual: int = NUM_DRAWS, most_stored: int | None = None
) -> int:
    """Return the default number of draws in a prediction.

    For a posterior of points, it is the number of points, but at least 2, since a single draw has no epistemic
    uncertainty. For stored draws, it is their number, but at most `most_stored` (by default `usual`). For all other
    posteriors, it is `usual`.
    """
    points = num_members(model, posterior)
    if points is not None:
        return max(points, 2)
    return usual if posterior.num_stored is None else min(posterior.num_stored, most_stored or usual)


def with_learned(posterior: P, model: object) -> P:
    """Store the model's learned parameters in a posterior, or in each member of an ensemble."""
    if isinstance(model, BayesianModel):
        for part in _parts(posterior):
            part.learned = {
                name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad
            }
    return posterior


def warn_of_changes(posterior: Posterior, model: BayesianModel) -> None:
    """Warn if learned parameters of a model have changed since one of its posteriors was made.

    Parameters of the network are not compared if the posterior is an ensemble, or if each draw has its own values of
    parameters or buffers.
    """
    parts = [part for part in _parts(posterior) if part.learned]
    if not parts:
        return
    now, changed = dict(model.named_parameters()), list[str]()
    is_whole = not isinstance(posterior, EnsemblePosterior) and not posterior.carried
    for part in parts:
        for name, then in part.learned.items():
            is_compared = is_whole or not name.startswith(f"{SITE_PREFIX}.")
            if is_compared and name in now and name not in changed and _differs(now[name].detach(), then):
                changed.append(name)
    if changed:
        remedy = (
            "or restore the values by `model.load_state_dict(posterior.learned, strict=False)`"
            if is_whole
            else "or make a noise scale latent by a prior"
        )
        warnings.warn(
            f"the model's learned {', '.join(f'`{name}`' for name in changed[:3])} changed after this posterior was "
            "made, perhaps by another fit of the same model, and predictions use the present values. Fit a copy of "
            f"the model for each posterior, `copy.deepcopy(model)`, {remedy}.",
            stacklevel=outer_stacklevel(),
        )


def warn_of_shared_network(posterior: Posterior, model: BayesianModel) -> None:
    """Warn if members of an ensemble may have learned different values of parameters that are not random."""
    if not isinstance(posterior, EnsemblePosterior) or len(posterior.members) == 1 or posterior.carried:
        return
    random, named = random_paths(model), model.network.named_parameters()
    learned = [path for path, value in named if value.requires_grad and path not in random]
    if learned:
        warnings.warn(
            f"all members of the ensemble predict with this model's values of the parameters that are not random "
            f"(`{learned[0]}` and {len(learned) - 1} more). If each member has learned its own, wrap each in "
            "`PinnedPosterior(model, posterior)` after its fit; if all share these values, call "
            "`requires_grad_(False)` on the parameters.",
            stacklevel=outer_stacklevel(),
        )


def _parts(posterior: Posterior) -> Iterator[Posterior]:
    if isinstance(posterior, EnsemblePosterior):
        for member in posterior.members:
            yield from _parts(member)
    else:
        yield posterior


def _differs(now: Tensor, then: Tensor) -> bool:
    if now.shape != then.shape:
        return False  # a parameter of another model
    then = then.to(now)
    size = max(float(then.square().mean().sqrt()), SMALLEST)
    return float((now - then).square().mean().sqrt()) > TOLERANCE * size
