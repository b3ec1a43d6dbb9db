"""Corruptions of images, for measuring predictions on shifted data."""

import math

import torch
from torch import Tensor

from .._core import checks as _checks

# The constants of CIFAR-10-C, by strength: `gaussian_noise`, `gaussian_blur` and `contrast` of make_cifar_c.py in
# https://github.com/hendrycks/robustness. (The article has other constants, for larger images.)
NOISE_SCALES = (0.04, 0.06, 0.08, 0.09, 0.10)
BLUR_SCALES = (0.4, 0.6, 0.7, 0.8, 1.0)
CONTRASTS = (0.75, 0.5, 0.4, 0.3, 0.15)

BLUR_WIDTH = 4.0  # half-width of a blur's kernel, in standard deviations, as in scikit-image


def add_noise(x: Tensor, strength: int, *, seed: int = 0) -> Tensor:
    r"""Add independent Gaussian noise to every pixel, and clip the values to [0, 1].

    Args:
        x: Images with values in [0, 1], shape (..., H, W).
        strength: A number from 1 to 5, for noise with a standard deviation of 0.04, 0.06, 0.08, 0.09 or 0.10.
        seed: Seed of the noise.

    Raises:
        ValueError: If `x` does not hold such images, or `strength` is not from 1 to 5.

    References:
        Hendrycks and Dietterich (2019), Benchmarking Neural Network Robustness to Common Corruptions and Perturbations,
        https://arxiv.org/abs/1903.12261. The constants are those of CIFAR-10-C.

    Example:
        >>> import torch
        >>> from pyro_bnn import data
        >>> x = torch.full((1, 28, 28), 0.5)
        >>> round(float((data.add_noise(x, 5) - x).std()), 2)
        0.1
    """
    scale = _of_strength(x, strength, NOISE_SCALES)
    generator = torch.Generator().manual_seed(_checks.seed(seed))
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    return (x + scale * noise).clamp_(0, 1)


def blur(x: Tensor, strength: int) -> Tensor:
    r"""Blur images by a Gaussian. Beyond its edges, an image is continued by its outermost pixels.

    Args:
        x: Images with values in [0, 1], shape (..., H, W).
        strength: A number from 1 to 5, for a Gaussian with a standard deviation of 0.4, 0.6, 0.7, 0.8 or 1.0 pixels.

    Raises:
        ValueError: If `x` does not hold such images, or `strength` is not from 1 to 5.

    Example:
        >>> import torch
        >>> from pyro_bnn import data
        >>> x = torch.zeros(5, 5)
        >>> x[2, 2] = 1
        >>> round(float(data.blur(x, 5)[2, 2]), 3)  # 1 / (2 pi), nearly
        0.159
    """
    scale = _of_strength(x, strength, BLUR_SCALES)
    for axis in (-2, -1):
        x = x.movedim(axis, -1)
        x = (x @ _blurring(x.shape[-1], scale).to(x)).movedim(-1, axis)
    return x.clamp(0, 1)


def lower_contrast(x: Tensor, strength: int) -> Tensor:
    r"""Reduce the contrast of images: move the pixels of each channel towards their mean.

    Args:
        x: Images with values in [0, 1], shape (..., H, W).
        strength: A number from 1 to 5, which multiplies differences from the mean by 0.75, 0.5, 0.4, 0.3 or 0.15.

    Raises:
        ValueError: If `x` does not hold such images, or `strength` is not from 1 to 5.

    Example:
        >>> import torch
        >>> from pyro_bnn import data
        >>> data.lower_contrast(torch.tensor([[0.0, 1.0]]), 2)
        tensor([[0.2500, 0.7500]])
    """
    factor = _of_strength(x, strength, CONTRASTS)
    mean = x.mean((-2, -1), keepdim=True)
    return ((x - mean) * factor + mean).clamp_(0, 1)


def _of_strength(x: Tensor, strength: int, values: tuple[float, ...]) -> float:
    """Check the images and the strength, and return the entry of `values` for this strength."""
    _checks.finite("x", _checks.real_tensor("x", x))
    if x.dim() < 2 or not x.numel():
        raise ValueError(f"`x` must be images of shape (..., H, W), got shape {_checks.shape(x)}.")
    low, high = float(x.min()), float(x.max())
    if low < 0 or high > 1:
        raise ValueError(
            f"`x` must be images with values in [0, 1], got {low:g} to {high:g}; divide grey levels by 255."
        )
    strength = _checks.at_least("strength", strength, 1)
    if strength > len(values):
        raise ValueError(f"`strength` must be from 1 to {len(values)}, got {strength}.")
    return values[strength - 1]


def _blurring(size: int, scale: float) -> Tensor:
    """Return a matrix M such that ``row @ M`` blurs a row of pixels, in double precision."""
    radius = math.floor(BLUR_WIDTH * scale + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    kernel = (-0.5 * (offsets.double() / scale).square()).exp()
    kernel /= kernel.sum()
    matrix = torch.zeros(size, size, dtype=torch.double)
    for offset, weight in zip(offsets.tolist(), kernel, strict=True):
        to = torch.arange(size)
        matrix[(to + offset).clamp(0, size - 1), to] += weight
    return matrix
