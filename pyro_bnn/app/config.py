"""The settings of one training run: each is declared once, in `RunConfig`.

The command-line option, its help, the checks, `config.json` and the report's table are derived from that declaration.
The help needs the settings too, so torch is loaded only when settings are checked.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

from annotated_types import Ge, Gt, Lt, MinLen

from .setting import FIT, KINDS, NETWORK, OWN, Setting
from .specs import (
    LARGEST,
    OPTIMIZERS,
    PRIOR_CHOICES,
    PRIORS,
    TABLES,
    make_init,
    make_inputs,
    make_kl_weight,
    make_optimizer,
    make_prior,
    numbers_in,
    parts_of,
)
from .validation import STRICT, checked, parsed

VERSION = 2
"""Version of configurations in files; later versions are refused."""


# --- checks of texts --------------------------------------------------------------------------------------------------


def kind_of(dataset: str) -> str:
    """The kind of a data set, by its name: ``images``, ``table`` or ``arrays``."""
    from ..data import GREY_SETS  # late: loads torch

    ending = Path(dataset).suffix.lower()
    if dataset in GREY_SETS:
        return "images"
    if ending == ".npz" or ending in TABLES:
        return "arrays" if ending == ".npz" else "table"
    raise ValueError(
        f"unknown dataset {dataset!r}; choose {', '.join(GREY_SETS)}, or a file of your own: a table "
        f"({', '.join(f'*{ending}' for ending in TABLES)}) or arrays (*.npz)"
    )


def _likelihood(spec: str) -> None:
    from ..modelling.likelihoods import LIKELIHOODS, likelihoods_in_words, make_likelihood  # late: loads torch

    name = spec.partition(":")[0]
    if name == "bernoulli":
        raise ValueError("two classes are predicted by --likelihood categorical")
    if name not in LIKELIHOODS:
        taken = likelihoods_in_words(other for other in LIKELIHOODS if other != "bernoulli")
        raise ValueError(f"unknown likelihood {spec!r}; choose {taken}")
    if ":" in spec:
        numbers_in(spec, spec.partition(":")[2], 1)
    make_likelihood(spec)


def _network(spec: str) -> None:
    if spec != "mlp":
        parts_of(spec)


def _inputs(spec: str) -> None:
    import torch  # imported late: importing takes long

    make_inputs(spec, torch.zeros(2, 1))


Whole = Annotated[int, Ge(0), Lt(2**63)]  # also the check of a seed
Count = Annotated[int, Ge(1), Lt(2**63)]
Name = Annotated[str, MinLen(1)]
IMAGES, TABLE, ROWS = ("images",), ("table",), ("table", "arrays")


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a training run, except its data and the code of the user's network.

    `Setting.help` in a field's annotation describes the field.
    """

    __pydantic_config__ = STRICT

    dataset: Annotated[
        str,
        Setting(
            "fashion-mnist, mnist or digits; or a file of your own: a table (*.csv, *.tsv, *.txt, *.parquet) or "
            "arrays (*.npz).",
            NETWORK,
            check=kind_of,
        ),
    ]
    prior: Annotated[
        str,
        Setting(
            f"{PRIOR_CHOICES}; or by parameter name, GLOB=PRIOR;GLOB=PRIOR, where the first glob that matches chooses.",
            NETWORK,
            choices=tuple(f"{name}:" for name in PRIORS),
            check=make_prior,
        ),
    ]
    guide: Annotated[Literal["mean-field", "auto-normal"], Setting("mean-field or auto-normal.", FIT)]
    init: Annotated[
        str,
        Setting(
            "uniform, normal, network:SCALE, network:FRACTION*prior or network:FRACTION*weight.",
            FIT,
            choices=("uniform", "normal", "network:"),
            check=make_init,
        ),
    ]
    inputs: Annotated[
        str,
        Setting(
            "Pixels: raw (in [0, 1]), standardized or scaled:FACTOR. Tables and arrays: raw or standardized.",
            NETWORK,
            choices=("raw", "standardized", "scaled:"),
            check=_inputs,
        ),
    ]
    hidden: Annotated[
        tuple[Count, ...],
        Setting('Units of each hidden layer, such as 400,400; "" for a linear model.', NETWORK),
    ]
    epochs: Annotated[Count, Setting("Passes over the training set.", FIT)]
    batch_size: Annotated[Count, Setting("Rows per step.", FIT)]
    lr: Annotated[
        float,
        Gt(0),
        Lt(LARGEST),
        Setting(
            "Learning rate. With sgd it multiplies the gradient of one batch's loss: summed NLL plus KL / number of "
            "batches.",
            FIT,
        ),
    ]
    schedule: Annotated[
        Literal["constant", "cosine", "warm-cosine"],
        Setting(
            "Schedule of the learning rate: constant, cosine, or warm-cosine (one epoch at a tenth, then cosine).", FIT
        ),
    ]
    num_particles: Annotated[Count, Setting("Weight draws per step.", FIT)]
    kl_weight: Annotated[
        str,
        Setting(
            "Weight of the KL term: 1 gives the ELBO, less than 1 a cold posterior; or blundell, per-weight, "
            "warmup:EPOCHS[,WEIGHT].",
            FIT,
            choices=("1", "blundell", "per-weight", "warmup:"),
            check=lambda spec: make_kl_weight(spec, 1),
        ),
    ]
    hold_out: Annotated[
        tuple[Whole, ...],
        Setting('Classes kept out of training, as the unknown, such as 7,8,9; "" for none.', NETWORK, kinds=IMAGES),
    ] = ()
    validation: Annotated[
        Whole,
        Setting(
            "Number of training images set aside; `evaluate` then uses them instead of the test set.",
            NETWORK,
            kinds=IMAGES,
        ),
    ] = 0
    seed: Annotated[Whole, Setting("Seed of initial weights, batch order and weight draws.", FIT)] = 0
    optimizer: Annotated[
        str,
        Setting(
            "adam, sgd (without momentum), natural (gradients, which are faster) or natural:DECAY,CLIP: decay of the "
            "averaged Hessian, and largest step of a mean divided by the learning rate.",
            FIT,
            choices=OPTIMIZERS,
            check=lambda spec: make_optimizer(spec, 1.0, 1),
        ),
    ] = "adam"
    accuracy: Annotated[
        bool,
        Setting(
            "Measure the accuracy at mean weights after each epoch, on training and test images; this takes time.",
            FIT,
            default="only with the tutorial recipes",
        ),
    ] = False
    likelihood: Annotated[
        str,
        Setting(
            "categorical for classes; gaussian (noise of one size, learned; or gaussian:SCALE, in its units), "
            "heteroscedastic (noise that depends on the inputs) or mixture[:COMPONENTS] for numbers; poisson for "
            "counts.",
            OWN,
            choices=("categorical", "gaussian", "heteroscedastic", "mixture", "poisson"),
            default="guessed from the target, and said",
            check=_likelihood,
        ),
    ] = "categorical"
    net: Annotated[
        str,
        Setting(
            "Network of your own: FILE.py:FUNCTION or MODULE:FUNCTION. The function returns a torch.nn.Module; it "
            "gets input_shape (of one row) and num_outputs by keyword if it has arguments of these names. `evaluate` "
            "and `predict` import it again, so open only runs of people you trust.",
            NETWORK,
            default="fully connected layers of --hidden units",
            check=_network,
        ),
    ] = "mlp"
    activation: Annotated[
        Literal["relu", "tanh", "logistic", "silu", "gelu"],
        Setting("Activation after each layer of --hidden units: relu, tanh, logistic, silu or gelu.", NETWORK),
    ] = "relu"
    method: Annotated[
        Literal["auto", "mclmc", "svi"],
        Setting(
            "Inference. auto: held-out rows choose among networks, priors and kinds of noise, as far as you leave them "
            "open, and chains in C explore several modes of the best; with too many rows, or without a C compiler, "
            "svi. mclmc: such chains, without a choice. svi: variational inference.",
            FIT,
            default="svi; for tables and arrays auto, unless another setting of this panel but --seed is given",
            kinds=ROWS,
        ),
    ] = "svi"
    time_limit: Annotated[
        float,
        Ge(0),
        Lt(LARGEST),
        Setting(
            "Seconds that auto and mclmc may take, on all threads, besides compiling. The result then depends on the "
            "speed of the machine.",
            FIT,
            default="by the number of rows",
            kinds=ROWS,
        ),
    ] = 0.0
    estimator: Annotated[
        Literal["weights", "local", "flipout"],
        Setting(
            "Estimator of gradients: weights (draws each weight once a step), local (draws outputs of linear layers "
            "instead) or flipout.",
            FIT,
            default="weights, for tables and arrays local",
        ),
    ] = "weights"
    target: Annotated[str, Setting("Column of a table to predict.", OWN, default="", kinds=TABLE)] = ""
    features: Annotated[
        tuple[Name, ...],
        Setting(
            "Columns of a table to predict from, separated by commas. Columns that count or name the rows are used "
            "only if they are among these.",
            OWN,
            default="all but the target",
            kinds=TABLE,
        ),
    ] = ()
    ignore: Annotated[
        tuple[Name, ...],
        Setting(
            "Columns of a table that are not used, such as identifiers; `predict` copies them.",
            OWN,
            default="none",
            kinds=TABLE,
        ),
    ] = ()
    drop_missing: Annotated[
        bool,
        Setting(
            "Leave out rows that lack a value.",
            OWN,
            default="one more input says which values are missing",
            kinds=TABLE,
        ),
    ] = False
    test_fraction: Annotated[
        float,
        Ge(0),
        Lt(1),
        Setting(
            "Share of the rows that is not trained on, for `evaluate`; not for arrays with x_test.",
            OWN,
            default="0.2",
            kinds=ROWS,
        ),
    ] = 0.0
    split_seed: Annotated[
        Whole,
        Setting(
            "Seed of the choice of those rows, so that runs of several --seed have the same.",
            OWN,
            default="0",
            kinds=ROWS,
        ),
    ] = 0
    split_by: Annotated[
        str,
        Setting(
            "Column of a table with dates or numbers: the latest rows are set aside, in place of a choice at random.",
            OWN,
            default="a choice at random",
            kinds=TABLE,
        ),
    ] = ""

    @property
    def kind(self) -> str:
        """Kind of the data: ``images``, ``table`` or ``arrays``."""
        return kind_of(self.dataset)

    def check(self) -> None:
        """Raise if a setting is wrong."""
        checked(RunConfig, asdict(self))
        problems = self._disagreements()
        if problems:
            raise ValueError(f"{'; '.join(problems)}.")

    def _disagreements(self) -> list[str]:
        """What is wrong in the combination of settings that are each valid."""
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
            problems.append("`inputs` of tables and arrays must be standardized or raw")
        if self.time_limit and self.method == "svi":
            problems.append("`time_limit` goes with the methods auto and mclmc only")
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
        """Plain data, for JSON."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, text: str | bytes) -> "RunConfig":
        """Settings from the JSON of :meth:`to_dict`, read from a file."""
        values = parsed(text)
        if not isinstance(values, dict):
            raise ValueError(f"a configuration must be an object with settings by name, got {type(values).__name__}.")
        version = values.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            is_later = isinstance(version, int) and version > VERSION
            remedy = "install a later pyro-bnn" if is_later else "train the run anew"
            raise ValueError(f"`version` must be {VERSION}, got {version!r}; {remedy}.")
        config = checked(cls, values)
        config.check()
        return config


def settings() -> dict[str, Setting]:
    """The declaration of each setting, by its name."""
    hints = get_type_hints(RunConfig, include_extras=True)
    return {field.name: hints[field.name].__metadata__[-1] for field in fields(RunConfig)}
