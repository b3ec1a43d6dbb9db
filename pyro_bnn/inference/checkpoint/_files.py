"""Functions that save and load posteriors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..._core import checks as _checks
from ..._core.files import DamagedFileError, read_state, understood, write_state
from ..._core.records import plain, record
from ..._core.signatures import explained
from ..._core.summary import counted
from ...modelling.model import BayesianModel
from ..guides import GuidePosterior
from ..posterior import (
    Calibration,
    Destination,
    Posterior,
    Saved,
    restored,
    restored_calibration,
    saved,
    warn_of_changes,
    with_learned,
)
from ._model import ModelRecord, OwnRecord, PresentModel

KIND = "posterior"
CALIBRATION = "calibration"  # a file without a calibration lacks this key


@dataclass(frozen=True)
class Content:
    """Content of a file. `model` is the record of a BayesianModel, and `own` is the record of any other Pyro model."""

    model: ModelRecord | None
    own: OwnRecord | None
    posterior: Saved


@explained('save_posterior(posterior, "posterior.safetensors", model)')
def save_posterior(
    posterior: Posterior | Callable[..., object],
    path: str | Path,
    model: BayesianModel | Callable[..., object] | None,
    *,
    data: Sequence[object] | None = None,
    with_frozen: bool = True,
    calibration: Calibration | None = None,
) -> None:
    """Write a posterior, and the parameters and buffers of its model, to one file.

    The file is written completely or not at all, and replaces an earlier file. It has a checksum and a description of
    the model, but no code. It has no training data, except the inputs that a :class:`~pyro_bnn.RefreshedPosterior`
    needs; see :doc:`/how_to/save`. If you write a posterior class of your own, it needs :meth:`Posterior.to_record` and
    :meth:`Posterior.from_record`.

    Args:
        posterior: Result of a fit, an ensemble of such results, or a guide that is a module.
        path: Path of the file.
        model: The model of the posterior. For a Pyro model of your own, the file records the names, shapes and supports
            of the latent variables and, if the model is a module, its parameters and buffers. With ``None``, the file
            holds no model.
        data: Arguments with which a Pyro model of your own is called, including the targets, such as (x, y). The model
            is called once to find its latent variables. The arguments are not saved.
        with_frozen: Whether to write the frozen parameters of a :class:`~pyro_bnn.BayesianModel`. If False, the file
            has only their checksums, and can be loaded only into a model with the same frozen parameters.
        calibration: A correction of predictions, made by :mod:`pyro_bnn.calibration`. It is written to the same file,
            and :func:`~pyro_bnn.calibration.load_calibration` reads it.

    Raises:
        ValueError: If the posterior or the calibration cannot be saved, if the posterior does not belong to the model,
            or if a number to be saved is not finite.
        OSError: If the file cannot be written; an existing file stays unchanged.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x, net = torch.linspace(-1, 1, 20)[:, None], torch.nn.Linear(1, 1)
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_laplace(model, (x, 2 * x))
        >>> path = tempfile.mkdtemp() + "/line.posterior"
        >>> pb.save_posterior(posterior, path, model)
        >>> pb.load_posterior(path, model=model).method
        'Laplace'
    """
    if not isinstance(posterior, Posterior):
        example = "a posterior or a guide, as in `save_posterior(posterior, path, model)`"
        _checks.function("posterior", posterior, example)
        posterior = GuidePosterior(posterior)
    path, target = _checks.file_to_write("path", path), PresentModel(model, data)
    if isinstance(model, BayesianModel):
        warn_of_changes(posterior, model)
    network = target.network_record(posterior, with_frozen=_checks.flag("with_frozen", with_frozen))
    content = plain(Content(network, target.own, saved(posterior)))
    try:
        if posterior.shapes is not None:
            target.require_targets(posterior.shapes)
        destination = Destination(target.model, list(posterior.guides) or None, own_sites=target.sites)
        _restored(content, destination, target)  # raises if it cannot be loaded
    except ValueError as error:
        raise ValueError(f"the posterior cannot be saved: {error}") from error
    if calibration is not None:
        content[CALIBRATION] = _saved_calibration(calibration)
    write_state(path, KIND, content)


def _saved_calibration(calibration: Calibration) -> object:
    _checks.kind("calibration", calibration, Calibration, "a member of `pyro_bnn.calibration`, or None")
    try:
        content = saved(calibration)
        restored_calibration(content)  # raises if it cannot be loaded
    except ValueError as error:
        raise ValueError(f"the calibration cannot be saved: {error}") from error
    return plain(content)


def load_calibration(path: str | Path) -> Calibration:
    """Load the calibration from the file of a posterior, without running code from the file.

    Args:
        path: A file that :func:`~pyro_bnn.save_posterior` wrote with a `calibration`.

    Returns:
        The calibration. Its tensors are on the CPU, but it works with predictions on any device.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or holds no calibration.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import pyro_bnn as pb
        >>> x, net = torch.linspace(-1, 1, 20)[:, None], torch.nn.Linear(1, 1)
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> posterior = pb.fit_laplace(model, (x, 2 * x))
        >>> held_out = pb.predict(model, posterior, x, seed=0)
        >>> intervals = pb.calibration.ConformalIntervals(held_out, 2 * x)
        >>> path = tempfile.mkdtemp() + "/line.posterior"
        >>> pb.save_posterior(posterior, path, model, calibration=intervals)
        >>> type(pb.calibration.load_calibration(path)).__name__
        'ConformalIntervals'
    """
    content = read_state(_checks.path("path", path), KIND)
    if CALIBRATION not in content:
        raise ValueError(
            f"{path} holds a posterior without a calibration; save it with `save_posterior(..., calibration=...)`."
        )
    with _loading(path, f"the calibration in {path}"):
        return restored_calibration(record(Saved, content[CALIBRATION], CALIBRATION))


@explained('load_posterior("posterior.safetensors", model)')
def load_posterior(
    path: str | Path,
    model: BayesianModel | Callable[..., object] | None,
    *,
    guide: nn.Module | Sequence[nn.Module] | None = None,
    data: Sequence[object] | None = None,
) -> Posterior:
    """Load a posterior, and the parameters and buffers of its model, from a file.

    Loading runs no code from the file. With the same seed, the loaded posterior gives the same draws as the saved one,
    bit for bit. After an error, the model and the guide are unchanged.

    Args:
        path: A file written by :func:`save_posterior`.
        model: A model built like the saved one, or None if the posterior was saved without a model. The model receives
            the saved parameters and buffers, and stays on its device. Latent variables of a Pyro model of your own must
            have the saved names, shapes and supports.
        guide: The guide that receives the saved state. For an ensemble, a list with one guide for each member that has
            a guide. By default, this package's guides, and Pyro's `AutoNormal`, `AutoMultivariateNormal` and
            `AutoLowRankMultivariateNormal`, are made from the file. If the guide is of another class, or belongs to a
            Pyro model of your own, you must pass it.
        data: The arguments of a Pyro model of your own, as in :func:`save_posterior`. The rows may differ.

    Returns:
        The posterior, on the device of the model, with its status and its history or statistics. It does not include
        a calibration, which :func:`~pyro_bnn.calibration.load_calibration` reads.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or does not match the model or the guide.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net, prior = torch.nn.Linear(1, 1), pb.NormalPrior()
        >>> noise = pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=20)
        >>> path = tempfile.mkdtemp() + "/start.posterior"
        >>> guide = pb.GuidePosterior(pb.MeanFieldGuide(model))
        >>> pb.save_posterior(guide, path, model)
        >>> pb.load_posterior(path, model=model).sample(2, seed=0)["net.bias"].shape
        torch.Size([2, 1])
    """
    target = PresentModel(model, data)
    destination = Destination(target.model, _checked_guides(guide), own_sites=target.sites)
    content = read_state(_checks.path("path", path), KIND)
    content.pop(CALIBRATION, None)
    with _loading(path, f"{path}"):
        posterior = _restored(content, destination, target)
    modules = [module for module, _ in destination.pending]
    before = [{name: value.clone() for name, value in module.state_dict().items()} for module in modules]
    try:
        for module, state in destination.pending:
            module.load_state_dict(state)
    except BaseException:
        for module, state in zip(modules, before, strict=True):
            module.load_state_dict(state)
        raise
    return with_learned(posterior, model)


@contextmanager
def _loading(path: str | Path, what: str) -> Iterator[None]:
    """Add `what` to the message of each `ValueError` that is not a `DamagedFileError`."""
    try:
        with understood(path, KIND):
            yield
    except DamagedFileError:
        raise
    except ValueError as error:
        raise ValueError(f"{what} cannot be loaded: {error}") from error


def _checked_guides(guide: nn.Module | Sequence[nn.Module] | None) -> list[nn.Module] | None:
    if guide is None:
        return None
    example = "a guide that is a module, or a list of such guides"
    guides: list[nn.Module] = [guide] if isinstance(guide, nn.Module) else _checks.items("guide", guide, example)
    for member in guides:
        _checks.kind("guide", member, nn.Module, example)
    return guides


def _restored(content: object, destination: Destination, target: PresentModel) -> Posterior:
    """Check the content of a file, and return its posterior; `destination.pending` gets modules and their states."""
    file = record(Content, content, "file")
    state = target.state(file.model, file.own)
    posterior = restored(file.posterior, destination)
    target.require_sites(posterior)
    if destination.guides is not None and len(destination.pending) != len(destination.guides):
        raise ValueError(
            f"it holds {counted(len(destination.pending), 'guide')} but `guide` has {len(destination.guides)}; "
            "pass one for each."
        )
    if target.module is not None:
        destination.pending.append((target.module, state))
    return posterior
