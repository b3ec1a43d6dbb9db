"""Kronecker factors, by laplace-torch."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ..._core.extras import optional
from ..._core.inputs import Pair
from ..._core.scope import filtered_warnings
from ...modelling.likelihoods import CategoricalLikelihood, Likelihood
from ._gaussian import CurvatureAlongAxes, kronecker
from ._matrices import KNOWN_LAYERS, acts_by_layers


def library() -> Any:
    """The library, whose import takes seconds; raises an error that says how to get it if it is not installed."""
    return optional("laplace.curvature.curvlinops", "laplace-torch", "laplace")


def kronecker_curvature(
    net: nn.Module, batches: Iterable[Pair], num_data: int, likelihood: Likelihood
) -> CurvatureAlongAxes:
    """The curvature by the Kronecker factors of the layers whose parameters need gradients; Gaussian noise has scale 1.

    Raises:
        ValueError: If the network has layers for which there are no such factors.
    """
    _require_layers(net)
    total: list[list[Tensor]] = []
    with filtered_warnings("ignore"):
        is_of_classes = isinstance(likelihood, CategoricalLikelihood)
        backend = library().CurvlinopsGGN(net, "classification" if is_of_classes else "regression")
        for x, y in batches:
            if not isinstance(x, Tensor):
                raise ValueError(
                    "Kronecker factors need a network of one input, unless the random weights are those of a linear "
                    "last layer; choose that one with `where`, or use another `structure`."
                )
            if not total and not acts_by_layers(net, x):
                raise ValueError(
                    "Kronecker factors need random weights that act only through their layers, but the gradients of "
                    "the layers are not those of the network: a layer has a forward pass of its own, or a weight is "
                    'also used elsewhere; leave it out with `where`, or use structure="diagonal".'
                )
            try:
                _, found = backend.kron(x, y, N=num_data)
            except NotImplementedError as error:
                raise ValueError(
                    f"laplace-torch cannot make Kronecker factors ({error}); use another `structure`, such as "
                    '"diagonal".'
                ) from error
            factors = [[factor.double() for factor in some] for some in found.kfacs]
            if total:
                pairs = zip(total, factors, strict=True)
                factors = [[a + b for a, b in zip(before, new, strict=True)] for before, new in pairs]
            total = factors
    return kronecker(total)


def _require_layers(net: nn.Module) -> None:
    """Raise unless the random weights are those of whole layers with Kronecker factors, shared with no other layer."""
    seen: set[int] = set()
    for name, module in net.named_modules():
        own = list(module.parameters(recurse=False))
        if not any(parameter.requires_grad for parameter in own):
            continue
        is_whole = all(parameter.requires_grad for parameter in own) and seen.isdisjoint(map(id, own))
        if not isinstance(module, KNOWN_LAYERS) or not is_whole:
            raise ValueError(
                "Kronecker factors are of whole linear and two-dimensional convolutional layers, whose weight and bias "
                f"are both random and shared with no other layer, but {type(module).__name__} `{name}` is not; leave "
                'it out, as with `where=layers(nn.Linear, nn.Conv2d)`, or use structure="diagonal".'
            )
        seen |= set(map(id, own))
