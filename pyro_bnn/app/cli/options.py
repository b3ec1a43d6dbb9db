"""Options and arguments of the commands, and the reading of their texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from .. import recipes
from ..config import GUIDES, SCHEDULES
from ..specs import OPTIMIZERS, PRIOR_CHOICES, PRIORS


def one_of(*choices: str) -> Callable[[str], list[str]]:
    """A function that completes what is typed to one of the choices."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


# --- of several commands ----------------------------------------------------------------------------------------------

FORMATS = ("png", "pdf", "svg")

Run = Annotated[Path, typer.Argument(help="Folder that `train` wrote.")]
Out = Annotated[Path, typer.Option(help="Folder to write to.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder that holds MNIST/raw and FashionMNIST/raw.", show_default="$PYRO_BNN_DATA, else ./data"),
]
Download = Annotated[bool, typer.Option("--download", help="Download missing data into the data folder.")]
Device = Annotated[
    str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...", autocompletion=one_of("cpu", "cuda"))
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace a folder that pyro-bnn made; files of others in it stay.")
]
DrawSeed = Annotated[int, typer.Option(help="Seed of the weight draws.")]
Format = Annotated[
    str, typer.Option("--format", help="Format of pictures: png, pdf or svg.", autocompletion=one_of(*FORMATS))
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print results as one JSON document; words for people go to standard error."),
]

# --- of `demo` --------------------------------------------------------------------------------------------------------

DemoSeed = Annotated[int, typer.Option(help="Seed of the noise, initial weights, batch order and weight draws.")]

# --- of `train`; None leaves a setting as the recipe has it -----------------------------------------------------------

NETWORK, FIT = "Data, network and prior", "Fit"
"""Headings in the help."""

Dataset = Annotated[
    str | None,
    typer.Argument(
        help="fashion-mnist, mnist or digits.", show_default=False, autocompletion=one_of(*recipes.DATA_SETS)
    ),
]
TrainOut = Annotated[Path | None, typer.Option(help="Folder to write to.", show_default=False)]
Resume = Annotated[
    Path | None,
    typer.Option(
        help="Go on with the unfinished run of this folder; only --data, --download, --device, "
        "--format and --json go with it.",
        show_default=False,
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        help="The settings that are not given: default; or article: mixture prior, KL weight 1, 20 epochs, after "
        "Blundell et al. (2015); or tutorial, tutorial-mixture: SGD, 10 epochs, after an MXNet tutorial. The run's "
        "config.json shows all settings. Defaults below are those of the recipe default.",
        show_default="default",
        autocompletion=one_of(*recipes.NAMES),
    ),
]
PriorSpec = Annotated[
    str | None,
    typer.Option(
        help=f"{PRIOR_CHOICES}; or by parameter name, GLOB=PRIOR;GLOB=PRIOR.",
        show_default=recipes.default("prior"),
        autocompletion=one_of(*(f"{name}:" for name in PRIORS)),
        rich_help_panel=NETWORK,
    ),
]
GuideSpec = Annotated[
    str | None,
    typer.Option(
        help="mean-field or auto-normal.",
        show_default=recipes.default("guide"),
        autocompletion=one_of(*GUIDES),
        rich_help_panel=FIT,
    ),
]
InitSpec = Annotated[
    str | None,
    typer.Option(
        help="uniform, normal, network:SCALE, network:FRACTION*prior or network:FRACTION*weight.",
        show_default=recipes.default("init"),
        autocompletion=one_of("uniform", "normal", "network:"),
        rich_help_panel=FIT,
    ),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        help="Pixels: raw (in [0, 1]), standardized or scaled:FACTOR.",
        show_default=recipes.default("inputs"),
        autocompletion=one_of("raw", "standardized", "scaled:"),
        rich_help_panel=NETWORK,
    ),
]
Hidden = Annotated[
    str | None,
    typer.Option(
        help="Units of each hidden layer, such as 400,400.",
        show_default=recipes.default("hidden"),
        rich_help_panel=NETWORK,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(help="Passes over the training set.", show_default=recipes.default("epochs"), rich_help_panel=FIT),
]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Images per step.", show_default=recipes.default("batch_size"), rich_help_panel=FIT),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        help="adam, sgd (without momentum), natural (gradients, which are faster) or natural:DECAY,CLIP: decay of the "
        "averaged Hessian, and largest step of a mean divided by the learning rate.",
        show_default=recipes.default("optimizer"),
        autocompletion=one_of(*OPTIMIZERS),
        rich_help_panel=FIT,
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        help="Learning rate. With sgd it multiplies the gradient of one batch's loss: summed NLL plus KL / number of "
        "batches.",
        show_default=recipes.default("lr"),
        rich_help_panel=FIT,
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="Schedule of the learning rate: constant, cosine, or warm-cosine (one epoch at a tenth, then cosine).",
        show_default=recipes.default("schedule"),
        autocompletion=one_of(*SCHEDULES),
        rich_help_panel=FIT,
    ),
]
NumParticles = Annotated[
    int | None,
    typer.Option(help="Weight draws per step.", show_default=recipes.default("num_particles"), rich_help_panel=FIT),
]
KLWeightSpec = Annotated[
    str | None,
    typer.Option(
        help="Weight of the KL term: 1 gives the ELBO, less than 1 a cold posterior; or blundell, per-weight, "
        "warmup:EPOCHS[,WEIGHT].",
        show_default=recipes.default("kl_weight"),
        autocompletion=one_of("1", "blundell", "per-weight", "warmup:"),
        rich_help_panel=FIT,
    ),
]
HoldOut = Annotated[
    str | None,
    typer.Option(
        help='Classes kept out of training, as the unknown, such as 7,8,9; "" for none.',
        show_default=recipes.default("hold_out"),
        rich_help_panel=NETWORK,
    ),
]
Validation = Annotated[
    int | None,
    typer.Option(
        help="Number of training images set aside; `evaluate` then uses them instead of the test set.",
        show_default=recipes.default("validation"),
        rich_help_panel=NETWORK,
    ),
]
Accuracy = Annotated[
    bool | None,
    typer.Option(
        "--accuracy/--no-accuracy",
        help="Measure the accuracy at mean weights after each epoch, on training and test images; this takes time.",
        show_default="only with the tutorial recipes",
        rich_help_panel=FIT,
    ),
]
TrainSeed = Annotated[
    int | None,
    typer.Option(
        help="Seed of initial weights, batch order and weight draws.",
        show_default=recipes.default("seed"),
        rich_help_panel=FIT,
    ),
]

# --- of `evaluate` ----------------------------------------------------------------------------------------------------

Unknown = Annotated[
    str | None,
    typer.Option(
        help="Data set of the unknown images.",
        show_default="the run's held-out classes; if it has none, mnist for a run on fashion-mnist, and fashion-mnist "
        "for a run on mnist",
        autocompletion=one_of(*recipes.DATA_SETS),
    ),
]
EvaluateDraws = Annotated[int, typer.Option(help="Number of weight draws.")]

# --- of `compare` -----------------------------------------------------------------------------------------------------

ChainDraws = Annotated[
    int, typer.Option(help="Draws of each of the four chains of NUTS, after equally many of warm-up.", min=40)
]
Steps = Annotated[int, typer.Option(help="Optimisation steps of each fit.", min=1)]
Compile = Annotated[bool, typer.Option("--compile", help="Draw in C: needs a C compiler.")]
CompareSeed = Annotated[int, typer.Option(help="Seed of noise, initial weights, fits and draws.")]

# --- of `prune` -------------------------------------------------------------------------------------------------------

Fractions = Annotated[
    str, typer.Option(help="Shares of the weights to remove, those of lowest signal-to-noise ratio first.")
]
PerLayer = Annotated[
    bool, typer.Option("--per-layer", help="Remove the share of each layer, instead of all layers together.")
]
Keep = Annotated[
    float | None,
    typer.Option(
        help="Share of the weights that is left in a pruned copy of the run, written to --out.",
        min=0,
        max=1,
        show_default=False,
    ),
]
PrunedOut = Annotated[Path | None, typer.Option(help="Folder for the pruned copy of --keep.", show_default=False)]
PruneDraws = Annotated[int, typer.Option(help="Number of weight draws in each ensemble.", min=1)]

# --- of `weights` -----------------------------------------------------------------------------------------------------

SiteName = Annotated[
    str | None,
    typer.Option(
        help="Site of the weight shown, such as net.1.weight; a wrong name lists all sites.",
        show_default="the first site",
    ),
]
Index = Annotated[
    str,
    typer.Option(
        help="Index of the weight in its site, such as 3,100.",
        show_default="the weight of highest signal-to-noise ratio",
    ),
]

Number = TypeVar("Number", int, float)


def read_numbers(kind: type[Number], text: str, name: str) -> tuple[Number, ...]:
    """Numbers from a text such as ``400,400``.

    Args:
        kind: `int` or `float`.
        text: The numbers, separated by commas; may be empty.
        name: Name of the option, for the error.

    Raises:
        ValueError: If a part of the text is no such number.
    """
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        expected = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"`{name}` must be {expected} separated by commas, got {text!r}.") from None


def check_device(name: str) -> str:
    """The name of a device, unchanged.

    Raises:
        ValueError: If there is no such device here.
    """
    import torch  # late: it takes long

    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; choose cpu or cuda.") from None
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}; choose cpu or cuda.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name} needs a GPU that torch can use, and there is none here; choose cpu.")
    return name


def check_format(name: str) -> str:
    """The name of a format of pictures, unchanged.

    Raises:
        ValueError: If there is no such format.
    """
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}; choose png, pdf or svg.")
    return name
