"""Says at the top of the report which model was fitted, and how."""

from ...runs import is_chains
from .subject import Subject

NAMES = {"relu": "ReLU", "silu": "SiLU", "gelu": "GELU"}  # of activations


def model_in_words(subject: Subject) -> str:
    """Return the network, its prior, its likelihood, and how its posterior was found."""
    config, posterior = subject.config, subject.posterior
    units = " + ".join(map(str, config.hidden))
    network = f"network with {units} {NAMES.get(config.activation, config.activation)} units"
    if config.net != "mlp":
        network = f"network {config.net}"
    elif config.is_linear:
        network = "linear model, without hidden units"
    draws = f"{subject.num_samples:,} draws of the weights"
    how = f"{config.guide} posterior, fitted by variational inference; {draws}"
    if is_chains(posterior):
        how = f"{draws}, from {posterior.num_chains} chains ({posterior.sampler})"
    return f"{network}; prior {config.prior}; likelihood {config.likelihood}; {how}."
