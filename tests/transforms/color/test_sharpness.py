"""The sharpness of the automatic augmentations: torchvision's (D6)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms.color.adjustments import adjust_sharpness
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise

FACTORS = [0.01, 0.505, 1.0, 1.33, 1.99]


def columns(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).view(-1, 1, 1, 1)


@pytest.mark.parametrize("name", ["astronaut", "coffee", "rocket"])
def test_bytes_are_torchvisions(name: str) -> None:
    """D6: bit for bit, a factor for each image of a batch."""
    image = decoded(name)[:, :224, :201]
    made = adjust_sharpness(image.expand(len(FACTORS), -1, -1, -1), columns(FACTORS))
    for result, factor in zip(made, FACTORS, strict=True):
        assert torch.equal(result, F.adjust_sharpness(image, factor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_floats_are_torchvisions(dtype: torch.dtype) -> None:
    """D6: on CPUs with fused multiply-add to the bit for float32; here within a few last bits."""
    image = as_float(decoded("chelsea")[:, :97, :101]).to(dtype)
    made = adjust_sharpness(image.expand(len(FACTORS), -1, -1, -1), columns(FACTORS))
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-7, torch.float16: 4e-3}[dtype]
    for result, factor in zip(made, FACTORS, strict=True):
        expected = F.adjust_sharpness(image, factor)
        assert result.dtype is dtype
        torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("size", [*ODD_SIZES, (3, 3), (2, 9)])
@pytest.mark.parametrize("channels", [1, 3])
def test_odd_images(size: tuple[int, int], channels: int) -> None:
    """D6: too small ones stay as they are."""
    image = noise(*size, channels=channels)
    (made,) = adjust_sharpness(image[None], columns([1.7]))
    assert torch.equal(made, F.adjust_sharpness(image, 1.7))


def test_floats_stay_in_their_range() -> None:
    """D6: what is sharpened beyond black and white is cut off, as by torchvision."""
    image = as_float(noise(40, 40))
    made = adjust_sharpness(image.expand(2, -1, -1, -1), columns([1.9, 0.1]))
    assert (made[0].min(), made[0].max()) == (0.0, 1.0)
    torch.testing.assert_close(made[0], F.adjust_sharpness(image, 1.9), rtol=0, atol=1e-6)


def test_floats_are_blurred_in_reading_order_with_one_rounding_a_step() -> None:
    """Law 1: by exact fractions, so that no library's order of additions is in the result."""
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
    """D6: all levels next to all others, so that no sum that a level hangs on is left out."""
    levels = torch.arange(256, dtype=torch.uint8)
    image = torch.stack((levels.repeat(256, 1), levels[:, None].repeat(1, 256)), dim=-1)
    image = image.flatten(1)[None]
    for factor in torch.linspace(0, 2, 61).tolist():
        (made,) = adjust_sharpness(image[None], columns([factor]))
        assert torch.equal(made, F.adjust_sharpness(image, factor))


def test_threads_do_not_matter() -> None:
    """Law 1."""
    for image in (noise(641, 479), as_float(noise(641, 479))):
        torch.set_num_threads(1)
        alone = adjust_sharpness(image[None], columns([0.37]))
        torch.set_num_threads(2)
        assert torch.equal(adjust_sharpness(image[None], columns([0.37])), alone)


def test_two_channels_are_refused() -> None:
    """D6: as torchvision refuses them."""
    with pytest.raises(TypeError, match="2 channels"):
        adjust_sharpness(noise(4, 4, 2)[None], columns([0.5]))
