"""Functions that save and load posteriors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..._core import checks as _checks
from ..._core.files import DamagedFileError, read_state, understood, write_state
from ..._core.records import plain, record
from ...modelling.model import BayesianModel
from ..guides import GuidePosterior
from ..posterior import Destination, Posterior, Saved, restored, saved
from ._model import ModelRecord, checked_state, record_of, require_same, without, without_frozen

KIND = "posterior"


@dataclass(frozen=True)
class Content:
    """Content of a file; `model` is None unless the posterior belongs to a :class:`BayesianModel`."""

    model: ModelRecord | None
    posterior: Saved


def save_posterior(
    posterior: Posterior | Callable[..., object],
    path: str | Path,
    model: BayesianModel | None,
    *,
    with_frozen: bool = True,
) -> None:
    """Write a posterior to one file, with the parameters and buffers of its model.

    The file is written completely or not at all, has a checksum, and contains no code. It records the model's latent
    variables with their shapes and priors, the likelihood, the layers, `num_data` and the dtype. It contains no
    training data, except the inputs of a :class:`~pyro_bnn.RefreshedPosterior`. A removed weight (see
    :mod:`pyro_bnn.pruning`) takes one bit. Your own class of posteriors can be saved if it has
    :meth:`Posterior.to_record` and :meth:`Posterior.from_record`.

    Args:
        posterior: Result of a fit, an ensemble of such results, or a guide that is a module.
        path: Path of the file.
        model: The model of the posterior. Pass None for chains or a guide of another Pyro model; the file then has no
            record of the model.
        with_frozen: Whether to write the frozen parameters of the network, too. False makes the file of a posterior of
            adapters small: it has their checksums instead, and can be loaded only into a model with the same values.

    Raises:
        ValueError: If the posterior cannot be saved, does not belong to the model, or has a number that is not finite;
            the message says which of these is the case.
        OSError: If the file cannot be written; an existing file stays unchanged.
    """
    posterior = posterior if isinstance(posterior, Posterior) else GuidePosterior(posterior)
    path, own = _checks.path("path", path), _record(model)
    with_frozen = _checks.flag("with_frozen", with_frozen)
    described = own
    if own is not None and model is not None:
        described = without(own, model, posterior.pruned_sites)
        described = described if with_frozen else without_frozen(described, model)
    content = plain(Content(described, saved(posterior)))
    try:
        _restored(content, Destination(model, list(posterior.guides) or None), own)  # raises if it cannot be loaded
    except ValueError as error:
        raise ValueError(f"the posterior cannot be saved: {error}") from error
    write_state(path, KIND, content)


def load_posterior(
    path: str | Path, model: BayesianModel | None, *, guide: nn.Module | Sequence[nn.Module] | None = None
) -> Posterior:
    """Load a posterior, and the parameters and buffers of its model, from a file; the file cannot run code.

    Draws with the same seed are bit for bit the same as before saving. All checks come first, so after an error, model
    and guide are unchanged.

    Args:
        path: A file written by :func:`save_posterior`.
        model: A model built like the saved one. It receives the saved parameters and buffers, and stays on its device.
            Pass None for a posterior that was saved without a model.
        guide: Guide that receives the saved state; for an ensemble a list with one guide for each member that has a
            guide. By default guides are made from the file, which works for this package's guides and for Pyro's
            `AutoNormal`, `AutoMultivariateNormal` and `AutoLowRankMultivariateNormal`. You must pass any other guide.

    Returns:
        The posterior, on the device of the model, with its status and its history or statistics.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or does not fit the model or the guide; the message says what differs.
    """
    destination = Destination(model, _checked_guides(guide))
    own = _record(model)
    content = read_state(_checks.path("path", path), KIND)
    try:
        with understood(path, KIND):
            posterior = _restored(content, destination, own)
    except DamagedFileError:
        raise
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from error
    with _unchanged_on_error([module for module, _ in destination.pending]):
        for module, state in destination.pending:
            module.load_state_dict(state)
    return posterior


def _record(model: BayesianModel | None) -> ModelRecord | None:
    if model is None:
        return None
    _checks.kind("model", model, BayesianModel, "a BayesianModel, or None for a posterior of another Pyro model")
    return record_of(model)


def _checked_guides(guide: nn.Module | Sequence[nn.Module] | None) -> list[nn.Module] | None:
    if guide is None:
        return None
    example = "a guide that is a module, or a list of such guides"
    guides: list[nn.Module] = [guide] if isinstance(guide, nn.Module) else _checks.items("guide", guide, example)
    for member in guides:
        _checks.kind("guide", member, nn.Module, example)
    return guides


def _restored(content: object, destination: Destination, own: ModelRecord | None) -> Posterior:
    """The posterior in a file, after all checks; only `destination.pending` changes.

    `own` is the record of the destination's model.
    """
    file = record(Content, content, "file")
    if (file.model is None) != (own is None):
        raise ValueError(
            "it was saved without a model; pass None as `model`." if file.model is None
            else "it was saved with a model; pass one that was built like it as `model`."
        )  # fmt: skip
    state = {}
    if file.model is not None and destination.model is not None and own is not None:
        require_same(file.model, own)
        state = checked_state(file.model, destination.model, own)
    posterior = restored(file.posterior, destination)
    if destination.guides is not None and len(destination.pending) != len(destination.guides):
        raise ValueError(
            f"it holds {len(destination.pending)} guide(s) but `guide` has {len(destination.guides)}; "
            "pass one for each."
        )
    if destination.model is not None:
        destination.pending.append((destination.model, state))
    return posterior


@contextmanager
def _unchanged_on_error(modules: Sequence[nn.Module]) -> Iterator[None]:
    before = [{name: value.clone() for name, value in module.state_dict().items()} for module in modules]
    try:
        yield
    except BaseException:
        for module, state in zip(modules, before, strict=True):
            module.load_state_dict(state)
        raise
