"""The settings of one training run.

The help of the command line shows them; so torch is loaded where settings are checked, and not before.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .specs import make_init, make_inputs, make_kl_weight, make_prior

__all__ = ["RunConfig"]

VERSION = 1
"""Version of configurations in files; one of a later version is refused."""

GUIDES = ("mean-field", "auto-normal")
OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class RunConfig:
    """Everything that a training run on images depends on.

    Args:
        dataset: ``fashion-mnist``, ``mnist`` or ``digits``.
        prior: A name and numbers, such as ``normal:0.1``; `specs.PRIORS` is the list. Or ``GLOB=PRIOR;GLOB=PRIOR``,
            where the first glob that matches a parameter's name chooses its prior.
        guide: ``mean-field`` or ``auto-normal``.
        init: ``uniform`` (the article's ranges), ``normal`` (loc N(0, 0.1), rho -3), ``network:SCALE``, or
            ``network:FRACTION*prior``.
        inputs: ``raw`` pixels in [0, 1], ``scaled:FACTOR`` (raw pixels times a number), or ``standardized`` pixel by
            pixel.
        hidden: Units of each hidden layer.
        epochs: Passes over the training set.
        batch_size: Images per step.
        lr: Learning rate. With `sgd` it multiplies the gradient of one batch's loss, the summed NLL plus
            KL / number of batches, as in papers. (`fit_svi` has the loss of the whole data set, which is as many times
            larger as there are batches.)
        schedule: ``constant`` or ``cosine``.
        num_particles: Weight draws per step.
        kl_weight: Weight of the KL term: a number, where 1 gives the ELBO, ``blundell``, ``per-weight`` or
            ``warmup:EPOCHS[,WEIGHT]``.
        hold_out: Classes kept out of training, as the unknown.
        validation: Number of training images set aside for validation; with 0, training uses all images.
        seed: Seed of initial weights, batch order and weight draws.
        optimizer: ``adam``, or ``sgd`` (without momentum).
        accuracy: Whether to record the accuracy at mean weights after each epoch.
    """

    dataset: str
    prior: str
    guide: str
    init: str
    inputs: str
    hidden: tuple[int, ...]
    epochs: int
    batch_size: int
    lr: float
    schedule: str
    num_particles: int
    kl_weight: str
    hold_out: tuple[int, ...] = ()
    validation: int = 0
    seed: int = 0
    optimizer: str = "adam"
    accuracy: bool = False

    def check(self) -> None:
        """Raise if a setting is wrong.

        Raises:
            ValueError: If so; the message names all settings that are.
        """
        _raise(_problems(vars(self)))

    def to_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, values: object) -> "RunConfig":
        """Settings from the result of :meth:`to_dict`, read from a file.

        Raises:
            ValueError: If a setting is missing, unknown or wrong; the message names all that are.
        """
        if not isinstance(values, dict):
            raise ValueError(f"a configuration must be an object with settings by name, got {type(values).__name__}.")
        version = values.get("version")
        if isinstance(version, int) and version > VERSION:
            raise ValueError(
                f"version {version} is later than {VERSION}, which is read here; install a later pyro-bnn."
            )
        names = [field.name for field in fields(cls)]
        given: dict[str, Any] = {name: _as_tuple(value) for name, value in values.items() if name in names}
        problems = [] if version == VERSION else [f"`version` must be {VERSION}, got {version!r}"]
        problems += [f"`{name}` is missing" for name in names if name not in given]
        problems += [f"`{name}` is no setting" for name in values if name not in ("version", *names)]
        _raise([*problems, *_problems(given)])
        return cls(**given)


def _problems(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with settings, one clause for each that is."""
    problems = []
    for name, value in values.items():
        try:
            CHECKS[name](name, value)
        except ValueError as error:
            problems.append(str(error).rstrip("."))
    return problems


def _raise(problems: list[str]) -> None:
    if problems:
        raise ValueError(f"{'; '.join(problems)}.")


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


# --- checks -----------------------------------------------------------------------------------------------------------

Check = Callable[[str, Any], object]
"""Raises ValueError if a setting, given by name and value, is wrong."""


def _one_of(choices: tuple[str, ...]) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in choices:
            raise ValueError(f"unknown {name} {value!r}; choose {', '.join(choices[:-1])} or {choices[-1]}")

    return check


def _text(read: Callable[[str], object]) -> Check:
    """A text that a function can read."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise ValueError(f"`{name}` must be a text, got {value!r}")
        read(value)

    return check


def _whole(minimum: int) -> Check:
    def check(name: str, value: Any) -> None:
        if type(value) is not int or not minimum <= value < 2**63:  # also what a seed may be
            raise ValueError(f"`{name}` must be a whole number of at least {minimum} and below 2**63, got {value!r}")

    return check


def _wholes(minimum: int) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, tuple):
            raise ValueError(f"`{name}` must be a list of whole numbers, got {value!r}")
        for item in value:
            _whole(minimum)(name, item)

    return check


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be true or false, got {value!r}")


def _data_set(name: str, value: Any) -> None:
    from ..data import DATA_SETS  # late: loads torch

    _one_of(DATA_SETS)(name, value)


def _positive(name: str, value: Any) -> None:
    from .. import _checks  # late: loads torch

    _checks.positive(name, value)


def _inputs(spec: str) -> None:
    import torch  # late: it takes long

    make_inputs(spec, torch.zeros(2, 1))


CHECKS: dict[str, Check] = {
    "dataset": _data_set,
    "prior": _text(make_prior),
    "guide": _one_of(GUIDES),
    "init": _text(make_init),
    "inputs": _text(_inputs),
    "hidden": _wholes(1),
    "epochs": _whole(1),
    "batch_size": _whole(1),
    "lr": _positive,
    "schedule": _one_of(SCHEDULES),
    "num_particles": _whole(1),
    "kl_weight": _text(lambda spec: make_kl_weight(spec, 1)),
    "hold_out": _wholes(0),
    "validation": _whole(0),
    "seed": _whole(0),
    "optimizer": _one_of(OPTIMIZERS),
    "accuracy": _flag,
}
"""The check of each setting."""
