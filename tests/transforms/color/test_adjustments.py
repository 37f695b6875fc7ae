"""Hue, levels and sharpness for an image or a batch: torchvision's, bit for bit."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import ColorJitter
from stateful_gpu_loader.transforms.color.adjustments import (
    adjust_contrast,
    adjust_saturation,
    adjust_sharpness,
    autocontrast,
    equalize,
    posterize,
    solarize,
)
from stateful_gpu_loader.transforms.color.hue import adjust_hue
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise

BYTES = [decoded("coffee")[:, :99, :101], noise(7, 5), noise(1, 1), noise(37, 53) // 2 + 20]
IMAGES = [*BYTES, *map(as_float, BYTES), as_float(BYTES[0]).half(), as_float(BYTES[0]).double()]
every_image = pytest.mark.parametrize("image", IMAGES, ids=lambda i: f"{i.dtype} {list(i.shape)}")


def columns(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).view(-1, 1, 1, 1)


@every_image
def test_levels_and_thresholds_are_torchvisions(image: Tensor) -> None:
    """Each image of a batch has its own number of bits, and its own threshold, exact levels too."""
    before = image.clone()
    posterized = posterize(image.expand(9, -1, -1, -1), columns([2.0**bits for bits in range(9)]))
    for bits, made in enumerate(posterized):
        assert torch.equal(made, F.posterize(image, bits))
    shares = [*torch.linspace(1.0, 0.0, 31).tolist(), 128 / 255, 20 / 255]
    brightest = 1.0 if image.is_floating_point() else 255.0
    solarized = solarize(image.expand(len(shares), -1, -1, -1), columns(shares))
    for share, made in zip(shares, solarized, strict=True):
        assert torch.equal(made, F.solarize(image, brightest * share))
    autocontrast(image[None])
    equalize(image[None])
    assert torch.equal(image, before)


def test_normalized_floats() -> None:
    """Outside [0, 1] too, as with torchvision."""
    image = as_float(noise(9, 9)) * 4 - 2
    (posterized,) = posterize(image[None], columns([8.0]))
    assert torch.equal(posterized, F.posterize(image, 3))
    assert torch.equal(solarize(image[None], columns([0.3]))[0], F.solarize(image, 0.3))
    assert torch.equal(autocontrast(image[None])[0], F.autocontrast(image))


def flat_and_others() -> Tensor:
    """Return bytes [4, 3, 8, 8]: one level; one level in a channel; two levels; noise."""
    flat = torch.full((3, 8, 8), 77, dtype=torch.uint8)
    two = flat.clone()
    two[:, :3] = 200
    mixed = noise(8, 8).contiguous()
    mixed[1] = 0
    return torch.stack([flat, mixed, two, noise(8, 8, seed=4)])


@pytest.mark.parametrize("operation", ["autocontrast", "equalize"])
def test_each_image_is_judged_alone(operation: str) -> None:
    """Flat images and channels stay as they are, whatever their neighbours are like."""
    function = {"autocontrast": autocontrast, "equalize": equalize}[operation]
    reference = getattr(F, operation)
    flat = flat_and_others()
    for images in (flat, as_float(flat).half(), as_float(flat)):
        made = function(images)
        for image, result in zip(images, made, strict=True):
            assert torch.equal(result, reference(image))
    assert torch.equal(made[0], as_float(flat)[0])


def test_two_channels_are_refused() -> None:
    """torchvision refuses them, too."""
    with pytest.raises(TypeError, match="2 channels"):
        autocontrast(noise(4, 4, 2)[None])
    with pytest.raises(TypeError, match="2 channels"):
        adjust_sharpness(noise(4, 4, 2)[None], columns([0.5]))
    for adjust in (adjust_contrast, adjust_saturation, adjust_hue):
        with pytest.raises(TypeError, match="2 channels"):
            adjust(noise(4, 4, 2), 0.5)


SIXTHS = [i / 6 for i in range(-3, 4)]


@pytest.mark.parametrize("shift", [*SIXTHS, 0.1, -0.037, 0.4999])
def test_the_hue_of_all_kinds_of_color(shift: float) -> None:
    """Bit for bit for greys, primaries, ties, and one color in 320."""
    levels = torch.arange(256, dtype=torch.uint8)
    greens, blues = levels.view(1, -1, 1), levels.view(1, 1, -1)
    for red in (0, 1, 100, 254, 255):
        reds = torch.full((1, 256, 256), red, dtype=torch.uint8)
        image = torch.cat([reds, greens.expand(1, 256, 256), blues.expand(1, 256, 256)])
        assert torch.equal(adjust_hue(image, shift), F.adjust_hue(image, shift))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(shift=st.floats(-0.5, 0.5), seed=st.integers(0, 1000), size=st.sampled_from(ODD_SIZES))
def test_any_shift_of_the_hue(shift: float, seed: int, size: tuple[int, int]) -> None:
    """Bit for bit, on bytes and floats."""
    image = noise(*size, seed=seed)
    assert torch.equal(adjust_hue(image, shift), F.adjust_hue(image, shift))
    image = torch.rand(3, *size, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(adjust_hue(image, shift), F.adjust_hue(image, shift))


def test_a_hue_keeps_other_floats_and_single_channels() -> None:
    for dtype in (torch.float16, torch.float64):
        image = as_float(decoded("coffee")[:, :50, :50]).to(dtype)
        made = adjust_hue(image, 0.2)
        assert made.dtype is dtype
        assert torch.equal(made, F.adjust_hue(image, 0.2))
    grey = noise(5, 5, channels=1)
    assert adjust_hue(grey, 0.3) is grey


FACTORS = [0.01, 0.505, 1.0, 1.33, 1.99]


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.uint8, 0.0), (torch.float32, 1e-6), (torch.float64, 1e-7), (torch.float16, 4e-3)],
)
def test_sharp_images_are_torchvisions(dtype: torch.dtype, tolerance: float) -> None:
    """Bytes bit for bit, floats within a few last bits; a factor for each image of a batch."""
    image = decoded("chelsea")[:, :97, :101]
    image = as_float(image).to(dtype) if dtype.is_floating_point else image
    made = adjust_sharpness(image.expand(len(FACTORS), -1, -1, -1), columns(FACTORS))
    for result, factor in zip(made, FACTORS, strict=True):
        expected = F.adjust_sharpness(image, factor)
        assert result.dtype is dtype
        torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)


def test_images_that_are_too_small_stay_unchanged() -> None:
    for size in ((1, 1), (1, 7), (2, 9), (9, 2), (3, 3)):
        for channels in (1, 3):
            image = noise(*size, channels=channels)
            (made,) = adjust_sharpness(image[None], columns([1.7]))
            assert torch.equal(made, F.adjust_sharpness(image, 1.7))
            assert torch.equal(made, image) == (size != (3, 3))


def test_floats_are_blurred_in_reading_order_with_one_rounding_a_step() -> None:
    """By exact fractions, so that the result depends on no library's order of additions."""
    edge, middle = np.float32(1 / 13), np.float32(5 / 13)
    for image in torch.rand(50, 1, 3, 3, generator=torch.Generator().manual_seed(0)):
        blurred = np.float32(0)
        weights = [edge] * 4 + [middle] + [edge] * 4
        for pixel, weight in zip(image.flatten().tolist(), weights, strict=True):
            exact = Fraction(float(blurred)) + Fraction(pixel) * Fraction(float(weight))
            blurred = np.float32(float(exact))
        (made,) = adjust_sharpness(image[None], columns([0.0]))
        middle_pixel = image[0, 1, 1].numpy()
        assert made[0, 1, 1].item() == np.float32(middle_pixel + (blurred - middle_pixel))


def test_every_level_is_blended_as_by_torchvision() -> None:
    """All levels next to all others, so that every critical sum occurs."""
    levels = torch.arange(256, dtype=torch.uint8)
    image = torch.stack((levels.repeat(256, 1), levels[:, None].repeat(1, 256)), dim=-1)
    image = image.flatten(1)[None]
    for factor in torch.linspace(0, 2, 61).tolist():
        (made,) = adjust_sharpness(image[None], columns([factor]))
        assert torch.equal(made, F.adjust_sharpness(image, factor))


def test_contrast_blends_with_the_exact_mean() -> None:
    """97 * 1601 * 1743 is no float32; with float32 the mean would fall to 96.99999."""
    for height, width in ((1601, 1743), (1, 1601 * 1743)):
        image = torch.full((1, height, width), 97, dtype=torch.uint8)
        assert (adjust_contrast(image, 0.0) == 97).all()


@pytest.mark.parametrize("arguments", [{}, {"brightness": 2.0}, {"brightness": (0.5, 3)}])
def test_ranges_are_torchvisions(arguments: dict[str, Any]) -> None:
    """One number, a pair, None, and a range that changes nothing."""
    names = ("contrast", "saturation", "hue")
    for name, value in itertools.product(names, (0.3, (0.1, 0.2), 0, None)):
        recipe = ColorJitter(**arguments, **{name: value})
        reference = v2.ColorJitter(**arguments, **{name: value})
        for attribute in ("brightness", *names):
            assert getattr(recipe, attribute) == getattr(reference, attribute)
