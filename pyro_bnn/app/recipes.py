"""Recipes: named settings of training runs."""

import math
from dataclasses import replace

from .config import RunConfig, settings
from .specs import DATA_SETS, HELD_OUT, near, unknown_data

# The 2018 article "Weight Uncertainty in Neural Networks" on FashionMNIST, after Blundell et al. (2015),
# https://arxiv.org/abs/1505.05424. KL weight 1 is the article's 1 / num_batches.
ARTICLE = RunConfig(
    dataset="fashion-mnist",
    prior=f"mixture:0.5,1,{math.exp(-6)!r}",
    guide="mean-field",
    init="uniform",
    inputs="raw",
    hidden=(400, 400),
    epochs=20,
    batch_size=100,
    lr=1e-3,
    schedule="constant",
    num_particles=2,
    kl_weight="1",
)

# Heuristic: chosen on 10,000 validation images from the training set. With a wide prior, the first layer stays
# uncertain about pixel patterns that garments do not show. Such a prior also makes predictions underconfident, which
# the KL weight corrects.
DEFAULT = replace(
    ARTICLE,
    prior="net.2.*=normal:0.4;**=normal:0.1",
    init="network:0.1*prior",
    inputs="standardized",
    epochs=50,
    batch_size=128,
    schedule="cosine",
    num_particles=1,
    kl_weight="0.4",
)

# Heuristic: with so few data and KL weight 1, most weights of a mean-field posterior stay at the prior, and single
# draws classify poorly. With KL weight 0.1 single draws classify well.
DIGITS = replace(
    DEFAULT,
    dataset="digits",
    prior="normal:1",
    init="network:0.01",
    inputs="raw",
    hidden=(100,),
    epochs=100,
    batch_size=64,
    lr=1e-2,
    kl_weight="0.1",
    hold_out=(7, 8, 9),
)

# Heuristic: chosen on 10,000 validation images from the training set. Natural gradients need fewer epochs than Adam,
# and less time for each. Averages over 1,000 steps increase the scales of weights about which the images say little.
FAST = replace(
    DEFAULT, optimizer="natural:0.999,1", epochs=27, batch_size=256, lr=0.007, schedule="warm-cosine", kl_weight="0.11"
)

# Heuristic: chosen on 250 validation digits from the training set.
FAST_DIGITS = replace(DIGITS, optimizer="natural:0.99,1", init="network:0.03", epochs=33, lr=0.1)

# The tutorial "Bayes by Backprop from scratch" of the book "Deep Learning - The Straight Dope" (MXNet), chapter 18,
# https://github.com/zackchase/mxnet-the-straight-dope. Its pixels are grey levels / 126. `lr` multiplies the gradient
# of its loss. The tutorial makes parameters for two hidden layers, but its function `net` skips the second;
# `hidden=(400,)` repeats its results.
TUTORIAL = replace(
    ARTICLE,
    dataset="mnist",
    prior="normal:1",
    init="normal",
    inputs="scaled:255/126",
    epochs=10,
    batch_size=128,
    num_particles=1,
    optimizer="sgd",
    accuracy=True,
)

OWN = RunConfig(
    dataset="table.csv",
    target="y",
    prior="fan-in:2",
    guide="mean-field",
    init="network:0.02",
    inputs="standardized",
    hidden=(50,),
    epochs=1,
    batch_size=256,
    lr=1e-2,
    schedule="cosine",
    num_particles=1,
    kl_weight="1",
    estimator="local",
    test_fraction=0.2,
)
"""Heuristic: default settings for tables and arrays. The default number of epochs and the default batch size depend on
the number of rows. `OWN.batch_size` is the largest default batch size, and `OWN.epochs` is not used."""

CHOSEN = ("hidden", "activation", "prior", "likelihood")  # settings that `--method auto` chooses unless given
BY_ROWS = ("epochs", "batch_size")  # settings whose defaults for tables and arrays follow from the number of rows
NAMED = {
    "default": DEFAULT,
    "fast": FAST,
    "article": ARTICLE,
    "tutorial": TUTORIAL,
    "tutorial-mixture": replace(TUTORIAL, prior="mixture:0.25,0.75,0.1"),
}

RECIPES = {
    (dataset, name): replace(config, dataset=dataset, hold_out=classes)
    for name, config in NAMED.items()
    for dataset, classes in HELD_OUT.items()
} | {("digits", "default"): DIGITS, ("digits", "fast"): FAST_DIGITS}
"""The settings of all recipes; each key has the name of a data set and the name of a recipe."""

NAMES = tuple(NAMED)


def find_recipe(dataset: str, name: str) -> RunConfig:
    """Return the settings of the recipe `name` for a data set."""
    if (dataset, name) in RECIPES:
        return RECIPES[dataset, name]
    if dataset not in DATA_SETS:
        raise unknown_data(dataset)
    raise ValueError(f"unknown recipe {name!r}{near(name, NAMES)}; choose one of {', '.join(sorted(NAMES))}.")


def default(setting: str) -> str:
    """Say what the default of a setting is for each kind of data, with values as on the command line."""
    typed = {dataset: _typed(vars(RECIPES[dataset, "default"])[setting]) for dataset in DATA_SETS}
    common = typed[DATA_SETS[0]]
    of_images = ", ".join([common, *(f"{name} {value}" for name, value in typed.items() if value != common)])
    if "table" not in settings()[setting].kinds:
        return of_images
    of_tables = _typed(vars(OWN)[setting])
    if setting in CHOSEN:
        of_tables = "chosen by held-out rows"
    elif setting in BY_ROWS:
        of_tables = "by the number of rows"
    return common if of_images == of_tables else f"images {of_images}; tables and arrays {of_tables}"


def _typed(value: object) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
