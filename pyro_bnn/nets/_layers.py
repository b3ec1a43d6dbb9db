"""Layers (standardisation of inputs, and dropout that stays on), and fully connected networks."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._core import checks as _checks
from .._core.signatures import explained


class Standardize(nn.Module):
    r"""A module that subtracts a mean from the inputs and divides by a scale.

    With this module, the preprocessing of the inputs is a part of the network.

    Args:
        mean: Mean of the inputs, with a shape that broadcasts to the shape of one input.
        scale: Scale of the inputs, above 0, with a shape that broadcasts to the shape of one input.

    Example:
        >>> import torch
        >>> from pyro_bnn import nets
        >>> nets.Standardize(torch.tensor(1.0), torch.tensor(2.0))(torch.tensor([5.0]))
        tensor([2.])
    """

    mean: Tensor
    inverse_scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("scale", scale)):
            _checks.finite(name, _checks.real_tensor(name, value))
            if not value.numel():
                raise ValueError(f"`{name}` must have at least one element, got shape {_checks.shape(value)}.")
        try:
            if mean.shape != scale.shape:  # the call loads a large part of torch
                torch.broadcast_shapes(mean.shape, scale.shape)
        except RuntimeError:
            raise ValueError(
                "`mean` and `scale` must have shapes that broadcast, got "
                f"{_checks.shape(mean)} and {_checks.shape(scale)}."
            ) from None
        if not bool((scale > 0).all()):
            raise ValueError(
                f"`scale` must be above 0 everywhere, got a smallest value of {float(scale.min()):g}; "
                "for constant features pass a `floor` to `Standardize.of`."
            )
        self.register_buffer("mean", mean.clone())
        self.register_buffer("inverse_scale", scale.reciprocal())

    @classmethod
    def of(cls, x: Tensor, *, floor: float = 0.0) -> "Standardize":
        """Return a `Standardize` module with the mean and the standard deviation of each feature in training inputs.

        Args:
            x: Training inputs, shape (N, ...).
            floor: Number added to every standard deviation, so that nearly constant features do not become large.

        Raises:
            ValueError: If x is not finite, if x has fewer than two rows, or if a feature is constant and `floor` is 0.
        """
        _checks.finite("x", _checks.real_tensor("x", x))
        _checks.not_negative("floor", floor)
        if x.dim() == 0 or len(x) < 2 or not x.numel():
            raise ValueError(f"`x` must have at least two rows and one feature, got shape {_checks.shape(x)}.")
        return cls(x.mean(0), x.std(0) + floor)

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - mean) / scale."""
        shape = _checks.tensor("x", x).shape
        if not all(_broadcasts(part.shape, shape) for part in (self.mean, self.inverse_scale)):
            raise ValueError(f"`x` must have features of shape {_checks.shape(self.mean)}, got {_checks.shape(x)}.")
        return (x - self.mean) * self.inverse_scale


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Return whether a tensor of shape `shape` broadcasts to the shape `to`."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, other) for size, other in pairs)


class MCDropout(nn.Module):
    r"""Monte Carlo dropout: dropout that is also on in eval mode, so that each prediction draws a new mask.

    .. math:: x \mapsto \frac{b \cdot x}{1 - p}, \qquad b_i \sim \mathrm{Bernoulli}(1 - p).

    Fit :class:`~pyro_bnn.DeltaGuide` with a prior from :meth:`NormalPrior.from_weight_decay
    <pyro_bnn.NormalPrior.from_weight_decay>`; `predict` then averages over dropout masks. In each run of the network,
    each row has its own mask. So a seed gives the same prediction only for the same rows and the same `batch_size`.

    Args:
        p: Probability that an element is set to zero, strictly between 0 and 1.

    References:
        Gal and Ghahramani (2016), Dropout as a Bayesian Approximation, https://arxiv.org/abs/1506.02142.

    Example:
        >>> import torch
        >>> from pyro_bnn import nets
        >>> layer = nets.MCDropout(0.5).eval()
        >>> sorted(layer(torch.ones(1000)).unique().tolist())
        [0.0, 2.0]
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = _checks.between_zero_and_one("p", p)

    def forward(self, x: Tensor) -> Tensor:
        """Set random elements to zero, and scale the other elements so that the mean does not change."""
        return functional.dropout(x, self.p, training=True)

    def extra_repr(self) -> str:
        """Return the probability, for `repr`."""
        return f"p={self.p}"


@explained("mlp([1, 50, 50, 1])")
def mlp(
    sizes: Sequence[int],
    *,
    activation: Callable[[], nn.Module] = nn.ReLU,
    first: Sequence[nn.Module] = (),
    dropout: float | None = None,
) -> nn.Sequential:
    """Return a fully connected network.

    Args:
        sizes: Number of inputs, number of units of each hidden layer, and number of outputs.
        activation: Function without arguments that makes the activation module after each hidden layer.
        first: Modules put before the first layer, such as `nn.Flatten()` or :class:`Standardize`.
        dropout: Probability of an :class:`MCDropout` after each activation; None for no dropout.

    Example:
        >>> from pyro_bnn import nets
        >>> [tuple(p.shape) for p in nets.mlp([784, 400, 10]).parameters()]
        [(400, 784), (400,), (10, 400), (10,)]
    """
    sizes = _checks.items("sizes", sizes, "a list of whole numbers, such as [784, 400, 10]")
    if len(sizes) < 2:
        raise ValueError(f"`sizes` must name inputs and outputs at least, got {list(sizes)}.")
    first = checked_modules("first", first)
    if not callable(activation) or isinstance(activation, nn.Module):
        got = f"the module {activation}" if isinstance(activation, nn.Module) else _checks.described(activation)
        raise ValueError(f"`activation` must be a function that makes a module, such as nn.ReLU, got {got}.")
    _checks.kind("activation", activation(), nn.Module, "a function that makes a module, such as nn.ReLU")
    sizes = [_checks.at_least("sizes", size, 1) for size in sizes]
    for num_in, num_out in itertools.pairwise(sizes):
        _checks.in_memory("sizes", num_out, num_in * torch.get_default_dtype().itemsize, "choose fewer")
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        if layers:
            layers += [activation()] if dropout is None else [activation(), MCDropout(dropout)]
        layers.append(nn.Linear(num_in, num_out))
    return nn.Sequential(*first, *layers)


def checked_modules(name: str, values: object) -> list[nn.Module]:
    example = "a list of modules, such as [nn.Flatten()]"
    found = _checks.items(name, values, example)
    for module in found:
        _checks.kind(name, module, nn.Module, example)
    return found
