"""Specifications: short texts, as typed on the command line, that name a prior, an initialisation, and so on."""

from fractions import Fraction

from torch import Tensor

from .. import kl
from ..estimators import Estimator, Flipout, LocalReparameterization
from ..guides import Init, NetworkInit, NormalInit, UniformInit
from ..kl import KLWeight
from ..nets import Standardize
from ..priors import FanInNormalPrior, LaplacePrior, NormalPrior, Prior, PriorByName, ScaleMixturePrior

__all__ = ["PRIORS", "PRIOR_CHOICES", "make_estimator", "make_init", "make_inputs", "make_kl_weight", "make_prior"]

PIXEL_SCALE_FLOOR = 0.003
"""About one grey level; added to the standard deviation of each pixel, so that no constant pixel is blown up."""


PRIORS: dict[str, tuple[type[Prior], str]] = {
    "normal": (NormalPrior, "SCALE"),
    "mixture": (ScaleMixturePrior, "MIXING,SCALE1,SCALE2"),
    "laplace": (LaplacePrior, "SCALE"),
    "fan-in": (FanInNormalPrior, "GAIN"),
}
"""Each prior by the name that is typed for it, with what its numbers are, in the order of its arguments."""

PRIOR_CHOICES = " or ".join(", ".join(f"{name}:{numbers}" for name, (_, numbers) in PRIORS.items()).rsplit(", ", 1))
"""All of them in a sentence."""


def _numbers(spec: str, text: str, count: int) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise ValueError(f"{spec!r} needs {count} number(s) after the colon, separated by commas.")
    return numbers


def make_prior(spec: str) -> Prior:
    """The prior that a specification names.

    Raises:
        ValueError: If there is no such prior or a number is out of range.

    Example:
        >>> make_prior("mixture:0.5,1,0.0025")
        ScaleMixturePrior(mixing=0.5, scale1=1.0, scale2=0.0025)
        >>> make_prior("**.bias=normal:1;**=normal:0.1")
        PriorByName(priors={'**.bias': NormalPrior(scale=1.0), '**': NormalPrior(scale=0.1)})
    """
    if "=" in spec:
        pairs = [part.partition("=") for part in spec.split(";")]
        return PriorByName({glob.strip(): make_prior(prior.strip()) for glob, _, prior in pairs})
    name, _, numbers = spec.partition(":")
    if name not in PRIORS:
        raise ValueError(
            f"unknown prior {spec!r}; choose {PRIOR_CHOICES}, or different ones by parameter name: "
            "GLOB=PRIOR;GLOB=PRIOR."
        )
    prior, names = PRIORS[name]
    return prior(*_numbers(spec, numbers, len(names.split(",")))) if numbers else prior()


def make_init(spec: str) -> Init:
    """The initialisation that a specification names.

    Raises:
        ValueError: If there is no such initialisation.

    Example:
        >>> make_init("network:0.3*prior").prior_fraction
        0.3
    """
    name, _, rest = spec.partition(":")
    if spec == "uniform":
        return UniformInit()
    if spec == "normal":
        return NormalInit()
    if name != "network":
        raise ValueError(f"unknown initialisation {spec!r}; choose uniform, normal, network:SCALE or network:F*prior.")
    if rest.endswith("*prior"):
        return NetworkInit(prior_fraction=_numbers(spec, rest.removesuffix("*prior"), 1)[0])
    return NetworkInit(*(_numbers(spec, rest, 1) if rest else ()))


def make_inputs(spec: str, x: Tensor) -> list[Standardize]:
    """The modules that a specification of inputs puts before the network: none or one.

    Args:
        spec: ``raw``, ``standardized``, or ``scaled:FACTOR``, whose factor may be a fraction.
        x: Training inputs, shape (N, D).

    Raises:
        ValueError: If there is no such scaling.

    Example:
        >>> import torch
        >>> [scale] = make_inputs("scaled:5/2", torch.zeros(2, 1))
        >>> scale(torch.tensor([1.0]))
        tensor([2.5000])
    """
    if spec == "raw":
        return []
    if spec == "standardized":
        return [Standardize.of(x, floor=PIXEL_SCALE_FLOOR)]
    name, _, rest = spec.partition(":")
    if name != "scaled":
        raise ValueError(f"unknown inputs {spec!r}; choose raw, standardized or scaled:FACTOR.")
    try:
        factor = float(Fraction(rest.strip()))
    except (ValueError, ArithmeticError):
        factor = 0.0
    if factor <= 0:
        raise ValueError(f"{spec!r} needs a factor above 0 after the colon, such as scaled:2 or scaled:255/126.")
    return [Standardize(x.new_zeros(()), x.new_tensor(1 / factor))]


def make_kl_weight(spec: str, num_weights: int) -> KLWeight:
    """The KL weight that a specification names.

    Raises:
        ValueError: If there is no such weight.

    Example:
        >>> make_kl_weight("warmup:2", 10)(0, 0, 1), make_kl_weight("per-weight", 10)(0, 0, 1)
        (0.5, 0.1)
    """
    name, _, rest = spec.partition(":")
    if name == "blundell":
        return kl.blundell()
    if name == "per-weight":
        return kl.per_weight(num_weights)
    if name == "warmup":
        epochs, *weight = _numbers(spec, rest, 2 if "," in rest else 1)
        if epochs != int(epochs):
            raise ValueError(f"{spec!r} must warm up over a whole number of epochs.")
        return kl.linear_warmup(int(epochs), *weight)
    try:
        return kl.constant(float(spec))
    except ValueError as error:
        raise ValueError(
            f"bad KL weight {spec!r}; choose a number of at least 0, blundell, per-weight or warmup:EPOCHS[,WEIGHT]."
        ) from error


def make_estimator(spec: str) -> Estimator | None:
    """The estimator of gradients that a specification names; None draws each weight once a step.

    Raises:
        ValueError: If there is no such estimator.
    """
    makers = {"weights": lambda: None, "local": LocalReparameterization, "flipout": Flipout}
    if spec not in makers:
        raise ValueError(f"unknown estimator {spec!r}; choose weights, local or flipout.")
    return makers[spec]()
