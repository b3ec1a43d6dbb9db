"""The settings of one training run.

The help of the command line shows them; so torch is loaded where settings are checked, and not before.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .own.specs import TABLES, checked_function
from .specs import make_estimator, make_init, make_inputs, make_kl_weight, make_optimizer, make_prior

__all__ = ["RunConfig", "kind_of"]

VERSION = 2
"""Version of configurations in files; one of a later version is refused."""

GUIDES = ("mean-field", "auto-normal")
SCHEDULES = ("constant", "cosine", "warm-cosine")


@dataclass(frozen=True)
class RunConfig:
    """Everything that a training run depends on, its data and its own network's code excepted.

    Args:
        dataset: ``fashion-mnist``, ``mnist`` or ``digits``; or the path of a table (``.csv``, ``.tsv``, ``.txt``,
            ``.parquet``) or of a file of arrays (``.npz``).
        prior: A name and numbers, such as ``normal:0.1``; `specs.PRIORS` is the list. Or ``GLOB=PRIOR;GLOB=PRIOR``,
            where the first glob that matches a parameter's name chooses its prior.
        guide: ``mean-field`` or ``auto-normal``.
        init: ``uniform`` (the article's ranges), ``normal`` (loc N(0, 0.1), rho -3), ``network:SCALE``,
            ``network:FRACTION*prior`` or ``network:FRACTION*weight``.
        inputs: Of image sets ``raw`` pixels in [0, 1], ``scaled:FACTOR`` (raw pixels times a number), or
            ``standardized`` pixel by pixel. Of tables and arrays ``standardized`` or ``raw``.
        hidden: Units of each hidden layer, for the network ``mlp``.
        epochs: Passes over the training set.
        batch_size: Rows per step.
        lr: Learning rate. With `sgd` it multiplies the gradient of one batch's loss, the summed NLL plus
            KL / number of batches, as in papers. (`fit_svi` has the loss of the whole data set, which is as many times
            larger as there are batches.)
        schedule: ``constant``, ``cosine``, or ``warm-cosine``, which begins after an epoch at a tenth of the rate.
        num_particles: Weight draws per step.
        kl_weight: Weight of the KL term: a number, where 1 gives the ELBO, ``blundell``, ``per-weight`` or
            ``warmup:EPOCHS[,WEIGHT]``.
        hold_out: Classes of an image set that are kept out of training, as the unknown.
        validation: Number of an image set's training images set aside for validation; with 0, training uses all.
        seed: Seed of initial weights, batch order and weight draws.
        optimizer: ``adam``, ``sgd`` (without momentum), or ``natural[:DECAY,CLIP]``: natural-gradient inference, with
            the decay of the averaged Hessian, and the largest step of a mean divided by the learning rate.
        accuracy: Whether to record the accuracy at mean weights after each epoch.
        likelihood: A name, and a number for some: ``categorical``, ``gaussian[:SCALE]``, ``heteroscedastic``,
            ``mixture[:COMPONENTS]`` or ``poisson``; image sets are ``categorical``.
        net: ``mlp``, or a function that returns a network, as ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``.
        estimator: Estimator of gradients: ``weights`` draws each weight once a step; ``local`` or ``flipout``.
        target: Column of a table that is predicted.
        features: Columns of a table to predict from; empty for all but the target and the ignored ones.
        ignore: Columns of a table that are not used.
        drop_missing: Whether rows of a table that lack a value are left out.
        test_fraction: Share of the rows of a table or of arrays that are set aside for `evaluate`.
        split_seed: Seed of the choice of these rows.
        split_by: Column of a table whose latest rows are set aside; empty for a choice at random.
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
    likelihood: str = "categorical"
    net: str = "mlp"
    estimator: str = "weights"
    target: str = ""
    features: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    drop_missing: bool = False
    test_fraction: float = 0.0
    split_seed: int = 0
    split_by: str = ""

    @property
    def kind(self) -> str:
        """What the data are: ``images``, ``table`` or ``arrays``."""
        return kind_of(self.dataset)

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


def kind_of(dataset: str) -> str:
    """What a data set is, by its name: ``images``, ``table`` or ``arrays``.

    Raises:
        ValueError: If it is neither the name of an image set nor a file of a known kind.
    """
    from ..data import GREY_SETS  # late: loads torch

    ending = Path(dataset).suffix.lower() if isinstance(dataset, str) else ""
    if isinstance(dataset, str) and dataset in GREY_SETS:
        return "images"
    if ending == ".npz" or ending in TABLES:
        return "arrays" if ending == ".npz" else "table"
    raise ValueError(
        f"unknown dataset {dataset!r}; choose {', '.join(GREY_SETS)}, or a file of your own: a table "
        f"({', '.join(f'*{ending}' for ending in TABLES)}) or arrays (*.npz)"
    )


BELONGS: dict[str, tuple[tuple[str, ...], object]] = {
    "hold_out": (("images",), ()),
    "validation": (("images",), 0),
    "target": (("table",), ""),
    "features": (("table",), ()),
    "ignore": (("table",), ()),
    "drop_missing": (("table",), False),
    "test_fraction": (("table", "arrays"), 0.0),
    "split_seed": (("table", "arrays"), 0),
    "split_by": (("table",), ""),
}
"""Settings of some kinds of data only, and their value for others."""

KINDS = {"images": "image sets", "table": "tables", "arrays": "arrays"}


def _disagreements(values: Mapping[str, Any]) -> list[str]:
    """What is wrong between settings that are right one by one."""
    kind = kind_of(values["dataset"])
    problems = [
        f"`{name}` goes with {' and '.join(KINDS[k] for k in kinds)} only"
        for name, (kinds, absent) in BELONGS.items()
        if kind not in kinds and values[name] != absent
    ]
    if kind == "table" and not values["target"]:
        problems.append("`target` must name the column to predict")
    if kind == "images" and values["likelihood"] != "categorical":
        problems.append("`likelihood` of image sets is categorical")
    if kind != "images" and values["inputs"] not in ("standardized", "raw"):
        problems.append("`inputs` of tables and arrays must be standardized or raw")
    if values["accuracy"] and values["likelihood"] != "categorical":
        problems.append("`accuracy` is recorded for classes only; leave out --accuracy")
    if values["estimator"] != "weights" and values["guide"] != "mean-field":
        problems.append(f"`estimator` {values['estimator']} needs the guide mean-field")
    if values["optimizer"].startswith("natural"):
        if values["guide"] != "mean-field":
            problems.append("`optimizer` natural needs the guide mean-field")
        if values["estimator"] != "weights":
            problems.append("`optimizer` natural needs the estimator weights")
    return problems


def _problems(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with settings, one clause for each that is."""
    problems = []
    for name, value in values.items():
        try:
            CHECKS[name](name, value)
        except ValueError as error:
            problems.append(str(error).rstrip("."))
    if not problems and values.keys() == CHECKS.keys():
        problems = _disagreements(values)
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


def _texts(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(item, str) and item for item in value):
        raise ValueError(f"`{name}` must be a list of names, got {value!r}")


def _fraction(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a number from 0 to below 1, got {value!r}")


def _likelihood(spec: str) -> None:
    from ..likelihoods import LIKELIHOODS, likelihoods_in_words, make_likelihood  # late: loads torch

    name = spec.partition(":")[0]
    if name == "bernoulli":
        raise ValueError("two classes are predicted by --likelihood categorical")
    if name not in LIKELIHOODS:
        taken = likelihoods_in_words(other for other in LIKELIHOODS if other != "bernoulli")
        raise ValueError(f"unknown likelihood {spec!r}; choose {taken}")
    make_likelihood(spec)


def _network(spec: str) -> None:
    if spec != "mlp":
        checked_function(spec)


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be true or false, got {value!r}")


def _positive(name: str, value: Any) -> None:
    from .. import _checks  # late: loads torch

    _checks.positive(name, value)


def _inputs(spec: str) -> None:
    import torch  # late: it takes long

    make_inputs(spec, torch.zeros(2, 1))


CHECKS: dict[str, Check] = {
    "dataset": lambda _, value: kind_of(value),
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
    "optimizer": _text(lambda spec: make_optimizer(spec, 1.0, 1)),
    "accuracy": _flag,
    "likelihood": _text(_likelihood),
    "net": _text(_network),
    "estimator": _text(make_estimator),
    "target": _text(str),
    "features": _texts,
    "ignore": _texts,
    "drop_missing": _flag,
    "test_fraction": _fraction,
    "split_seed": _whole(0),
    "split_by": _text(str),
}
"""The check of each setting."""
