"""The settings of one training run."""

from dataclasses import dataclass

__all__ = ["RunConfig"]


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
