"""Bytes of one image on a CPU: every sum rounded once to float64 and once to float32."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import ColorJitter
from stateful_gpu_loader.transforms.color import levels
from stateful_gpu_loader.transforms.color.adjustments import (
    adjust_contrast,
    adjust_saturation,
    to_grey,
)
from stateful_gpu_loader.transforms.color.hue import adjust_hue
from tests.transforms.pictures import decoded, noise

Floats = npt.NDArray[np.float32]

FACTORS = [
    *np.random.default_rng(0).uniform(0.6, 1.4, 20).tolist(),
    *np.random.default_rng(1).uniform(0, 4, 10).tolist(),
    *(i / 12 for i in range(0, 37, 3)),
    *(1 + sign * 2.0**-bits for sign in (-1, 1) for bits in range(3, 54, 5)),
    *(2.0**-bits for bits in range(10, 150, 20)),
    *(0.1, 0.9, 1.1, 255.0, 1e6, 1e30, 1e38),
]
MANY_COLORS = torch.randint(
    0, 256, (3, 90, 101), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
)
GREYS = torch.arange(256, dtype=torch.uint8).expand(3, 2, 256)


def rounded_sum(pixels: Floats, others: Floats, weight: float) -> Floats:
    weights = np.float64(np.float32(weight))
    return (pixels.astype(np.float64) + others.astype(np.float64) * weights).astype(np.float32)


def grey_by_definition(image: Floats) -> Floats:
    if image.shape[0] == 1:
        return image
    red, green, blue = image
    sums = rounded_sum(red * np.float32(0.2989), green, 0.587)
    return np.floor(rounded_sum(sums, blue, 0.114))[None]


@np.errstate(over="ignore")
def blended(image: Floats, other: Floats, factor: float) -> Floats:
    sums = rounded_sum(image * np.float32(factor), other, 1.0 - factor)
    return np.floor(np.clip(sums, 0, 255))


def contrast_by_definition(image: Tensor, factor: float) -> Tensor:
    pixels = image.numpy().astype(np.float32)
    mean = np.float32(grey_by_definition(pixels).astype(np.float64).mean())
    return torch.from_numpy(blended(pixels, mean[None], factor)).to(torch.uint8)


def saturation_by_definition(image: Tensor, factor: float) -> Tensor:
    pixels = image.numpy().astype(np.float32)
    return torch.from_numpy(blended(pixels, grey_by_definition(pixels), factor)).to(torch.uint8)


def test_grey_of_every_color() -> None:
    """All greens and blues, with the reds where a sum may lie next to a whole number.

    These are the multiples of 10. Three colors differ if the large parts of green and blue are
    added first. With other reds no rounding shows, so torchvision's grey is the same.
    """
    all_levels = np.arange(256, dtype=np.float32)
    image = np.empty((3, 256, 256), np.float32)
    image[1], image[2] = all_levels[:, None], all_levels
    for red in (*range(0, 256, 10), 3, 99, 195, 243, 255):
        image[0] = red
        given = torch.from_numpy(image).to(torch.uint8)
        made = to_grey(given)
        assert np.array_equal(made.numpy(), grey_by_definition(image)), red
        assert red % 5 == 0 or torch.equal(made, F.rgb_to_grayscale(given))


@pytest.mark.parametrize("factor", FACTORS)
def test_contrast_and_saturation(factor: float) -> None:
    """Every level, all kinds of factors, and greys, whose sums are next to whole numbers."""
    for image in (MANY_COLORS, GREYS, MANY_COLORS // 100):
        for picked in (image[:1], image):
            expected = contrast_by_definition(picked, factor)
            assert torch.equal(adjust_contrast(picked, factor), expected)
        expected = saturation_by_definition(image, factor)
        assert torch.equal(adjust_saturation(image, factor), expected)


def test_contrast_of_a_flat_image() -> None:
    """All levels: the sums are next to whole numbers, where one rounding more can be seen."""
    one_by_one = set()
    for level, factor in itertools.product(range(256), FACTORS[:8]):
        image = torch.full((1, 1, 1), level, dtype=torch.uint8)
        expected = contrast_by_definition(image, factor)
        assert torch.equal(adjust_contrast(image, factor), expected)
        addend = level * float(np.float32(1.0 - factor))
        one_by_one.add(levels._is_rounded_alike(factor, addend))
    assert one_by_one == {True, False}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_changes_in_any_order(order: Sequence[int]) -> None:
    """Each starts from the bytes that the one before has made."""
    factors = [1.3, 0.7, 1.4, 0.05]
    image = decoded("coffee")[:, :97, :101]
    expected = image
    for operation in order:
        factor = factors[operation]
        if operation == 0:
            products = expected.numpy().astype(np.float32) * np.float32(factor)
            expected = torch.from_numpy(np.clip(products, 0, 255)).to(torch.uint8)
        elif operation == 3:
            expected = adjust_hue(expected, factor)
        else:
            define = (contrast_by_definition, saturation_by_definition)[operation - 1]
            expected = define(expected, factor)
    before = image.clone()
    made = ColorJitter(0.9, 0.9, 0.9, 0.5).apply(image, [*order, *factors])
    assert torch.equal(made, expected)
    assert torch.equal(image, before)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_blocks_and_threads_do_not_show(num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    for size in ((1, 1), (1, 70_000), (70_000, 1), (400, 301)):
        image = noise(*size)
        assert torch.equal(adjust_saturation(image, 1.37), saturation_by_definition(image, 1.37))
        assert torch.equal(adjust_contrast(image, 1.37), contrast_by_definition(image, 1.37))
