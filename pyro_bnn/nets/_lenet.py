"""The convolutional network LeNet-5."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from .._core import checks as _checks
from ._dense import checked_modules
from ._dropout import MCDropout

SIZE = 28


def lenet5(
    *, num_classes: int = 10, in_channels: int = 1, first: Sequence[nn.Module] = (), dropout: float | None = None
) -> nn.Sequential:
    """LeNet-5 for images of 28 x 28 pixels, in the form that is common today.

    It has two convolutions of 5 x 5 with 6 and 16 channels, the first with a padding of two pixels, each followed by a
    ReLU and max pooling over 2 x 2; then linear layers with 120 and 84 hidden units. The article has sigmoid units,
    average pooling over 2 x 2 with learned factors, a second convolution that is connected to only some channels, and
    outputs by distances.

    The modules with parameters are ``conv1``, ``conv2``, ``linear1``, ``linear2`` and ``linear3``; the others are
    ``images``, ``relu1`` to ``relu4``, ``pool1``, ``pool2`` and ``flatten``, ``dropout1`` and ``dropout2`` after the
    hidden linear layers, and ``first0``, ``first1``, ... for the modules in `first`.

    Args:
        num_classes: Number of outputs, C.
        in_channels: Number of channels of the images, D: 1 for grey images, 3 in colour.
        first: Modules put before the first layer, such as :class:`Standardize`.
        dropout: Probability of an :class:`MCDropout` after each hidden linear layer; None for no dropout.

    Returns:
        A network from images of shape (N, D, 28, 28), or (N, 28, 28) for grey images, to logits of shape (N, C).

    References:
        LeCun et al. (1998), Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE 86,
        2278-2324, section II.B.

    Example:
        >>> import torch
        >>> net = lenet5()
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
    layers["relu1"], layers["pool1"] = nn.ReLU(), nn.MaxPool2d(2)
    layers["conv2"] = nn.Conv2d(6, 16, 5)
    layers["relu2"], layers["pool2"], layers["flatten"] = nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    num_in = 16 * 5 * 5
    for index, num_out in ((1, 120), (2, 84)):
        layers[f"linear{index}"], layers[f"relu{index + 2}"] = nn.Linear(num_in, num_out), nn.ReLU()
        if dropout is not None:
            layers[f"dropout{index}"] = MCDropout(dropout)
        num_in = num_out
    layers["linear3"] = nn.Linear(num_in, num_classes)
    return nn.Sequential(layers)


class _Images(nn.Module):
    """Adds the channel axis to grey images; raises unless images have 28 x 28 pixels."""

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
