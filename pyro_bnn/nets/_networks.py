"""Small networks and layers."""

import inspect
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._core import checks as _checks
from .._core.signatures import explained


class Standardize(nn.Module):
    r"""Subtracts a mean from the inputs and divides by a scale, as a part of the network.

    Args:
        mean: Mean of the inputs, in a shape that broadcasts to one input.
        scale: Scale of the inputs, above 0, in a shape that broadcasts to one input.

    Example:
        >>> import torch
        >>> from pyro_bnn import nets
        >>> nets.Standardize(torch.tensor(1.0), torch.tensor(2.0))(torch.tensor([5.0]))
        tensor([2.])
    """

    mean: Tensor
    inverse_scale: Tensor

    @explained("Standardize.of(x)")
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
        """Return a module with the mean and standard deviation of each feature in training inputs.

        Args:
            x: Training inputs, shape (N, ...).
            floor: Number added to standard deviations, so that nearly constant features stay small.

        Raises:
            ValueError: If x is not finite or has fewer than two rows, or if a feature is constant and `floor` is 0.
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
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, other) for size, other in pairs)


class MCDropout(nn.Module):
    r"""Monte Carlo dropout, which stays on in eval mode, so that each prediction draws new masks.

    .. math:: x \mapsto \frac{b \cdot x}{1 - p}, \qquad b_i \sim \mathrm{Bernoulli}(1 - p).

    Fit a :class:`~pyro_bnn.DeltaGuide` with a prior from :meth:`NormalPrior.from_weight_decay
    <pyro_bnn.NormalPrior.from_weight_decay>`; `predict` then averages over masks. Each row has its own mask, so a seed
    gives the same prediction only for the same rows and the same `batch_size`.

    Args:
        p: Probability that an element is set to zero.

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
        """Set random elements to zero, and scale the others so that the mean does not change."""
        return functional.dropout(x, self.p, training=True)

    def extra_repr(self) -> str:
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
        sizes: Numbers of inputs, of units in each hidden layer, and of outputs.
        activation: Function that makes the activation after each hidden layer.
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
    _require_activation(activation)
    sizes = [_checks.at_least(f"sizes[{position}]", size, 1) for position, size in enumerate(sizes)]
    for num_in, num_out in itertools.pairwise(sizes):
        _checks.in_memory("sizes", num_out, num_in * torch.get_default_dtype().itemsize, "choose fewer")
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        if layers:
            layers += [activation()] if dropout is None else [activation(), MCDropout(dropout)]
        layers.append(nn.Linear(num_in, num_out))
    return nn.Sequential(*first, *layers)


def _require_activation(activation: object) -> None:
    made = None
    if not isinstance(activation, nn.Module) and _needs_no_arguments(activation):
        made = activation()
    if not isinstance(made, nn.Module):
        is_named = isinstance(activation, str) or hasattr(activation, "__name__")
        name = str(getattr(activation, "__name__", activation)) if is_named else type(activation).__name__
        same = [
            f"; pass torch.nn.{known}."
            for known, value in vars(nn).items()
            if known.lower() == name.lower().replace("_", "") and _is_activation(value)
        ]
        got = repr(activation) if isinstance(activation, str | nn.Module) else _checks.described(activation)
        raise ValueError(
            f"`activation` must be a function that makes a module, such as torch.nn.ReLU, got {got}{[*same, '.'][0]}"
        )


def _is_activation(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module) and _needs_no_arguments(value)


def _needs_no_arguments(function: object) -> TypeGuard[Callable[[], object]]:
    """Return whether a function can be called without arguments; False for built-ins, such as `torch.tanh`."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # arguments are missing, or there is no signature
        return False
    return True


def checked_modules(name: str, values: object) -> list[nn.Module]:
    example = "a list of modules, such as [nn.Flatten()]"
    found = _checks.items(name, values, example)
    for module in found:
        _checks.kind(name, module, nn.Module, example)
    return found


SIZE = 28

NUM_STAGES, BLOCKS_PER_STAGE = 3, 3


def lenet5(
    *, num_classes: int = 10, in_channels: int = 1, first: Sequence[nn.Module] = (), dropout: float | None = None
) -> nn.Sequential:
    """Return LeNet-5 for images of 28 x 28 pixels, in the form that is common today.

    The network has two convolutions of 5 x 5 with 6 and 16 channels. The first has a padding of two pixels, and each is
    followed by max pooling over 2 x 2 and a ReLU. Then come linear layers with 120 and 84 hidden units. The original
    network has instead sigmoid units, average pooling with learned factors, a second convolution that is connected to
    only some channels, and outputs that are distances.

    The modules with parameters are ``conv1``, ``conv2``, ``linear1``, ``linear2`` and ``linear3``; the others are
    ``images``, ``relu1`` to ``relu4``, ``pool1``, ``pool2`` and ``flatten``. `dropout` adds ``dropout1`` and
    ``dropout2`` after the hidden linear layers. The modules in `first` are called ``first0``, ``first1``, ...

    Args:
        num_classes: Number of outputs, C.
        in_channels: Number of channels of the images, D.
        first: Modules put before the first layer, such as :class:`Standardize`.
        dropout: Probability of an :class:`MCDropout` after each hidden linear layer; None for no dropout.

    Returns:
        A network from images of shape (N, D, 28, 28), or (N, 28, 28) for grey images, to logits of shape (N, C).

    References:
        LeCun et al. (1998), Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE 86,
        2278-2324, section II.B.

    Example:
        >>> import torch
        >>> from pyro_bnn import nets
        >>> net = nets.lenet5()
        >>> sum(parameter.numel() for parameter in net.parameters())
        61706
        >>> net(torch.zeros(2, 28, 28)).shape
        torch.Size([2, 10])
    """
    num_classes = _checks.at_least("num_classes", num_classes, 1)
    in_channels = _checks.at_least("in_channels", in_channels, 1)
    layers = OrderedDict[str, nn.Module]()
    layers.update({f"first{index}": module for index, module in enumerate(checked_modules("first", first))})
    layers["images"] = _Images(in_channels)
    layers["conv1"] = nn.Conv2d(in_channels, 6, 5, padding=2)
    layers["pool1"], layers["relu1"] = _MaxPool(2), nn.ReLU()  # in this order the ReLU has a quarter of the elements
    layers["conv2"] = nn.Conv2d(6, 16, 5)
    layers["pool2"], layers["relu2"], layers["flatten"] = _MaxPool(2), nn.ReLU(), nn.Flatten()
    num_in = 16 * 5 * 5
    for index, num_out in ((1, 120), (2, 84)):
        layers[f"linear{index}"], layers[f"relu{index + 2}"] = nn.Linear(num_in, num_out), nn.ReLU()
        if dropout is not None:
            layers[f"dropout{index}"] = MCDropout(dropout)
        num_in = num_out
    layers["linear3"] = nn.Linear(num_in, num_classes)
    return nn.Sequential(layers)


class _MaxPool(nn.MaxPool2d):
    """Max pooling over 2 x 2. On a CPU, and without gradients, it is four times faster than `nn.MaxPool2d`."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return super().forward(x)
        rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


class _Images(nn.Module):
    """Adds the channel axis to grey images, and checks the size of all images."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.shape = (num_channels, SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        images = x[:, None] if x.dim() == 3 and self.shape[0] == 1 else x
        if images.dim() != 4 or images.shape[1:] != self.shape:
            raise ValueError(
                f"`x` must be images of shape (N, {', '.join(map(str, self.shape))}), got {_checks.shape(x)}."
            )
        return images


def resnet20(
    *, num_classes: int = 10, in_channels: int = 3, width: int = 16, norm: Callable[[int], nn.Module] = nn.BatchNorm2d
) -> nn.Sequential:
    """Return the residual network of 20 layers for images of 32 x 32 pixels.

    A convolution is followed by three stages, the mean over all positions, and a linear layer. Each stage has three
    blocks of two convolutions, and each convolution is followed by batch normalisation, or by the layer that `norm`
    makes. The second and third stage double the channels, and halve height and width. Their shortcuts use every other
    position, and fill the new channels with zeros (option A of the article). Convolutions have no biases, and start as
    in He et al. (2015): normal with variance 2 / fan-in. Images may have any height and width.

    The modules are ``conv``, ``norm``, ``relu``, ``stage1`` to ``stage3``, ``pool``, ``flatten`` and ``linear``. A
    block has ``conv1``, ``norm1``, ``conv2`` and ``norm2``. In :class:`~pyro_bnn.BayesianModel`,
    ``where=["**.conv*.weight", "net.linear.*"]`` makes all parameters random except those of batch normalisation, and
    ``where="net.linear.*"`` only the last layer.

    Args:
        num_classes: Number of outputs, C.
        in_channels: Number of channels of the images, D.
        width: Number of channels of the first stage. 16, as in the article, gives 269,722 parameters.
        norm: Function from a number of channels to the layer after a convolution. The running statistics of batch
            normalisation belong to weights drawn in the fit, not to those drawn for a prediction.
            ``functools.partial(nn.GroupNorm, 8)`` makes layers without running statistics.

    Returns:
        A network from images of shape (N, D, H, W) to logits of shape (N, C).

    References:
        He et al. (2016), Deep Residual Learning for Image Recognition, https://arxiv.org/abs/1512.03385, section 4.2.
        He et al. (2015), Delving Deep into Rectifiers, https://arxiv.org/abs/1502.01852, for the initialisation.

    Example:
        >>> import torch
        >>> from pyro_bnn import nets
        >>> net = nets.resnet20()
        >>> sum(parameter.numel() for parameter in net.parameters())
        269722
        >>> net(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    num_classes = _checks.at_least("num_classes", num_classes, 1)
    in_channels, width = _checks.at_least("in_channels", in_channels, 1), _checks.at_least("width", width, 1)
    example = "a function from a number of channels to a layer, such as nn.BatchNorm2d"
    _checks.function("norm", norm, example)
    widths = [width * 2**stage for stage in range(NUM_STAGES)]
    start = {"conv": _convolution(in_channels, width), "norm": norm(width), "relu": nn.ReLU()}
    _checks.kind("norm", start["norm"], nn.Module, example)
    layers = OrderedDict[str, nn.Module](start)
    num_in = width
    for stage, num_out in enumerate(widths):
        numbers = (num_in, *[num_out] * BLOCKS_PER_STAGE)
        layers[f"stage{stage + 1}"] = nn.Sequential(*(_Block(*pair, norm) for pair in itertools.pairwise(numbers)))
        num_in = num_out
    layers.update(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), linear=nn.Linear(widths[-1], num_classes))
    return nn.Sequential(layers)


class _Block(nn.Module):
    """Two convolutions and a shortcut. If the number of channels changes, height and width are halved."""

    def __init__(self, num_in: int, num_out: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stride, self.num_new = 1 if num_in == num_out else 2, num_out - num_in
        self.conv1, self.norm1 = _convolution(num_in, num_out, self.stride), norm(num_out)
        self.conv2, self.norm2 = _convolution(num_out, num_out), norm(num_out)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(x)))
        shortcut = x
        if self.num_new:
            shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.num_new))
        return functional.relu(self.norm2(self.conv2(hidden)) + shortcut)


def _convolution(num_in: int, num_out: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(num_in, num_out, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return layer
