"""Convolutional networks: LeNet-5, and the residual network of 20 layers."""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._core import checks as _checks
from ._layers import MCDropout, checked_modules

SIZE = 28

NUM_STAGES, BLOCKS_PER_STAGE = 3, 3


def lenet5(
    *, num_classes: int = 10, in_channels: int = 1, first: Sequence[nn.Module] = (), dropout: float | None = None
) -> nn.Sequential:
    """Return LeNet-5 for images of 28 x 28 pixels, in the form that is common today.

    The network has two convolutions of 5 x 5 with 6 and 16 channels. The first convolution has a padding of two pixels.
    Each convolution is followed by max pooling over 2 x 2 and a ReLU. After the convolutions come linear layers with
    120 and 84 hidden units. The network in the article differs: it has sigmoid units, average pooling over 2 x 2 with
    learned factors, a second convolution that is connected to only some channels, and outputs that are distances.

    The modules with parameters are ``conv1``, ``conv2``, ``linear1``, ``linear2`` and ``linear3``. The modules without
    parameters are ``images``, ``relu1`` to ``relu4``, ``pool1``, ``pool2`` and ``flatten``. With `dropout`, the modules
    ``dropout1`` and ``dropout2`` come after the hidden linear layers. The modules in `first` are called ``first0``,
    ``first1``, ...

    Args:
        num_classes: Number of outputs, C.
        in_channels: Number of channels of the images, D: 1 for grey images, 3 for colour images.
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
    """Max pooling over 2 x 2; without gradients four times faster on a CPU than `nn.MaxPool2d`."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return super().forward(x)
        rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


class _Images(nn.Module):
    """A module that adds the channel axis to grey images, and raises an error if images do not have 28 x 28 pixels."""

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

    The network consists of a convolution, three stages, the mean over all positions, and a linear layer. Each stage has
    three blocks of two convolutions. Batch normalisation, or the layer `norm`, follows every convolution. The second
    and third stage double the number of channels, and halve the height and width. The shortcuts have no parameters:
    where the channels double, a shortcut uses every other position and fills the new channels with zeros (option A of
    the article). Convolutions have no biases, and are initialised as in He et al. (2015): normal with variance 2 /
    fan-in. Images may have any height and width.

    The modules are ``conv``, ``norm``, ``relu``, ``stage1`` to ``stage3``, ``pool``, ``flatten`` and ``linear``. A
    block has the modules ``conv1``, ``norm1``, ``conv2`` and ``norm2``. In :class:`~pyro_bnn.BayesianModel`,
    ``where=["**.conv*.weight", "net.linear.*"]`` makes all parameters random except those of batch normalisation, and
    ``where="net.linear.*"`` makes only the last layer random.

    Args:
        num_classes: Number of outputs, C.
        in_channels: Number of channels of the images, D: 3 for colour images, 1 for grey images.
        width: Number of channels of the first stage. With a width of 16, as in the article, there are 269,722
            parameters.
        norm: Function that takes a convolution's number of output channels and returns the layer that follows the
            convolution. Batch normalisation uses running statistics, which come from the weight draws of the fit and
            not from the weight draws of a prediction; ``functools.partial(nn.GroupNorm, 8)`` makes layers without
            running statistics.

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
    """Two convolutions and a shortcut. A block that changes the number of channels halves the height and width."""

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
