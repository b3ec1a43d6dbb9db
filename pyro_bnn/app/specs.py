"""Specifications: short texts on the command line, such as ``normal:0.1`` for a prior.

The library is loaded only when a specification is read.
"""

from __future__ import annotations

import functools
import re
import zipfile
from collections.abc import Callable, Collection
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pyro_bnn as pb

from .._core.names import nearest

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from ..inference.estimators import Estimator
    from ..inference.guides import Init


HELD_OUT: dict[str, tuple[int, ...]] = {"fashion-mnist": (), "mnist": (), "digits": (7, 8, 9)}
"""The image sets, each with the classes that the default recipe leaves out of the training."""

DATA_SETS = tuple(HELD_OUT)

TABLES = (".csv", ".tsv", ".txt", ".data", ".dat", ".parquet")  # files that are read as tables
SHEET, EXPORT = "save the sheet as a CSV file", "export the table as a CSV file"
JSON = "`pandas.read_json({path!r}%s).to_csv('{stem}-table.csv', index=False)` makes a table of it"
CONTENTS = {
    rb"PK\x03\x04": ("a workbook or an archive", SHEET),  # *.xlsx, *.ods, *.zip
    rb"\xd0\xcf\x11\xe0": ("a workbook", SHEET),  # *.xls
    rb"\x1f\x8b": ("compressed by gzip", "unpack it: gunzip -c {path} > unpacked.csv"),
    rb"PAR1": ("a Parquet file", "rename it to {stem}.parquet"),
    rb"\x93NUMPY": ("a single array, as in a *.npy file", "write x and y with `numpy.savez`"),
    rb"\x80[\x02-\x05]": ("a pickle of Python", "save its table with `table.to_csv('{stem}-table.csv', index=False)`"),
    rb"%PDF": ("a PDF document", EXPORT),
    rb"\x89HDF": ("an HDF5 file", EXPORT),
    rb"SQLite": ("an SQLite database", EXPORT),
    rb"(?i)<(html|!doctype|\?xml)": ("a web page or XML", "download the table itself, as a CSV file"),
    rb"\{.*\}\s*\n": ("JSON", JSON % ", lines=True"),
    rb"\[\s*[\[{]|\{\s*[\"}]": ("JSON", JSON % ""),
}
"""Patterns of the first bytes of files that are no tables in text, what these files are, and what to do with them."""
PIXEL_SCALE_FLOOR = 0.003  # about one grey level, added to the sd of each pixel against division by nearly 0
OPTIMIZERS = ("adam", "sgd", "natural")  # numbers may follow `natural`, as in ``natural:DECAY,CLIP``
PRIORS: dict[str, tuple[Callable[..., pb.Prior], str]] = {
    "normal": (lambda *numbers: pb.NormalPrior(*numbers), "SCALE"),
    "mixture": (lambda *numbers: pb.ScaleMixturePrior(*numbers), "MIXING,SCALE1,SCALE2"),
    "laplace": (lambda *numbers: pb.LaplacePrior(*numbers), "SCALE"),
    "fan-in": (lambda *numbers: pb.FanInNormalPrior(*numbers), "GAIN"),
}
"""For each prior, the function that makes the prior, and the names of this function's arguments."""

PRIOR_CHOICES = " or ".join(", ".join(f"{name}:{numbers}" for name, (_, numbers) in PRIORS.items()).rsplit(", ", 1))

SMALLEST, LARGEST = 1e-18, 1e18  # of numbers in specifications: the squares fit in single precision, 1.2e-38 to 3.4e38


def numbers_in(spec: str, text: str, count: int) -> list[float]:
    """Read `count` numbers, separated by commas, from `text`, which is a part of the specification `spec`."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise ValueError(f"{spec!r} needs {count} number{'s' * (count > 1)} after the colon, separated by commas.")
    if any(number != 0 and not SMALLEST <= abs(number) <= LARGEST for number in numbers if number == number):
        raise ValueError(f"{spec!r} must hold numbers of sizes from 1e-18 to 1e18, or 0.")
    return numbers


def make_prior(spec: str) -> pb.Prior:
    """Make the prior that a specification names, such as ``normal:0.1``, or ``**.bias=normal:1;**=normal:0.1``."""
    if "=" in spec:
        parts = [part.partition("=") for part in spec.split(";")]
        priors = {glob.strip(): make_prior(prior.strip()) for glob, _, prior in parts}
        if len(priors) < len(parts):
            raise ValueError(f"{spec!r} has the same glob twice; remove one of the two.")
        return pb.PriorByName(priors)
    name, _, numbers = spec.partition(":")
    if name not in PRIORS:
        meant = nearest(name, PRIORS)
        hint = f" (did you mean {':'.join(filter(None, [meant, numbers]))!r}?)" if meant else ""
        raise ValueError(
            f"unknown prior {spec!r}{hint}; choose {PRIOR_CHOICES}, or different ones by parameter name: "
            "GLOB=PRIOR;GLOB=PRIOR."
        )
    prior, names = PRIORS[name]
    if not numbers:
        raise ValueError(f"prior {spec!r} must be {name}:{names}, such as {prior_spec(prior())}.")
    return prior(*numbers_in(spec, numbers, len(names.split(","))))


def prior_spec(prior: pb.Prior) -> str:
    """Return the specification of a prior, from which :func:`make_prior` makes the same prior."""
    name = next(name for name, (make, _) in PRIORS.items() if type(make()) is type(prior))
    return f"{name}:{','.join(f'{number:g}' for number in vars(prior).values())}"


def make_init(spec: str) -> Init:
    """Make the initialisation that a specification names, such as ``network:0.3*prior``."""
    name, _, rest = spec.partition(":")
    if spec == "uniform":
        from ..inference.guides import UniformInit  # imported late: importing takes long

        return UniformInit()
    if spec == "normal":
        return pb.NormalInit()
    if name != "network":
        raise ValueError(
            f"unknown initialisation {spec!r}; choose uniform, normal, network:SCALE, network:F*prior or "
            "network:F*weight."
        )
    if rest.endswith("*prior"):
        return pb.NetworkInit(prior_fraction=numbers_in(spec, rest.removesuffix("*prior"), 1)[0])
    if rest.endswith("*weight"):
        return pb.NetworkInit(weight_fraction=numbers_in(spec, rest.removesuffix("*weight"), 1)[0])
    return pb.NetworkInit(*(numbers_in(spec, rest, 1) if rest else ()))


def make_inputs(spec: str, x: Tensor) -> list[pb.nets.Standardize]:
    """Return the modules that transform inputs x, shape (N, D), by a specification such as ``scaled:5/2``."""
    if spec == "raw":
        return []
    if spec == "standardized":
        return [pb.nets.Standardize.of(x, floor=PIXEL_SCALE_FLOOR)]
    name, _, rest = spec.partition(":")
    if name != "scaled":
        raise ValueError(f"unknown inputs {spec!r}; choose raw, standardized or scaled:FACTOR.")
    try:
        factor = float(Fraction(rest.strip()))
    except (ValueError, ArithmeticError):
        factor = 0.0
    if not SMALLEST <= factor <= LARGEST:
        raise ValueError(
            f"{spec!r} needs a factor above 0 after the colon, from 1e-18 to 1e18, such as scaled:2 or scaled:255/126."
        )
    return [pb.nets.Standardize(x.new_zeros(()), x.new_tensor(1 / factor))]


def make_kl_weight(spec: str, num_weights: int) -> pb.kl.KLWeight:
    """Make the KL weight that a specification names, such as ``warmup:2``."""
    name, _, rest = spec.partition(":")
    if name == "blundell":
        return pb.kl.blundell()
    if name == "per-weight":
        return pb.kl.per_weight(num_weights)
    if name == "warmup":
        epochs, *weight = numbers_in(spec, rest, 2 if "," in rest else 1)
        if epochs != int(epochs):
            raise ValueError(f"{spec!r} must warm up over a whole number of epochs.")
        return pb.kl.linear_warmup(int(epochs), *weight)
    try:
        return pb.kl.constant(*numbers_in(spec, spec, 1))
    except ValueError as error:
        raise ValueError(
            f"bad KL weight {spec!r}; choose a number of at least 0, blundell, per-weight or warmup:EPOCHS[,WEIGHT]; "
            "numbers are 0, or from 1e-18 to 1e18."
        ) from error


def make_estimator(spec: str) -> Estimator | None:
    """Make the gradient estimator that a specification names. Return None for "weights", which needs no estimator."""
    return {"weights": lambda: None, "local": pb.LocalReparameterization, "flipout": pb.Flipout}[spec]()


def make_optimizer(spec: str, lr: float, num_batches: int) -> Callable[[list[nn.Parameter]], Optimizer]:
    """Return the function for `fit_svi` that makes the optimizer of a specification."""
    name, colon, rest = spec.partition(":")
    if spec not in ("adam", "sgd") and name != "natural":
        raise ValueError(f"unknown optimizer {spec!r}; choose adam, sgd, natural or natural:DECAY,CLIP.")
    import torch  # imported late: importing takes long

    if spec == "adam":
        return functools.partial(torch.optim.Adam, lr=lr, fused=True)
    if spec == "sgd":  # unlike the others, its steps grow with the loss, which `fit_svi` multiplies by `num_batches`
        return functools.partial(torch.optim.SGD, lr=lr / num_batches, fused=True)
    if not colon:
        return pb.optim.natural_gradient(lr)
    hessian_decay, clip = numbers_in(spec, rest, 2)
    return pb.optim.natural_gradient(lr, hessian_decay=hessian_decay, clip=clip)


def make_scale_map(optimizer: str) -> pb.scale_maps.ScaleMap:
    """Make the scale map that a mean-field guide needs for an optimizer."""
    return pb.scale_maps.Precision() if optimizer.startswith("natural") else pb.scale_maps.Softplus()


def parts_of(spec: str) -> tuple[str, str]:
    """Split the specification of a network into the file or module, and the function."""
    place, colon, function = spec.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise ValueError(f"`net` must be mlp, FILE.py:FUNCTION or MODULE:FUNCTION, got {spec!r}.")
    return place, function


def stored(spec: str) -> str:
    """Return the specification of a network as a run stores it, with the full path of a file."""
    place, function = parts_of(spec)
    return f"{Path(place).resolve()}:{function}" if place.endswith(".py") else spec


def unknown_data(dataset: str) -> Exception:
    """Return the error for a data set of an unknown name.

    If there is a file of this name with an ending, such as ``NAME.csv``, the error suggests the file.
    """
    files = sorted(f"{dataset}{ending}" for ending in (*TABLES, ".npz") if Path(f"{dataset}{ending}").is_file())
    meant = f" (did you mean {files[0]!r}?)" if files else near(dataset, DATA_SETS)
    own = f"a file of your own: a table ({', '.join(f'*{ending}' for ending in TABLES)}) or arrays (*.npz)"
    if Path(dataset).is_dir() and not files:
        return ValueError(f"{dataset} is a folder; name {own}.")
    if "/" in dataset:
        return FileNotFoundError(f"there is no file {dataset}{meant}; name {own}.")
    return ValueError(f"unknown data set {dataset!r}{meant}; choose {', '.join(DATA_SETS)}, or {own}.")


def check_content(path: Path, expected: str = "") -> None:
    """Raise unless a path is that of a file whose first bytes are those of what is expected.

    `expected` is "text", "a Parquet file", "a file of arrays", or "" if the ending of the path fits no data.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}.")
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no regular file"
        raise ValueError(f"{path} is {what}; pass a table in a file, such as table.csv, or arrays, such as data.npz.")
    with path.open("rb") as file:
        line = next((line.lstrip(b"\xef\xbb\xbf \t") for line in file if line.strip()), b"")
        begin = line[:5000] + file.read(200)
    if not begin:
        raise ValueError(f"{path} is empty; pass a table with a line of names and a line for each row, or arrays.")
    text = "text", "rename it to {stem}.csv if it holds a table"
    what, remedy = next((about for pattern, about in CONTENTS.items() if re.match(pattern, begin)), text)
    if begin.startswith(b"PK"):
        names: list[str] = []
        with suppress(Exception), zipfile.ZipFile(path) as archive:  # a damaged archive raises errors of many kinds
            names = archive.namelist()
        if all(name.endswith(".npy") for name in names) and (names or expected == "a file of arrays"):
            what, remedy = "a file of arrays", "rename it to {stem}.npz"
    if what != expected:
        raise ValueError(f"{path} is {what}; {remedy.format(path=str(path), stem=path.stem)}.")


def near(name: str, names: Collection[str]) -> str:
    """Return a question that suggests the most similar name. Return "" if no name is similar."""
    found = nearest(name, names)
    return f" (did you mean {found!r}?)" if found else ""
