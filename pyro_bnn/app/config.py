"""The settings of a training run, declared in one place for the program. Only the checks of settings load torch."""

import re
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt, MinLen

from .specs import (
    DATA_SETS,
    LARGEST,
    OPTIMIZERS,
    PRIOR_CHOICES,
    PRIORS,
    TABLES,
    check_content,
    make_init,
    make_inputs,
    make_kl_weight,
    make_optimizer,
    make_prior,
    near,
    numbers_in,
    parts_of,
    unknown_data,
)
from .validation import checked, parsed

PICTURE_FORMATS = ("png", "pdf", "svg")
LEVEL = 0.9  # default probability of prediction intervals, in `predict`, in pictures and in reports
VERSION = 2  # of the format of `config.json`; a file of any other version is refused


def kind_of(dataset: str) -> str:
    """Return the kind of a data set, given its name: ``images``, ``table`` or ``arrays``."""
    ending = Path(dataset).suffix.lower()
    if dataset in DATA_SETS:
        return "images"
    if ending == ".npz" or ending in TABLES:
        return "arrays" if ending == ".npz" else "table"
    if ending and Path(dataset).is_file():
        check_content(Path(dataset))
    raise unknown_data(dataset)


def _likelihood(spec: str) -> None:
    name = spec.partition(":")[0]
    if name == "bernoulli":
        raise ValueError("for two classes, too, use --likelihood categorical")
    from ..modelling.likelihoods import LIKELIHOODS, likelihoods_in_words, make_likelihood  # late: loads torch

    if name not in LIKELIHOODS:
        taken = likelihoods_in_words(other for other in LIKELIHOODS if other != "bernoulli")
        raise ValueError(f"unknown likelihood {spec!r}; choose {taken}")
    if ":" in spec:
        numbers_in(spec, spec.partition(":")[2], 1)
    make_likelihood(spec)


def _inputs(spec: str) -> None:
    import torch  # imported late: importing takes long

    make_inputs(spec, torch.zeros(2, 1))


NETWORK, FIT, OWN = "Data, network and prior", "Fit", "Tables and arrays of your own"  # headings in the help
SVI, IMAGE_SETS = "Variational fit (of images, or with --method svi)", "Image sets"  # further headings
PANELS = ("", OWN, NETWORK, FIT, SVI, IMAGE_SETS, "General")  # in the order of the help; the first has no heading
KINDS = {"images": "image sets", "table": "tables", "arrays": "arrays"}  # as named in messages
IMAGES, TABLE, ROWS = ("images",), ("table",), ("table", "arrays")
Whole = Annotated[int, Ge(0), Lt(2**63)]  # the limit is that of torch's seeds
Count = Annotated[int, Ge(1), Lt(2**63)]
Name = Annotated[str, MinLen(1)]


@dataclass(frozen=True)
class Setting:
    """What the command line and the checks need to know about a setting."""

    panel: str  # heading in the help
    help: str
    shown: str | None = None  # text in the help about the default, which may be empty; None if recipes set the default
    choices: tuple[str, ...] = ()  # texts that the shell completes; one that ends with a colon is a prefix
    kinds: tuple[str, ...] = tuple(KINDS)  # kinds of data for which the setting may differ from its default
    check: Callable[[str], object] | None = None  # raises ValueError if a text is wrong


def setting(panel: str, help: str, *, default: object = MISSING, **about: Any) -> Any:
    """Make a field of :class:`RunConfig` with a :class:`Setting` in the field's metadata."""
    return field(default=default, metadata={"setting": Setting(panel, help, **about)})


@dataclass(frozen=True)
class RunConfig:
    """All settings of a training run, without the data and the code of a user's network."""

    __pydantic_config__ = {"extra": "forbid", "strict": True, "allow_inf_nan": False}  # noqa: RUF012

    dataset: str = setting(
        NETWORK,
        "A table (*.csv, *.tsv, *.txt, *.data, *.dat or *.parquet), arrays (*.npz), or an image set: digits, mnist or "
        "fashion-mnist.",
        check=kind_of,
    )
    prior: str = setting(
        NETWORK,
        f"{PRIOR_CHOICES}. Or GLOB=PRIOR;GLOB=PRIOR: the first glob that matches a parameter's name gives its prior.",
        choices=tuple(f"{name}:" for name in PRIORS),
        check=make_prior,
    )
    guide: Literal["mean-field", "auto-normal"] = setting(SVI, "mean-field or auto-normal.")
    init: str = setting(
        SVI,
        "uniform, normal, network:SCALE, network:FRACTION*prior or network:FRACTION*weight.",
        choices=("uniform", "normal", "network:"),
        check=make_init,
    )
    inputs: str = setting(
        NETWORK,
        "Pixels: raw (in [0, 1]), standardized or scaled:FACTOR. Tables and arrays: raw or standardized.",
        choices=("raw", "standardized", "scaled:"),
        check=_inputs,
    )
    hidden: tuple[Count, ...] = setting(NETWORK, 'Units of each hidden layer, such as 400,400; "" for a linear model.')
    epochs: Count = setting(SVI, "Passes over the training set.")
    batch_size: Count = setting(SVI, "Rows per step.")
    lr: Annotated[float, Gt(0), Lt(LARGEST)] = setting(
        SVI,
        "Learning rate. With sgd it multiplies the gradient of a batch's loss, which is the summed NLL plus KL / "
        "number of batches.",
    )
    schedule: Literal["constant", "cosine", "warm-cosine"] = setting(
        SVI,
        "Schedule of the learning rate: constant, cosine, or warm-cosine (one epoch at a tenth of --lr, then cosine).",
    )
    num_particles: Count = setting(SVI, "Draws of the weights per step.")
    kl_weight: str = setting(
        SVI,
        "Weight of the KL term: a number (1 gives the ELBO, less than 1 a cold posterior), blundell, per-weight or "
        "warmup:EPOCHS[,WEIGHT].",
        choices=("1", "blundell", "per-weight", "warmup:"),
        check=lambda spec: make_kl_weight(spec, 1),
    )
    hold_out: tuple[Whole, ...] = setting(
        IMAGE_SETS,
        'Classes that are kept out of training, such as 7,8,9, to test whether unknown images are detected; "" for '
        "none.",
        default=(),
        kinds=IMAGES,
    )
    validation: Whole = setting(
        IMAGE_SETS,
        "Number of training images that are kept out of training. `evaluate` uses them in place of the test images.",
        default=0,
        kinds=IMAGES,
    )
    seed: Whole = setting(FIT, "Seed of initial weights, batch order and draws of the weights.", default=0)
    optimizer: str = setting(
        SVI,
        "adam, sgd (without momentum), natural (natural gradients, which are faster) or natural:DECAY,CLIP. DECAY is "
        "the decay of the averaged Hessian, and CLIP the largest step of a mean, divided by the learning rate.",
        default="adam",
        choices=OPTIMIZERS,
        check=lambda spec: make_optimizer(spec, 1.0, 1),
    )
    accuracy: bool = setting(
        SVI,
        "After each epoch, measure the accuracy of the mean weights on training and test images. This takes time.",
        default=False,
        shown="only with the tutorial recipes",
    )
    likelihood: str = setting(
        OWN,
        "For classes: categorical. For numeric targets: gaussian (learns one noise scale for all rows), gaussian:SCALE "
        "(a known noise scale, in units of the target), heteroscedastic (noise that depends on the inputs) or "
        "mixture[:COMPONENTS]. For counts: poisson.",
        default="categorical",
        shown="guessed from the target; a message says which",
        choices=("categorical", "gaussian", "heteroscedastic", "mixture", "poisson"),
        check=_likelihood,
    )
    net: str = setting(
        NETWORK,
        "Network of your own: FILE.py:FUNCTION or MODULE:FUNCTION. The function returns a torch.nn.Module. If it has "
        "arguments named input_shape and num_outputs, it gets the shape of one row and the number of outputs. "
        "`evaluate` and `predict` run its code again, so use only runs of people you trust.",
        default="mlp",
        shown="fully connected layers of --hidden units",
        check=lambda spec: spec == "mlp" or parts_of(spec),
    )
    activation: Literal["relu", "tanh", "logistic", "silu", "gelu"] = setting(
        NETWORK, "Activation after each hidden layer: relu, tanh, logistic, silu or gelu.", default="relu"
    )
    method: Literal["auto", "mclmc", "svi"] = setting(
        FIT,
        "auto: scores on held-out rows choose the network, the prior and the kind of noise, except those that you "
        "give. Then chains in C draw weights of the best network. With too many rows or no C compiler, auto uses svi. "
        "mclmc: chains in C for the given settings. svi: a variational fit, the only method for images.",
        default="svi",
        shown="images svi; tables and arrays auto, or svi if you give a setting that only svi has, such as --epochs",
        kinds=ROWS,
    )
    time_limit: Annotated[float, Ge(0), Lt(LARGEST)] = setting(
        FIT,
        "Seconds for the choice of a network and its fit, not for loading the program and the data; chains need at "
        "least about 10. The result then depends on the speed of the machine; the output says what was cut short.",
        default=0.0,
        shown="by the number of rows",
        kinds=ROWS,
    )
    estimator: Literal["weights", "local", "flipout"] = setting(
        SVI,
        "Estimator of gradients: weights (draws each weight once in a step), local (draws the outputs of linear layers "
        "in place of their weights) or flipout.",
        default="weights",
    )
    target: str = setting(
        "",
        "Column to predict, with numbers, classes or counts (--likelihood poisson). Required for a table.",
        default="",
        shown="",
        kinds=TABLE,
    )
    header: bool = setting(
        OWN,
        "Whether the first line has the names of the columns. With --no-header, they are c1, c2, ...",
        default=True,
        shown="",
        kinds=TABLE,
    )
    features: tuple[Name, ...] = setting(
        OWN,
        "Columns of a table to predict from, separated by commas. A column that counts or names the rows is used only "
        "if you name it here.",
        default=(),
        shown="all but the target",
        kinds=TABLE,
    )
    ignore: tuple[Name, ...] = setting(
        OWN,
        "Columns that are not used to predict, such as identifiers. `predict` copies them into its output.",
        default=(),
        shown="none",
        kinds=TABLE,
    )
    drop_missing: bool = setting(
        OWN,
        "Leave out rows that lack a value in some column.",
        default=False,
        shown="one more input says which values are missing",
        kinds=TABLE,
    )
    test_fraction: Annotated[float, Ge(0), Lt(1)] = setting(
        OWN,
        "Share of the rows that is kept out of training for `evaluate`. Leave out this option for arrays with x_test.",
        default=0.0,
        shown="0.2",
        kinds=ROWS,
    )
    calibrate: Annotated[float, Ge(0), Lt(1)] = setting(
        OWN,
        "Share of the training rows, such as 0.2, that is kept out of the fit, and makes the intervals, or sets of "
        "classes, hold the promised share of new targets (conformal prediction).",
        default=0.0,
        shown="none",
        kinds=ROWS,
    )
    split_seed: Whole = setting(
        OWN,
        "Seed for the choice of the test rows and of the rows for --calibrate. Runs that differ only in --seed have "
        "the same rows.",
        default=0,
        shown="0",
        kinds=ROWS,
    )
    split_by: str = setting(
        OWN,
        "Column of dates or numbers: the latest rows become the test rows, and the rows just before them serve "
        "--calibrate.",
        default="",
        shown="a choice at random",
        kinds=TABLE,
    )

    @property
    def is_linear(self) -> bool:
        """Whether the network has no hidden units."""
        return self.net == "mlp" and not self.hidden

    @property
    def kind(self) -> str:
        """The kind of the data: ``images``, ``table`` or ``arrays``."""
        return kind_of(self.dataset)

    def check(self, *, without_torch: bool = False) -> None:
        """Raise ValueError if a setting is wrong, or if settings do not fit together.

        Args:
            without_torch: Whether to leave out the checks that load torch. These are the checks of the numbers in texts
                such as ``normal:0.1``.
        """
        try:
            checked(RunConfig, asdict(self))
            problems = self._disagreements()
        except ValueError as error:
            problems = [str(error).rstrip(".")]
        problems = problems or self._wrong_texts(only_names=without_torch)
        if problems:
            raise ValueError(f"{'; '.join(problems)}.")

    def _wrong_texts(self, *, only_names: bool) -> list[str]:
        """Return a message for each setting whose text is wrong.

        If `only_names` is true, check only the names in the texts, such as ``normal`` in ``normal:0.1``.
        """
        problems = []
        for name, setting in settings().items():
            text = getattr(self, name)
            known = {choice.partition(":")[0] for choice in setting.choices}
            found = re.fullmatch("([A-Za-z-]+)(:.*)?", text) if isinstance(text, str) and known else None
            if setting.check is None or (only_names and (found is None or found[1] in known)):
                continue
            try:
                setting.check(text)
            except ValueError as error:
                said = str(error).rstrip(".")
                if found is not None and found[1] not in known and "did you mean" not in said:
                    said += near(found[1].lower(), known)
                is_named = name == "dataset" or f"`{name}`" in said
                problems.append(said if is_named else f"`{name}`: {said}")
        return problems

    def _disagreements(self) -> list[str]:
        """Return messages about settings that are valid alone, but cannot be combined."""
        kind = self.kind
        problems = [
            f"`{field.name}` goes with {' and '.join(KINDS[k] for k in setting.kinds)} only"
            for field, setting in zip(fields(self), settings().values(), strict=True)
            if kind not in setting.kinds and getattr(self, field.name) != field.default
        ]
        if kind == "table" and not self.target:
            problems.append("`target` must name the column to predict")
        if kind == "images" and self.likelihood != "categorical":
            problems.append("`likelihood` of image sets is categorical")
        if kind != "images" and self.inputs not in ("standardized", "raw"):
            meant = near(self.inputs, ("standardized", "raw"))
            problems.append(f"`inputs` of tables and arrays must be standardized or raw, got {self.inputs!r}{meant}")
        if self.accuracy and self.likelihood != "categorical":
            problems.append("`accuracy` is recorded for classes only; leave out --accuracy")
        if self.estimator != "weights" and self.guide != "mean-field":
            problems.append(f"`estimator` {self.estimator} needs the guide mean-field")
        if self.optimizer.startswith("natural"):
            needs = {"guide": "mean-field", "estimator": "weights"}
            problems += [
                f"`optimizer` natural needs the {name} {value}"
                for name, value in needs.items()
                if getattr(self, name) != value
            ]
        return problems

    def to_dict(self) -> dict[str, object]:
        """Return the settings as plain data for JSON."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, text: str | bytes) -> "RunConfig":
        """Read settings from the JSON of :meth:`to_dict`. Raise ValueError if a setting is wrong."""
        values = parsed(text)
        if not isinstance(values, dict):
            raise ValueError(f"a configuration must be an object with settings by name, got {type(values).__name__}.")
        version = values.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            is_later = isinstance(version, int) and version > VERSION
            remedy = "install a later pyro-bnn" if is_later else "train the run again"
            raise ValueError(f"`version` must be {VERSION}, got {version!r}; {remedy}.")
        config = checked(cls, values)
        config.check()
        return config


def settings() -> dict[str, Setting]:
    """Return the :class:`Setting` of each field of :class:`RunConfig`, by the name of the field."""
    return {field.name: field.metadata["setting"] for field in fields(RunConfig)}


def option_of(name: str) -> str:
    """Return the command-line option of a setting."""
    return f"--{name.replace('_', '-')}"
