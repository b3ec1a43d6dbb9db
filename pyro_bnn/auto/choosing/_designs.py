"""Networks for tables with their priors and likelihoods, among which held-out rows choose."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ...modelling.priors import FanInNormalPrior, NormalPrior, Prior


@dataclass(frozen=True)
class Design:
    """A fully connected network, its prior, and the name of its likelihood.

    Args:
        hidden: Numbers of hidden units.
        activation: Function that makes the activation.
        prior: Prior of the weights.
        likelihood: Name of the likelihood; see `make_likelihood`.
    """

    hidden: tuple[int, ...]
    activation: Callable[[], nn.Module]
    prior: Prior
    likelihood: str

    def __str__(self) -> str:
        units = " + ".join(map(str, self.hidden))
        network = f"{units} {getattr(self.activation, '__name__', 'own')} units" if self.hidden else "a linear model"
        return f"{network}, {self.likelihood}, {self.prior!r}"


OF_NUMBERS = (
    Design((50,), nn.ReLU, NormalPrior(0.2), "heteroscedastic"),
    Design((50,), nn.ReLU, NormalPrior(1.0), "heteroscedastic"),
    Design((16, 16), nn.Tanh, NormalPrior(1.0), "heteroscedastic"),
    Design((16, 16, 16), nn.SiLU, NormalPrior(1.0), "heteroscedastic"),
    Design((16, 16, 16), nn.SiLU, NormalPrior(1.0), "gaussian"),
)
"""For targets in standard units: nearly linear, shallow, deep, and deep with the same noise everywhere. Heuristic; each
was the best of a dozen on some of the UCI tables or on scikit-learn's diabetes."""

OF_CLASSES = (
    Design((), nn.ReLU, FanInNormalPrior(2.0), "categorical"),
    Design((50,), nn.ReLU, NormalPrior(0.2), "categorical"),
    Design((50,), nn.ReLU, NormalPrior(1.0), "categorical"),
    Design((16, 16), nn.SiLU, NormalPrior(1.0), "categorical"),
)
"""For classes; the first is a linear model, which on few rows is often the best."""
