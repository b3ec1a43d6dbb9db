"""Networks for tables, with priors and likelihoods."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ...modelling.priors import FanInNormalPrior, NormalPrior, Prior, PriorLike, as_prior

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
"""Activation functions by name. The first three have the names that scikit-learn uses."""


@dataclass(frozen=True)
class Design:
    """A fully connected network, its prior, and its likelihood's name (see `make_likelihood`)."""

    hidden: tuple[int, ...]  # numbers of hidden units
    activation: Callable[[], nn.Module]
    prior: Prior
    likelihood: str

    def __str__(self) -> str:
        units = " + ".join(map(str, self.hidden))
        network = f"{units} {getattr(self.activation, '__name__', 'own')} units" if self.hidden else "a linear model"
        return f"{network}, {self.likelihood}, {self.prior!r}"


FEW_VALUES = 20  # heuristic: at so few distinct targets, a network that predicts noise can reach an unbounded density


def open_designs(
    choices: Sequence[Design],
    *,
    hidden: tuple[int, ...] | None = None,
    activation: Callable[[], nn.Module] | None = None,
    prior: PriorLike | None = None,
    likelihood: str | None = None,
) -> list[Design]:
    """Set the given fields in every design, and drop duplicates."""
    made = None if prior is None else as_prior("prior", prior)
    parts = {"hidden": hidden, "activation": activation, "prior": made, "likelihood": likelihood}
    given = {name: value for name, value in parts.items() if value is not None}
    found: list[Design] = []
    for choice in choices:
        design = replace(choice, **given)  # type: ignore[arg-type]  # the keys are names of parts
        if design not in found:
            found.append(design)
    return found


def has_few_values(targets: Tensor) -> bool:
    """Return whether at least one column of the targets, shape (N, O), has at most `FEW_VALUES` distinct values."""
    return min(len(column.unique()) for column in targets.unbind(1)) <= FEW_VALUES


OF_NUMBERS = (
    Design((50,), nn.ReLU, NormalPrior(0.2), "heteroscedastic"),
    Design((50,), nn.ReLU, NormalPrior(1.0), "heteroscedastic"),
    Design((16, 16), nn.Tanh, NormalPrior(1.0), "heteroscedastic"),
    Design((16, 16, 16), nn.SiLU, NormalPrior(1.0), "heteroscedastic"),
    Design((16, 16, 16), nn.SiLU, NormalPrior(1.0), "gaussian"),
)
"""Heuristic: designs for regression with standardised targets. Each was the best of a dozen designs on at least one
public table."""

OF_CLASSES = (
    Design((), nn.ReLU, FanInNormalPrior(2.0), "categorical"),
    Design((50,), nn.ReLU, NormalPrior(0.2), "categorical"),
    Design((50,), nn.ReLU, NormalPrior(1.0), "categorical"),
    Design((16, 16), nn.SiLU, NormalPrior(1.0), "categorical"),
)
"""Designs for classification. The first is a linear model, which is often the best if there are few rows."""
