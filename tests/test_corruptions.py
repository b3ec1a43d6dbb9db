"""Corruptions of images: their size by strength, and what they leave unchanged."""

import itertools

import numpy as np
import pytest
import torch
from scipy import ndimage

from pyro_bnn.data import add_noise, blur, lower_contrast

from .tolerances import IDENTITY, STANDARD_ERRORS, agrees_in_mean

ALL = [add_noise, blur, lower_contrast]


def pictures(count=200):
    """Smooth images of many grey levels, some of them 0 and 1, shape (N, 3, 12, 9)."""
    coarse = torch.rand(count, 3, 4, 3)
    return torch.nn.functional.interpolate(coarse, size=(12, 9), mode="bilinear").mul(1.6).sub(0.3).clamp(0, 1)


@pytest.mark.parametrize("corrupt", ALL)
def test_a_greater_strength_is_farther_from_the_image(corrupt):
    x = pictures()
    before = x.clone()
    distances = []
    for strength in range(1, 6):
        corrupted = corrupt(x, strength)
        assert corrupted.shape == x.shape
        assert corrupted.dtype == x.dtype
        assert 0 <= float(corrupted.min()) <= float(corrupted.max()) <= 1
        distances.append((corrupted - x).flatten(1).norm(dim=1))
    assert all(bool((far > near).all()) for near, far in itertools.pairwise(distances))
    assert torch.equal(x, before)
    single = x.float()[0, 0]
    torch.testing.assert_close(corrupt(single[None], 3)[0], corrupt(single, 3))
    assert corrupt(single, 3).dtype == torch.float32


@pytest.mark.parametrize(("strength", "scale"), list(enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1)))
def test_noise_has_the_scale_of_its_strength(strength, scale):
    noise = (add_noise(torch.full((100, 28, 28), 0.5), strength) - 0.5).flatten()
    assert agrees_in_mean(noise, 0.0)
    assert agrees_in_mean(noise.square(), scale**2)
    assert not agrees_in_mean(noise.square(), (1.05 * scale) ** 2)
    pairs = noise[:-1] * noise[1:]
    assert abs(float(pairs.mean())) < STANDARD_ERRORS * float(pairs.std()) / len(pairs) ** 0.5


def test_noise_follows_its_seed_alone():
    x = pictures()
    first = add_noise(x, 2, seed=1)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert torch.equal(add_noise(x, 2, seed=1), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(add_noise(x, 2, seed=2), first)


@pytest.mark.parametrize(("strength", "scale"), list(enumerate((0.4, 0.6, 0.7, 0.8, 1.0), start=1)))
def test_blur_is_that_of_scipy(strength, scale):
    x = pictures(3)
    expected = ndimage.gaussian_filter(x.numpy(), (0, 0, scale, scale), mode="nearest", truncate=4.0)
    torch.testing.assert_close(blur(x, strength), torch.from_numpy(expected), **IDENTITY)
    other = ndimage.gaussian_filter(x.numpy(), (0, 0, scale, scale), mode="constant", truncate=4.0)
    assert np.abs(blur(x, strength).numpy() - other).max() > 0.05


@pytest.mark.parametrize(("strength", "factor"), list(enumerate((0.75, 0.5, 0.4, 0.3, 0.15), start=1)))
def test_contrast_keeps_the_mean_of_every_image_and_colour(strength, factor):
    x = pictures()
    flat = lower_contrast(x, strength)
    torch.testing.assert_close(flat.mean((-2, -1)), x.mean((-2, -1)), **IDENTITY)
    torch.testing.assert_close(flat.std((-2, -1)), factor * x.std((-2, -1)), **IDENTITY)


@pytest.mark.parametrize("corrupt", ALL)
def test_what_is_no_image_and_no_strength_is_named(corrupt):
    x = torch.rand(2, 5, 5)
    for strength, got in ((0, "0"), (6, "6"), (1.5, "1.5"), (True, "True")):
        with pytest.raises(ValueError, match=f"`strength` must be .*got {got}"):
            corrupt(x, strength)
    with pytest.raises(ValueError, match=r"`x` must be floating point, got torch\.uint8"):
        corrupt((255 * x).byte(), 1)
    with pytest.raises(ValueError, match=r"values in \[0, 1\], got 2 to 200; divide grey levels by 255"):
        corrupt(torch.tensor([[2.0, 200.0]]), 1)
    with pytest.raises(ValueError, match=r"`x` must be images .*got shape \(5,\)"):
        corrupt(torch.rand(5), 1)
