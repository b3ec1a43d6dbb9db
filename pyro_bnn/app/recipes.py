"""The settings of training runs on image data, and those that have a name."""

import math
from dataclasses import dataclass, replace

from .tracking import AccuracyCurve

__all__ = ["PUBLISHED_ACCURACY", "RECIPES", "RunConfig"]


@dataclass(frozen=True)
class RunConfig:
    """Everything that a training run depends on.

    Args:
        dataset: ``fashion-mnist``, ``mnist`` or ``digits``.
        prior: ``normal:SCALE``, ``mixture:MIXING,SCALE1,SCALE2``, ``laplace:SCALE``, ``fan-in:GAIN``, or different ones
            by parameter name, ``GLOB=PRIOR;GLOB=PRIOR``, of which the first match counts.
        guide: ``mean-field`` or ``auto-normal``.
        init: ``uniform`` (the article's ranges), ``normal`` (loc N(0, 0.1), rho -3), ``network:SCALE``, or
            ``network:FRACTION*prior``.
        inputs: ``raw`` pixels in [0, 1], ``scaled:FACTOR``, these times a number, or ``standardized`` pixel by pixel.
        hidden: Units of each hidden layer.
        epochs: Passes over the training set.
        batch_size: Images per step.
        lr: Learning rate. That of `sgd` is for the loss of a batch, its summed NLL and a share of the KL, as papers
            have it; `fit_svi` has the whole data set's, which is as many times larger as there are batches.
        schedule: ``constant`` or ``cosine``.
        num_particles: Weight draws per step.
        kl_weight: A number relative to the ELBO, ``blundell``, ``per-weight`` or ``warmup:EPOCHS[,WEIGHT]``.
        hold_out: Classes kept out of training, as the unknown.
        validation: Size of the validation set taken off the end of the shuffled training set; 0 trains on all.
        seed: Of initialisation, batch order and weight draws.
        optimizer: ``adam``, or ``sgd``, without momentum.
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


# The 2018 article "Weight Uncertainty in Neural Networks" on FashionMNIST, after Blundell et al. (2015),
# https://arxiv.org/abs/1505.05424. Weight 1 is the article's 1 / num_batches.
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

# Heuristic: chosen on 10,000 images set aside from the training set. A first layer with a wide prior stays uncertain
# about patterns of pixels that garments do not show; the cold posterior undoes the underconfidence that comes with it.
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

# Heuristic: small data prune a mean-field network at weight 1 until single draws are poor; a tenth keeps them good.
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

# The tutorial "Bayes by Backprop from scratch" of the book "Deep Learning - The Straight Dope" (MXNet), chapter 18,
# https://github.com/zackchase/mxnet-the-straight-dope. Its pixels are grey levels / 126. Its loss is the one that `lr`
# is for. Its text and its parameters have two hidden layers; its function `net` skips the second (`hidden=(400,)` does
# what it computed).
TUTORIAL = RunConfig(
    dataset="mnist",
    prior="normal:1",
    guide="mean-field",
    init="normal",
    inputs="scaled:255/126",
    hidden=(400, 400),
    epochs=10,
    batch_size=128,
    lr=1e-3,
    schedule="constant",
    num_particles=1,
    kl_weight="1",
    optimizer="sgd",
    accuracy=True,
)

TUTORIAL_MIXTURE = replace(TUTORIAL, prior="mixture:0.25,0.75,0.1")

RECIPES: dict[tuple[str, str], RunConfig] = {
    ("fashion-mnist", "default"): DEFAULT,
    ("mnist", "default"): replace(DEFAULT, dataset="mnist"),
    ("digits", "default"): DIGITS,
    ("fashion-mnist", "article"): ARTICLE,
    ("mnist", "article"): replace(ARTICLE, dataset="mnist"),
    ("digits", "article"): replace(ARTICLE, dataset="digits", hold_out=(7, 8, 9)),
    ("fashion-mnist", "tutorial"): replace(TUTORIAL, dataset="fashion-mnist"),
    ("mnist", "tutorial"): TUTORIAL,
    ("digits", "tutorial"): replace(TUTORIAL, dataset="digits", hold_out=(7, 8, 9)),
    ("fashion-mnist", "tutorial-mixture"): replace(TUTORIAL_MIXTURE, dataset="fashion-mnist"),
    ("mnist", "tutorial-mixture"): TUTORIAL_MIXTURE,
    ("digits", "tutorial-mixture"): replace(TUTORIAL_MIXTURE, dataset="digits", hold_out=(7, 8, 9)),
}
"""The settings of a run that says nothing else, by data set and recipe."""

# The printed output of the tutorial's Gaussian prior; it prints none of the mixture's.
TUTORIAL_ACCURACY = AccuracyCurve(
    train=(0.9456, 0.9628, 0.9698, 0.9753, 0.9786, 0.9805, 0.9823, 0.9840, 0.9859, 0.9878),
    test=(0.9455, 0.9593, 0.9641, 0.9684, 0.9723, 0.9733, 0.9756, 0.9749, 0.9765, 0.9775),
)

PUBLISHED_ACCURACY: dict[tuple[str, str], AccuracyCurve] = {
    ("mnist", "tutorial"): TUTORIAL_ACCURACY,
    ("mnist", "tutorial-mixture"): TUTORIAL_ACCURACY,
}
"""What the source of a recipe says that it reaches, at mean weights after each epoch."""
